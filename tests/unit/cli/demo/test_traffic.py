"""The sums of client reports, and the board."""

import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tidegate.cli.demo.traffic import QUOTAS, RATE_LIMITS, Report, Tally, board, percentile


def test_no_values_have_no_percentile():
    """The percentile of no values is NaN, not 0."""
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (1.0, 100)]
)
def test_percentile_is_the_nearest_rank(share, expected):
    """Of 1 to 100 the p-th percentile is p."""
    assert percentile(list(range(100, 0, -1)), share) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_a_value_that_enough_do_not_exceed(values, share):
    """The result is one of the values, and at least the share of the values is at or below it."""
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


def test_reports_add_up():
    """Bytes, latencies, throttles and errors are sums over the phase; throttles of 0 are none."""
    tally = Tally(started_s=100.0)
    tally.add(Report(bytes=10, latencies_ms=[1.0], throttles_ms=[0, 7]), 101.0)
    tally.add(Report(bytes=20, latencies_ms=[3.0], errors=["refused"]), 102.0)
    assert tally.bytes == 30
    assert percentile(tally.latencies_ms, 1.0) == 3.0
    assert tally.throttles_ms == [7]
    assert tally.errors == ["refused"]


def test_the_rate_now_is_that_of_two_seconds():
    """The rate excludes bytes from more than two seconds ago."""
    tally = Tally(started_s=100.0)
    tally.add(Report(bytes=1000), 101.0)
    assert tally.recent_bytes_per_second(101.0) == 1000.0
    assert tally.recent_bytes_per_second(102.0) == 500.0
    assert tally.recent_bytes_per_second(103.0) == 0.0


def test_typical_latency_is_that_of_most_moments():
    """It is the median of each report's percentile; reports without latencies are ignored."""
    tally = Tally(started_s=0.0)
    for latencies_ms in ([1.0, 2.0], [], [500.0, 900.0], [3.0, 4.0]):
        tally.add(Report(latencies_ms=latencies_ms), 1.0)
    assert (tally.typical_latency_ms(0.5), tally.typical_latency_ms(0.9)) == (3.0, 4.0)
    assert percentile(tally.latencies_ms, 0.9) == 900.0


def rows(tallies, limits, now_s):
    """Return the board's rows on a terminal of the usual width, split into cells."""
    out = io.StringIO()
    Console(file=out, width=80).print(board(tallies, title="t", limits=limits, now_s=now_s))
    lines = [re.split(r"\s{2,}", line.strip()) for line in out.getvalue().splitlines()]
    return [line for line in lines if line[0] in tallies]


def test_a_throttled_client():
    """Rates in MiB/s, limit, number of throttles and the longest of them."""
    tally = Tally(started_s=0.0)
    tally.add(Report(bytes=4 << 20, throttles_ms=[250, 2100]), 4.0)
    row = ["loader", "2.00", "1.00", "0.50", "2 times", "2.1 s", "–", "–"]
    assert rows({"loader": tally}, {"loader": 524288.0}, 4.0) == [row]


def test_a_client_without_limit():
    """No limit is `none`, no throttle is `never`."""
    tally = Tally(started_s=0.0)
    tally.add(Report(latencies_ms=[1.25, 8.0, 15_579.6]), 1.0)
    row = ["checkout", "0.00", "0.00", "none", "never", "–", "8.0 ms", "15.6 s"]
    assert rows({"checkout": tally}, {}, 1.0) == [row]


def test_the_limits_shown_are_the_quotas_set():
    """The board's limits are the values that are sent to the broker."""
    assert {client: [limit] for client, limit in RATE_LIMITS.items()} == {
        client: list(values.values()) for client, values in QUOTAS.items()
    }
