"""The cluster-wide quotas of one gateway process: their sensors, and the usage of the other processes. No I/O.

`tick` measures the process's own sensors, sets their shares, and returns a report for the other processes. Pass the
reports of all processes to `receive`, including this one's. A process is cut off before `begin`, and while its own
reports do not come back. It then divides the limit by the last known number of processes, and that part between its own
brokers. A process that has never known another one uses the full limit.

Bounds: at most `MAX_FOLLOWED` sensors, one for each quota and broker, are followed, divided between users. If there is
no room for the sensor of a quota, the quota gets a fair share of its limit at all brokers of the process, for the time
of a window. Reports name up to `MAX_OMITTED` such quotas. `MAX_PROCESSES` processes are counted.
"""

import logging
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial

from tidegate.fair_share import UNKNOWN_OWNER, ReclaimableBound
from tidegate.gateway.shares import IDLE_SHARE, Usage, divide_limit, faded_rate
from tidegate.gateway.usage_report import MAX_FOLLOWED, MAX_OMITTED, USAGE_TOPIC, UsageReport
from tidegate.quota import UNLIMITED, QuotaManagers
from tidegate.quota.measure.cluster_sensor import ClusterSensor

__all__ = [
    "LOST_AFTER_MS",
    "MAX_PROCESSES",
    "TICK_MS",
    "Sharing",
    "follow_sensors",
]

_log = logging.getLogger("tidegate.gateway")

TICK_MS = 500
"""Interval between two reports of a process, at each of which it sets the shares of its sensors."""
LOST_AFTER_MS = 3000
"""Time without a report after which a process is lost: the others use its share."""
MAX_PROCESSES = 64
_AT_A_TIME = 10
_KEPT = 8
"""Most reports that wait for confirmation: those of `LOST_AFTER_MS`, and two more."""
_NEGLIGIBLE = 1e-6
_UNUSED = Usage()


