"""The manager of the controller-mutation quota: partitions created and deleted, from a token bucket.

>>> from tidegate.quota.admin.entity import QuotaEntity
>>> manager = MutationQuotaManager(QuotaWindow(samples=10, window_ms=1000))
>>> manager.update_quota(QuotaEntity(user="alice"), 10.0)
>>> now_ms = 1_700_000_000_000
>>> quota = manager.new_quota("alice", "c1", CREATE_TOPICS, 6, now_ms)
>>> [quota.record(90.0, now_ms) for topic in range(3)]
[True, True, False]
>>> quota.throttle_time_ms(now_ms), quota.throttle_time_ms(now_ms + 5000)
(8000, 3000)

A handler asks topic by topic. *Strict*: refused (error 89) while the bucket is below zero, and not charged.
*Permissive*, for clients that do not know the error: always charged and admitted, but throttled. *Unbounded*:
no quota of this type is defined. Even a strict quota admits any size while the bucket is not below zero.

Follows: Kafka `ControllerMutationQuotaManager`, `StrictControllerMutationQuota` (KIP-599, B§5).
"""

import enum
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tidegate.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tidegate.quota.managers.callback import ClientQuotaCallback
from tidegate.quota.managers.extensions import Extensions
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.managers.sensor_manager import SensorManager
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.sensor_table import MAX_SENSOR_BYTES
from tidegate.quota.measure.sensors import is_unlimited
from tidegate.quota.measure.throttle import narrow_to_int32
from tidegate.quota.measure.token_bucket import TokenBucket
from tidegate.quota.measure.window import REGISTRY_WINDOW, QuotaWindow
from tidegate.quota.metric import Metric

__all__ = [
    "LONGEST_DEBT_S",
    "STRICT_SINCE",
    "MutationKind",
    "MutationQuota",
    "MutationQuotaManager",
    "MutationSensor",
    "own_bucket",
]

STRICT_SINCE = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}
"""The first version of a request whose clients know error 89; below it the quota is permissive (B§5.1)."""

LONGEST_DEBT_S = 3600
"""Longest debt that charges for other gateways leave, in seconds of the rate: Kafka forgets a bucket that is idle so
long."""


class MutationKind(enum.Enum):
    """The treatment of permits when the bucket is exhausted."""

    STRICT = "strict"
    PERMISSIVE = "permissive"
    UNBOUNDED = "unbounded"


