"""The board shows rate against limit, throttles and latency, and says where there are none."""

import io

from rich.console import Console

from tidegate.cli.demonstration.board import board
from tidegate.cli.demonstration.clients import Report
from tidegate.cli.demonstration.tally import Tally


def rows(tallies, limits, now_s):
    """Return the board's lines, cells stripped."""
    out = io.StringIO()
    Console(file=out, width=200).print(board(tallies, title="t", limits=limits, now_s=now_s))
    return [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in out.getvalue().splitlines()
        if "│" in line
    ]


def test_a_throttled_client():
    """Rates, limit, number of throttles and the longest of them."""
    tally = Tally(started_s=0.0)
    tally.add(Report(bytes=4096, throttles_ms=[250, 2100]), 4.0)
    [row] = rows({"loader": tally}, {"loader": 1024.0}, 4.0)
    assert row[0] == "loader"
    assert row[1:6] == ["2.0 KiB/s", "1.0 KiB/s", "1.0 KiB/s", "2 times", "2.1 s"]
    assert row[6:] == ["–", "–"]


def test_a_client_without_limit():
    """No limit is `none`, no throttle is `never`."""
    tally = Tally(started_s=0.0)
    tally.add(Report(latencies_ms=[1.25, 8.0]), 1.0)
    [row] = rows({"checkout": tally}, {}, 1.0)
    assert row[3:] == ["none", "never", "–", "1.2 ms", "8.0 ms"]
