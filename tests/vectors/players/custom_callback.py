"""Family `custom_callback` (B§8): what a callback is asked, when, and what its answers lead to."""

import itertools
from collections.abc import Iterator, Mapping

from players._doubles import decode
from players._managers import Throttles, bounds, charge, entity_of, java_text, window_of
from players._sweeping import throttle_sensor_name
from tidegate.quota import CallbackError, ClusterMetadata, ClusterNode, QuotaEntity, QuotaManagers, QuotaType

__all__ = ["play"]


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario; a step yields what it returned, the callback's calls, and the error if it raised one."""
    return _Player(**scenario["config"]).play(scenario)


def _in_file_order(calls: list) -> list:
    """Return calls with every run of `quotaLimit` sorted, as a refresh asks in no particular order."""
    ordered: list = []
    for is_limit, group in itertools.groupby(calls, key=lambda call: call[0] == "quotaLimit"):
        run = list(group)
        if is_limit:
            run.sort(key=lambda call: (call[1], java_text(call[2])))
        ordered += run
    return ordered


class _Callback:
    """The callback that the files were made with: it writes down its calls and answers by simple rules."""

    def __init__(self, tag_mode: str) -> None:
        self.calls: list[list] = []
        self.reset_answers: list[bool] = []
        self.metadata_answer = False
        self._tag_mode = tag_mode
        self._stored: dict[tuple[QuotaType, str], float] = {}
        self._factor = 1.0

    def configure(self, config: Mapping[str, object]) -> None:
        self.calls.append(["configure", bool(config)])

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> dict | None:
        self.calls.append(["quotaMetricTags", quota_type.name, f"User:{user}", client_id])
        group = user.split("_")[0] if "_" in user else ""
        return {
            "group": {"group": group},
            "two": {"tenant": user, "app": client_id},
            "empty": {},
            "null": None,
        }[self._tag_mode]

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        self.calls.append(["quotaLimit", quota_type.name, dict(tags)])
        stored = self._stored.get((quota_type, ":".join(tags.values())))
        return None if stored is None else stored / self._factor

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        self.calls.append(["updateQuota", quota_type.name, _parts(entity), value])
        self._stored[quota_type, entity.config_entities()[0][1]] = value

    def remove_quota(self, quota_type: QuotaType, entity: QuotaEntity) -> None:
        self.calls.append(["removeQuota", quota_type.name, _parts(entity)])
        self._stored.pop((quota_type, entity.config_entities()[0][1]), None)

    def quota_reset_required(self, quota_type: QuotaType) -> bool:
        self.calls.append(["quotaResetRequired", quota_type.name])
        return self._changed(self.reset_answers.pop(0) if self.reset_answers else False)

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        self.calls.append(["updateClusterMetadata", sorted(cluster.topics), len(cluster.nodes)])
        return self._changed(self.metadata_answer)

    def _changed(self, answer: bool) -> bool:
        if answer:
            self._factor *= 2
        return answer


