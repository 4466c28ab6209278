"""The board shows rate against limit, throttles and latency, and says where there are none."""

import io
import re

from rich.console import Console

from tidegate.cli.demonstration.board import board
from tidegate.cli.demonstration.clients import Report
from tidegate.cli.demonstration.tally import Tally


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
