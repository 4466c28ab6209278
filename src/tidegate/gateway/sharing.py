"""The cluster-wide quotas of one gateway process: their sensors, and the usage of the other processes. No I/O.

`tick` takes the usage of the process's own sensors, sets their shares, and returns a report for the other processes.
`receive` is given the reports of all processes, the own ones too: a process whose own reports do not come back is cut
off, and so is one before `begin`. It then shares the limit divided by the last number of processes between its own
brokers; a process that has known no other takes the limit as its own.

Bounds: `MAX_FOLLOWED` sensors are followed and reported, divided between users; others have a fair share of the limit.
`MAX_PROCESSES` processes are counted.
"""

import logging
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tidegate.fair_share import UNKNOWN_OWNER, ReclaimableBound
from tidegate.gateway.shares import IDLE_SHARE, Usage, divide_limit, faded_rate
from tidegate.quota import UNLIMITED, QuotaManagers
from tidegate.quota.measure.cluster_sensor import ClusterSensor

__all__ = [
    "LOST_AFTER_MS",
    "MAX_FOLLOWED",
    "MAX_PROCESSES",
    "TICK_MS",
    "USAGE_TOPIC",
    "Sharing",
    "UsageReport",
]

_log = logging.getLogger("tidegate.gateway")

USAGE_TOPIC = "__tidegate_usage"
TICK_MS = 500
"""Interval between two reports of a process, at each of which it sets the shares of its sensors."""
LOST_AFTER_MS = 3000
"""Time without a report after which a process is lost: the others use its share."""
MAX_FOLLOWED = 1000
MAX_PROCESSES = 64
_AT_A_TIME = 10
_NEGLIGIBLE = 1e-6
_UNUSED = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """The usage of one process, by the key of the quota. nodes: the brokers that it serves; 0: it has stopped.

    is_partial: more quotas are in use than are reported; each of the others has a fair share of its limit.
    """

    process: str
    nodes: int
    usage: Mapping[str, Usage]
    is_partial: bool = False


@dataclass(slots=True)
class _Followed:
    """A sensor that is followed. refused: the rate of refused fetches, smoothed over ticks.

    measured: the usage that was last reported. confirmed: the one that the other processes have, too.
    """

    sensor: ClusterSensor
    refused: float = 0.0
    measured: Usage = _UNUSED
    confirmed: Usage = _UNUSED

    def measure(self, now_ms: int) -> None:
        """Measure the usage of the last seconds."""
        self.refused = (self.refused + self.sensor.take_refused() * 1000.0 / TICK_MS) / 2
        self.measured = Usage(
            rate=max(self.sensor.peek(now_ms), 0.0),
            demand=max(self.sensor.peek_recent(now_ms), 0.0) + self.refused,
        )


@dataclass(slots=True)
class _Process:
    """The last report of another process."""

    report: UsageReport
    received_ms: int


