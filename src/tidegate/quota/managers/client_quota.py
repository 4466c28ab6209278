"""The manager of a byte-rate quota, produce or fetch: charge a client and say how long it must wait.

>>> from tidegate.quota.admin.entity import QuotaEntity
>>> produce = ClientQuotaManager(QuotaType.PRODUCE)
>>> produce.record("alice", "c1", 5000.0, 0)
0
>>> produce.update_quota(QuotaEntity(user="alice"), 100.0)
>>> produce.record("alice", "c1", 600.0, 0), produce.record("alice", "c2", 2000.0, 250)
(0, 15750)
>>> produce.peek("alice", "c1", 250)
253.65853658536585

Being over quota is a returned value. Smooth mode (`tidegate.quota.measure.smooth`) and cluster-wide quotas
(`tidegate.quota.measure.cluster_sensor`) are not Kafka's.

Follows: Kafka `ClientQuotaManager` (KIP-13, KIP-55, KIP-257, B§3).
"""

import sys
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import blake2b

from tidegate.quota.admin.sanitizer import name_of_tag
from tidegate.quota.managers.callback import ClientQuotaCallback
from tidegate.quota.managers.extensions import Extensions
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.managers.sensor_manager import OVERFLOW, SensorManager
from tidegate.quota.measure.cluster_sensor import ClusterSensor
from tidegate.quota.measure.sensor_table import MAX_SENSOR_BYTES
from tidegate.quota.measure.sensors import RateSensor
from tidegate.quota.measure.smooth import SmoothMode, SmoothSensor, smooth_max_value
from tidegate.quota.measure.throttle import MAX_INT32, MAX_INT64
from tidegate.quota.measure.window import QuotaWindow
from tidegate.quota.metric import Metric

__all__ = ["KEY_BYTES", "ClientQuotaManager", "cluster_key", "smooth_mode_of"]

KEY_BYTES = 12
"""Bytes of the digest that stands for the names of a quota: names may have 32 KiB."""


