"""Gateway processes that share a cluster-wide quota, and one Kafka broker with that quota, under the same load.

Everything runs on a virtual clock: the quota engine, the share arithmetic, reports that take a while to arrive, and
clients that send, wait for their throttle time, and send again. A client moves between processes by its schedule.
"""

import heapq
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import count

from tidegate.gateway import processes as gateway_processes
from tidegate.gateway.sharing import TICK_MS, Sharing
from tidegate.gateway.usage_report import UsageReport
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaManagers, QuotaRecord
from tidegate.quota.managers.extensions import CLUSTER_WIDE

START_MS = 1_000_000
WINDOW_MS = 11_000
WARM_UP_MS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client that sends requests of `size` bytes, `every_ms` at most, one after the other.

    place: the process that it is connected to at a time, in ms from the start; None: it does not send.
    """

    size: float
    every_ms: int
    place: Callable[[int], int | None]
    is_fetching: bool = False


@dataclass(slots=True)
class Process:
    """One process: its quota managers and its share of the limit."""

    managers: QuotaManagers
    sharing: "Sharing | InMemory | None"
    is_alive: bool = True
    hears: bool = True
    speaks: bool = True


@dataclass(slots=True)
class Outcome:
    """The admitted bytes, by the time of the request in ms from the start."""

    admitted: list[tuple[int, float]] = field(default_factory=list)

    def bytes(self, begin_ms: int, end_ms: int) -> float:
        """Return the bytes admitted in a range of time."""
        return sum(size for at, size in self.admitted if begin_ms <= at < end_ms)


def one_broker(limit: float, key: str) -> Process:
    """Return a Kafka broker with the quota."""
    managers = QuotaManagers()
    managers.apply(QuotaRecord(entity=(("user", "alice"),), key=key, value=limit))
    return Process(managers, None)


def gateway(number: int, limit: float, key: str) -> Process:
    """Return a gateway process with the cluster-wide quota."""
    process = one_broker(limit, key)
    process.managers.apply(QuotaRecord(entity=(), key=CLUSTER_WIDE, value=1.0))
    process.sharing = Sharing(f"p{number}", window_ms=WINDOW_MS)
    process.sharing.add_node(process.managers)
    process.sharing.begin(START_MS - WARM_UP_MS)
    return process


class InMemory:
    """The sharing of one of several processes of a gateway, which exchange their reports in memory."""

    def __init__(
        self, number: int, reports: gateway_processes.SharedReports, count: int, managers: QuotaManagers
    ) -> None:
        self._now_ms = START_MS - WARM_UP_MS
        self._sharing = gateway_processes.ProcessSharing(
            gateway_processes.Process(number=number, count=count, reports=reports),
            Sharing("all", window_ms=WINDOW_MS),
            window_ms=WINDOW_MS,
            now_ms=lambda: self._now_ms,
        )
        self._sharing.add_node(1, managers)

    @property
    def processes(self) -> int:
        """Return the number of processes that share the limit."""
        return self._sharing.processes(1)

    def tick_in_slices(self, now_ms: int) -> Generator[None, None, None]:
        """Run a tick. It passes the report on, too."""
        self._now_ms = now_ms
        yield from self._sharing.tick_in_slices()

    def receive(self, report: None, now_ms: int) -> None:
        """Ignore the report: the process reads those of the others from memory, at its next tick."""


def processes_of_one_gateway(count: int, limit: float, key: str) -> list[Process]:
    """Return processes that serve one broker with a quota."""
    reports = gateway_processes.SharedReports(count, room=1 << 17)
    made = []
    for number in range(1, count + 1):
        process = one_broker(limit, key)
        process.managers.apply(QuotaRecord(entity=(), key=CLUSTER_WIDE, value=1.0))
        process.sharing = InMemory(number, reports, count, process.managers)
        made.append(process)
    return made


class Run:
    """Processes and clients on one clock."""

    def __init__(
        self, processes: Sequence[Process], clients: Sequence[Client], *, seed: int, delay_ms: int = 60
    ) -> None:
        self.processes = processes
        self.outcome = Outcome()
        self._random = random.Random(seed)
        phases = random.Random(seed)  # of the clients: the same with any processes
        self._delay_ms = delay_ms
        self._order = count()
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        for process in processes:
            if process.sharing is not None:
                self._at(
                    self._random.randrange(TICK_MS) - WARM_UP_MS,
                    lambda now, each=process: self._tick(each, now),
                )
        for client in clients:
            self._at(phases.randrange(1, 1 + client.every_ms), lambda now, each=client: self._send(each, now))

    def until(self, end_ms: int) -> Outcome:
        """Run to a time in ms from the start."""
        while self._events and self._events[0][0] < end_ms:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return self.outcome

    def _at(self, at_ms: int, event: Callable[[int], None]) -> None:
        heapq.heappush(self._events, (at_ms, next(self._order), event))

    def _tick(self, process: Process, now: int) -> None:
        if not process.is_alive:
            return
        report = run_at_once(process.sharing.tick_in_slices(START_MS + now))
        if process.speaks:
            at = now + self._random.randrange(self._delay_ms // 2, self._delay_ms * 2)
            self._at(at, lambda at: self._deliver(report, at))
        self._at(now + TICK_MS, lambda at: self._tick(process, at))

    def _deliver(self, report: UsageReport | None, now: int) -> None:
        for process in self.processes:
            if process.sharing is not None and process.is_alive and process.hears:
                process.sharing.receive(report, START_MS + now)

    def _send(self, client: Client, now: int) -> None:
        place = client.place(now)
        if place is None:
            self._at(now + client.every_ms, lambda at: self._send(client, at))
            return
        managers = self.processes[place % len(self.processes)].managers
        at_ms = START_MS + now
        if client.is_fetching:
            size = min(client.size, managers.fetch.max_value_in_window("alice", "c", lambda: at_ms))
            throttle_ms = managers.fetch.record("alice", "c", size, at_ms)
            if throttle_ms > 0:
                managers.fetch.unrecord("alice", "c", size, at_ms)
                size = 0.0
        else:
            size = client.size
            throttle_ms = managers.produce.record("alice", "c", size, at_ms)
        self.outcome.admitted.append((now, size))
        self._at(now + max(client.every_ms, throttle_ms), lambda at: self._send(client, at))
