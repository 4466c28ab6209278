"""A storage with its handlers, driven by real encoded requests without sockets, and small batches to feed it."""

import gc
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from tidegate.broker.cluster import ClusterView, Endpoints
from tidegate.broker.handlers import handler_table
from tidegate.server.handler import Answer, Connection, Deferred, Handler, Request, Work
from tidegate.storage import Storage, StorageConfig
from tidegate.storage.log import retention
from tidegate.storage.log.group_commit import SyncFile
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.recovery import open_log
from tidegate.storage.topic_settings import TopicSettings
from tidegate.testing import ManualClock
from tidegate.wire import decode_request_header, encode_request, read_response
from tidegate.wire.batch_builder import build_batch

NOW_MS = 1_700_000_000_000
CONNECTION = Connection(1, "PLAINTEXT", "127.0.0.1", "127.0.0.1", 9092)

FETCH = 1

Result = TypeVar("Result")


class Permits:
    """A client's quotas: how many bytes a fetch may have, and how many mutations are left."""

    def __init__(self, *, mutations: int = 2**31, fetch_bytes: int = 2**31 - 1) -> None:
        self.mutations = mutations
        self.fetch_bytes = fetch_bytes
        self.charged: list[int] = []

    def fetch_limit_bytes(self) -> int:
        """Return the cap of a fetch."""
        return self.fetch_bytes

    def record_mutations(self, permits: int) -> bool:
        """Admit while nothing is owed, like a strict quota."""
        if self.mutations < 0:
            return False
        self.mutations -= permits
        self.charged.append(permits)
        return True


class _Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualScheduler:
    """A scheduler that runs what is due only when told to."""

    def __init__(self) -> None:
        self._soon: list[_Timer] = []
        self._later: list[tuple[float, _Timer]] = []
        self._now_s = 0.0

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> _Timer:
        """Put a call into the next turn."""
        self._soon.append(_Timer(lambda: callback(*args)))
        return self._soon[-1]

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any) -> _Timer:
        """Put a call into the next turn, from any thread."""
        return self.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> _Timer:
        """Put a call off."""
        timer = _Timer(lambda: callback(*args))
        self._later.append((self._now_s + delay, timer))
        return timer

    def turn(self) -> None:
        """Run what is due now."""
        while self._soon:
            timer = self._soon.pop(0)
            if not timer.cancelled:
                timer.call()

    def one_turn(self) -> None:
        """Run what is due now, and nothing that it calls for."""
        due, self._soon = self._soon, []
        for timer in due:
            if not timer.cancelled:
                timer.call()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds
        due = [timer for at, timer in self._later if at <= self._now_s]
        self._later = [(at, timer) for at, timer in self._later if at > self._now_s]
        for timer in due:
            if not timer.cancelled:
                timer.call()
        self.turn()

    def idle(self) -> bool:
        """Return whether nothing is to be done in the next turn."""
        return not self._soon

    def waiting(self) -> int:
        """Return how many timers run."""
        return sum(not timer.cancelled for _, timer in self._later)


