"""Requests of one hour of a node, and the events that they state, as rows of the usage record in order of decisions.

`seq` is made of the time: the microsecond of the decision times 1024, and one more where that is taken. So files may be
imported in any order, and what was there before stays in its place.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.kafka_log.messages import NO_LAG
from tidegate.kafka_log.requests import UNKNOWN, UNKNOWN_BYTES
from tidegate.usage.arrow import arrow_schema, event_tables
from tidegate.usage.columns import SEQ_PER_US
from tidegate.usage.events import Event, complete_event

__all__ = ["HourRows", "PlacedEvent", "hour_table", "with_times"]

_PRODUCE, _FETCH = 0, 1
_TELLING = ("connection_id", "api_key", "handler_ns", "request_bytes", "response_bytes")
_MOST_BYTES = 2**62

Int64s = npt.NDArray[np.int64]


class PlacedEvent(NamedTuple):
    """An event that a request states, and its place: before the request of its line, or behind it."""

    decided_us: int
    line: int
    behind: bool
    columns: dict[str, Any]

    def all_columns(self, node_id: int) -> Event:
        """Return all columns of the event, without its `seq`. Raises `EventError` for a value that is out of range."""
        placed = {"node_id": node_id, "seq": 0, "ts_ms": self.decided_us // 1000}
        return complete_event({**placed, **self.columns})


class HourRows(NamedTuple):
    """The rows of an hour, and how many fetches have an estimated size and how many requests look like duplicates."""

    table: pa.Table
    estimated: int
    doubles: int


def hour_table(
    node_id: int,
    requests: pa.Table | None,
    events: Sequence[PlacedEvent],
    there: pa.Table | None,
    *,
    topic_names: Mapping[str, str],
) -> HourRows:
    """Return the rows of an hour. topic_names: names of topics by id; a topic that has no name there keeps its id.

    requests: of `RequestColumns`, with `line` numbered over all files; there: rows that an earlier import wrote.
    """
    tables, decided, places = [], [], []
    estimated = 0
    if requests is not None and len(requests):
        order = pc.sort_indices(requests, sort_keys=[("decided_us", "ascending"), ("line", "ascending")])
        requests = requests.take(order).unify_dictionaries().combine_chunks()
        rows, estimated = _request_rows(node_id, requests, topic_names)
        tables.append(rows)
        decided.append(_ints(requests, "decided_us"))
        # Three places for each line: events before its request, the request, events behind it.
        places.append(_ints(requests, "line") * 3 + 1)
    if events:
        tables += [
            table.cast(arrow_schema())
            for table in event_tables(event.all_columns(node_id) for event in events)
        ]
        decided.append(np.array([event.decided_us for event in events], np.int64))
        places.append(np.array([event.line * 3 + 2 * event.behind for event in events], np.int64))
    if there is not None:
        tables.append(there)
        seq = _ints(there, "seq")
        decided.append(seq // SEQ_PER_US)
        places.append(seq % SEQ_PER_US - SEQ_PER_US)  # what was there stays before what comes
    table = pa.concat_tables(tables).combine_chunks()
    all_decided = np.concatenate(decided)
    order = np.lexsort((np.concatenate(places), all_decided))
    table = table.take(pa.array(order))
    decided_us = all_decided[order]
    seq = _increasing(decided_us * SEQ_PER_US)
    column = table.schema.get_field_index("seq")
    rows = table.set_column(column, arrow_schema().field("seq"), pa.array(seq))
    was_there = order >= len(order) - (0 if there is None else len(there))  # they were put together last
    return HourRows(rows, estimated, _doubles(rows, decided_us, was_there))


def _doubles(rows: pa.Table, decided_us: Int64s, was_there: npt.NDArray[np.bool_]) -> int:
    """Return how many requests have the time of the request before them and equal values in all `_TELLING` columns.

    was_there: which rows an earlier import wrote; two such rows do not count again.
    """
    same = (np.diff(decided_us) == 0) & ~(was_there[1:] & was_there[:-1])
    same &= pc.equal(rows["kind"], "request").to_numpy()[1:]
    for name in _TELLING:
        same &= np.diff(_ints(rows, name)) == 0
    return int(same.sum())


def with_times(requests: pa.Table, moved_us: Mapping[int, int]) -> pa.Table:
    """Return the requests with the times of some lines changed."""
    lines = requests.column("line").to_numpy()
    places = np.flatnonzero(np.isin(lines, list(moved_us)))
    if not len(places):
        return requests
    decided_us = requests.column("decided_us").to_numpy().copy()
    decided_us[places] = [moved_us[line] for line in lines[places].tolist()]
    return requests.set_column(requests.column_names.index("decided_us"), "decided_us", pa.array(decided_us))


def _request_rows(node_id: int, requests: pa.Table, topic_names: Mapping[str, str]) -> tuple[pa.Table, int]:
    """Return one row a request, sorted as `requests`, and how many fetches have an estimated size."""
    rows = len(requests)
    api_key = _ints(requests, "api_key")
    throttle_ms = np.minimum(_ints(requests, "throttle_ms"), 2**31 - 1)
    fetch_bytes, estimated = _estimated_fetches(requests)
    zeros = np.zeros(rows, np.int64)
    columns: dict[str, Any] = {
        "kind": pa.array(["request"]).take(pa.array(zeros)),
        "ts_ms": _ints(requests, "decided_us") // 1000,
        "node_id": np.full(rows, node_id),
        "produce_throttle_ms": np.where(api_key == _PRODUCE, throttle_ms, 0),
        "fetch_throttle_ms": np.where(api_key == _FETCH, throttle_ms, 0),
        "request_throttle_ms": np.where(api_key > _FETCH, throttle_ms, 0),
        "produce_bytes": _nullable(_ints(requests, "produce_bytes")),
        "fetch_bytes": _nullable(fetch_bytes),
        "exempt": requests.column("exempt"),
        "lag": _nullable(_ints(requests, "lag")),
        "lag_bytes": _nullable(_lag_bytes(requests)),
        "topic": _named(requests.column("topic").combine_chunks(), topic_names),
        "other_topics": _nullable(_ints(requests, "other_topics")),
        **_software(requests),
    }
    arrays = []
    for field in arrow_schema():
        if field.name in columns:
            values = columns[field.name]
        elif field.name in requests.column_names:
            values = requests.column(field.name)
        elif field.nullable:
            values = pa.nulls(rows, field.type)
        elif pa.types.is_string(field.type):
            values = pa.array([""]).take(pa.array(zeros))
        else:
            values = zeros
        if isinstance(values, np.ndarray):
            values = pa.array(values)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        arrays.append(values.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=arrow_schema()), estimated


def _estimated_fetches(requests: pa.Table) -> tuple[Int64s, int]:
    """Return the bytes of fetches. For a throttled one, use those of the connection's next fetch with records."""
    fetch_bytes = _ints(requests, "fetch_bytes").copy()
    unknown = fetch_bytes == UNKNOWN_BYTES
    if unknown.any():
        connection = _ints(requests, "connection_id")
        order = np.lexsort((np.arange(len(connection)), connection))
        brought = (_ints(requests, "record_bytes") > 0)[order]
        places = np.where(brought, np.arange(len(order)), len(order))
        # Accumulated from the end: for each fetch the place of the next one that brought records.
        following = np.minimum.accumulate(places[::-1])[::-1]
        found = following < len(order)
        at = np.where(found, following, 0)
        same = found & (connection[order][at] == connection[order])
        estimate = np.empty(len(order), np.int64)
        estimate[order] = np.where(same, fetch_bytes[order][at], 0)
        fetch_bytes[unknown] = estimate[unknown]
    return fetch_bytes, int(unknown.sum())


