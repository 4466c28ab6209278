"""The table of a quota type's sensors, bounded in bytes.

Past the bound, quota sensors that have long been idle are evicted first, each with its throttle sensor. If a sensor was
idle for longer than its windows, that changes no decision, because it would begin anew anyway; other evictions are
counted. Protected sensors stay, so a flood of names shortens no throttle. If no sensor can be evicted in this way, the
owner that holds most loses its oldest reclaimable sensors, protected or not, to an owner that holds less. A flood
therefore takes no room from other owners. Without a reclaimable sensor there is no room.

Follows: Kafka `ClientSensors` (B§1.2, 3.5). Differs: the bound.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Generic, TypeVar

from tidegate.fair_share import UNKNOWN_OWNER, ReclaimableBound
from tidegate.quota.measure.sensors import EXPIRY_MS, Sensor, ThrottleSensor
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["MAX_SENSOR_BYTES", "SensorTable", "sensor_bytes", "text_bytes"]

MAX_SENSOR_BYTES = 128 << 20
"""Most bytes in one table, as `sensor_bytes` and `THROTTLE_BYTES` count them: some 47,000 clients with short names."""
SENSOR_BYTES = 900  # a quota sensor without samples and names, its tags, and its place in the table
SAMPLE_BYTES = 84  # two times and a value, as Python objects
THROTTLE_BYTES = 750  # a throttle sensor that was used
LOOKED_AT_PER_DROP = 16  # sensors that are compared to find one that has long been idle
DROPPED_SHARE = 512  # 1/512 of the bound is freed at once, so that callers rarely forget lookups
SWEPT_AT_A_TIME = 500  # well below a millisecond


def text_bytes(text: str) -> int:
    """Return the most memory that `text` takes."""
    return 49 + len(text) if text.isascii() else 76 + 4 * len(text)


def sensor_bytes(sensor: Sensor, window: QuotaWindow) -> int:
    """Return the most memory that a quota sensor takes with its names."""
    names = text_bytes(sensor.name) + sum(map(text_bytes, sensor.tags.values()))
    return SENSOR_BYTES + SAMPLE_BYTES * (window.samples + 1) + names


S = TypeVar("S", bound=Sensor)


class SensorTable(Generic[S]):
    """Quota sensors and throttle sensors by the quota sensor's name, bounded together and swept when idle.

    `dropped`: number of quota sensors that were evicted because the table was full. `dropped_in_use`: those that were
    used within their windows, so that their clients begin anew. `is_protected`: called with a candidate for eviction,
    the time, and whether it was used within its windows. `is_reclaimable`: called with a sensor that may be evicted for
    another owner.
    """

    def __init__(
        self,
        *,
        window: QuotaWindow,
        max_bytes: int = MAX_SENSOR_BYTES,
        is_protected: Callable[[S, int, bool], bool] = lambda sensor, now_ms, in_use: False,
        is_reclaimable: Callable[[S], bool] = lambda sensor: False,
    ) -> None:
        self.dropped = 0
        self.dropped_in_use = 0
        # Not a dict: to find its first key, a dict passes over the places of all keys that were moved to the end.
        self._sensors: OrderedDict[str, S] = OrderedDict()
        self._throttles: dict[str, ThrottleSensor] = {}
        self._left_over: dict[str, None] = {}  # throttle sensors whose quota sensor has expired before them
        self._window = window
        # A sensor that is idle for longer has only expired samples (B§1.3): dropping it changes no decision.
        self._in_use_ms = (window.samples + 1) * window.window_ms
        self._max_bytes = max_bytes
        self._is_protected = is_protected
        self._is_reclaimable = is_reclaimable
        self._shares: ReclaimableBound[str] = ReclaimableBound(max_bytes)  # of quota sensors, by name
        self.held_bytes = 0
        self._sweep_ms: int | None = None

    def __len__(self) -> int:
        """Return how many quota sensors there are."""
        return len(self._sensors)

    def __iter__(self) -> Iterator[S]:
        """Yield the quota sensors that there are now; the table may change meanwhile."""
        # As a dict's, not in the order of use: 0.4 ms for 46,000 sensors instead of 4 ms.
        sensors = list(dict.values(self._sensors))
        return (sensor for sensor in sensors if not self._is_swept(sensor))

    def names(self) -> list[str]:
        """Return the names of the quota sensors that there are now."""
        return list(self._sensors)

    def get(self, name: str) -> S | None:
        """Return the quota sensor called `name`."""
        sensor = self._sensors.get(name)
        if sensor is not None and self._is_swept(sensor):
            self.remove(name)
            if name in self._throttles:
                # It expires by itself, an hour after the last throttle (B§3.5).
                self._left_over[name] = None
            return None
        return sensor

    def throttle(self, name: str) -> ThrottleSensor | None:
        """Return the throttle sensor of the quota sensor called `name`."""
        throttle = self._throttles.get(name)
        if throttle is not None and self._is_swept(throttle):
            self._remove_throttle(name)
            return None
        return throttle

    def throttles(self) -> Iterator[tuple[str, ThrottleSensor]]:
        """Yield the throttle sensors that there are now, each with the name of its quota sensor."""
        for name in list(self._throttles):
            throttle = self._throttles.get(name)
            if throttle is not None and not self._is_swept(throttle):
                yield name, throttle

    def make_room(self, sensor: S, now_ms: int, owner: str = UNKNOWN_OWNER) -> bool:
        """Evict sensors if there is no room for a new one of an owner. Return whether there is room now."""
        # With the throttle sensor, which is made next (B§3.5).
        more_bytes = sensor_bytes(sensor, self._window) + THROTTLE_BYTES + text_bytes(sensor.name)
        self._make_room("", now_ms, more_bytes)
        if self.held_bytes + more_bytes > self._max_bytes:
            self._reclaim(owner, now_ms, more_bytes)
        return self.held_bytes + more_bytes <= self._max_bytes

    def add_sensor(self, sensor: S, now_ms: int, owner: str = UNKNOWN_OWNER) -> bool:
        """Add a quota sensor of an owner, even if there is no room. Return whether others were evicted for it."""
        self._sensors[sensor.name] = sensor
        self._left_over.pop(sensor.name, None)
        size = sensor_bytes(sensor, self._window)
        self.held_bytes += size
        self._shares.add_entry(sensor.name, owner, size)
        return self._make_room(sensor.name, now_ms)

    def add_throttle(self, name: str, throttle: ThrottleSensor, now_ms: int) -> bool:
        """Add the throttle sensor of the quota sensor called `name`. Return whether others were evicted for it."""
        self._throttles[name] = throttle
        self.held_bytes += THROTTLE_BYTES + text_bytes(name)
        return self._make_room(name, now_ms)

    def expire_in_slices(self, now_ms: int) -> Generator[None, None, None]:
        """Forget every sensor that was idle for more than an hour, yielding in between.

        From the first slice on, no lookup here finds a sensor that was idle at `now_ms`, even before the sweep
        reaches it. Forget earlier lookups before you start, and end one sweep before the next.
        """
        assert self._sweep_ms is None
        self._sweep_ms = now_ms
        try:
            # Sensors that are made during the sweep are not idle, and those that go meanwhile are skipped below.
            names = [*self._sensors, *self._left_over]
            for first in range(0, len(names), SWEPT_AT_A_TIME):
                for name in names[first : first + SWEPT_AT_A_TIME]:
                    self.get(name)  # removes what is idle
                    self.throttle(name)
                yield
        finally:
            self._sweep_ms = None

    def clear_in_slices(self) -> Generator[None, None, None]:
        """Remove all sensors of a table that is no longer used, yielding in between."""
        for sensors in (self._sensors, self._throttles):
            while sensors:
                for _ in range(min(SWEPT_AT_A_TIME, len(sensors))):
                    name, _ = sensors.popitem()
                    self._shares.remove(name)
                yield

    def _is_swept(self, sensor: S | ThrottleSensor) -> bool:
        """Return whether the sweep that is under way, if any, found the sensor idle."""
        # Strictly longer, as in Kafka (B§1.2).
        return self._sweep_ms is not None and self._sweep_ms - sensor.last_record_ms() > EXPIRY_MS

    def _make_room(self, spared: str, now_ms: int, more_bytes: int = 0) -> bool:
        # These go first: without a quota sensor they decide nothing and only have a metric.
        while self.held_bytes + more_bytes > self._max_bytes and self._left_over:
            self._remove_throttle(next(iter(self._left_over)))
        if self.held_bytes + more_bytes <= self._max_bytes:
            return False
        enough = self._max_bytes - self._max_bytes // DROPPED_SHARE - more_bytes
        before = self.dropped
        while self.held_bytes > enough and len(self._sensors) > 1 and self._drop_one(spared, now_ms):
            pass
        return self.dropped > before

    def _drop_one(self, spared: str, now_ms: int) -> bool:
        """Evict the least recently used of the next `LOOKED_AT_PER_DROP` sensors, and its throttle sensor.

        Return False if all of them are protected.
        """
        looked_at: list[S] = []
        for name in list(islice(self._sensors, LOOKED_AT_PER_DROP)):
            self._sensors.move_to_end(name)  # the next search begins behind it
            if name != spared:
                looked_at.append(self._sensors[name])
        looked_at.sort(key=lambda sensor: sensor.last_record_ms())
        for victim in looked_at:
            if not self._is_protected(victim, now_ms, self._is_in_use(victim, now_ms)):
                self._drop(victim, now_ms)
                return True
        return False

    def _reclaim(self, owner: str, now_ms: int, more_bytes: int) -> None:
        """Evict the oldest reclaimable sensors of the largest owner, while it holds more than `owner` will then."""
        shares = self._shares
        enough = self._max_bytes - self._max_bytes // DROPPED_SHARE - more_bytes
        looked_at = 0
        while self.held_bytes > enough and looked_at < LOOKED_AT_PER_DROP:
            name = shares.victim(owner, more_bytes)
            if name is None or shares.used_by(shares.owner(name)) <= shares.used_by(owner) + more_bytes:
                return
            if self._is_reclaimable(self._sensors[name]):
                self._drop(self._sensors[name], now_ms)
            else:
                looked_at += 1
                shares.touch(name)  # the next search begins behind it

    def _is_in_use(self, sensor: S, now_ms: int) -> bool:
        return now_ms - sensor.last_record_ms() <= self._in_use_ms

    def _drop(self, sensor: S, now_ms: int) -> None:
        """Drop a sensor, and its throttle sensor, because the table is full."""
        self.dropped += 1
        self.dropped_in_use += self._is_in_use(sensor, now_ms)
        self.remove(sensor.name)
        if sensor.name in self._throttles:
            self._remove_throttle(sensor.name)

    def remove(self, name: str) -> None:
        """Remove the quota sensor called `name`."""
        self.held_bytes -= sensor_bytes(self._sensors.pop(name), self._window)
        self._shares.remove(name)

    def _remove_throttle(self, name: str) -> None:
        del self._throttles[name]
        self._left_over.pop(name, None)
        self.held_bytes -= THROTTLE_BYTES + text_bytes(name)