class MutationSensor:
    """A bucket of tokens, and the unbounded rate of mutations beside it.

    follow: called with the sensor and the time before each use while gateways do not share its bucket (`is_followed`);
    None: there are no other gateways. charged: all permits charged here, without those of other gateways.
    """

    __slots__ = (
        "_extensions", "_follow", "_recorded_ms", "_window", "bucket", "charged", "found_for", "is_followed",
        "limits_seen", "name", "rate", "tags",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        tags: Mapping[str, str],
        *,
        window: QuotaWindow,
        bucket: TokenBucket,
        now_ms: int,
        extensions: Extensions | None = None,
        follow: "Follow | None" = None,
    ) -> None:
        self._extensions = extensions
        self._follow = follow
        self.is_followed = False
        self.charged = 0.0
        self.name = name
        self.tags = tags
        self.limits_seen = 0
        self.found_for: str | None = None
        self._window = window
        self._recorded_ms = now_ms
        self.rate = SampledRate(samples=REGISTRY_WINDOW.samples, window_ms=REGISTRY_WINDOW.window_ms)
        self.bucket = bucket

    @property
    def bound(self) -> float:
        """The bound: tokens per second."""
        return self.bucket.rate

    def set_bound(self, bound: float) -> None:
        """Set the bound; the tokens stay."""
        self.bucket.configure(samples=self._window.samples, window_ms=self._window.window_ms, rate=bound)

    def record(self, permits: float, now_ms: int) -> None:
        """Charge `permits`, whatever the balance."""
        self._recorded_ms = now_ms
        self.charged += permits
        self.rate.record(permits, now_ms)
        self._charge_bucket(permits, now_ms)

    def be_followed(self, now_ms: int) -> None:
        """Request that gateways share the bucket, if there can be others and they do not share it yet."""
        if self._follow is not None and not self.is_followed:
            self._follow(self, now_ms)

    def charge_for_others(self, permits: float, now_ms: int) -> None:
        """Charge what another gateway has charged, down to a debt of `LONGEST_DEBT_S`. The rate stays as it is."""
        permits = min(permits, self.bucket.tokens(now_ms) + LONGEST_DEBT_S * self.bound)
        if permits > 0.0:
            self._charge_bucket(permits, now_ms)

    def lower(self, tokens: float, now_ms: int) -> None:
        """Lower the tokens to those of another gateway, down to a debt of `LONGEST_DEBT_S`, if it has fewer."""
        self.charge_for_others(self.bucket.tokens(now_ms) - tokens, now_ms)

    def is_shared(self, now_ms: int) -> bool:
        """Return whether gateways share the bucket. A full and idle bucket becomes shared when it is used next."""
        return self.is_followed or (self._follow is not None and self.utilization(now_ms) == 0.0)

    def last_record_ms(self) -> int:
        """Return when permits were last charged, or when the sensor was made if never."""
        return self._recorded_ms

    def is_over(self, now_ms: int) -> bool:
        """Return whether tokens are owed, without any effect."""
        return self.bucket.peek(now_ms) < 0.0

    def peek_rate(self, now_ms: int) -> float:
        """Return the rate of mutations per second, without any effect."""
        return self.rate.peek(now_ms)

    def utilization(self, now_ms: int) -> float | None:
        """Return the share of the bucket that was used, above 1 where tokens are owed; None without a quota."""
        return None if is_unlimited(self.bound) else self.bucket.peek_used(now_ms)

    def peek_throttle_ms(self, now_ms: int) -> int:
        """Return the time in ms until no tokens are owed, without any effect."""
        return max(narrow_to_int32(self.bucket.peek_throttle_ms(now_ms)), 0)

    def snapshot(self, now_ms: int) -> dict[str, Any]:
        """Return the tokens, without any effect."""
        return self.bucket.snapshot(now_ms)

    def _charge_bucket(self, permits: float, now_ms: int) -> None:
        self.bucket.record(permits, now_ms)
        if self._extensions is not None and self._extensions.debt_max_s:
            self.bucket.forgive(self._extensions.debt_max_s, now_ms)


Follow = Callable[[MutationSensor, int], None]


class MutationQuota:
    """The quota of one request. It keeps the sensor it was made with. Make it with `MutationQuotaManager.new_quota`.

    up_to_date: gives the sensor the bound that holds at a time; called before each use.
    """

    __slots__ = ("_sensor", "_throttle_ms", "_throttled_at_ms", "_up_to_date", "kind")

    def __init__(
        self,
        kind: MutationKind,
        sensor: MutationSensor | None,
        up_to_date: Callable[[MutationSensor, int], None],
    ) -> None:
        assert (sensor is None) == (kind is MutationKind.UNBOUNDED)
        self.kind = kind
        self._sensor = sensor
        self._up_to_date = up_to_date
        self._throttle_ms = 0
        self._throttled_at_ms = 0

    @property
    def strict(self) -> bool:
        """Return whether permits can be refused."""
        return self.kind is MutationKind.STRICT

    def record(self, permits: float, now_ms: int) -> bool:
        """Charge `permits` and return whether they are admitted; refused ones are not charged (error 89)."""
        sensor = self._sensor
        if sensor is None:
            return True
        self._up_to_date(sensor, now_ms)
        sensor.be_followed(now_ms)
        if self.strict:
            if self._exhausted(sensor, now_ms):
                return False
            sensor.record(permits, now_ms)
            return True
        sensor.record(permits, now_ms)
        self._exhausted(sensor, now_ms)
        return True

    def throttle_time_ms(self, now_ms: int) -> int:
        """Return what is left at `now_ms` of the last throttle time, never below 0 (B§5.2)."""
        if self._throttle_ms == 0:
            return 0
        return max(0, narrow_to_int32(self._throttle_ms - (now_ms - self._throttled_at_ms)))

    def _exhausted(self, sensor: MutationSensor, now_ms: int) -> bool:
        """Return whether tokens are below zero, and note for how long."""
        exhausted = sensor.bucket.tokens(now_ms) < 0.0
        if exhausted:
            self._throttle_ms = sensor.bucket.throttle_ms(now_ms)
            self._throttled_at_ms = now_ms
        return exhausted


