"""The table of usage, in 80 columns and in a file."""

import pytest
from rich.cells import cell_len
from tests.unit.pipeline.report.rows import HOSTILE

from tidegate.pipeline.report.usage_report import TopicCounts, topic_notes, usage_lines
from tidegate.pipeline.schemas import CLIENT, usage_schema


def _row(by=CLIENT, **columns):
    return dict.fromkeys(usage_schema(by).names, 0) | dict.fromkeys(by, "") | columns


def _lines(rows, *, by=CLIENT, groups=None, width=80):
    lines = usage_lines(rows, by=by, groups=len(rows) if groups is None else groups, width=width)
    return [line.plain for line in lines]


_ALICE = {
    "user": "alice", "client_id": "app", "requests": 200, "throttled_requests": 1, "produce_bytes": 2048,
    "peak_produce_bytes_per_second": 1024, "handler_ns": 3_000_000, "network_ns": 1_000_000, "mutations": 5,
    "produce_throttle_ms": 1000, "request_throttle_ms": 500, "last_ts_ms": 20_000, "peak_request_percent": 31.66,
    "handler_ns_p99": 57_343, "throttle_ms_p99": None, "request_bytes_p99": 1023,
}  # fmt: skip


def _ends(header, above):
    """Return where words end in both lines."""
    return [
        at for at in range(len(header)) if above[at : at + 2].strip() and not above[at + 1 : at + 2].strip()
    ]


def test_a_file_has_a_line_for_each_client():
    """Names, requests, share throttled, bytes, thread time, each with what is told beside it."""
    lines = _lines([_row(**_ALICE)], width=240)
    *_, above, header, _, _ = lines
    named = [header[: at + 1].split()[-1] for at in _ends(header, above)]
    assert list(zip(above.split(), named, strict=True)) == [
        *(("produced", "peak/s"), ("produced", "mean/s"), ("fetched", "peak/s"), ("fetched", "mean/s")),
        *(("time", "peak"), ("time", "p99")),
    ]
    assert all(what in header for what in ("size p99", "delay p99"))
    assert " ".join(lines[-1].split()) == (
        "app alice 200 5 1023 B 0.5% 1.5 s – 2.0 KiB 1.0 KiB 102 B 0 B 0 B 0 B 4 ms 31.7% 57 µs"
    )


def test_a_terminal_has_three():
    """Those below have what belongs to the one above."""
    *_, header, below, last, _, first, second, third = _lines([_row(**_ALICE)])
    assert header.split() == ["client-id", "requests", "throttled", "produced", "fetched", "time"]
    assert below.split() == ["user", "mutations", "delay", "peak/s", "peak/s", "peak"]
    assert last.split() == ["size", "p99", "delay", "p99", "mean/s", "mean/s", "p99"]
    assert first.split() == ["app", "200", "0.5%", "2.0", "KiB", "0", "B", "4", "ms"]
    assert second.split() == ["alice", "5", "1.5", "s", "1.0", "KiB", "0", "B", "31.7%"]
    assert third.split() == ["1023", "B", "–", "102", "B", "0", "B", "57", "µs"]


@pytest.mark.parametrize("by", [CLIENT, ("listener",), ("client_software",), ("topic",)])
def test_hostile_names_and_huge_numbers_fit_into_80_columns(by):
    """No line is longer, and no digit is cut."""
    largest = 2**63 - 1
    numbers = dict.fromkeys(usage_schema(by).names[len(by) :], largest)
    rows = [_row(by, **(numbers | dict.fromkeys(by, name))) for name in HOSTILE]
    lines = _lines(rows, by=by)
    assert max(map(cell_len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    assert "\n".join(lines).count("9,223,372,036,854,775,807") == 2 * len(HOSTILE)


def test_a_cut_table_says_so():
    """In its title."""
    lines = _lines([_row()], groups=1234)
    assert lines[0] == "usage by user and client-id (1 of 1,234, most bytes first)"


def test_usage_by_topic_shows_requests_with_other_topics():
    """Their number and bytes are beside each topic, and in a note for all topics; unknown topics are in another."""
    row = _row(("topic",), topic="orders", requests=9, multi_topic_requests=4, multi_topic_bytes=2048)
    *_, header, _, last = _lines([row], by=("topic",), width=240)
    assert header.split()[-3:] == ["p99", "topics", "bytes"]
    assert last.split()[:2] == ["orders", "9"]
    assert last.split()[-3:] == ["4", "2.0", "KiB"]
    assert list(topic_notes(TopicCounts())) == []
    counts = TopicCounts(multi_topic_requests=1, multi_topic_bytes=2048, unknown_requests=1234)
    several, unknown = topic_notes(counts)
    assert several.startswith("records of several topics are in 1 request with 2.0 KiB: ")
    assert unknown.startswith("1,234 requests of unknown topics")
