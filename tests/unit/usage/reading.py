"""Read the events of Parquet files as dicts, for tests."""

import heapq
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from tidegate.usage import arrow
from tidegate.usage.events import Event
from tidegate.usage.files import ParquetFile, list_files

__all__ = ["read_batches", "read_events"]


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events under `path` node by node, each node's in order of `seq`. Raises `ParquetError`.

    `path`: as for `list_files`. Files are opened as their first row comes up, so a long record can be read.
    """
    files = [ParquetFile.parse(file) or _foreign(file) for file in list_files(path)]
    files.sort(key=lambda file: (file.node_id, file.first_seq))
    for _, group in groupby(files, key=lambda file: file.node_id):
        yield from _merge(list(group))


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one Parquet file. Raises `ParquetError`."""
    for table in arrow._row_groups(path):
        yield from arrow.table_in_order(table).to_batches()


def _foreign(path: Path) -> ParquetFile:
    return ParquetFile(path=path, node_id=-1, first_seq=0, last_seq=0, compacted=False)


def _merge(files: list[ParquetFile]) -> Iterator[Event]:
    """Merge files, sorted by their first `seq`, whose ranges may overlap (a segment can span two hours)."""
    heap: list[tuple[int, int, Event, Iterator[Event]]] = []
    opened = 0
    while heap or opened < len(files):
        if opened < len(files) and (not heap or files[opened].first_seq <= heap[0][0]):
            _push(heap, opened, _file_events(files[opened].path))
            opened += 1
            continue
        _, place, event, events = heapq.heappop(heap)
        yield event
        _push(heap, place, events)


def _push(heap: list[tuple[int, int, Event, Iterator[Event]]], place: int, events: Iterator[Event]) -> None:
    event = next(events, None)
    if event is not None:
        heapq.heappush(heap, (event["seq"], place, event, events))


def _file_events(path: Path) -> Iterator[Event]:
    for batch in read_batches(path):
        yield from batch.to_pylist()