def own_bucket(_name: str, window: QuotaWindow, rate: float) -> TokenBucket:
    """Return a bucket that this process alone charges."""
    return TokenBucket(samples=window.samples, window_ms=window.window_ms, rate=rate)


class MutationQuotaManager(SensorManager[MutationSensor]):
    """Buckets by client.

    new_bucket: makes the bucket of a sensor from its name, window and rate. follow: as of new sensors.
    """

    def __init__(
        self,
        window: QuotaWindow | None = None,
        callback: ClientQuotaCallback | None = None,
        *,
        max_sensor_bytes: int = MAX_SENSOR_BYTES,
        extensions: Extensions | None = None,
    ) -> None:
        self._extensions = extensions
        self.new_bucket: Callable[[str, QuotaWindow, float], TokenBucket] = own_bucket
        self.follow: Follow | None = None
        super().__init__(
            QuotaType.CONTROLLER_MUTATION,
            window or QuotaWindow(),
            callback,
            max_sensor_bytes=max_sensor_bytes,
        )

    def new_quota(
        self, user: str, client_id: str, api_key: int, api_version: int, now_ms: int | None = None
    ) -> MutationQuota:
        """Return the quota object of one request; strict or permissive by its API and version (B§5.1)."""
        strict = api_version >= STRICT_SINCE.get(api_key, 0)
        return self.new_quota_of(
            MutationKind.STRICT if strict else MutationKind.PERMISSIVE, user, client_id, now_ms
        )

    def new_quota_of(
        self, kind: MutationKind, user: str, client_id: str, now_ms: int | None = None
    ) -> MutationQuota:
        """Return a quota object of `kind`; an unbounded one while no quota of this type is defined."""
        up_to_date = partial(self.used_again, user, client_id)
        if not self.enabled or kind is MutationKind.UNBOUNDED:
            return MutationQuota(MutationKind.UNBOUNDED, None, up_to_date)
        return MutationQuota(kind, self.sensor(user, client_id, now_ms or 0, charges=False), up_to_date)

    def peek(self, user: str, client_id: str, now_ms: int) -> float:
        """Return a client's tokens without any effect; those of a full bucket if it has none yet."""
        sensor = self.existing_sensor(user, client_id)
        if sensor is None:
            return own_bucket("", self.window, self.bound(user, client_id)).peek(now_ms)
        return sensor.bucket.peek(now_ms)

    def _new_sensor(self, name: str, tags: Mapping[str, str], bound: float, now_ms: int) -> MutationSensor:
        bucket = self.new_bucket(name, self.window, bound)
        return MutationSensor(
            name,
            tags,
            window=self.window,
            bucket=bucket,
            now_ms=now_ms,
            extensions=self._extensions,
            follow=self.follow,
        )

    def _metrics(self, sensor: MutationSensor, now_ms: int) -> list[Metric]:
        rate = self._metric("mutation-rate", sensor.tags, sensor.rate.peek(now_ms))
        return [rate, self._metric("tokens", sensor.tags, sensor.bucket.peek(now_ms), sensor.bound)]
