"""What the players of manager families share: a clock, a delay queue, and reading metrics as the files were made."""

from collections.abc import Callable, Iterator

from players._doubles import decode
from tidegate.quota import DEFAULT, DelayQueue, QuotaEntity, QuotaType, QuotaWindow, ThrottledChannel
from tidegate.quota.managers.sensor_manager import SensorManager
from tidegate.quota.measure.throttle import narrow_to_int32

__all__ = ["ManagerPlayer", "Throttles", "bounds", "charge", "entity_of", "java_text", "measure", "window_of"]


def entity_of(entity: dict) -> QuotaEntity:
    """Return the entity that a file describes; a missing part is a level that is not used."""
    return QuotaEntity(user=_part(entity.get("user")), client_id=_part(entity.get("client_id")))


def window_of(samples: int, window_s: int) -> QuotaWindow:
    """Return the windows of a config."""
    return QuotaWindow(samples=samples, window_ms=window_s * 1000)


def charge(manager: SensorManager, user: str, client_id: str, value: float, now_ms: int) -> int:
    """Charge `value` and return the throttle time in ms, also while no quota of this type is defined (B§3.6)."""
    sensor = manager.sensor(user, client_id, now_ms)
    if manager.quota_type is not QuotaType.CONTROLLER_MUTATION:
        return sensor.decide(value, now_ms)
    if sensor.bucket.tokens(now_ms) < 0.0:  # permits are checked first, then charged
        return narrow_to_int32(sensor.bucket.throttle_ms(now_ms))
    sensor.record(value, now_ms)
    return 0


def measure(manager: SensorManager, tags: dict, now_ms: int) -> list:
    """Return `[name, tags, value]` of each metric with exactly these tags, measured once each, sorted by name.

    Measuring has effects, and the files were made by measuring: so peeking would not do.
    """
    sensors = [sensor for sensor in manager.up_to_date_sensors() if dict(sensor.tags) == tags]
    throttles = [throttle for _, throttle in manager.sensors.throttles() if dict(throttle.tags) == tags]
    readings: list[tuple[str, Callable[[int], float]]] = [
        ("throttle-time", throttle.measure) for throttle in throttles
    ]
    for sensor in sensors:
        if manager.quota_type is QuotaType.CONTROLLER_MUTATION:
            readings += [("mutation-rate", sensor.rate.measure), ("tokens", sensor.bucket.tokens)]
        else:
            readings.append((manager.quota_type.metric, sensor.measure))
    return [[name, tags, read(now_ms)] for name, read in sorted(readings, key=lambda reading: reading[0])]


def bounds(manager: SensorManager) -> list:
    """Return `[metric, tags, bound]` of every metric that has a bound, sorted by metric and tags."""
    rows = [
        [manager.quota_type.metric, dict(sensor.tags), sensor.bound]
        for sensor in manager.up_to_date_sensors()
    ]
    return sorted(rows, key=lambda row: (row[0], java_text(row[1])))


class Throttles:
    """Throttled channels by the ids of a file, on a clock in ms."""

    def __init__(self) -> None:
        self._queue = DelayQueue()
        self._channels: dict[int, ThrottledChannel] = {}
        self._ended: list[int] = []

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def size(self) -> float:
        """The metric `queue-size`."""
        return float(self._queue.size)

    def start(self, ident: int, throttle_ms: int, now_ms: int) -> list:
        """Throttle a channel and return the events that this leads to; a time of 0 or less throttles nothing."""
        if throttle_ms <= 0:
            return []
        self._channels[ident] = self._queue.throttle(
            throttle_ms, now_ns=now_ms * 1_000_000, on_end=lambda: self._ended.append(ident)
        )
        return [["start", ident]]

    def reap(self, now_ms: int) -> list:
        """End what is due and return the ids in groups of equal end."""
        self._ended.clear()
        while self._queue.reap(now_ns=now_ms * 1_000_000):
            pass
        groups: dict[int, list[int]] = {}
        for ident in self._ended:
            groups.setdefault(self._channels[ident].end_ns, []).append(ident)
        return [sorted(group) for group in groups.values()]


class ManagerPlayer:
    """The ops that the families of single managers have in common."""

    def __init__(self, manager: SensorManager, start_ms: int) -> None:
        self.manager = manager
        self.now_ms = start_ms
        self.throttles = Throttles()

    def play(self, scenario: dict) -> Iterator[tuple[int, object, object]]:
        """Play steps; where `expect` holds metrics they are read after the step, elsewhere nothing is."""
        for index, step in enumerate(scenario["steps"]):
            got = getattr(self, step["op"])(**step["args"]) or {}
            if "metrics" in step["expect"]:
                got |= self._metrics(*self._client(step["args"]))
            yield index, step["expect"], got | self._more(step["expect"])

    def scrape(self, ahead_ms: int) -> None:
        """Read all metrics, as they are in so many ms."""
        list(self.manager.metrics(self.now_ms + ahead_ms))

    def advance(self, ms: int) -> None:
        self.now_ms += ms

    def update_quota(self, entity: dict, quota: list | None) -> dict:
        self.manager.update_quota(entity_of(entity), None if quota is None else decode(quota))
        return {
            "types_enabled": int(self.manager.levels),
            "quotas_enabled": self.manager.enabled,
            "bounds": bounds(self.manager),
        }

    def limit(self, user: str, client_id: str) -> dict:
        return {"tags": self.manager.tags(user, client_id), "bound": self.manager.bound(user, client_id)}

    def metrics(self, user: str, client_id: str) -> None:
        """Only read metrics."""

    def throttle(self, user: str, client_id: str, ms: int, id: int) -> dict:
        self.manager.note_throttle(user, client_id, ms, self.now_ms)
        return {"events": self.throttles.start(id, ms, self.now_ms), "queue_size": self.throttles.size}

    def reap(self) -> dict:
        return {"ended": self.throttles.reap(self.now_ms), "queue_size": self.throttles.size}

    def _client(self, args: dict) -> tuple[str, str]:
        return args["user"], args["client_id"]

    def _metrics(self, user: str, client_id: str) -> dict:
        tags = dict(self.manager.tags(user, client_id))
        return {"tags": tags, "metrics": measure(self.manager, tags, self.now_ms)}

    def _more(self, expect: dict) -> dict:
        return {}


def java_text(tags: dict) -> str:
    """Return a map as Java prints it, which is what the files are sorted by."""
    return "{" + ", ".join(f"{name}={value}" for name, value in tags.items()) + "}"


def _part(part: dict | None) -> object:
    if part is None:
        return None
    return DEFAULT if part.get("default") else part["name"]