class _Player:
    def __init__(
        self,
        tag_mode: str,
        start_ms: int,
        samples: int = 11,
        window_s: int = 1,
    ) -> None:
        self.callback = _Callback(tag_mode)
        self._window = window_of(samples, window_s)
        self._now_ms = start_ms
        self._throttles = {quota_type: Throttles() for quota_type in QuotaType}
        self._changes = 0
        self._brokers: dict[int, list[ClusterNode]] = {}
        self._leaders: dict[tuple[str, int], int] = {}

    def play(self, scenario: dict) -> Iterator[tuple[int, object, object]]:
        for index, step in enumerate(scenario["steps"]):
            self.callback.calls.clear()
            try:
                got = getattr(self, step["op"])(**step["args"])
            except CallbackError:
                got = {"error": "NullPointerException"}
            if "calls" in step["expect"]:
                got = (got or {}) | {"calls": _in_file_order(self.callback.calls)}
            yield index, step["expect"], got or {}

    def scrape(self, ahead_ms: int) -> None:
        """Read all metrics, as they are in so many ms; the callback is not asked."""
        asked = len(self.callback.calls)
        list(self._managers.metrics(self._now_ms + ahead_ms))
        assert len(self.callback.calls) == asked

    def create(self) -> dict:
        self._managers = QuotaManagers(
            window=self._window, callback=self.callback, callback_config={"broker.id": 1}
        )
        return {"types_enabled": int(self._managers.produce.levels)}

    def record(self, type: str, user: str, client_id: str, value: list, t: int) -> dict:
        return {"throttle_ms": charge(self._manager(type), user, client_id, decode(value), t)}

    def update_quota(self, type: str, entity: dict, quota: list | None) -> dict:
        manager = self._manager(type)
        manager.update_quota(entity_of(entity), None if quota is None else decode(quota))
        return {"types_enabled": int(manager.levels), "bounds": bounds(manager)}

    def max_value_in_quota_window(self, type: str, user: str, client_id: str) -> dict:
        return {"value": self._manager(type).max_value_in_window(user, client_id, lambda: self._now_ms)}

    def throttle(self, type: str, user: str, client_id: str, ms: int) -> None:
        self._manager(type).note_throttle(user, client_id, ms, self._now_ms)
        throttles = self._throttles[QuotaType(type)]
        throttles.start(len(throttles), ms, self._now_ms)

    def limit(self, type: str, user: str, client_id: str) -> dict:
        return {"bound": self._manager(type).bound(user, client_id)}

    def metrics(self, type: str) -> dict:
        manager = self._manager(type)
        throttles = list(manager.sensors.throttles())
        readings = [("throttle-time", sensor.tags, sensor.measure) for _, sensor in throttles]
        readings.append(("queue-size", {}, lambda now_ms: self._throttles[manager.quota_type].size))
        if manager.quota_type is QuotaType.REQUEST:
            readings.append(("exempt-request-time", {}, manager.exempt.measure))
        for sensor in manager.sensors:
            if manager.quota_type is QuotaType.CONTROLLER_MUTATION:
                readings.append(("mutation-rate", sensor.tags, sensor.rate.measure))
                readings.append(("tokens", sensor.tags, sensor.bucket.tokens))
            else:
                readings.append((manager.quota_type.metric, sensor.tags, sensor.measure))
        readings.sort(key=lambda reading: (reading[0], java_text(reading[1])))
        names = [sensor.name for sensor in manager.sensors]
        names += [throttle_sensor_name(manager, name) for name, _ in throttles]
        return {
            "metrics": [[name, tags, read(self._now_ms)] for name, tags, read in readings],
            "sensors": sorted([*names, f"{type}-delayQueue"]),
        }

    def script_reset_required(self, answers: list[bool]) -> None:
        self.callback.reset_answers += answers

    def metadata_update(self, change: str, callback_answers: bool) -> dict:
        """Publish a new topic t<n> led by broker 1, or a broker, where n counts the changes of all kinds."""
        self._changes += 1
        self.callback.metadata_answer = callback_answers
        if change == "topic":
            self._leaders[f"t{self._changes}", 0] = 1
        elif change == "broker":
            ident = len(self._brokers) + 1
            listeners = 2 if ident % 2 == 0 else 1
            self._brokers[ident] = [ClusterNode(ident, "host", 9092 + n) for n in range(listeners)]
        if change != "quota":
            self._managers.update_cluster_metadata(ClusterMetadata.of(self._brokers, self._leaders))
        return {"bounds": {manager.quota_type.value: bounds(manager) for manager in self._managers}}

    def advance(self, ms: int) -> None:
        self._now_ms += ms

    def shutdown(self) -> None:
        """Do nothing: a callback is never closed."""

    def _manager(self, type: str) -> object:
        return self._managers.manager(QuotaType(type))


def _parts(entity: QuotaEntity) -> list:
    return [[entity_type.name, name] for entity_type, name in entity.config_entities()]
