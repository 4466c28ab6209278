"""A node, its clients and all that happens to them, from one seed."""

import heapq
import logging
import random
import shutil
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.replaying.engine import decisions, replay_with_engine
from tests.replaying.kernel import differences, replay_events
from tests.server.memory_network import MemoryCluster
from tests.server.whole_node import spool_of
from tests.simulation.accounts import SCHEME, SHARE, Accounts, Window
from tests.simulation.administrator import SETTINGS, Administrator
from tests.simulation.auditor import Auditor, Line, NodeAuditor, ViolationError
from tests.simulation.callbacks import LOADABLE, Scheme
from tests.simulation.clients import Client, Habits
from tests.simulation.clock import NS_PER_MS, VirtualClock, VirtualLoop
from tests.simulation.requests import LASTING_TOPICS, SYNCED_TOPIC
from tests.simulation.rules import INT_MAX

from tidegate.in_slices import run_at_once
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.quota import WINDOW_SETTINGS, ClusterMetadata, QuotaRecord, QuotaType, QuotaWindow
from tidegate.quota.measure.sensor_table import sensor_bytes
from tidegate.server.node import Node
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.recorder import Recorder
from tidegate.server.settings.config import ServerConfig
from tidegate.usage.readers import read_segment

__all__ = ["World", "simulate"]

CLIENTS = 30
_USUAL = Window(samples=11, window_ms=1000)
_WINDOWS = (
    _USUAL,
    _USUAL,
    _USUAL,
    *(Window(samples=n, window_ms=w) for n, w in ((1, 5000), (2, 2000), (5, 1000))),
)
_NODES = (1, 1, 1, 3)
_STATIC_QUOTAS = {
    "quota.producer.default": ("20K",),
    "quota.producer.override": ("c1:4K", "c2:1M,c*3:3K"),
    "quota.consumer.default": ("1M", "30000"),
    "quota.consumer.override": ("c1:1K,c2:2G",),
}
_GIVEN = 0.2  # how often something is
SMALL_TABLE_BYTES = 100_000
_MAKING_UP_NAMES = 0.2
_MARGIN = 1.5  # a rate may rise by a tenth without traffic (B§1.4)
_WORK_NS = (20_000, 20_000, 20_000, 50_000, 50_000, 200_000, 1_000_000, 12_000_000)
_HOUR_MS = 3_600_000
_DRAIN_MS = 800_000
_IDLE_NS = 760_000 * NS_PER_MS  # connections.max.idle.ms, and the time until somebody looks
_REQUEST_MEMORY_BYTES = 150_000
_AUDIT_EACH = 500  # steps
_DISK_EACH, _DISK_MS = 20, 1000  # how often the disk has done its work, in steps and in ms
_BATCH_ROWS = 4096
_EXPECTED_WARNINGS = (
    "observed throttle, not applied: ",
    "is low: one batch of message.max.bytes",
    " is too low for group",
    "too many active clients",
    "because its table is full",
    "wall clock jumped",
    "client did not read its response",
    "request arrived too slowly",
    "all connections are in use, and its principal has the most",
    "request dropped: another principal",
    "frame length is -1",
    "no effect with tidegate.kafka.exact",
)
_UNRELIABLE = "quota callback tests.simulation.callbacks:Unreliable"
_OUR_KEYS = (SCHEME, SHARE)


_DIGESTED = itemgetter(
    "kind", "ts_ms", "connection_id", "api_key", "handler_ns", "network_ns", "response_bytes", "produce_throttle_ms",
    "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms",
)  # fmt: skip
_PARTS = {
    "clock": VirtualClock,
    "loop": VirtualLoop,
    "line": Line,
    "texts": {},
    "spoil": lambda node: None,
    "small_tables": False,
}


