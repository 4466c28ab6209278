"""What the tests of the usage record share: a recorder on a clock that stands still, and ways to read back."""

import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.server.requests.recorder import Recorder
from tidegate.server.requests.request_rows import NONE, Client
from tidegate.testing import ManualClock
from tidegate.usage.directory import parquet_directory, spool_directory
from tidegate.usage.events import Event, read_segment
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    HEADER_BYTES,
    PRODUCED,
    ROW_BYTES,
    ROW_FIELDS,
    segment_paths,
)
from tidegate.wire import RequestHeader

__all__ = [
    "START_MS",
    "Connected",
    "Decided",
    "asked",
    "client",
    "closed_events",
    "erase",
    "lose_events",
    "no_room",
    "open_recorder",
    "parquet_directory",
    "patch",
    "record",
    "record_requests",
    "recorded_segment",
    "segment_of",
    "set_file_times",
    "spool_directory",
]

START_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC


@dataclass
class Connected:
    """A connection, as the front has it: one that nobody has recorded yet, unless told otherwise."""

    id: int = 7
    recorded: Client | None = None
    at_controller: None = None


@dataclass
class _Channel:
    connection: Connected
    early_ms: int | None


@dataclass
class _Response:
    size: int


@dataclass
class _Answer:
    topic: str | None
    other_topics: int


@dataclass
class Decided:
    """A decided request, as the front has it: of a small Produce, unless told otherwise."""

    now_ms: int = START_MS
    api_key: int = 0
    api_version: int = 9
    client_id: str = "app"
    connection_id: int = 7
    early_ms: int | None = None
    response_bytes: int | None = 50
    frame_bytes: int = 0
    fetch_bytes: int = NONE
    handler_ns: int = 1000
    network_ns: int = 100
    produce_ms: int = 0
    fetch_ms: int = 0
    request_ms: int = 0
    mutation_ms: int = 0
    throttle_ms: int = 0
    row_flags: int = 0
    lag: int = NONE
    lag_bytes: int = NONE
    topic: str | None = None
    other_topics: int = 0
    answer: _Answer = field(init=False)
    header: RequestHeader = field(init=False)
    channel: _Channel = field(init=False)
    response: _Response | None = field(init=False)

    def __post_init__(self) -> None:
        self.answer = _Answer(self.topic, self.other_topics)
        self.header = RequestHeader(self.api_key, self.api_version, 5, self.client_id, 20)
        self.channel = _Channel(Connected(self.connection_id), self.early_ms)
        self.response = None if self.response_bytes is None else _Response(self.response_bytes)


def segment_of(rows: int) -> int:
    """Return the size of a segment that holds so many rows."""
    return HEADER_BYTES + rows * ROW_BYTES


def open_recorder(directory: Path, clock: ManualClock | None = None, **settings: Any) -> Recorder:
    """Return a recorder of node 1 in the usage directory `directory`."""
    clock = clock or ManualClock(start_ms=START_MS)
    return Recorder(spool_directory(directory, 1), node_id=1, clock=clock, **settings)


def client(client_id: str = "app", user: str = "alice") -> Client:
    """Return a client with the given names."""
    return Client(("PLAINTEXT", user, client_id, "127.0.0.1", "librdkafka", "2.8"))


def asked(
    who: Client, *, id: int = 7, api_key: int = 19, api_version: int = 6
) -> tuple[Connected, RequestHeader]:
    """Return the connection and the header of a request of a client."""
    return Connected(id, who), RequestHeader(api_key, api_version, 5, who.client_id, 20)


def record_requests(recorder: Recorder, who: Client, *requests: Decided) -> None:
    """Record requests of a client; `commit` is yet to come."""
    for request in requests:
        request.header = RequestHeader(request.api_key, request.api_version, 5, who.client_id, 20)
        request.channel.connection.recorded = who
        recorder.request(request)


def record(recorder: Recorder, who: Client, now_ms: int, request_bytes: int = 0) -> None:
    """Record one produce request, as it is when its answer leaves."""
    record_requests(recorder, who, Decided(now_ms=now_ms, frame_bytes=request_bytes, row_flags=PRODUCED))
    recorder.commit()


def recorded_segment(
    directory: Path, *, rows: int = 10, step_ms: int = 1, client_id: str = "app", start_ms: int = START_MS
) -> Path:
    """Record requests of one client, one every `step_ms`, and return their closed segment."""
    recorder = open_recorder(directory)
    for index in range(rows):
        record(recorder, client(client_id), start_ms + index * step_ms, index)
    recorder.close()
    (path,) = segment_paths(spool_directory(directory, 1), CLOSED_SUFFIX)
    return path


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