class Sharing:
    """The cluster-wide quotas of a process. process: a name that no other process has."""

    def __init__(self, process: str, *, window_ms: int) -> None:
        self._process = process
        self._window_ms = window_ms
        self._nodes = 0
        self._followed: dict[str, dict[int, _Followed]] = {}  # by key, then node
        self._room: ReclaimableBound[tuple[str, int]] = ReclaimableBound(MAX_FOLLOWED)
        self._others: dict[str, _Process] = {}
        self._confirmed_ms: int | None = None
        self._processes = 1
        self._is_cut_off = False
        self._omitted = False
        self.omitted = 0

    @property
    def is_cut_off(self) -> bool:
        """The state of a process whose own reports do not come back, or that has not begun."""
        return self._is_cut_off

    @property
    def processes(self) -> int:
        """The number of processes that share the limits, this one included; the last one that was known if cut off."""
        return self._processes

    def add_node(self, managers: QuotaManagers) -> None:
        """Share the limits of a node's cluster-wide quotas with the other nodes."""
        for manager in (managers.produce, managers.fetch, managers.request):
            manager.follow = partial(self._follow, self._nodes)
            manager.look_up_anew()
        self._nodes += 1

    def begin(self, now_ms: int) -> None:
        """Begin to share: the reports of the other processes can be read, and this one publishes."""
        self._confirmed_ms = now_ms

    def end(self) -> None:
        """End sharing until `begin`."""
        self._confirmed_ms = None

    def receive(self, report: UsageReport, now_ms: int) -> None:
        """Use the report of a process from now on."""
        if report.process == self._process:
            self._confirmed_ms = now_ms
            for sensors in self._followed.values():
                for followed in sensors.values():
                    followed.confirmed = followed.measured
        elif not report.nodes:
            self._others.pop(report.process, None)
        elif report.process in self._others or len(self._others) < MAX_PROCESSES - 1:
            self._others[report.process] = _Process(report, now_ms)
        else:
            _log.warning(
                "ignored the usage of gateway process %r: %d processes share cluster-wide quotas, which is the maximum",
                report.process[:40],
                MAX_PROCESSES,
                extra={"repeats": "cluster-wide processes"},
            )

    def tick_in_slices(self, now_ms: int) -> Generator[None, None, UsageReport]:
        """Measure the usage, set the shares, and return the report to publish; call it every `TICK_MS`."""
        self._look_at_processes(now_ms)
        usage: dict[str, Usage] = {}
        for number, key in enumerate(list(self._followed)):
            if self._measure(key, now_ms) and self._set_shares(key, now_ms):
                usage[key] = self._usage(key)
            if number % _AT_A_TIME == 0:
                yield
        report = UsageReport(process=self._process, nodes=self._nodes, usage=usage, is_partial=self._omitted)
        self._omitted = False
        return report

    def last_report(self) -> UsageReport:
        """Return the report of a process that stops: the others use its share at once."""
        return UsageReport(process=self._process, nodes=0, usage={})

    def gauges(self) -> Iterable[tuple[str, float, str]]:
        """Return name, value and help text of the metrics, without any effect."""
        prefix = "tidegate_cluster_quota"
        return (
            (f"{prefix}_processes", self._processes, "Gateway processes that share cluster-wide quotas"),
            (
                f"{prefix}_cut_off",
                self._is_cut_off,
                "1: this process does not receive the usage of the others",
            ),
            (
                f"{prefix}_followed",
                len(self._room),
                "Sensors of cluster-wide quotas that share their limit by demand",
            ),
            (
                f"{prefix}_omitted",
                self.omitted,
                "Times a sensor got a fair share because the table was full",
            ),
        )

    def _follow(self, node: int, sensor: ClusterSensor, now_ms: int) -> None:
        """Follow a sensor that is in use; without room, it has a fair share of its limit."""
        place = sensor.key, node
        before = self._followed.get(sensor.key, {}).get(node)
        if before is None and not self._make_room(place, sensor.found_for or UNKNOWN_OWNER):
            self._omitted = True
            self.omitted += 1
            sensor.set_share(own=0.0, others=0.0, part=1.0, divisor=self._processes * self._nodes)
            return
        if before is not None:
            before.sensor.is_followed = False
        sensor.is_followed = True
        self._followed.setdefault(sensor.key, {})[node] = _Followed(sensor)
        self._set_shares(sensor.key, now_ms)

    def _make_room(self, place: tuple[str, int], owner: str) -> bool:
        if not self._room.fits():
            victim = self._room.victim(owner)
            if victim is None or self._room.owner(victim) == owner:
                return False
            self._forget(*victim)
            self._omitted = True
        self._room.add_entry(place, owner)
        return True

    def _forget(self, key: str, node: int) -> None:
        """Follow a sensor no longer, until it is used again."""
        sensor = self._followed[key].pop(node).sensor
        if not self._followed[key]:
            del self._followed[key]
        self._room.remove((key, node))
        sensor.is_followed = False
        sensor.set_share(own=0.0, others=0.0, part=1.0, divisor=self._processes * self._nodes)

    def _measure(self, key: str, now_ms: int) -> bool:
        """Measure the sensors of a quota, and return whether it is still used."""
        for node, followed in list(self._followed[key].items()):
            followed.measure(now_ms)
            if not followed.measured.rate and followed.measured.demand < _NEGLIGIBLE:
                self._forget(key, node)
        return key in self._followed

    def _usage(self, key: str) -> Usage:
        """Return the usage of a quota in this process, measured and with its new shares."""
        total = Usage()
        for each in self._followed[key].values():
            claim = max(each.sensor.share, each.measured.rate)
            total = total.plus(replace(each.measured, claim=claim))
        return total

    def _set_shares(self, key: str, now_ms: int) -> bool:
        """Set the shares of the sensors of a quota; return False where it sets no limit that can be shared."""
        here = self._followed[key]
        limit = next(iter(here.values())).sensor.bound
        if not 0.0 < limit < UNLIMITED:
            return False
        others, idle, busy, divisor = Usage(), 0, 0, self._processes
        if not self._is_cut_off:
            others, idle, busy = self._usage_of_others(key, limit, now_ms)
            divisor = 1
        usage = [each.confirmed for each in here.values()]
        parts = divide_limit(
            limit / divisor, usage, others=others, idle_sensors=idle + self._nodes - len(here)
        )
        rate = others.rate + sum(each.rate for each in usage)
        busy += sum(own.demand >= IDLE_SHARE * limit for own in usage)
        for each, own, part in zip(here.values(), usage, parts, strict=True):
            competing = busy + (own.demand < IDLE_SHARE * limit)
            pace = max(part.by_demand, 1.0 / competing) if busy else part.by_demand
            each.sensor.set_share(
                own=own.rate, others=rate - own.rate, part=part.granted, pace=pace, divisor=divisor
            )
        return True

    def _usage_of_others(self, key: str, limit: float, now_ms: int) -> tuple[Usage, int, int]:
        """Return the usage of a quota in the other processes, and the number of its idle and of its busy sensors."""
        total, idle, busy = Usage(), 0, 0
        for process in self._others.values():
            report = process.report
            usage = report.usage.get(key)
            silent_ms = self._silent_ms(process, now_ms) - LOST_AFTER_MS
            if usage is None:
                fair = limit / self._processes if report.is_partial else 0.0
                usage = Usage(rate=fair, claim=fair)
                idle += report.nodes if silent_ms <= 0 else 0
            if silent_ms <= 0:
                busy += usage.demand >= IDLE_SHARE * limit
                total = total.plus(usage)
            else:
                rate = faded_rate(usage.rate, silent_ms=silent_ms, window_ms=self._window_ms)
                total = total.plus(Usage(rate=rate, claim=rate))
        return total, idle, busy

    def _look_at_processes(self, now_ms: int) -> None:
        """Note whether this process is cut off, and which others are lost."""
        has_begun = self._confirmed_ms is not None
        is_cut_off = self._confirmed_ms is None or now_ms - self._confirmed_ms > LOST_AFTER_MS
        if is_cut_off != self._is_cut_off:
            self._is_cut_off = is_cut_off
            if not has_begun:
                _log.info(
                    "cluster-wide quotas are 1/%d of their limits here until topic %s is open",
                    self._processes,
                    USAGE_TOPIC,
                )
            elif is_cut_off:
                _log.warning(
                    "cut off from the other gateway processes: cluster-wide quotas are 1/%d of their limits here; "
                    "hint: look for errors of the cluster and of topic %s",
                    self._processes,
                    USAGE_TOPIC,
                )
            else:
                _log.warning(
                    "the usage of the other gateway processes can be read: cluster-wide quotas are shared"
                )
        if is_cut_off:
            return
        for name, process in list(self._others.items()):
            if self._silent_ms(process, now_ms) > LOST_AFTER_MS + self._window_ms:
                del self._others[name]
        live = sum(self._silent_ms(each, now_ms) <= LOST_AFTER_MS for each in self._others.values())
        if live + 1 != self._processes:
            _log.info("%d gateway processes share cluster-wide quotas", live + 1)
            self._processes = live + 1

    def _silent_ms(self, process: _Process, now_ms: int) -> int:
        """Return for how long a process has published nothing, up to the last time when this one could have read it."""
        return (now_ms if self._confirmed_ms is None else self._confirmed_ms) - process.received_ms
