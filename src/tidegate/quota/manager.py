"""The manager of a byte-rate quota, produce or fetch: charge a client and say how long it must wait.

>>> from tidegate.quota.entity import QuotaEntity
>>> produce = ClientQuotaManager(QuotaType.PRODUCE)
>>> produce.record("alice", "c1", 5000.0, 0)
0
>>> produce.update_quota(QuotaEntity(user="alice"), 100.0)
>>> produce.record("alice", "c1", 600.0, 0), produce.record("alice", "c2", 2000.0, 250)
(0, 15750)
>>> produce.peek("alice", "c1", 250)
253.65853658536585

Being over quota is a returned value. Follows: Kafka `ClientQuotaManager` (KIP-13, KIP-55, KIP-257, B§3).
"""

import sys
from collections.abc import Mapping

from tidegate.quota.callback import ClientQuotaCallback
from tidegate.quota.quota_type import QuotaType
from tidegate.quota.rate_kernel import rate_decide, rate_record
from tidegate.quota.sensor_manager import MAX_CACHED_CLIENTS, MAX_CACHED_NAME, Metric, SensorManager
from tidegate.quota.sensors import MAX_SENSORS, RateSensor
from tidegate.quota.throttle import MAX_INT64, MS_PER_S
from tidegate.quota.window import QuotaWindow

__all__ = ["ClientQuotaManager"]


class ClientQuotaManager(SensorManager[RateSensor]):
    """Rates of one quota type by client, each with its bound. Produce and fetch times are not capped."""

    def __init__(
        self,
        quota_type: QuotaType,
        window: QuotaWindow | None = None,
        callback: ClientQuotaCallback | None = None,
        *,
        cap_ms: int = MAX_INT64,
        max_sensors: int = MAX_SENSORS,
    ) -> None:
        super().__init__(quota_type, window or QuotaWindow(), callback, max_sensors=max_sensors)
        self._cap_ms = cap_ms
        self._max_values: dict[tuple[str, str], float] = {}

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Charge `value` to a client and return its throttle time in ms; 0 while no quota of this type is defined.

        0 or less: not throttled. Below zero is what Kafka makes of a time beyond 32 bits (B§2.1).
        """
        if not self.enabled:
            return 0
        try:
            sensor = self._cached[user][client_id]
        except KeyError:
            sensor = self._look_up(user, client_id, now_ms)
        return rate_decide(sensor.floats, sensor.ints, value, now_ms)

    def charge(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Charge `value` as `record` does, but also while no quota of this type is defined (B§3.6)."""
        sensor = self.sensor(user, client_id, now_ms)
        return rate_decide(sensor.floats, sensor.ints, value, now_ms)

    def record_unchecked(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Charge `value` without asking for a verdict: it bites on the next `record`."""
        sensor = self.sensor(user, client_id, now_ms)
        rate_record(sensor.floats, sensor.ints, value, now_ms)

    def unrecord(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Take back what was charged at the same `now_ms`; done even while no quota is defined (B§6.3)."""
        self.record_unchecked(user, client_id, -value, now_ms)

    def max_value_in_window(self, user: str, client_id: str, now_ms: int | None = None) -> float:
        """Return the most that a client may use in n - 1 windows, the largest double where nothing limits it.

        Given `now_ms`, or a custom callback, the client's sensor is made as Kafka makes it.
        """
        if not self.enabled:
            return sys.float_info.max
        if now_ms is None and self._custom is None:
            return self._remembered_max(user, client_id)
        tags = self.tags(user, client_id)
        self._find(tags, now_ms or 0)
        self._reset_if_required()
        return self._max_value(tags)

    def peek(self, user: str, client_id: str, now_ms: int) -> float:
        """Return a client's rate per second, 0.0 if it has none, without any effect."""
        sensor = self.sensors.get(self.sensor_name(user, client_id))
        return 0.0 if sensor is None else sensor.peek(now_ms)

    def _remembered_max(self, user: str, client_id: str) -> float:
        try:
            return self._max_values[user, client_id]
        except KeyError:
            value = self._max_value(self.tags(user, client_id))
            if len(self._max_values) >= MAX_CACHED_CLIENTS:
                self._max_values.clear()
            if len(user) <= MAX_CACHED_NAME and len(client_id) <= MAX_CACHED_NAME:
                self._max_values[user, client_id] = value
            return value

    def _max_value(self, tags: Mapping[str, str]) -> float:
        limit = self._callback.quota_limit(self.quota_type, tags)
        if limit is None:
            return sys.float_info.max
        return limit * (self.window.samples - 1) * (self.window.window_ms / MS_PER_S)

    def _forget_lookups(self) -> None:
        super()._forget_lookups()
        self._max_values.clear()

    def _new_sensor(self, name: str, tags: Mapping[str, str], bound: float, now_ms: int) -> RateSensor:
        return RateSensor(name, tags, window=self.window, bound=bound, cap_ms=self._cap_ms, now_ms=now_ms)

    def _metrics(self, sensor: RateSensor, now_ms: int) -> list[Metric]:
        return [self._metric(self.quota_type.metric, sensor.tags, sensor.peek(now_ms), sensor.bound)]