class _WatchedRecorder(Recorder):
    """A recorder that tells the auditor of each decision."""

    def __init__(self, directory: Path, *, node_id: int, clock: VirtualClock, auditor: NodeAuditor) -> None:
        super().__init__(directory, node_id=node_id, clock=clock, segment_bytes=1 << 20)
        self._auditor = auditor
        record = self.request

        def record_and_tell(exchange: Exchange) -> None:
            record(exchange)
            auditor.on_decided(exchange)

        self.request = record_and_tell

    def quota(self, record: QuotaRecord, now_ms: int) -> None:
        """Record, and tell; of the quotas, not of the window settings that a node starts with."""
        super().quota(record, now_ms)
        if record.key not in WINDOW_SETTINGS:
            self._auditor.on_quota(record)

    def mark(self, key: str, value: float, now_ms: int) -> None:
        """Put a row of the simulation's own in."""

        super().quota(QuotaRecord(entity=(), key=key, value=value), now_ms)


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """What the nodes of a life are given, beside what was changed before. small_tables: of sensors."""

    texts: Mapping[str, str]
    window: Window
    controller_window: Window
    listeners: tuple[str, ...]
    small_tables: bool

    @classmethod
    def random(cls, rng: random.Random, *, is_exact: bool, calm: bool) -> "_Terms":
        """Return those of one more life; calm: with no more beyond Kafka than exempt clients, and no callback."""
        window, controller_window = rng.choice(_WINDOWS), rng.choice(_WINDOWS)
        listeners = rng.choice(
            (("PLAINTEXT",), ("PLAINTEXT",), ("PLAINTEXT", "EXTERNAL"), ("INSIDE", "EXTERNAL"))
        )
        texts = {
            "listeners": ",".join(f"{name}://127.0.0.1:{9092 + at}" for at, name in enumerate(listeners)),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
            "queued.max.request.bytes": str(_REQUEST_MEMORY_BYTES),
            "socket.request.max.bytes": str(_REQUEST_MEMORY_BYTES),
            "tidegate.callback.modules": "tidegate.callbacks,tests.simulation",
            "tidegate.kafka.exact": "true" if is_exact else "false",
            "quota.window.num": str(window.samples),
            "quota.window.size.seconds": str(window.window_ms // 1000),
            "controller.quota.window.num": str(controller_window.samples),
            "controller.quota.window.size.seconds": str(controller_window.window_ms // 1000),
        }
        if "EXTERNAL" in listeners:
            texts["listener.name.external.max.connections"] = str(rng.choice((INT_MAX, CLIENTS // 3)))
            texts["listener.name.external.max.connection.creation.rate"] = str(rng.choice((INT_MAX, 3)))
        for name, values in SETTINGS.items():
            if rng.random() < (0.0 if calm and not name.startswith("max") else _GIVEN):
                texts[name] = rng.choice(values)
        for name, values in _STATIC_QUOTAS.items():
            if rng.random() < _GIVEN:
                texts[name] = rng.choice(values)
        if rng.random() < (0.0 if calm else _GIVEN):
            texts |= rng.choice(LOADABLE)
        return cls(
            texts=texts, window=window, controller_window=controller_window, listeners=listeners,
            small_tables=rng.random() < _GIVEN,
        )  # fmt: skip


class _Life(MemoryCluster):
    """Nodes from their start to their end."""

    def __init__(
        self,
        directory: Path,
        loop: VirtualLoop,
        auditor: Auditor,
        work_ns: Callable[[], int],
        terms: _Terms,
        count: int,
        spoil: Callable[[Node], None],
    ) -> None:
        self.terms, self._spoil = terms, spoil
        self.recorders: list[_WatchedRecorder] = []
        self.schemes: list[Scheme] = []
        self._directory, self._auditor = directory, auditor
        auditor.nodes = []
        super().__init__(directory, count, loop=loop, sync=lambda fd: None, texts=terms.texts)
        for node in self.nodes:
            node.handlers = {
                api_key: auditor.probe(handler, work_ns) for api_key, handler in node.handlers.items()
            }
        for name, partitions in LASTING_TOPICS.items():
            if name not in self.storage.topics.by_name:
                settings = {"flush.messages": "1"} if name == SYNCED_TOPIC else {}
                run_at_once(self.storage.topics.create_in_slices(name, partitions, settings))
        auditor.leader = self.leader

    def recorder_of(self, config: ServerConfig) -> Recorder:
        """Return a recorder that tells the auditor."""
        node_id = config["node.id"]
        place = node_id - 1
        auditor = NodeAuditor(
            self._auditor, node_id, window=self.terms.window, settings=lambda: self.nodes[place].config.given,
            listeners=self.terms.listeners,
            protected="PLAINTEXT" if self.terms.listeners == ("PLAINTEXT", "EXTERNAL") else None,
        )  # fmt: skip
        self._auditor.nodes.append(auditor)
        directory = spool_of(self._directory, node_id)
        self.recorders.append(_WatchedRecorder(directory, node_id=node_id, clock=self.clock, auditor=auditor))
        return self.recorders[-1]

    def on_made(self, node: Node) -> None:
        """Have a row say when another callback is asked, and what it is told of the cluster."""
        recorder, managers = self.recorders[-1], node.managers
        if self.terms.small_tables:
            for manager in managers:
                manager._max_sensor_bytes = SMALL_TABLE_BYTES
                manager.sensors = manager._new_table()
        exchange_in_slices, update_cluster_metadata = (
            managers.exchange_in_slices,
            managers.update_cluster_metadata,
        )

        def exchange(
            callback: Any, records: Any, cluster: Any = None, at_exchange: Callable[[], None] = lambda: None
        ) -> Any:
            scheme = Scheme({} if callback is None else dict(node.config.given))
            told: list[ClusterMetadata] = []

            def tell() -> ClusterMetadata:
                told.append(cluster())
                return told[-1]

            def mark() -> None:
                self.schemes.append(scheme)
                self._auditor.seen["callback exchanged"] += len(self.schemes) > len(self.nodes)
                recorder.mark(SCHEME, len(self.schemes) - 1, self.clock.now_ms())
                if told:
                    mark_share(told[-1])
                at_exchange()

            return exchange_in_slices(callback, records, None if cluster is None else tell, mark)

        def mark_share(cluster: ClusterMetadata) -> None:
            led = sum(leader == node.config["node.id"] for leader in cluster.leaders.values())
            recorder.mark(SHARE, min(1.0, max(led, 1) / max(len(cluster.leaders), 1)), self.clock.now_ms())

        def update(cluster: ClusterMetadata) -> bool:
            mark_share(cluster)
            return update_cluster_metadata(cluster)

        managers.exchange_in_slices = exchange  # type: ignore[method-assign]
        managers.update_cluster_metadata = update  # type: ignore[method-assign]
        self._spoil(node)

    def leader(self, topic: str, partition: int) -> int:
        """Return the number of the node that leads a partition."""
        first = int(self.storage.topics.by_name[topic].topic_id[:8], 16)
        return (first + partition) % len(self.nodes) + 1

    def let_disk_finish(self) -> None:
        """Wait until the disk threads have done what they were given; the loop learns of it in its next turn.

        A killed node's directory is copied afterwards, and files that go meanwhile cannot be copied.
        """
        self.storage._worker.submit(lambda: None).result()
        self.storage._removal.wait()
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
        ) and _UNRELIABLE not in text:
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
        self._count, self._is_exact = self.rng.choice(_NODES), self.rng.random() < _GIVEN
        self._is_calm = self.rng.random() < _GIVEN
        self.auditor.seen.update(
            {"several nodes": self._count > 1, "exact": self._is_exact, "calm": self._is_calm}
        )
        self.administrator = Administrator(self.auditor, self._connect, self.rng, is_exact=self._is_exact)
        self._life = self._begin(directory / "0")
        self.clients = [self._client() for _ in range(CLIENTS)]
        self._over: dict[
            Any, list[tuple[Any, Any]]
        ] = {}  # by manager: sensors over their bound, and their table
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
        return Client(self.auditor, self._connect, self.rng, self._habits())

    def _habits(self) -> Habits:
        return Habits.random(self.rng, makes_up_names=self.rng.random() < _MAKING_UP_NAMES)

    def _connect(self, user: str, host: str, most_bytes: int, room: int, node_id: int | None) -> Line:
        """Connect by any listener, the administrator by the first one."""
        nodes, listeners = self.auditor.nodes, self._life.terms.listeners
        node = self.rng.choice(nodes) if node_id is None else nodes[node_id - 1]
        make = partial(self._parts["line"], node=node, user=user, host=host)
        listener = self.rng.choice(listeners) if node_id is None else listeners[0]
        line = self._life.connect(
            listener, at=node.node_id - 1, host=host, transport=make, most_bytes=most_bytes, room=room
        )
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
            self.rng.choice(self.clients).take_up(self._habits())
        elif kind == "sleep":
            self._advance(self.rng.choice((30_000, _HOUR_MS + 60_000)))
        else:
            self._restart(kill=kind == "kill")
        return self.rng.randrange(20_000)

    def _begin(self, directory: Path) -> _Life:
        terms = _Terms.random(self.rng, is_exact=self._is_exact, calm=self._is_calm)
        small_tables = self._parts["small_tables"] or terms.small_tables
        terms = replace(terms, texts={**terms.texts, **self._parts["texts"]}, small_tables=small_tables)
        self.administrator.given = terms.texts
        self.administrator.is_calm = self._is_calm
        return _Life(
            directory, self._parts["loop"](self.clock), self.auditor, self._work_ns, terms, self._count,
            self._parts["spoil"],
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
        life, nodes = self._life, self.auditor.nodes
        life.close()
        if kill:
            shutil.rmtree(before)
        else:
            after = before.rename(self._directory / str(self._restarts))
        self._life = self._begin(after)
        self._read_life(after, life, nodes)
        self.auditor.restarting = False

    # --- what is looked at ------------------------------------------------------------------------------------------

    def _audit(self) -> None:
        """Look at all connections and tables."""
        now_ms = self.clock.now_ms()
        for node, watched in zip(self._life.nodes, self.auditor.nodes, strict=True):
            watched.check_all()
            self._audit_node(node, watched, now_ms)

    def _audit_node(self, node: Node, watched: NodeAuditor, now_ms: int) -> None:
        open_lines = watched.connections.open
        muted = sum(line.muted for line in open_lines)
        queued = sum(metric.value for metric in node.metrics(now_ms) if metric.name == "queue-size")
        if (queued, node.connections.total) != (muted, len(open_lines)):
            self.auditor.fail(
                None, f"{queued} muted of {node.connections.total}, not {muted} of {len(open_lines)}"
            )
        used_bytes = _memory_used(node, now_ms)
        if used_bytes > _REQUEST_MEMORY_BYTES:
            self.auditor.fail(None, f"requests have {used_bytes} bytes of memory")
        if any(recorder.lost_events for recorder in self._life.recorders):
            self.auditor.fail(None, "events were lost")
        if self._life.terms.small_tables:
            for manager in node.managers:
                self._audit_table(manager, now_ms)

    def _audit_table(self, manager: Any, now_ms: int) -> None:
        """Sensors stay in bounds, but for those that are over their quota or have one of their own; these are kept.

        Those of a default quota of client ids may go for another user's.
        """
        table = manager.sensors
        has_others = len(table._shares._entries_by) > 1
        for sensor, of_table in self._over.pop(manager, ()):
            is_gone = of_table is table and manager._fits(sensor) and table.get(sensor.name) is not sensor
            is_gone = is_gone and not (has_others and manager._is_of_default_quota(sensor))
            is_rate = (
                manager.quota_type is not QuotaType.CONTROLLER_MUTATION and manager.window == QuotaWindow()
            )
            if is_gone and is_rate and sensor.peek(now_ms) > _MARGIN * sensor.bound:
                self.auditor.fail(None, f"{sensor.name} is forgotten, and over its bound of {sensor.bound}")
        sensors = [(sensor, sensor.is_over(now_ms)) for sensor in manager.up_to_date_sensors()]
        free_bytes = sum(
            sensor_bytes(sensor, manager.window)
            for sensor, is_over in sensors
            if not is_over and (manager._custom or manager._shared_tags(sensor.tags) != sensor.tags)
        )
        self._over[manager] = [(sensor, table) for sensor, is_over in sensors if is_over]
        if free_bytes > SMALL_TABLE_BYTES:
            self.auditor.fail(None, f"{free_bytes} bytes are kept of {len(sensors)} clients")

    def _read_life(self, directory: Path, life: _Life, nodes: list[NodeAuditor]) -> None:
        """Take the events of a life that is over from the spools, the controller's first."""
        forwarded: Mapping[int, Any] = {}
        for node in nodes:
            accounts = Accounts(
                life.terms.window, life.terms.controller_window, schemes=life.schemes, answers=node.answers,
                forwarded=forwarded, is_exact=not life.terms.small_tables,
            )  # fmt: skip
            self._read_node(spool_of(directory, node.node_id), accounts)
            forwarded = forwarded or accounts.forwarded

    def _read_node(self, spool: Path, accounts: Accounts) -> None:
        events: list[dict[str, Any]] = []
        for path in sorted(spool.glob("*.closed")):
            events += read_segment(path)
            path.unlink()
        events.sort(key=lambda event: event["seq"])
        self.events += len(events)
        self.digest = zlib.crc32(repr([_DIGESTED(event) for event in events]).encode(), self.digest)
        for event in events:
            accounts.take(event)
        accounts.end()
        self.accounts.append(accounts)
        if accounts.problems:
            self.auditor.fail(None, accounts.problems[0])
        if not accounts.is_exact:
            return
        self._replay([event for event in events if event["quota_key"] not in _OUR_KEYS], accounts)

    def _replay(self, events: list[dict[str, Any]], accounts: Accounts) -> None:
        """The record gives the same decisions again."""
        if accounts.was_beyond or accounts.was_custom:
            if self._count > 1:
                return  # whether a client is exempt or observed is what the node says that it asked
            again = zip(decisions(replay_with_engine(events)), decisions(events), strict=True)
            other: list[Any] = [pair for pair in again if pair[0] != pair[1]]
        else:
            replayed = replay_events(events, in_force_plan(), batch_rows=_BATCH_ROWS)
            other = differences(replayed, replayed.events)
        if other:
            self.auditor.fail(None, f"{len(other)} rows are replayed otherwise, the first: {other[0]}")

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
        for line in self.auditor.open:
            if self.clock.ns - line.active_ns > _IDLE_NS:
                self.auditor.fail(line, "is idle and still open")
            line.client_break()
        for node in self.auditor.nodes:
            for line in node.connections.waiting:
                line.client_break()
        self._settle()
        self._advance(1000)
        for line in self.auditor.open:
            if not (line.muted and line.sent_bytes > line.served_bytes):  # else its throttle is waited for
                self.auditor.fail(line, "is broken and still open")
        for node in self._life.nodes:
            held_bytes = _memory_used(node, self.clock.now_ms())
            if held_bytes:
                self.auditor.fail(None, f"{held_bytes} bytes of memory are held for nobody")
        self._restart(kill=False)
        self._life.close()


def _memory_used(node: Node, now_ms: int) -> float:
    return next(metric.value for metric in node.metrics(now_ms) if metric.name == "MemoryPoolUsed")


def simulate(seed: int, steps: int, directory: Path, **parts: Any) -> World:
    """Take `steps` in the world of `seed`. Raises `ViolationError`, which says how to see it again.

    parts: what a test of the auditor puts in the place of a `clock`, a `loop` or a `line`; `texts`: settings that are
    given at each start; `spoil`: is called with each node before it serves; `small_tables`: there always are.
    """
    log = _Log()
    logger = logging.getLogger("tidegate")
    logger.addHandler(log)
    logger.propagate = False
    names = random.Random(seed)
    try:
        # by a topic's id its partitions are spread over the nodes
        with patch("uuid.uuid4", lambda: uuid.UUID(int=names.getrandbits(128), version=4)):
            world = World(seed, directory, **parts)
            world.run(steps)
        if log.lines:
            world.auditor.fail(None, "it was logged")
    except Exception as error:
        again = f"make soak ARGS='simulation --seed {seed} --steps {steps}'"
        said = "".join(f"\nlogged: {line}" for line in log.lines[:5])
        raise ViolationError(f"once more: {again}{said}\n{type(error).__name__}: {error}") from error
    finally:
        logger.propagate = True
        logger.removeHandler(log)
    return world
