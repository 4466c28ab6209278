"""What the tests of the usage record share: a recorder on a clock that stands still, and ways to read back."""

import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.testing import ManualClock
from tidegate.usage.directory import parquet_directory, spool_directory
from tidegate.usage.events import Event, read_segment
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    HEADER_BYTES,
    ROW_BYTES,
    ROW_FIELDS,
    segment_paths,
)
from tidegate.usage.spool import NONE, Client, Recorder

__all__ = [
    "START_MS",
    "client",
    "closed_events",
    "erase",
    "lose_events",
    "no_room",
    "open_recorder",
    "parquet_directory",
    "patch",
    "record",
    "segment_of",
    "set_file_times",
    "spool_directory",
]

START_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC


def segment_of(rows: int) -> int:
    """Return the size of a segment that holds so many rows."""
    return HEADER_BYTES + rows * ROW_BYTES


def open_recorder(directory: Path, clock: ManualClock | None = None, **settings: int) -> Recorder:
    """Return a recorder of node 1 in the usage directory `directory`."""
    clock = clock or ManualClock(start_ms=START_MS)
    return Recorder(spool_directory(directory, 1), node_id=1, clock=clock, **settings)


def client(recorder: Recorder, client_id: str = "app", user: str = "alice") -> Client:
    """Return a client with the given names."""
    return recorder.client(
        listener="PLAINTEXT",
        user=user,
        client_id=client_id,
        client_host="127.0.0.1",
        client_software="librdkafka",
        client_software_version="2.8",
    )


def record(recorder: Recorder, who: Client, now_ms: int, request_bytes: int = 0) -> None:
    """Record one produce request, as it is when its answer leaves."""
    recorder.request(
        who, now_ms, 7, 0, 9, request_bytes, 50, request_bytes, NONE, 1000, 100, 0, 0, 0, 0, NONE, 0
    )
    recorder.commit()


def closed_events(directory: Path) -> list[Event]:
    """Return the events of all closed segments of node 1, in order."""
    paths = segment_paths(spool_directory(directory, 1), CLOSED_SUFFIX)
    return [event for path in paths for event in read_segment(path)]


def set_file_times(directory: Path, at_ms: int) -> None:
    """Make all Parquet files as old as if they had been written at `at_ms`."""
    for path in directory.rglob("*.parquet"):
        os.utime(path, (at_ms / 1000, at_ms / 1000))


def patch(path: Path, place: int, **fields: int) -> None:
    """Put values into a row on disk."""
    data = bytearray(path.read_bytes())
    offset = HEADER_BYTES + place * ROW_BYTES
    for name, code in ROW_FIELDS:
        if name in fields:
            struct.pack_into("<" + code, data, offset, fields[name])
        offset += struct.calcsize("<" + code)
    path.write_bytes(data)


def erase(path: Path, *places: int) -> None:
    """Make of rows what a crash of the machine leaves of them."""
    data = bytearray(path.read_bytes())
    for place in places:
        start = HEADER_BYTES + place * ROW_BYTES
        data[start : start + ROW_BYTES] = bytes(ROW_BYTES)
    path.write_bytes(data)


@contextmanager
def no_room(recorder: Recorder, directory: Path) -> Iterator[None]:
    """Put a file in the place of the spool, so that events find no room meanwhile; what it held is gone."""
    spool = spool_directory(directory, 1)
    recorder.maybe_roll(START_MS + 10**9)
    shutil.rmtree(spool, ignore_errors=True)
    spool.touch()
    yield
    spool.unlink()


def lose_events(recorder: Recorder, directory: Path, count: int) -> None:
    """Let the next `count` events find no room."""
    with no_room(recorder, directory):
        for _ in range(count):
            recorder.expire(START_MS)
