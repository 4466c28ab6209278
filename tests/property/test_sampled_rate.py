"""The fast rate against a straightforward port of Kafka's, bit for bit, over histories that hypothesis makes up."""

import math
import struct

from hypothesis import example, given
from hypothesis import strategies as st
from tests.oracles.sampled_rate import PortedRate

from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.throttle import MAX_INT64

START_MS = 1_700_000_000_000

windows = st.sampled_from([1, 7, 250, 1000, 30_000])
whole = st.integers(min_value=-(10**6), max_value=10**9).map(float)
fractions = st.floats(min_value=-1e6, max_value=1e12, allow_nan=False)
large = st.sampled_from([2.0**52, 2.0**53, 2.0**53 - 1, -(2.0**53), 1e18, 1e300, -0.0, 5e-324, 0.1])
bounds = st.one_of(
    st.floats(min_value=0.0, max_value=1e9), st.sampled_from([0.0, 1.0, 1000.0, float(2**63 - 1), math.inf])
)
odd_bounds = st.sampled_from([math.nan, -1.0, -math.inf, -0.0])


@st.composite
def histories(draw: st.DrawFn, values: st.SearchStrategy[float]) -> tuple[dict, list]:
    """Return the settings of a rate and a list of (operation, value, ms since the one before)."""
    samples, window_ms = draw(st.sampled_from([1, 2, 3, 4, 11])), draw(windows)
    steps = st.one_of(
        st.integers(0, 5),
        st.integers(0, 2 * window_ms),
        st.sampled_from([window_ms, window_ms - 1, samples * window_ms, samples * window_ms - 1]),
        st.integers(0, 3 * samples * window_ms),
        st.integers(-2 * samples * window_ms, 0),
    )
    operations = st.sampled_from(["decide", "decide", "decide", "record", "measure", "window_ms"])
    bound = draw(st.one_of(bounds, bounds, odd_bounds))
    cap_ms = draw(st.sampled_from([MAX_INT64, window_ms]))
    settings = {"samples": samples, "window_ms": window_ms, "bound": bound, "cap_ms": cap_ms}
    return settings, draw(st.lists(st.tuples(operations, values, steps), max_size=60))


def _bits(value: float | int) -> object:
    if isinstance(value, int):
        return value
    return "NaN" if math.isnan(value) else struct.pack(">d", value)


def _play(rate: SampledRate | PortedRate, steps: list) -> list:
    """Return the result of each step; numbers as bits."""
    now_ms, results = START_MS, []
    for operation, value, step_ms in steps:
        now_ms += step_ms
        arguments = (value, now_ms) if operation in ("decide", "record") else (now_ms,)
        result = getattr(rate, operation)(*arguments)
        results.append(None if result is None else _bits(result))
    return results


@given(histories(whole))
def test_whole_values_equal_the_port(history: tuple[dict, list]) -> None:
    """With whole values, where sums are kept running, every answer has the port's bits."""
    settings, steps = history
    assert _play(SampledRate(**settings), steps) == _play(PortedRate(**settings), steps)


@given(histories(fractions))
def test_fractional_values_equal_the_port(history: tuple[dict, list]) -> None:
    """With fractions, where the order of adding shows, every answer has the port's bits."""
    settings, steps = history
    assert _play(SampledRate(**settings), steps) == _play(PortedRate(**settings), steps)


@given(histories(st.one_of(whole, fractions, large)))
@example(
    (
        {"samples": 3, "window_ms": 7, "bound": 1.0, "cap_ms": MAX_INT64},
        [("record", 2.0**53, 0), ("record", 1.0, 7), ("record", 0.5, 7), ("decide", -(2.0**53), 7)],
    )
)
def test_values_beyond_exact_sums_equal_the_port(history: tuple[dict, list]) -> None:
    """Whole values beyond 2**53, tiny ones and mixtures have the port's bits too."""
    settings, steps = history
    assert _play(SampledRate(**settings), steps) == _play(PortedRate(**settings), steps)


@given(histories(st.one_of(whole, fractions)), st.lists(st.integers(-50_000, 50_000), max_size=5))
def test_peeks_change_nothing_and_foresee_measuring(
    history: tuple[dict, list], offsets_ms: list[int]
) -> None:
    """Any number of peeks at any time leaves every later answer as it is; a peek is what measuring would give."""
    settings, steps = history
    peeked, alone = SampledRate(**settings), SampledRate(**settings)
    now_ms = START_MS
    for operation, value, step_ms in steps:
        now_ms += step_ms
        for offset_ms in offsets_ms:
            peeked.peek(now_ms + offset_ms)
        foreseen = peeked.peek(now_ms)
        arguments = (value, now_ms) if operation in ("decide", "record") else (now_ms,)
        result = getattr(peeked, operation)(*arguments)
        assert result == getattr(alone, operation)(*arguments) or result != result
        if operation == "measure":
            assert _bits(foreseen) == _bits(result)
    assert peeked.last_record_ms() == alone.last_record_ms()


@given(histories(whole), st.data())
def test_new_bounds_and_windows_count_from_the_next_call(
    history: tuple[dict, list], data: st.DataObject
) -> None:
    """Bounds, numbers of samples and windows that change on the way give the port's bits."""
    settings, steps = history
    rate, port = SampledRate(**settings), PortedRate(**settings)
    now_ms = START_MS
    for operation, value, step_ms in steps:
        now_ms += step_ms
        if data.draw(st.booleans(), label="change"):
            samples, window_ms, bound = data.draw(st.tuples(st.integers(1, 12), windows, bounds))
            rate.configure(samples=samples, window_ms=window_ms, bound=bound, cap_ms=settings["cap_ms"])
            port.n, port.w, port.bound = samples, window_ms, bound
        arguments = (value, now_ms) if operation in ("decide", "record") else (now_ms,)
        result, expected = getattr(rate, operation)(*arguments), getattr(port, operation)(*arguments)
        assert result == expected or _bits(result) == _bits(expected)
