"""Usage by client: the table of `tidegate usage`, of which the page shows a part."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat

from rich.text import Text

from tidegate.pipeline.report.names import fitted, name_text
from tidegate.pipeline.report.tables import Column, Row, Table, stacked, table_lines, table_width
from tidegate.pipeline.report.text import (
    bytes_text,
    count_text,
    duration_text,
    nanoseconds_text,
    things_text,
    thread_time_text,
    throttled_text,
)

__all__ = ["SEVERAL_TOPICS", "USAGE", "TopicCounts", "topic_notes", "usage_lines"]

_LONGEST_NAME = 40  # cells
_SHORTEST_NAME = 6  # cells
_GAP = 2  # cells between columns
_NAMES = {
    "client_id": "client-id",
    "user": "user",
    "listener": "listener",
    "client_software": "software",
    "api": "api",
    "topic": "topic",
}
_THREE_DIGITS = 100
_MOST_PERCENT = 99_999  # of a thread: no broker has a thousand threads
_BLANK = Column("", lambda _: "")
_LEAST_MS = 10_000  # that a mean is over, as a rate is (B§1.4)


def _rate_text(rate: float) -> str:
    """Return a rate in few characters: three digits are enough."""
    number, unit = bytes_text(rate).split()
    return f"{float(number):.0f} {unit}" if float(number) >= _THREE_DIGITS else f"{number} {unit}"


def _percent_text(percent: float) -> str:
    if percent > _MOST_PERCENT:
        return f">{_MOST_PERCENT}%"
    return f"{percent:.0f}%" if percent >= _THREE_DIGITS else f"{percent:.3g}%"


def _mean(name: str) -> Callable[[Row], float]:
    """Return a function that divides a column by the seconds from the first to the last request of a row."""
    return lambda row: row[name] / (max(_LEAST_MS, row["last_ts_ms"] - row["first_ts_ms"]) / 1000)


def _throttle_ms(row: Row) -> int | None:
    return sum(row[f"{kind}_throttle_ms"] for kind in ("produce", "fetch", "request", "mutation")) or None


USAGE = (
    (
        Column("requests", "requests", count_text),
        Column("mutations", "mutations", count_text),
        Column("size p99", "request_bytes_p99", bytes_text),
    ),
    (
        Column("throttled", throttled_text),
        Column("delay", _throttle_ms, duration_text),
        Column("delay p99", "throttle_ms_p99", duration_text),
    ),
    (
        Column("produced", "produce_bytes", bytes_text),
        Column("produced\npeak/s", "peak_produce_bytes_per_second", _rate_text),
        Column("produced\nmean/s", _mean("produce_bytes"), _rate_text),
    ),
    (
        Column("fetched", "fetch_bytes", bytes_text),
        Column("fetched\npeak/s", "peak_fetch_bytes_per_second", _rate_text),
        Column("fetched\nmean/s", _mean("fetch_bytes"), _rate_text),
    ),
    (
        Column("time", thread_time_text),
        Column("time\npeak", "peak_request_percent", _percent_text),
        Column("time\np99", "handler_ns_p99", nanoseconds_text),
    ),
)
"""The columns of rows of `usage_schema`, in groups of three. In 80 columns, a group is one column of three lines."""


SEVERAL_TOPICS = (
    Column("with other\ntopics", "multi_topic_requests", count_text),
    Column("bytes", "multi_topic_bytes", bytes_text),
)
"""Columns of usage by topic: requests with records of other topics, too, and their bytes. Narrow tables omit them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCounts:
    """Counts of usage by topic: requests with records of several topics, their bytes, requests of unknown topics."""

    multi_topic_requests: int = 0
    multi_topic_bytes: int = 0
    unknown_requests: int = 0


def topic_notes(counts: TopicCounts) -> Iterator[str]:
    """Yield the notes on inexact usage by topic."""
    if counts.multi_topic_requests:
        requests = things_text(counts.multi_topic_requests, "request")
        yield (
            f"records of several topics are in {requests} with {bytes_text(counts.multi_topic_bytes)}: each request "
            "counts for the topic with the most bytes of records"
        )
    if counts.unknown_requests:
        requests = things_text(counts.unknown_requests, "request")
        yield (
            f"{requests} of unknown topics: rows of a usage record before format version 7, or throttled fetches of an "
            "imported log"
        )


def usage_lines(rows: Sequence[Row], *, by: Sequence[str], groups: int, width: int) -> Iterator[Text]:
    """Yield the table of `rows`, the first of `groups` in all: one line for each client, or three in narrow tables.

    rows: columns `usage_schema(by)`. by: the columns that they are grouped by. width: cells of a line.
    """
    shown = "" if len(rows) == groups else f" ({len(rows)} of {count_text(groups)}, most bytes first)"
    caption = f"usage by {' and '.join(_NAMES[key] for key in by)}{shown}"
    keys = by[::-1]  # the client id first: it tells more than a user, which may be ANONYMOUS
    several = SEVERAL_TOPICS if "topic" in by else ()
    columns = [*_name_columns(keys), *chain.from_iterable(USAGE), *several]
    table = Table(caption=caption, columns=columns, rows=rows)
    if table_width(table) > width:
        measures = [stacked(columns) for columns in USAGE]
        room = width - table_width(replace(table, columns=measures)) - _GAP
        longest = max(_SHORTEST_NAME, min(_LONGEST_NAME, room))
        names = [*_name_columns(keys, longest=longest, indent="  "), _BLANK, _BLANK][: len(USAGE[0])]
        table = replace(table, columns=[stacked(names), *measures])
    return table_lines(table, width=width)


def _name_columns(keys: Sequence[str], *, longest: int = _LONGEST_NAME, indent: str = "") -> list[Column]:
    """Return the columns that rows are grouped by. indent: of all but the first."""
    indents = ("", *repeat(indent, len(keys) - 1))
    return [
        Column(indent + _NAMES[key], key, partial(_name_text, indent=indent, longest=longest), is_name=True)
        for key, indent in zip(keys, indents, strict=True)
    ]


def _name_text(name: str | None, *, indent: str, longest: int) -> str:
    return fitted(f"{indent}{name_text(name)}", longest)