def _lag_bytes(requests: pa.Table) -> Int64s:
    """Return estimates of the lags in bytes, by the median size of the records that the connection fetched.

    From one Fetch to the next of the same partitions, the offsets show how many records came, and `record_bytes` how
    many bytes. The median ignores offsets that the consumer has set to another place.
    """
    lag, connection = _ints(requests, "lag"), _ints(requests, "connection_id")
    record_bytes = _ints(requests, "record_bytes")
    fetches = np.flatnonzero((lag > NO_LAG) | (record_bytes > 0))
    order = fetches[np.argsort(connection[fetches], kind="stable")]
    record_bytes = record_bytes[order]
    sent_before = np.cumsum(record_bytes) - record_bytes
    at = np.flatnonzero(lag[order] > NO_LAG)
    whose = connection[order][at]
    records, came = np.diff(_ints(requests, "offsets")[order][at]), np.diff(sent_before[at])
    partitions = np.diff(_ints(requests, "partitions")[order][at])
    told = (np.diff(whose) == 0) & (partitions == 0) & (records > 0) & (came > 0)
    sizes, of = (came / np.maximum(records, 1))[told], whose[1:][told]
    by_size = np.lexsort((sizes, of))
    known, first, count = np.unique(of[by_size], return_index=True, return_counts=True)
    lag_bytes = np.full(len(lag), NO_LAG)
    if len(known):
        at = np.minimum(np.searchsorted(known, connection), len(known) - 1)
        size = sizes[by_size][first + count // 2][at]
        lag_bytes = np.where(known[at] == connection, np.minimum(lag * size, _MOST_BYTES), NO_LAG)
    return np.where(lag > 0, lag_bytes, lag).astype(np.int64)


def _named(topics: pa.DictionaryArray, topic_names: Mapping[str, str]) -> pa.DictionaryArray:
    """Return topics by name."""
    names = [topic_names.get(text, text) for text in topics.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(topics.indices, pa.array(names, pa.string()))


def _software(requests: pa.Table) -> dict[str, pa.Array]:
    """Return the names of the client software. A name known from one request holds for the whole connection."""
    found = {}
    connection = _ints(requests, "connection_id")
    for name in ("client_software", "client_software_version"):
        column = requests.column(name).combine_chunks()
        texts = column.dictionary.to_pylist()
        indices = np.asarray(column.indices)
        unknown = np.isin(indices, [place for place, text in enumerate(texts) if text == UNKNOWN])
        known, first = np.unique(connection[~unknown], return_index=True)
        index_of = indices[~unknown][first] if len(known) else indices[:0]
        at = np.searchsorted(known, connection)
        at_known = np.minimum(at, max(len(known) - 1, 0))
        has = unknown & (at < len(known))
        if len(known):
            has &= known[at_known] == connection
            indices = np.where(has, index_of[at_known], indices)
        dictionary = pa.array(["" if text == UNKNOWN else text for text in texts], pa.string())
        found[name] = dictionary.take(pa.array(indices))
    return found


def _increasing(wanted: Int64s) -> Int64s:
    """Return strictly increasing numbers, each as wanted or larger by as little as possible."""
    # Without `steps`, "at least one more than before" becomes "not less than before", which `maximum` computes.
    steps = np.arange(len(wanted), dtype=np.int64)
    return np.maximum.accumulate(wanted - steps) + steps


def _nullable(values: Int64s) -> pa.Array:
    return pa.array(values, mask=values < 0)


def _ints(table: pa.Table, name: str) -> Int64s:
    column: Int64s = table.column(name).to_numpy().astype(np.int64, copy=False)
    return column
