"""The common part of the managers of all quota types: finding a client's sensors, and changing quotas.

With Kafka's own rules a client's sensor is looked up once and kept until a quota changes. A custom callback is called
on every request (B§8).

A changed quota applies at once without touching sensors: when a sensor is used next, its bound is looked up before
anything is recorded. Ten thousand changes cost the same with ten sensors and with fifty thousand. A custom callback is
asked for all bounds at once, as in Kafka, unless `late_limits` is set.

A flood of made-up names can fill the table of sensors. A client over its bound keeps its sensor, and so does a client
with a quota of its own. When only such sensors are left, the user that holds most loses its oldest sensors of default
quotas to a user that holds less. The losing user gains nothing by that, because a new client id begins anew as well.
New clients of that user share one sensor (`OVERFLOW`) until there is room. All clients without a login are one user.

Follows: Kafka `ClientQuotaManager` (B§3.3–3.9). Differs: the bound of the table; when a callback is asked for limits.
"""

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Generic

from tidegate.errors import TidegateError
from tidegate.quota.admin.entity import DEFAULT, Level, QuotaEntity, candidates_of_tags, entities_of_client
from tidegate.quota.admin.sanitizer import sanitize
from tidegate.quota.managers.callback import ClientQuotaCallback, DefaultQuotaCallback
from tidegate.quota.managers.explain import Explanation
from tidegate.quota.managers.lookups import Lookups
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.measure.sensor_table import MAX_SENSOR_BYTES, S, SensorTable
from tidegate.quota.measure.sensors import Sensor, ThrottleSensor
from tidegate.quota.measure.throttle import UNLIMITED
from tidegate.quota.measure.window import QuotaWindow
from tidegate.quota.metric import Metric

__all__ = ["OVERFLOW", "CallbackError", "NoteTags", "SensorManager"]

OVERFLOW = "<overflow>"
"""Name for clients that are counted together. No user has it: names of users are sanitised."""

NoteTags = Callable[[QuotaType, str, str, Sensor, int], None]
"""Called with user, client id, the sensor of a custom callback's tags with its present bound, and now_ms."""

logger = logging.getLogger("tidegate.quota")


class CallbackError(TidegateError, TypeError):
    """Raised when a custom callback returns an invalid value."""