@dataclass(slots=True)
class _Followed:
    """A sensor that is followed. refused: the rate of refused fetches, smoothed over ticks.

    measured: the last measured usage. confirmed: the usage in the last report that the other processes have, too.
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
    """The shared quotas of a process. process: a name that no other process has. what: the quotas, for the log.

    is_cut_off: its own reports do not come back, or it has not begun. processes: the number of processes that share the
    limits, including this one; while cut off, the last known number.
    """

    def __init__(self, process: str, *, window_ms: int, what: str = "cluster-wide quotas") -> None:
        self._process = process
        self._what = what
        self._window_ms = window_ms
        self._nodes = 0
        self._followed: dict[str, dict[int, _Followed]] = {}  # by key, then node
        self._room: ReclaimableBound[tuple[str, int]] = ReclaimableBound(MAX_FOLLOWED)
        self._others: dict[str, _Process] = {}
        self._confirmed_ms: int | None = None
        self.processes = 1
        self.is_cut_off = False
        self._number = 0
        self._reported: dict[int, dict[tuple[str, int], Usage]] = {}  # by number of the report
        self._omitted: dict[str, int] = {}  # since when, by key
        self.omitted = 0

    def add_node(self, managers: QuotaManagers) -> None:
        """Share the limits of a node's cluster-wide quotas with the other nodes."""
        follow_sensors(managers, partial(self.follow, self.new_node()))

    def new_node(self) -> int:
        """Count a node, and return the number by which its sensors are followed."""
        self._nodes += 1
        return self._nodes - 1

    def forget_all(self) -> None:
        """Stop following all sensors, until they are used again."""
        for key in list(self._followed):
            for node in list(self._followed[key]):
                self._forget(key, node)

    def begin(self, now_ms: int) -> None:
        """Begin to share: the reports of the other processes can be read, and this one publishes."""
        self._confirmed_ms = now_ms

    def end(self) -> None:
        """End sharing until `begin`, and drop the reports of other processes, which will be out of date."""
        self._confirmed_ms = None
        self._others.clear()

    def receive(self, report: UsageReport, now_ms: int) -> None:
        """Use the report of a process from now on."""
        if report.process == self._process:
            if self._confirmed_ms is not None:
                self._confirmed_ms = now_ms
            self._confirm(report.number)
        elif not report.nodes:
            self._others.pop(report.process, None)
        elif report.process in self._others or len(self._others) < MAX_PROCESSES - 1:
            self._others[report.process] = _Process(report, now_ms)
        else:
            _log.warning(
                "ignored the usage of gateway process %r: %d processes share %s, which is the maximum",
                report.process[:40],
                MAX_PROCESSES,
                self._what,
                extra={"repeats": "cluster-wide processes"},
            )

    def tick_in_slices(self, now_ms: int) -> Generator[None, None, UsageReport]:
        """Measure the usage, set the shares, and return the report to publish; call it every `TICK_MS`."""
        self._look_at_processes(now_ms)
        old_ms = now_ms - 2 * self._window_ms  # a fair share lasts one window, and counts during another one
        for key in [key for key, since_ms in self._omitted.items() if since_ms < old_ms]:
            del self._omitted[key]
        usage: dict[str, Usage] = {}
        measured: dict[tuple[str, int], Usage] = {}
        for number, key in enumerate(list(self._followed)):
            if self._measure(key, now_ms) and self._set_shares(key, now_ms):
                usage[key] = self._usage(key)
                measured |= {(key, node): each.measured for node, each in self._followed[key].items()}
            if number % _AT_A_TIME == 0:
                yield
        self._number += 1
        self._reported[self._number] = measured
        self._reported.pop(self._number - _KEPT, None)
        return UsageReport(
            process=self._process,
            nodes=self._nodes,
            usage=usage,
            number=self._number,
            omitted=frozenset(self._omitted),
        )

    def last_report(self) -> UsageReport:
        """Return the report of a process that stops: the others use its share at once."""
        return UsageReport(process=self._process, nodes=0, usage={})

    def gauges(self) -> Iterable[tuple[str, float, str]]:
        """Return name, value and help text of the metrics, without any effect."""
        prefix = "tidegate_cluster_quota"
        return (
            (f"{prefix}_processes", self.processes, "Gateway processes that share cluster-wide quotas"),
            (f"{prefix}_cut_off", self.is_cut_off, "1: this process does not receive the others' usage"),
            (
                f"{prefix}_followed",
                len(self._room),
                "Sensors of cluster-wide quotas that share their limit by demand",
            ),
            (f"{prefix}_omitted", self.omitted, "Times a sensor got a fair share: the table was full"),
        )

    def follow(self, node: int, sensor: ClusterSensor, now_ms: int) -> None:
        """Follow a sensor that is in use; without room, it has a fair share of its limit."""
        before = self._followed.get(sensor.key, {}).get(node)
        if before is None and not self._make_room(
            sensor.key, node, sensor.found_for or UNKNOWN_OWNER, now_ms
        ):
            self.omitted += 1
            self._set_fair_share(sensor)
            return
        if before is not None:
            before.sensor.is_followed = False
        sensor.is_followed = True
        self._followed.setdefault(sensor.key, {})[node] = _Followed(sensor)
        self._set_shares(sensor.key, now_ms)

    def _confirm(self, number: int) -> None:
        """Mark the usage in a report as confirmed: the other processes have it. Later reports may not have arrived."""
        for (key, node), usage in self._reported.get(number, {}).items():
            followed = self._followed.get(key, {}).get(node)
            if followed is not None:
                followed.confirmed = usage

    def _make_room(self, key: str, node: int, owner: str, now_ms: int) -> bool:
        since_ms = self._omitted.get(key)
        if since_ms is not None and now_ms - since_ms < self._window_ms:
            return False
        if not self._room.fits():
            victim = self._room.victim(owner)
            is_own = victim is None or self._room.owner(victim) == owner
            omitted = key if victim is None or is_own else victim[0]
            self._omit(omitted, now_ms)
            if omitted == key:
                return False
        self._omitted.pop(key, None)
        self._room.add_entry((key, node), owner)
        return True

    def _omit(self, key: str, now_ms: int) -> None:
        """Set a fair share of a quota at all brokers. Otherwise brokers with room would use the others' shares, too."""
        for node in list(self._followed.get(key, ())):
            self._forget(key, node)
        self._omitted.pop(key, None)
        if len(self._omitted) >= MAX_OMITTED:
            del self._omitted[next(iter(self._omitted))]  # the oldest
        self._omitted[key] = now_ms

    def _set_fair_share(self, sensor: ClusterSensor) -> None:
        sensor.set_share(own=0.0, others=0.0, part=1.0, divisor=self.processes * self._nodes)

    def _forget(self, key: str, node: int) -> None:
        """Stop following a sensor, until it is used again."""
        sensor = self._followed[key].pop(node).sensor
        if not self._followed[key]:
            del self._followed[key]
        self._room.remove((key, node))
        sensor.is_followed = False
        self._set_fair_share(sensor)

    def _measure(self, key: str, now_ms: int) -> bool:
        """Measure the sensors of a quota, and return whether it is still used."""
        for node, followed in list(self._followed.get(key, {}).items()):
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
        others, idle, busy, divisor = Usage(), 0, 0, self.processes
        if not self.is_cut_off:
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
            if key in report.omitted:
                usage = Usage(rate=limit / self.processes, claim=limit / self.processes)
            elif usage is None:
                usage = _UNUSED
                idle += report.nodes if silent_ms <= 0 else 0
            if silent_ms <= 0:
                busy += usage.demand >= IDLE_SHARE * limit
                total = total.plus(usage)
            else:
                rate = faded_rate(usage.rate, silent_ms=silent_ms, window_ms=self._window_ms)
                total = total.plus(Usage(rate=rate, claim=rate))
        return total, idle, busy

    def _look_at_processes(self, now_ms: int) -> None:
        """Update whether this process is cut off, and which others are lost."""
        has_begun = self._confirmed_ms is not None
        is_cut_off = self._confirmed_ms is None or now_ms - self._confirmed_ms > LOST_AFTER_MS
        if is_cut_off != self.is_cut_off:
            self.is_cut_off = is_cut_off
            if not has_begun:
                _log.info(
                    "cluster-wide quotas are 1/%d of their limits here until topic %s is open, and mutation quotas "
                    "count the mutations of this gateway alone",
                    self.processes,
                    USAGE_TOPIC,
                )
            elif is_cut_off:
                _log.warning(
                    "cut off from the other gateway processes: cluster-wide quotas are 1/%d of their limits here, and "
                    "mutation quotas count the mutations of this gateway alone; "
                    "hint: look for errors of the cluster and of topic %s",
                    self.processes,
                    USAGE_TOPIC,
                )
            else:
                _log.warning(
                    "the usage of the other gateway processes can be read: cluster-wide quotas and "
                    "mutation quotas are shared"
                )
        if is_cut_off:
            return
        for name, process in list(self._others.items()):
            if self._silent_ms(process, now_ms) > LOST_AFTER_MS + self._window_ms:
                del self._others[name]
        live = sum(self._silent_ms(each, now_ms) <= LOST_AFTER_MS for each in self._others.values())
        if live + 1 != self.processes:
            _log.info("%d gateway processes share %s", live + 1, self._what)
            self.processes = live + 1

    def _silent_ms(self, process: _Process, now_ms: int) -> int:
        """Return how long a process has published nothing, until the last time at which this one could read reports."""
        return (now_ms if self._confirmed_ms is None else self._confirmed_ms) - process.received_ms


def follow_sensors(managers: QuotaManagers, follow: Callable[[ClusterSensor, int], None]) -> None:
    """Set the function that follows the sensors of a node's shared quotas."""
    for manager in (managers.produce, managers.fetch, managers.request):
        manager.follow = follow
        manager.look_up_anew()