class ClientQuotaManager(SensorManager[RateSensor]):
    """Rates of one quota type by client, each with its bound. Produce and fetch times are not capped.

    follow: follows the sensors of cluster-wide quotas (`ClusterSensor`); None: quotas are of this node only.
    """

    def __init__(
        self,
        quota_type: QuotaType,
        window: QuotaWindow | None = None,
        callback: ClientQuotaCallback | None = None,
        *,
        cap_ms: int = MAX_INT64,
        max_sensor_bytes: int = MAX_SENSOR_BYTES,
        extensions: Extensions | None = None,
    ) -> None:
        super().__init__(quota_type, window or QuotaWindow(), callback, max_sensor_bytes=max_sensor_bytes)
        self._cap_ms = cap_ms
        self._extensions = extensions
        self.follow: Callable[[ClusterSensor, int], None] | None = None

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Charge `value` to a client and return its throttle time in ms; 0 while no quota of this type is defined.

        0 or less: not throttled. Below zero is what Kafka makes of a time beyond 32 bits (B§2.1).
        """
        if not self.enabled:
            return 0
        sensor = self._nearest.get(client_id)
        if sensor is None or sensor.found_for != user:
            try:
                sensor = self._cached[user][client_id]
            except KeyError:
                sensor = self._look_up(user, client_id, now_ms)
        # `SampledRate.decide` for the usual case: the call would cost as much again.
        if now_ms < sensor.due_ms:
            total = sensor.total + value
            if total <= sensor.room:
                sensor.total = total
                sensor.last_ms = now_ms
                return 0
        return sensor.decide(value, now_ms)

    def record_unchecked(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Charge `value` without a decision: it has its effect on the next `record`."""
        sensor = self._nearest.get(client_id)
        if sensor is None or sensor.found_for != user:
            try:
                sensor = self._cached[user][client_id]
            except KeyError:
                sensor = self._look_up(user, client_id, now_ms)
        if now_ms < sensor.due_ms:  # `SampledRate.record` for the usual case
            sensor.last_ms = now_ms
            sensor.total += value
        else:
            sensor.record(value, now_ms)

    def unrecord(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Subtract what was charged at the same `now_ms`, even while no quota is defined (B§6.3)."""
        self.sensor(user, client_id, now_ms, charges=False).record(-value, now_ms)

    def peek(self, user: str, client_id: str, now_ms: int) -> float:
        """Return a client's rate per second, 0.0 if it has none, without any effect."""
        sensor = self.sensors.get(self.sensor_name(user, client_id))
        return 0.0 if sensor is None else sensor.peek(now_ms)

    def max_value_in_window(
        self, user: str, client_id: str, now_ms: Callable[[], int], *, makes_sensor: bool = False
    ) -> float:
        """Return the most that a client may use in n - 1 windows; of a cluster-wide quota, what its share has left."""
        value = super().max_value_in_window(user, client_id, now_ms, makes_sensor=makes_sensor)
        if not self.enabled or not self._has_cluster_wide():
            return value
        sensor = self.sensor(user, client_id, now_ms(), charges=False)
        return min(value, sensor.largest_value(now_ms())) if isinstance(sensor, ClusterSensor) else value

    def _new_sensor(self, name: str, tags: Mapping[str, str], bound: float, now_ms: int) -> RateSensor:
        mode = self._mode(tags)
        # The usage of many clients may lead to a time past 32 bits, which would wrap and not throttle at all (B§2.1).
        cap_ms = min(self._cap_ms, MAX_INT32) if OVERFLOW in tags.values() else self._cap_ms
        if self.follow is not None and self._is_cluster_wide(tags):
            return ClusterSensor(
                name,
                tags,
                window=self.window,
                bound=bound,
                cap_ms=cap_ms,
                key=cluster_key(self.quota_type, tags),
                checks_first=self.quota_type is QuotaType.FETCH,
                follow=self.follow,
                now_ms=now_ms,
            )
        if mode is None:
            return RateSensor(name, tags, window=self.window, bound=bound, cap_ms=cap_ms, now_ms=now_ms)
        checks_first = self.quota_type is QuotaType.FETCH
        return SmoothSensor(
            name,
            tags,
            window=self.window,
            bound=bound,
            mode=mode,
            checks_first=checks_first,
            now_ms=now_ms,
        )

    def _fits(self, sensor: RateSensor) -> bool:
        is_cluster_wide = isinstance(sensor, ClusterSensor)
        return is_cluster_wide == self._is_cluster_wide(sensor.tags) and sensor.mode == self._mode(
            sensor.tags
        )

    def _max_value(self, tags: Mapping[str, str]) -> float:
        if self._mode(tags) is None:
            return super()._max_value(tags)
        limit = self._callback.quota_limit(self.quota_type, tags)
        return sys.float_info.max if limit is None else smooth_max_value(limit)

    def _mode(self, tags: Mapping[str, str]) -> SmoothMode | None:
        """Return the settings of the token bucket; None if these tags are not smooth, or are cluster-wide."""
        if self._extensions is None or not self._extensions.smooth.any or self._is_cluster_wide(tags):
            return None
        return smooth_mode_of(self._extensions, tags)

    def _has_cluster_wide(self) -> bool:
        return self.follow is not None and self._extensions is not None and self._extensions.cluster_wide.any

    def _is_cluster_wide(self, tags: Mapping[str, str]) -> bool:
        """Return whether the quota of a sensor with these tags is one limit over all brokers of the cluster."""
        if not self._has_cluster_wide():
            return False
        assert self._extensions is not None
        names = name_of_tag(tags.get("user", "")), tags.get("client-id", "")
        return self._extensions.cluster_wide.selects(*names)

    def _metrics(self, sensor: RateSensor, now_ms: int) -> list[Metric]:
        return [self._metric(self.quota_type.metric, sensor.tags, sensor.peek(now_ms), sensor.bound)]


def cluster_key(quota_type: QuotaType, tags: Mapping[str, str]) -> str:
    """Return what the sensors of one cluster-wide quota have in common on all brokers: a digest of type and tags.

    >>> cluster_key(QuotaType.PRODUCE, {"user": "alice", "client-id": ""})
    '4GmhzT9Unx2h8qLb'
    """
    digest = blake2b(quota_type.key.encode(), digest_size=KEY_BYTES)
    for part in tags.items():
        for text in part:
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d:%b" % (len(encoded), encoded))
    return b64encode(digest.digest()).decode()


def smooth_mode_of(extensions: Extensions, tags: Mapping[str, str]) -> SmoothMode | None:
    """Return the settings of the token bucket for a sensor with these tags; None if they are not smooth."""
    return extensions.smooth_mode(name_of_tag(tags.get("user", "")), tags.get("client-id", ""))