class SensorManager(ABC, Generic[S]):
    """Sensors of one quota type, by client.

    enabled: whether any quota of this type is defined. folded: the number of times that a client had to share a sensor.
    note_tags: called just before a custom callback's client is charged.
    late_limits: whether a custom callback is asked for the limit of each sensor when that is used next.
    """

    def __init__(
        self,
        quota_type: QuotaType,
        window: QuotaWindow,
        callback: ClientQuotaCallback | None = None,
        *,
        max_sensor_bytes: int = MAX_SENSOR_BYTES,
    ) -> None:
        self.quota_type = quota_type
        self.window = window
        self.enabled = callback is not None
        self._max_sensor_bytes = max_sensor_bytes
        self.folded = 0
        self.note_tags: NoteTags | None = None
        self.late_limits = False
        self.sensors = self._new_table()
        self._own_rules = DefaultQuotaCallback()
        self._custom = callback
        self._callback: ClientQuotaCallback = self._own_rules if callback is None else callback
        self._lookups: Lookups[S] = Lookups()
        self._nearest, self._cached = (
            self._lookups.nearest,
            self._lookups.sensors,
        )  # within reach of decisions
        self._limits = 0  # grows with every change of a quota

    @property
    def levels(self) -> Level:
        """The levels in use, as Kafka's `quotaTypesEnabled` (B§3.3)."""
        return self._own_rules.levels if self._custom is None else Level.CUSTOM

    def exchange(
        self, callback: ClientQuotaCallback | None, own_rules: DefaultQuotaCallback
    ) -> SensorTable[S]:
        """Follow another callback from now on, or Kafka's own rules with None. It has been told all quotas.

        Sensors start afresh; returns the table of those there were.
        """
        self._own_rules = own_rules
        self._custom = callback
        self._callback = own_rules if callback is None else callback
        self.enabled = self.levels is not Level.NONE
        before = self.sensors
        self.sensors = self._new_table()
        self._lookups.forget()
        self._limits += 1
        return before

    def update_quota(self, entity: QuotaEntity, bound: float | None) -> None:
        """Set the quota of `entity`, or remove it with None; it holds at once."""
        if bound is None:
            # Kafka's order (B§3.9): the callback hears of the change first, then bounds are looked up again.
            self._callback.remove_quota(self.quota_type, entity)
        else:
            self._callback.update_quota(self.quota_type, entity, bound)
        self.enabled = self.levels is not Level.NONE
        logger.info(
            "%s quota of %r is now %r, levels in use: %r", self.quota_type.value, entity, bound, self.levels
        )
        self._lookups.forget()
        self.refresh()

    def refresh(self) -> None:
        """Ask for the limit of every sensor again: at once, or when it is used next."""
        self._limits += 1
        if self._custom is not None and not self.late_limits:
            for sensor in self.sensors:
                self.up_to_date(sensor)

    def up_to_date(self, sensor: S) -> S:
        """Return `sensor` with the bound that holds now. Every use of a sensor that was kept begins with this."""
        if sensor.limits_seen != self._limits:
            sensor.limits_seen = self._limits
            self._ask_limit(sensor)
        return sensor

    def used_again(self, user: str, client_id: str, sensor: S, now_ms: int) -> None:
        """Set the current bound on a sensor that was kept for a client, even if the client's tags have changed."""
        self.up_to_date(sensor)
        if self._custom is not None:
            self._note_tags(user, client_id, sensor, now_ms)

    def up_to_date_sensors(self) -> Iterator[S]:
        """Yield all sensors, each with the bound that holds now."""
        return map(self.up_to_date, self.sensors)

    def tags(self, user: str, client_id: str) -> Mapping[str, str]:
        """Return the tags that a client's usage is counted under. Raises `CallbackError` when they are none."""
        tags = self._callback.quota_metric_tags(self.quota_type, user, client_id)
        if tags is None:
            raise CallbackError(
                f"callback returned no tags for user={user!r}, client_id={client_id!r}, expected a map"
            )
        return tags

    def bound(self, user: str, client_id: str) -> float:
        """Return the bound that holds for a client now, `UNLIMITED` if none does; makes no sensor."""
        return self._limit(self.tags(user, client_id))

    def explain(self, user: str, client_id: str) -> Explanation:
        """Return which quota a client has, and why. Makes no sensor."""
        tags = self.tags(user, client_id)
        considered: tuple[QuotaEntity, ...] = ()
        entity: QuotaEntity | None = None
        defined: tuple[tuple[QuotaEntity, float | None], ...] = ()
        if self._custom is None:
            quotas = self._own_rules.quotas
            defined = tuple(
                (each, quotas.get(each)) for each in entities_of_client(sanitize(user), client_id)
            )
            pair = (tags["user"], tags["client-id"])
            considered = tuple(QuotaEntity(user=u, client_id=c) for u, c in candidates_of_tags(*pair))
            match = quotas.match(pair)
            entity = None if match is None else match[0]
        return Explanation(
            quota_type=self.quota_type,
            user=user,
            client_id=client_id,
            tags=tags,
            levels=self.levels,
            considered=considered,
            entity=entity,
            defined=defined,
            bound=self._callback.quota_limit(self.quota_type, tags),
        )

    def look_up_anew(self) -> None:
        """Look up the sensor of each client again at its next use: a sensor of another kind may apply."""
        self._lookups.forget()

    def sensor(self, user: str, client_id: str, now_ms: int, *, charges: bool = True) -> S:
        """Return the sensor of a client, made if there is none; asks a custom callback as a request does.

        charges: the caller charges the sensor and decides by that.
        """
        sensor = self._nearest.get(client_id)
        # Most client ids come with one user: this saves a table lookup and its cache misses (`Lookups`).
        if sensor is None or sensor.found_for != user:
            sensor = self._cached.get(user, {}).get(client_id)
        if sensor is None:
            sensor = self._look_up(user, client_id, now_ms, charges=charges)
        return sensor

    def existing_sensor(self, user: str, client_id: str) -> S | None:
        """Return the sensor of a client with the bound that holds now; None if it has none yet."""
        sensor = self.sensors.get(self.sensor_name(user, client_id))
        return None if sensor is None else self.up_to_date(sensor)

    def max_value_in_window(
        self, user: str, client_id: str, now_ms: Callable[[], int], *, makes_sensor: bool = False
    ) -> float:
        """Return the most that a client may use in n - 1 windows, the largest double where nothing limits it.

        With a custom callback, or if `makes_sensor`, the client's sensor is made as Kafka makes it; only then `now_ms`
        is asked for the time.
        """
        if not self.enabled:
            return sys.float_info.max
        if self._custom is None and not makes_sensor:
            return self._remembered_max(user, client_id)
        tags = self.tags(user, client_id)
        # The order of calls that a callback sees in Kafka (B§8): tags, limit of a new sensor, reset, limit again.
        self._find(tags, user, now_ms())
        self._reset_if_required()
        return self._max_value(tags)

    def note_throttle(self, user: str, client_id: str, throttle_ms: int, now_ms: int) -> None:
        """Record that a client is throttled for `throttle_ms`, for the metric `throttle-time` (B§3.8)."""
        if throttle_ms <= 0:
            return
        # It is made even while the type is off, as in Kafka (B§3.8).
        sensor = self.sensor(user, client_id, now_ms, charges=False)
        self._throttle_sensor(sensor, now_ms).record(throttle_ms, now_ms)

    def sensor_name(self, user: str, client_id: str) -> str:
        """Return the name of the sensor that a client's usage is counted in; makes none."""
        return self._name(self.tags(user, client_id))

    def expire_in_slices(self, now_ms: int) -> Generator[None, None, None]:
        """Forget sensors that were idle for more than an hour, yielding in between; call it every 30 s.

        Lookups made meanwhile do not find them.
        """
        if len(self.sensors):
            self._lookups.forget()
            yield from self.sensors.expire_in_slices(now_ms)

    def snapshots(self, now_ms: Callable[[], int]) -> Iterator[tuple[Mapping[str, str], int, dict[str, Any]]]:
        """Yield the tags of each sensor, the time, and its state at that time, without any effect.

        A sensor that is made meanwhile may be left out. The state is that of `tidegate.quota.measure.snapshot`, with
        `recorded_ms` (the time of the last use) and the key of the quota.
        """
        for name in self.sensors.names():
            sensor = self.sensors.get(name)
            if sensor is not None:
                at_ms = now_ms()
                used = {"quota_key": self.quota_type.key, "recorded_ms": sensor.last_record_ms() - at_ms}
                yield sensor.tags, at_ms, used | sensor.snapshot(at_ms)

    def metrics(self, now_ms: int) -> Iterator[Metric]:
        """Yield every metric of this type without any effect: a scrape changes no decision.

        Clients may come and go while it is under way.
        """
        for sensor in self.up_to_date_sensors():
            yield from self._metrics(sensor, now_ms)
        for _, throttle in self.sensors.throttles():
            yield self._throttle_metric(throttle, now_ms)
        yield from self.shared_metrics(now_ms)

    def shared_metrics(self, now_ms: int) -> Iterable[Metric]:
        """Return the metrics that belong to no client, without any effect."""
        return ()

    def metrics_of(self, sensor: S, now_ms: int) -> Iterator[Metric]:
        """Yield the metrics of the clients that share a sensor, without any effect."""
        yield from self._metrics(sensor, now_ms)
        throttle = self.sensors.throttle(sensor.name)
        if throttle is not None:
            yield self._throttle_metric(throttle, now_ms)

    @abstractmethod
    def _new_sensor(self, name: str, tags: Mapping[str, str], bound: float, now_ms: int) -> S:
        """Return a new sensor."""

    def _fits(self, sensor: S) -> bool:
        """Return whether a sensor is still of the kind that `_new_sensor` would make for its tags."""
        return True

    @abstractmethod
    def _metrics(self, sensor: S, now_ms: int) -> list[Metric]:
        """Return the metrics of one sensor, without effect."""

    def _metric(self, name: str, tags: Mapping[str, str], value: float, bound: float | None = None) -> Metric:
        return Metric(group=self.quota_type.value, name=name, tags=tags, value=value, bound=bound)

    def _throttle_metric(self, throttle: ThrottleSensor, now_ms: int) -> Metric:
        return self._metric("throttle-time", throttle.tags, throttle.peek(now_ms))

    def _limit(self, tags: Mapping[str, str]) -> float:
        limit = self._callback.quota_limit(self.quota_type, tags)
        return UNLIMITED if limit is None else limit

    def _ask_limit(self, sensor: S) -> None:
        bound = self._limit(sensor.tags)
        if bound != sensor.bound:
            sensor.set_bound(bound)

    def _look_up(self, user: str, client_id: str, now_ms: int, *, charges: bool = True) -> S:
        """Find or make a client's sensors in Kafka's order of calls (B§8), and remember what was found."""
        sensor = self._find(self.tags(user, client_id), user, now_ms)
        if self._custom is None:
            self._lookups.remember(user, client_id, sensor)
            return self.up_to_date(sensor)
        self._reset_if_required()
        self.up_to_date(sensor)
        if charges:
            self._note_tags(user, client_id, sensor, now_ms)
        return sensor

    def _note_tags(self, user: str, client_id: str, sensor: S, now_ms: int) -> None:
        if self.note_tags is not None:
            self.note_tags(self.quota_type, user, client_id, sensor, now_ms)

    def _remembered_max(self, user: str, client_id: str) -> float:
        try:
            return self._lookups.max_values[user, client_id]
        except KeyError:
            value = self._max_value(self.tags(user, client_id))
            self._lookups.remember_max_value(user, client_id, value)
            return value

    def _max_value(self, tags: Mapping[str, str]) -> float:
        limit = self._callback.quota_limit(self.quota_type, tags)
        if limit is None:
            return sys.float_info.max
        return self.window.max_value(limit)

    def _find(self, tags: Mapping[str, str], user: str, now_ms: int) -> S:
        """Return the sensor for `tags`. Make it, for the owner `user`, and its throttle sensor if they do not exist."""
        name = self._name(tags)
        sensor = self.sensors.get(name)
        if sensor is not None and not self._fits(sensor):
            self.sensors.remove(name)
            sensor = None
        if sensor is None:
            sensor = self._new_sensor(name, tags, self._limit(tags), now_ms)
            sensor.limits_seen = self._limits
            dropped = self.sensors.dropped
            has_room = self.sensors.make_room(sensor, now_ms, user)
            if self.sensors.dropped > dropped:
                # A remembered lookup may lead to an evicted sensor: charges to that would be in no table.
                self._lookups.forget()
                self._note_dropped(dropped)
            shared = tags if has_room else self._shared_tags(tags)
            if shared != tags:
                self._note_folded()
                return self._find(shared, user, now_ms)
            self.sensors.add_sensor(sensor, now_ms, user)
        self._throttle_sensor(sensor, now_ms)
        return sensor

    def _new_table(self) -> SensorTable[S]:
        return SensorTable(
            window=self.window,
            max_bytes=self._max_sensor_bytes,
            is_protected=self._is_protected,
            is_reclaimable=self._is_of_default_quota,
        )

    def _is_of_default_quota(self, sensor: S) -> bool:
        """Return whether a sensor has a default quota of client ids: a new client id would begin anew, too."""
        if self._custom is not None:
            return False
        match = self._own_rules.quotas.match((sensor.tags["user"], sensor.tags["client-id"]))
        return match is None or match[0].client_id is DEFAULT

    def _is_protected(self, sensor: S, now_ms: int, in_use: bool) -> bool:
        """Return whether a full table must keep a sensor: it is over its bound, or has a quota of its own."""
        is_over = self.up_to_date(sensor).is_over(now_ms)
        return is_over or (in_use and self._custom is None and self._shared_tags(sensor.tags) == sensor.tags)

    def _shared_tags(self, tags: Mapping[str, str]) -> Mapping[str, str]:
        """Return the tags that a new client is counted under when the table is full: one sensor for each default quota.

        A client with a quota of its own keeps its tags; its sensor is added past the bound.
        """
        if self._custom is not None:
            return tags
        match = self._own_rules.quotas.match((tags["user"], tags["client-id"]))
        if match is not None and not match[0].has_default:
            return tags
        own = ("", "") if match is None else (match[0].user, match[0].client_id)
        names = [
            name if not name or name == part else OVERFLOW
            for name, part in zip(tags.values(), own, strict=True)
        ]
        return dict(zip(tags, names, strict=True))

    def _note_dropped(self, before: int) -> None:
        """Log the number of sensors dropped from a full table: the first time, and each time it doubles."""
        if self.sensors.dropped.bit_length() > before.bit_length():
            logger.warning(
                "evicted sensors of the %s quota, because its table is full: %d so far, %d of them within their window",
                self.quota_type.value,
                self.sensors.dropped,
                self.sensors.dropped_in_use,
            )

    def _note_folded(self) -> None:
        """Count a client that has to share a sensor; log the number the first time, and each time it doubles."""
        self.folded += 1
        if self.folded & (self.folded - 1) == 0:
            logger.warning(
                "too many active clients for the %s quota: %d so far share one sensor, %r",
                self.quota_type.value,
                self.folded,
                OVERFLOW,
            )

    def _name(self, tags: Mapping[str, str]) -> str:
        # As in Kafka: tags of a callback that join to one name share a sensor (B§8).
        return f"{self.quota_type.value}-{':'.join(tags.values())}"

    def _reset_if_required(self) -> None:
        if self._custom is not None and self._custom.quota_reset_required(self.quota_type):
            self.refresh()

    def _throttle_sensor(self, sensor: S, now_ms: int) -> ThrottleSensor:
        throttle = self.sensors.throttle(sensor.name)
        if throttle is None:
            throttle = ThrottleSensor(sensor.tags, now_ms=now_ms)
            if self.sensors.add_throttle(sensor.name, throttle, now_ms):
                self._lookups.forget()
        return throttle
