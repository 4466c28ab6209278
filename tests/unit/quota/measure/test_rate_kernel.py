"""The rate over flat rows: the layout that compiled callers rely on, and the cells that are named by number."""

import ast
import inspect
import re

import pytest

from tidegate.quota.measure import rate_kernel
from tidegate.quota.measure.rate_kernel import (
    BOUND,
    FLOAT_SLOTS,
    INT_SLOTS,
    LONG_AGO_MS,
    rate_configure,
    rate_decide,
    rate_last_record_ms,
    rate_measure,
    rate_record,
    rate_state,
    rate_window_ms,
)
from tidegate.quota.measure.throttle import MAX_INT64


def _rate(samples: int = 11, bound: float = 2.0) -> tuple[list[float], list[int]]:
    floats, ints = rate_state(samples)
    rate_configure(floats, ints, bound, samples, 1000, MAX_INT64)
    return floats, ints


def _numbered_cells() -> list[tuple[str, int, list[str]]]:
    """Return (row, number, names in the comment) of every cell of the hot functions that is named by number."""
    found = []
    for function in (rate_kernel.rate_record, rate_kernel.rate_decide, rate_kernel.rate_verdict):
        for line in inspect.getsource(function).splitlines():
            numbers = re.findall(r"(floats|ints)\[(\d+)\]", line)
            names = re.findall(r"[A-Z_]{3,}", line.partition("#")[2])
            found += [(row, int(number), names) for row, number in numbers]
    return found


@pytest.mark.parametrize(("row", "number", "names"), _numbered_cells())
def test_numbered_cells_are_the_ones_their_comments_name(row: str, number: int, names: list[str]) -> None:
    """A number in the hot functions is the index that the line's comment names, or one named just before."""
    of_row = {
        "floats": ["SUM", "ROOM", "OTHERS", "EXACT", "BOUND", "CALM"],
        "ints": ["DUE", "LAST", "START", "SLOT", "USED", "OLDEST", "SAMPLES", "WINDOW_MS", "CAP_MS"],
    }[row]
    assert getattr(rate_kernel, of_row[number]) == number
    assert of_row[number] in names or (row, number) == ("floats", 0)


def test_rows_have_room_for_one_sample_more_than_configured() -> None:
    """Kafka keeps n + 1 samples; all zeros is a rate without any."""
    floats, ints = rate_state(11)
    assert (len(floats), len(ints)) == (FLOAT_SLOTS + 12, INT_SLOTS + 24)
    assert set(floats) == {0.0}
    assert set(ints) == {0}


def test_kernel_lists_every_function_of_the_module() -> None:
    """Only what is listed gets compiled: a function left out would fail in the replay alone."""
    tree = ast.parse(inspect.getsource(rate_kernel))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {function.__name__ for function in rate_kernel.RATE_KERNEL} == defined - {"rate_state"}


def test_a_fresh_client_may_burst_ten_seconds_worth() -> None:
    """With the default windows 10 * Q pass at once, one more does not (B§1.4)."""
    floats, ints = _rate()
    assert rate_decide(floats, ints, 20.0, 0) == 0
    assert rate_decide(floats, ints, 1.0, 0) == 500


def test_a_burst_weighs_until_all_windows_after_its_last_event() -> None:
    """B§1.4: with 30 at 0 the rate is violated until 10,999 ms, and 0 at 11,000."""
    floats, ints = _rate()
    rate_record(floats, ints, 30.0, 0)
    assert rate_measure(floats, ints, 10_999) == 30.0 / 10.999
    assert rate_measure(floats, ints, 11_000) == 0.0


def test_measuring_first_anchors_the_window() -> None:
    """A rate that was never recorded gets its first sample when it is read."""
    floats, ints = _rate()
    assert rate_window_ms(floats, ints, 500) == 10_000
    assert rate_window_ms(floats, ints, 2_000) == 10_500


def test_last_record_survives_that_measuring_empties_the_sample() -> None:
    """Reading an idle rate restarts its samples, but does not count as a record."""
    floats, ints = _rate()
    assert rate_last_record_ms(ints) == LONG_AGO_MS
    rate_measure(floats, ints, 5)
    assert rate_last_record_ms(ints) == LONG_AGO_MS
    rate_record(floats, ints, 1.0, 10)
    rate_measure(floats, ints, 60_000)
    rate_measure(floats, ints, 90_000)
    assert rate_last_record_ms(ints) == 10
    rate_record(floats, ints, 1.0, 90_001)
    assert rate_last_record_ms(ints) == 90_001


def test_the_cap_applies_before_narrowing() -> None:
    """An infinite delay is capped to a second, while without a cap it wraps to -1 (B§2.1)."""
    floats, ints = _rate(bound=0.0)
    assert rate_decide(floats, ints, 1.0, 0) == -1
    rate_configure(floats, ints, 0.0, 11, 1000, 1000)
    assert rate_decide(floats, ints, 1.0, 0) == 1000


def test_a_new_bound_holds_at_the_next_decision() -> None:
    """Raising it lets a client through at once, lowering it throttles a record of nothing (B§3.9)."""
    floats, ints = _rate(bound=2000.0)
    assert rate_decide(floats, ints, 27_500.0, 0) == 3750
    rate_configure(floats, ints, 3000.0, 11, 1000, MAX_INT64)
    assert floats[BOUND] == 3000.0
    assert rate_decide(floats, ints, 0.0, 0) == 0
    rate_configure(floats, ints, 2000.0, 11, 1000, MAX_INT64)
    assert rate_decide(floats, ints, 0.0, 0) == 3750