class Node:
    """A storage in a directory, and its handlers."""

    def __init__(
        self,
        directory: Path,
        *,
        sync: SyncFile = os.fdatasync,
        node_id: int = 1,
        endpoints: Endpoints | None = None,
        **config: Any,
    ) -> None:
        self.clock = ManualClock(start_ms=NOW_MS)
        self.scheduler = ManualScheduler()
        self.storage = Storage.open(directory, StorageConfig(**config), self.clock, sync=sync)
        self.cluster = ClusterView(node_id, endpoints or {node_id: {}}, self.storage.topics)
        self.handlers: dict[int, Handler] = handler_table(self.storage, self.cluster, self.scheduler)
        self.permits = Permits()

    def ask(
        self,
        api_key: int,
        version: int,
        message: dict[str, Any],
        *,
        writable: bool = True,
        in_turn: bool = False,
    ) -> Answer | Deferred:
        """Send a request through its bytes; return what the handler gave. in_turn: it may put off what `turn` does."""
        frame: bytes | bytearray = encode_request(api_key, version, 7, "tester", message)[4:]
        if writable:
            frame = bytearray(frame)
        view = memoryview(frame)
        header = decode_request_header(view)
        turn = self.storage.turn if in_turn else None
        return self.handle(Request(header, view, CONNECTION, self.permits, self.clock.now_ms(), turn))

    def handle(self, request: Request) -> Answer | Deferred:
        """Return what the handler of a request gives, after all of its slices."""
        result = self.handlers[request.header.api_key](request)
        return result if isinstance(result, Answer | Deferred) else whole(result)

    def begin(self, frame: memoryview) -> Work:
        """Return the work in slices that the handler of a request, given by its bytes, begins."""
        header = decode_request_header(frame)
        work = self.handlers[header.api_key](
            Request(header, frame, CONNECTION, self.permits, self.clock.now_ms())
        )
        assert not isinstance(work, Answer | Deferred)
        return work

    def call(self, api_key: int, version: int, message: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Send a request; return the answer, read back from its bytes. A Fetch is sent twice: the second is known."""
        answer = self.ask(api_key, version, message, **options)
        assert isinstance(answer, Answer)
        found = decoded(api_key, version, answer)
        if api_key == FETCH:
            again = self.ask(api_key, version, message, **options)
            assert isinstance(again, Answer)
            assert decoded(api_key, version, again) == found
            assert (again.charge, again.empty is None) == (answer.charge, answer.empty is None)
        return found

    def round(self) -> None:
        """Run a turn, let the disk thread do what it was given, and run a turn with what came of it."""
        self.scheduler.turn()
        self.storage._worker.submit(lambda: None).result()
        self.scheduler.turn()

    def create(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic past its handler; return its id."""
        return self.storage.topics.create(
            name, partitions, {key.replace("_", "."): value for key, value in configs.items()}
        ).topic_id

    def log(self, name: str, partition: int = 0) -> PartitionLog:
        """Return a partition's log."""
        return self.storage.topics.by_name[name].logs[partition]


def whole(work: Generator[None, None, Result]) -> Result:
    """Run work in slices to its end."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


MOST_STEP_MS = 8.0
"""A bar for the longest step of long work. The contract says about 1 ms; letting go of what was read or built for tens
of thousands of elements takes up to five, and a loaded machine is slower. Others wait no longer than 20."""


def longest_step_ms(
    begin: Callable[[], Generator[None, None, Result]], *, times: int = 3
) -> tuple[Result, float]:
    """Run work to its end so many times; return its result, and the CPU time of its longest step in the best of them.

    The best, because other processes make single steps longer. Garbage is not collected meanwhile.
    """
    best_ns = 2**63
    gc.disable()
    try:
        for _ in range(times):
            work, longest_ns = begin(), 0
            while True:
                begun_ns = time.thread_time_ns()
                try:
                    next(work)
                except StopIteration as stop:
                    result: Result = stop.value
                    break
                finally:
                    longest_ns = max(longest_ns, time.thread_time_ns() - begun_ns)
            best_ns = min(best_ns, longest_ns)
    finally:
        gc.enable()
    return result, best_ns / 1e6


def decoded(api_key: int, version: int, answer: Answer) -> dict[str, Any]:
    """Return an answer, read back from its bytes, records included."""
    assert answer.response is not None
    raw = b"".join(
        buffer if isinstance(buffer, bytes | bytearray | memoryview) else buffer.read()
        for buffer in answer.response.buffers
    )
    assert len(raw) - 4 == answer.response.size
    return read_response(api_key, version, raw, len(raw) - answer.response.body_size)


def batch(count: int = 1, *, value: bytes = b"v", time_ms: int = NOW_MS, **fields: Any) -> bytes:
    """Return a batch of `count` equal records."""
    return build_batch([(None, value)] * count, timestamp_ms=time_ms, **fields)


def new_log(
    directory: Path, *, trust_writes: bool = True, recovery_point: int = 0, **settings: Any
) -> PartitionLog:
    """Open a log of its own."""
    return open_log(
        directory,
        TopicSettings(**settings),
        producer_expiration_ms=86_400_000,
        trust_writes=trust_writes,
        recovery_point=recovery_point,
    )


def append(log: PartitionLog, data: bytes, now_ms: int = NOW_MS) -> int:
    """Append a batch; return its base offset."""
    return log.append(memoryview(bytearray(data)), now_ms, 9)[0]


def expire(log: PartitionLog, now_ms: int) -> int:
    """Delete what is past its retention, without a pause; return how many segments."""
    return whole(retention.expire(log, now_ms))


def contents(log: PartitionLog) -> bytes:
    """Return every byte of a log, segment by segment, as reads give it out."""
    parts, offset = [], log.start_offset
    while (found := log.read(offset, 2**31 - 1)) is not None:
        parts.append(found.read())
        following = [segment.base_offset for segment in log.segments if segment.base_offset > offset]
        offset = following[0] if following else log.end_offset
    return b"".join(parts)
