"""A node, its clients and all that happens to them, from one seed."""

import heapq
import logging
import random
import shutil
import zlib
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from tests.replaying.kernel import differences, replay_events
from tests.server.memory_network import MemoryNode
from tests.server.nodes import NoWriter
from tests.simulation.accounts import Accounts, Window
from tests.simulation.auditor import Auditor, Line, ViolationError
from tests.simulation.clients import Administrator, Client, Habits
from tests.simulation.clock import NS_PER_MS, VirtualClock, VirtualLoop
from tests.simulation.requests import LASTING_TOPICS, SYNCED_TOPIC

from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.quota import QuotaRecord
from tidegate.server.exchange import Exchange
from tidegate.server.usage_log import RecordedUsageLog
from tidegate.usage.readers import read_segment
from tidegate.usage.spool import Recorder

__all__ = ["World", "simulate"]

CLIENTS = 30
_USUAL = Window(samples=11, window_ms=1000)
_WINDOWS = (
    _USUAL,
    _USUAL,
    _USUAL,
    *(Window(samples=n, window_ms=w) for n, w in ((1, 5000), (2, 2000), (5, 1000))),
)
_MOST_CONNECTIONS = (2**31 - 1, 2**31 - 1, CLIENTS // 2)
_CONNECTIONS_PER_S = (2**31 - 1, 2**31 - 1, 3)
_WORK_NS = (20_000, 20_000, 20_000, 50_000, 50_000, 200_000, 1_000_000, 12_000_000)
_HOUR_MS = 3_600_000
_DRAIN_MS = 800_000
_IDLE_NS = 760_000 * NS_PER_MS  # connections.max.idle.ms, and the time until somebody looks
_REQUEST_MEMORY_BYTES = 150_000
_AUDIT_EACH = 500  # steps
_DISK_EACH, _DISK_MS = 20, 1000  # how often the disk has done its work, in steps and in ms
_BATCH_ROWS = 4096
_EXPECTED_WARNINGS = (
    "the wall clock was stepped",
    "it took no byte of its answer",
    "its request came in too slowly",
    "frame length is -1",
)


_DIGESTED = itemgetter(
    "kind", "ts_ms", "connection_id", "api_key", "handler_ns", "network_ns", "response_bytes", "produce_throttle_ms",
    "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms",
)  # fmt: skip
_PARTS = {"clock": VirtualClock, "loop": VirtualLoop, "line": Line}


class _WatchedUsageLog(RecordedUsageLog):
    """A usage log that tells the auditor of each decision."""

    def __init__(self, recorder: Recorder, auditor: Auditor) -> None:
        super().__init__(recorder, NoWriter)
        self._auditor = auditor

    def request(self, exchange: Exchange) -> None:
        """Record, and tell."""
        super().request(exchange)
        self._auditor.on_decided(exchange)

    def quota(self, record: QuotaRecord, now_ms: int) -> None:
        """Record, and tell."""
        super().quota(record, now_ms)
        self._auditor.on_quota(record)


class _Life(MemoryNode):
    """A node from its start to its end."""

    def __init__(
        self,
        directory: Path,
        loop: VirtualLoop,
        auditor: Auditor,
        work_ns: Callable[[], int],
        window: Window,
        controller_window: Window,
        most_connections: int,
        connections_per_s: int,
    ) -> None:
        self.windows = window, controller_window
        auditor.begin_life(window, most_connections=most_connections, connections_per_s=connections_per_s)
        recorder = Recorder(directory / "spool", node_id=1, clock=loop.clock, segment_bytes=1 << 20)
        self.recorder = recorder
        self.usage = _WatchedUsageLog(recorder, auditor)
        super().__init__(
            directory, loop=loop, usage=self.usage, sync=lambda fd: None,
            queued_max_request_bytes=str(_REQUEST_MEMORY_BYTES),
            max_connections=str(most_connections),
            max_connection_creation_rate=str(connections_per_s),
            quota_window_num=str(window.samples),
            quota_window_size_seconds=str(window.window_ms // 1000),
            controller_quota_window_num=str(controller_window.samples),
            controller_quota_window_size_seconds=str(controller_window.window_ms // 1000),
        )  # fmt: skip
        self.node.handlers = {
            api_key: auditor.probe(handler, work_ns) for api_key, handler in self.node.handlers.items()
        }
        for name, partitions in LASTING_TOPICS.items():
            if name not in self.storage.topics.by_name:
                settings = {"flush.messages": "1"} if name == SYNCED_TOPIC else {}
                self.storage.topics.create(name, partitions, settings)

    def let_disk_finish(self) -> None:
        """Let the disk thread do what it was given; the loop hears of it in its next turn."""
        self.storage._worker.submit(lambda: None).result()
        self.loop.take_in()


class _Log(logging.Handler):
    """Keeps what a node must not say."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an error, a traceback, and a warning that nobody expects."""
        text = record.getMessage()
        if (
            record.levelno >= logging.ERROR
            or record.exc_info
            or not any(w in text for w in _EXPECTED_WARNINGS)
        ):
            self.lines.append(logging.Formatter("%(levelname)s %(name)s: %(message)s").format(record))


class World:
    """Everything there is.

    events, digest: how many rows of the usage record there were, and what is the same when they are.
    """

    def __init__(self, seed: int, directory: Path, **parts: Any) -> None:
        self.rng = random.Random(seed)
        self._parts = {**_PARTS, **parts}
        self.clock = self._parts["clock"]()
        self.auditor = Auditor(self.clock)
        self.accounts: list[Accounts] = []
        self.events = self.digest = 0
        self._directory = directory
        self._restarts = 0
        self._life = self._begin(directory / "0")
        self.administrator = Administrator(self.auditor, self._connect, self.rng)
        self.clients = [self._client() for _ in range(CLIENTS)]
        self._actors: list[tuple[int, int, Callable[[], int]]] = []
        self._pushed = 0
        for actor in (self.administrator, *self.clients):
            self._come_again(actor.act, self.rng.randrange(1000))
        self._come_again(self._disturb, 10_000)

    def run(self, steps: int) -> None:
        """Take so many steps, then let everything come to its end."""
        for step in range(steps):
            at_ms, _, act = heapq.heappop(self._actors)
            self._advance(at_ms - self.clock.now_ms())
            self._come_again(act, act())
            if step % _DISK_EACH == 0:
                self._life.let_disk_finish()
            self._settle()
            if step % _AUDIT_EACH == 0:
                self._audit()
        self._end()

    def _come_again(self, act: Callable[[], int], wait_ms: int) -> None:
        self._pushed += 1
        heapq.heappush(self._actors, (self.clock.now_ms() + wait_ms, self._pushed, act))

    def _advance(self, ms: int) -> None:
        while ms > 0:
            part_ms = min(ms, _DISK_MS)
            self._life.loop.advance(part_ms)
            ms -= part_ms
            if ms:
                self._life.let_disk_finish()

    def _settle(self) -> None:
        """Let the node do all that it can."""
        self._life.loop.turn()
        self.auditor.check_due()

    # --- what happens -----------------------------------------------------------------------------------------------

    def _client(self) -> Client:
        return Client(self.auditor, self._connect, self.rng, Habits.random(self.rng))

    def _connect(self, user: str, host: str, most_bytes: int, room: int) -> Line:
        make = partial(self._parts["line"], auditor=self.auditor, user=user, host=host)
        line = self._life.connect(host=host, transport=make, most_bytes=most_bytes, room=room)
        assert isinstance(line, Line)
        return line

    def _work_ns(self) -> int:
        return self.rng.choice(_WORK_NS)

    def _disturb(self) -> int:
        """Do something that nobody asked for; return in how many ms to come again."""
        kind = self.rng.choices(("clock", "client", "restart", "kill", "sleep"), (6, 10, 2, 3, 1))[0]
        self.auditor.note(kind)
        if kind == "clock":
            self.clock.step_wall(self.rng.choice((-1_500_000, -3000, 200, 1_500_000)))
        elif kind == "client":
            self.rng.choice(self.clients).habits = Habits.random(self.rng)
        elif kind == "sleep":
            self._advance(self.rng.choice((30_000, _HOUR_MS + 60_000)))
        else:
            self._restart(kill=kind == "kill")
        return self.rng.randrange(20_000)

    def _begin(self, directory: Path) -> _Life:
        loop, rng = self._parts["loop"](self.clock), self.rng
        return _Life(
            directory, loop, self.auditor, self._work_ns,
            window=rng.choice(_WINDOWS), controller_window=rng.choice(_WINDOWS),
            most_connections=rng.choice(_MOST_CONNECTIONS), connections_per_s=rng.choice(_CONNECTIONS_PER_S),
        )  # fmt: skip

    def _restart(self, *, kill: bool) -> None:
        """End the node and begin another where it ended. A killed one left its files as they were at that moment."""
        self.auditor.restarting = True
        before = after = self._directory / str(self._restarts)
        self._restarts += 1
        if kill:
            self._life.let_disk_finish()
            after = self._directory / str(self._restarts)
            shutil.copytree(before, after)
        windows = self._life.windows
        self._life.close()
        if kill:
            shutil.rmtree(before)
        else:
            after = before.rename(self._directory / str(self._restarts))
        self._life = self._begin(after)
        self._read_life(after, Accounts(*windows))
        self.auditor.restarting = False

    # --- what is looked at ------------------------------------------------------------------------------------------

    def _audit(self) -> None:
        """Look at all connections and tables."""
        self.auditor.check_all()
        now_ms, open_lines = self.clock.now_ms(), self.auditor.open
        muted = sum(line.muted for line in open_lines)
        node = self._life.node
        queued = sum(metric.value for metric in node.metrics(now_ms) if metric.name == "queue-size")
        if (queued, node.connections.total) != (muted, len(open_lines)):
            self.auditor.fail(
                None, f"{queued} muted of {node.connections.total}, not {muted} of {len(open_lines)}"
            )
        used_bytes = self._memory_used()
        if used_bytes > _REQUEST_MEMORY_BYTES:
            self.auditor.fail(None, f"requests have {used_bytes} bytes of memory")
        if self._life.recorder.lost_events:
            self.auditor.fail(None, "events were lost")

    def _memory_used(self) -> float:
        metrics = self._life.node.metrics(self.clock.now_ms())
        return next(metric.value for metric in metrics if metric.name == "MemoryPoolUsed")

    def _read_life(self, directory: Path, accounts: Accounts) -> None:
        """Take the events of a life that is over from the spool."""
        events: list[dict[str, Any]] = []
        for path in sorted((directory / "spool").glob("*.closed")):
            events += read_segment(path)
            path.unlink()
        events.sort(key=lambda event: event["seq"])
        self.events += len(events)
        self.digest = zlib.crc32(repr([_DIGESTED(event) for event in events]).encode(), self.digest)
        for event in events:
            accounts.take(event)
        self.accounts.append(accounts)
        if accounts.problems:
            self.auditor.fail(None, accounts.problems[0])
        replayed = replay_events(events, in_force_plan(), batch_rows=_BATCH_ROWS)
        different = differences(replayed, replayed.events)
        if different:
            self.auditor.fail(
                None, f"{len(different)} rows are replayed otherwise, the first: {different[0]}"
            )

    def _end(self) -> None:
        """Let all clients finish: nobody waits for ever."""
        for client in self.clients:
            client.resting = True
        for _ in range(20):
            for client in self.clients:
                client.act()
            self.administrator.act()
            self._settle()
            self._advance(50)
        self._advance(_DRAIN_MS)
        for line in list(self.auditor.open):
            if self.clock.ns - line.active_ns > _IDLE_NS:
                self.auditor.fail(line, "is idle and still open")
            line.client_break()
        self._settle()
        if self.auditor.open:
            self.auditor.fail(next(iter(self.auditor.open)), "is broken and still open")
        if self._memory_used():
            self.auditor.fail(None, f"{self._memory_used()} bytes of memory are held for nobody")
        self._restart(kill=False)
        self._life.close()


def simulate(seed: int, steps: int, directory: Path, **parts: Any) -> World:
    """Take `steps` in the world of `seed`. Raises `ViolationError`, which says how to see it again.

    parts: what a test of the auditor puts in the place of a `clock`, a `loop` or a `line`.
    """
    log = _Log()
    logger = logging.getLogger("tidegate")
    logger.addHandler(log)
    try:
        world = World(seed, directory, **parts)
        world.run(steps)
        if log.lines:
            world.auditor.fail(None, "it was logged")
    except Exception as error:
        again = f"make soak ARGS='simulation --seed {seed} --steps {steps}'"
        said = "".join(f"\nlogged: {line}" for line in log.lines[:5])
        raise ViolationError(f"once more: {again}{said}\n{type(error).__name__}: {error}") from error
    finally:
        logger.removeHandler(log)
    return world
