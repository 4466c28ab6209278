"""Buckets of mutation quotas that gateways before one cluster share. No I/O.

Kafka's active controller has one token bucket for the cluster. Each gateway has its own, and charges to it what the
others have charged. A process publishes with its report, for each bucket in use, the permits that it has charged since
a report, and the tokens that are left. A process of another gateway charges the increase when it reads the report.

A gateway thus decides as Kafka does, except for what the others have charged since their last report. All gateways
together admit until any time at most what one bucket does, and the most that they admit in the time from a charge until
the others have read it: `TICK_MS` and the way through the topic. That is a debt of every bucket then, so the error does
not grow.

The tokens are used where no increase is known: for a process that starts, for a bucket that is used here for the first
time, and for a process whose reports did not arrive for `LOST_AFTER_MS`. The bucket is then lowered to the tokens of
the other process. So mutations that two gateways admitted while they were cut off are not charged twice afterwards.

Bounds: `MAX_FOLLOWED` buckets, divided between users. A bucket without room is charged by its own gateway alone.
Whatever a report says, it leaves a debt of at most an hour (`MutationSensor.charge_for_others`).
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass

from tidegate.fair_share import UNKNOWN_OWNER, ReclaimableBound
from tidegate.gateway.sharing import LOST_AFTER_MS, MAX_PROCESSES
from tidegate.gateway.usage_report import MAX_FOLLOWED, Charges, UsageReport
from tidegate.quota import QuotaManagers, QuotaType
from tidegate.quota.managers.client_quota import cluster_key
from tidegate.quota.managers.mutation import LONGEST_DEBT_S, MutationSensor
from tidegate.quota.measure.sensors import is_unlimited
from tidegate.quota.measure.throttle import MS_PER_S

__all__ = ["SharedMutations"]

_FORGET_MS = LONGEST_DEBT_S * 1000
"""Time after which the tokens of a lost process are dropped: its debt is paid by then."""
_AT_A_TIME = 10
_NEGLIGIBLE = 1e-9


@dataclass(slots=True)
class _Bucket:
    """A bucket in use. since: the last report before it was. permits: charged since. seen: `sensor.charged` of them."""

    sensor: MutationSensor
    since: int
    seen: float
    used_ms: int
    permits: float = 0.0

    def count(self) -> None:
        """Count what was charged to the sensor."""
        self.permits += self.sensor.charged - self.seen
        self.seen = self.sensor.charged


@dataclass(slots=True)
class _LastReport:
    """The last report of another process. offset: its place in the topic."""

    number: int
    mutations: Mapping[str, Charges]
    heard_ms: int
    offset: int


class SharedMutations:
    """The shared buckets of a process. process: its name. gateway: that of its gateway, if it has several processes.

    The processes of one gateway charge the same buckets, so they do not charge for each other. on_shared: called when
    another gateway has charged something, until it returns True.
    """

    def __init__(
        self, process: str, *, gateway: str = "", on_shared: Callable[[], bool] = lambda: True
    ) -> None:
        self._process = process
        self._on_shared = on_shared
        self._is_noted = False
        self.gateway = gateway
        self._number = 0
        self._buckets: dict[str, _Bucket] = {}
        self._room: ReclaimableBound[str] = ReclaimableBound(MAX_FOLLOWED)
        self._others: dict[str, _LastReport] = {}
        self._omitted = 0
        self._charged_by_others = 0.0

    def add_node(self, managers: QuotaManagers) -> None:
        """Share the buckets of a node. Those of the controller are charged, whichever node gets a request."""
        managers.controller_mutation.follow = self.follow

    def follow(self, sensor: MutationSensor, now_ms: int) -> None:
        """Share a bucket from now on, until it is full and not in use."""
        if is_unlimited(sensor.bound):
            return
        key = cluster_key(QuotaType.CONTROLLER_MUTATION, sensor.tags)
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.count()
            bucket.sensor.is_followed = False
            bucket.sensor, bucket.seen = sensor, sensor.charged
        elif self._make_room(key, sensor.found_for or UNKNOWN_OWNER):
            bucket = _Bucket(sensor, since=self._number, seen=sensor.charged, used_ms=now_ms)
            self._buckets[key] = bucket
        else:
            self._omitted += 1
            return
        sensor.is_followed = True
        self._lower_to_others(key, sensor, now_ms)

    def counts_in_slices(self, number: int, now_ms: int) -> Generator[None, None, dict[str, Charges]]:
        """Return what to publish with the report of this number."""
        self._number = number
        self._others = {
            name: heard for name, heard in self._others.items() if now_ms - heard.heard_ms < _FORGET_MS
        }
        found: dict[str, Charges] = {}
        for place, key in enumerate(list(self._buckets)):
            bucket = self._buckets.get(key)
            if bucket is None:
                continue  # the bucket has lost its place in the meantime
            sensor = bucket.sensor
            if sensor.charged != bucket.seen:
                bucket.used_ms = now_ms
                bucket.count()
            if now_ms - bucket.used_ms > LOST_AFTER_MS and (sensor.utilization(now_ms) or 0.0) < _NEGLIGIBLE:
                self._forget(key)  # the others have its permits by now
            else:
                tokens = sensor.bucket.peek(now_ms)
                found[key] = Charges(permits=bucket.permits, tokens=tokens, since=bucket.since)
            if place % _AT_A_TIME == 0:
                yield
        return found

    def receive_in_slices(
        self, report: UsageReport, now_ms: int, *, offset: int
    ) -> Generator[None, None, None]:
        """Charge what a process of another gateway has charged since its last report. offset: of the report."""
        name = report.process
        if name == self._process or (report.gateway and report.gateway == self.gateway):
            return
        before = self._others.get(name)
        if before is None and not self._has_room_for_process(now_ms):
            return  # `Sharing` says so
        self._others[name] = _LastReport(report.number, report.mutations, now_ms, offset)
        if report.mutations and not self._is_noted:
            self._is_noted = self._on_shared()
        if before is not None and now_ms - before.heard_ms > LOST_AFTER_MS:
            before = None
        # In one step: a bucket that is followed from the next slice on is lowered to the tokens of this report.
        due = [(key, self._buckets[key]) for key in report.mutations if key in self._buckets]
        for place, (key, bucket) in enumerate(due):
            if self._buckets.get(key) is bucket and bucket.sensor.bucket.is_first(offset, now_ms):
                charges = report.mutations[key]
                self._charge(bucket.sensor, charges, _increase(before, key, charges), now_ms)
            if place % _AT_A_TIME == 0:
                yield

    def gauges(self) -> Iterable[tuple[str, float, str]]:
        """Return name, value and help text of the metrics, without any effect."""
        prefix = "tidegate_cluster_quota_mutation"
        of_others = {key for heard in self._others.values() for key in heard.mutations}
        return (
            (
                f"{prefix}_buckets",
                len(self._buckets),
                "Buckets of mutation quotas shared with other gateways",
            ),
            (f"{prefix}_buckets_of_others", len(of_others), "Buckets that other gateways have reported"),
            (
                f"{prefix}_buckets_omitted",
                self._omitted,
                "Times a bucket was not shared because the table was full",
            ),
            (f"{prefix}_permits_of_others", self._charged_by_others, "Permits charged for other gateways"),
        )

    def _lower_to_others(self, key: str, sensor: MutationSensor, now_ms: int) -> None:
        """Lower a bucket to the fewest tokens that another process has reported, plus those refilled since."""
        heard = [(each, each.mutations[key]) for each in self._others.values() if key in each.mutations]
        if not heard or not sensor.bucket.is_first(max(each.offset for each, _ in heard), now_ms):
            return
        fewest = min(
            charges.tokens + sensor.bound * (now_ms - each.heard_ms) / MS_PER_S for each, charges in heard
        )
        sensor.lower(fewest, now_ms)

    def _charge(self, sensor: MutationSensor, charges: Charges, permits: float | None, now_ms: int) -> None:
        """Charge permits of another gateway. None: they are not known; lower the bucket to its tokens."""
        if permits is None:
            sensor.lower(charges.tokens, now_ms)
        elif permits > 0.0:
            sensor.charge_for_others(permits, now_ms)
            self._charged_by_others += permits

    def _make_room(self, key: str, owner: str) -> bool:
        if not self._room.fits():
            victim = self._room.victim(owner)
            if victim is None or self._room.owner(victim) == owner:
                return False
            self._forget(victim)
        self._room.add_entry(key, owner)
        return True

    def _forget(self, key: str) -> None:
        self._buckets.pop(key).sensor.is_followed = False
        self._room.remove(key)

    def _has_room_for_process(self, now_ms: int) -> bool:
        """Return whether there is room for another process; lost processes are removed for it."""
        if len(self._others) < MAX_PROCESSES - 1:
            return True
        name = min(self._others, key=lambda name: self._others[name].heard_ms)
        if now_ms - self._others[name].heard_ms <= LOST_AFTER_MS:
            return False
        del self._others[name]
        return True


def _increase(before: _LastReport | None, key: str, charges: Charges) -> float | None:
    """Return the permits that were charged after a report; None: not known. A count that goes back is none."""
    if before is None:
        return None
    known = before.mutations.get(key)
    if known is not None and known.since == charges.since:
        return charges.permits - known.permits
    return charges.permits if charges.since >= before.number else None
