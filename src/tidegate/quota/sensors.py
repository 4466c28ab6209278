"""Sensors: what is counted under one set of tags, and the table that holds them.

A quota sensor has a bound; a throttle sensor averages the throttle times of the same clients. Each is forgotten
when nothing was recorded for an hour. The table is bounded: past the bound sensors that have long been idle go
first. That changes no decision while they have been idle for longer than their windows, as they would begin
anew anyway; how many went earlier than that is counted.

Follows: Kafka `Sensor`, `SensorAccess`, `ClientSensors` (B§1.2, 3.5). Differs: the bound.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Generic, Protocol, TypeVar

from tidegate.quota.rate import SampledRate
from tidegate.quota.rate_kernel import LONG_AGO_MS
from tidegate.quota.stats import Avg
from tidegate.quota.window import REGISTRY_WINDOW, QuotaWindow

__all__ = ["EXPIRY_MS", "MAX_SENSORS", "RateSensor", "Sensor", "SensorTable", "ThrottleSensor"]

EXPIRY_MS = 3600 * 1000  # Kafka `ClientQuotaManager.INACTIVE_SENSOR_EXPIRATION_TIME_SECONDS`
MAX_SENSORS = 50_000
"""Most sensors in one table; one with a long name counts for several."""
NAME_PER_SENSOR = 512  # a name counts as one more sensor for every so many characters
LOOKED_AT_PER_DROP = 16  # how many are compared to find one that was not used for long
DROPPED_SHARE = 512  # so that callers forget their cached lookups rarely: this part of the table goes at once


class Sensor(Protocol):
    """What every quota sensor can do, whatever it counts."""

    name: str
    tags: Mapping[str, str]

    @property
    def bound(self) -> float:
        """The bound, per second."""
        ...

    def set_bound(self, bound: float) -> None:
        """Set the bound; what was recorded stays."""
        ...

    def last_record_ms(self) -> int:
        """Return when a value was last recorded, or when the sensor was made if never."""
        ...


class RateSensor(SampledRate):
    """The rate of the clients with certain tags."""

    __slots__ = ("_created_ms", "name", "tags")

    def __init__(
        self,
        name: str,
        tags: Mapping[str, str],
        *,
        window: QuotaWindow,
        bound: float,
        cap_ms: int,
        now_ms: int,
    ) -> None:
        super().__init__(samples=window.samples, window_ms=window.window_ms, bound=bound, cap_ms=cap_ms)
        self.name = name
        self.tags = tags
        self._created_ms = now_ms

    def last_record_ms(self) -> int:
        """Return when a value was last recorded, or when the sensor was made if never."""
        recorded_ms = super().last_record_ms()
        return self._created_ms if recorded_ms == LONG_AGO_MS else recorded_ms


class ThrottleSensor:
    """The mean of throttle times, NaN until there was one and again a minute after the last."""

    __slots__ = ("_average", "_recorded_ms", "name", "tags")

    def __init__(self, name: str, tags: Mapping[str, str], *, now_ms: int) -> None:
        self.name = name
        self.tags = tags
        self._recorded_ms = now_ms
        self._average: Avg | None = None  # most clients are never throttled

    def record(self, throttle_ms: int, now_ms: int) -> None:
        """Record one throttle time."""
        if self._average is None:
            self._average = Avg(samples=REGISTRY_WINDOW.samples, window_ms=REGISTRY_WINDOW.window_ms)
        self._average.record(float(throttle_ms), now_ms)
        self._recorded_ms = now_ms

    def measure(self, now_ms: int) -> float:
        """Return the mean as Kafka measures it, which forgets samples."""
        return math.nan if self._average is None else self._average.measure(now_ms)

    def peek(self, now_ms: int) -> float:
        """Return the mean without any effect."""
        return math.nan if self._average is None else self._average.peek(now_ms)

    def last_record_ms(self) -> int:
        """Return when a throttle time was last recorded, or when the sensor was made if never."""
        return self._recorded_ms


S = TypeVar("S", bound=Sensor)


class SensorTable(Generic[S]):
    """Quota sensors and throttle sensors by name, both bounded and both swept when idle.

    `dropped`: how many quota sensors went because the table was full; `dropped_in_use`: how many of them were
    used within `in_use_ms` before, so that their clients begin with a clean sheet.
    """

    def __init__(self, *, in_use_ms: int, max_sensors: int = MAX_SENSORS) -> None:
        self.dropped = 0
        self.dropped_in_use = 0
        self._sensors: dict[str, S] = {}
        self._throttles: dict[str, ThrottleSensor] = {}
        self._in_use_ms = in_use_ms
        self._max_weight = max_sensors
        self._weight = 0

    def __len__(self) -> int:
        """Return how many quota sensors there are."""
        return len(self._sensors)

    def __iter__(self) -> Iterator[S]:
        """Yield the quota sensors."""
        return iter(self._sensors.values())

    def get(self, name: str) -> S | None:
        """Return the quota sensor called `name`."""
        return self._sensors.get(name)

    def throttle(self, name: str) -> ThrottleSensor | None:
        """Return the throttle sensor called `name`."""
        return self._throttles.get(name)

    def throttles(self) -> Iterator[ThrottleSensor]:
        """Yield the throttle sensors."""
        return iter(self._throttles.values())

    def add(self, sensor: S, now_ms: int) -> bool:
        """Add a quota sensor; return whether others had to go for it."""
        self._sensors[sensor.name] = sensor
        self._weight += _weight(sensor.name)
        if self._weight <= self._max_weight:
            return False
        enough = self._max_weight - self._max_weight // DROPPED_SHARE
        while self._weight > enough and len(self._sensors) > 1:
            self._drop_one(sensor, now_ms)
        return True

    def add_throttle(self, sensor: ThrottleSensor) -> None:
        """Add a throttle sensor. There is at most one for each quota sensor, and those that outlived theirs."""
        if len(self._throttles) >= 2 * self._max_weight:
            del self._throttles[next(iter(self._throttles))]
        self._throttles[sensor.name] = sensor

    def expire(self, now_ms: int) -> list[str]:
        """Forget every sensor that was idle for more than an hour, and return their names."""
        idle = [s.name for s in self._sensors.values() if now_ms - s.last_record_ms() > EXPIRY_MS]
        for name in idle:
            self._remove(name)
        idle_throttles = [s.name for s in self._throttles.values() if now_ms - s.last_record_ms() > EXPIRY_MS]
        for name in idle_throttles:
            del self._throttles[name]
        return idle + idle_throttles

    def _drop_one(self, spared: S, now_ms: int) -> None:
        """Drop the least recently used of the sensors that were looked at longest ago."""
        looked_at: list[S] = []
        for name in list(islice(self._sensors, LOOKED_AT_PER_DROP)):
            sensor = self._sensors.pop(name)
            self._sensors[name] = sensor  # to the end: the next search begins behind it
            if sensor is not spared:
                looked_at.append(sensor)
        victim = min(looked_at, key=lambda sensor: sensor.last_record_ms())
        self.dropped += 1
        if now_ms - victim.last_record_ms() <= self._in_use_ms:
            self.dropped_in_use += 1
        self._remove(victim.name)

    def _remove(self, name: str) -> None:
        del self._sensors[name]
        self._weight -= _weight(name)


def _weight(name: str) -> int:
    return 1 + len(name) // NAME_PER_SENSOR
