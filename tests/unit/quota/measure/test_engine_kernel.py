"""The compiled functions against the plain ones, cell by cell."""

import ast
import inspect
import math

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.quota.measure import bucket_kernel, rate_kernel, throttle
from tidegate.quota.measure.engine_kernel import KERNEL, compile_kernel
from tidegate.quota.measure.throttle import MAX_INT64

ENTITY = 1  # not the first row, so that a row's offset counts
bounds = st.sampled_from([0.0, -0.0, 1.0, 0.1, 1000.0, -1.0, math.nan, math.inf, float(2**63 - 1)])
values = st.one_of(
    st.integers(-1000, 10**9).map(float), st.floats(-1e6, 1e12), st.sampled_from([2.0**53, 1e300])
)


@pytest.fixture(scope="module")
def compiled() -> object:
    """All functions, compiled once: that takes some seconds."""
    return compile_kernel(numba.njit)


def test_modules_agree_on_every_name() -> None:
    """The compiled functions share one namespace: a name must mean the same in all their modules."""
    meanings: dict[str, object] = {}
    for module in (throttle, rate_kernel, bucket_kernel):
        names = {
            node.id for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Name)
        }
        for name in names & vars(module).keys() - {"__all__"}:
            assert meanings.setdefault(name, vars(module)[name]) == vars(module)[name], name


def test_every_function_is_compiled_under_its_name(compiled: object) -> None:
    """The namespace has what `KERNEL` lists, and nothing is left in plain Python."""
    assert vars(compiled).keys() == {function.__name__ for function in KERNEL}
    assert all(isinstance(function, numba.core.dispatcher.Dispatcher) for function in vars(compiled).values())


@given(
    st.sampled_from([1, 2, 3, 11]),
    st.sampled_from([1, 250, 1000]),
    bounds,
    st.lists(
        st.tuples(
            st.sampled_from(["rate_decide", "rate_record", "rate_measure", "rate_window_ms", "rate_peek"]),
            values,
            st.integers(-3000, 13_000),
        ),
        max_size=40,
    ),
)
def test_rates_are_equal_cell_by_cell(
    compiled: object, samples: int, window_ms: int, bound: float, steps: list
) -> None:
    """After every operation both forms have answered alike, and their rows end up with equal cells."""
    floats, ints = rate_kernel.rate_state(samples)
    float_rows = np.zeros((3, len(floats)))
    int_rows = np.zeros((3, len(ints)), np.int64)
    rows = float_rows[ENTITY], int_rows[ENTITY]
    for kernel, (to_floats, to_ints) in ((rate_kernel, (floats, ints)), (compiled, rows)):
        kernel.rate_configure(to_floats, to_ints, bound, samples, window_ms, MAX_INT64)
    now_ms = 1_700_000_000_000
    for operation, value, step_ms in steps:
        now_ms += step_ms
        arguments = (value, now_ms) if operation in ("rate_decide", "rate_record") else (now_ms,)
        plain = getattr(rate_kernel, operation)(floats, ints, *arguments)
        fast = getattr(compiled, operation)(*rows, *arguments)
        assert plain == fast or (plain != plain and fast != fast)
    np.testing.assert_array_equal(np.array(floats), rows[0])
    np.testing.assert_array_equal(np.array(ints), rows[1])
    assert not float_rows[[0, 2]].any()
    assert not int_rows[[0, 2]].any()


@given(bounds, st.lists(st.tuples(st.booleans(), values, st.integers(-3000, 13_000)), max_size=30))
def test_buckets_are_equal_cell_by_cell(compiled: object, rate: float, steps: list) -> None:
    """Tokens and throttle times are equal after every record, and so are the rows."""
    floats, ints = bucket_kernel.bucket_state()
    rows = np.zeros(len(floats)), np.zeros(len(ints), np.int64)
    bucket_kernel.bucket_configure(floats, ints, rate, 10, 1000)
    compiled.bucket_configure(*rows, rate, 10, 1000)
    now_ms = 1_700_000_000_000
    for records, value, step_ms in steps:
        now_ms += step_ms
        if records:
            bucket_kernel.bucket_record(floats, ints, value, now_ms)
            compiled.bucket_record(*rows, value, now_ms)
        plain = bucket_kernel.bucket_throttle_ms(floats, ints, now_ms)
        assert plain == compiled.bucket_throttle_ms(*rows, now_ms)
    np.testing.assert_array_equal(np.array(floats), rows[0])
    np.testing.assert_array_equal(np.array(ints), rows[1])


@given(st.floats(), bounds, st.integers(1, 10**9))
def test_throttle_times_are_equal(compiled: object, rate: float, bound: float, window_ms: int) -> None:
    """Rounding, saturation, division by zero and narrowing come out alike."""
    plain = throttle.rate_throttle_ms(rate, bound, window_ms)
    assert compiled.rate_throttle_ms(rate, bound, window_ms) == plain
    assert compiled.narrow_to_int32(plain) == throttle.narrow_to_int32(plain)
    assert compiled.tokens_throttle_ms(rate, bound) == throttle.tokens_throttle_ms(rate, bound)
