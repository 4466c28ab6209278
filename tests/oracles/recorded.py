"""A plain port of Kafka's quotas that goes through a usage record: what should have been decided of each row.

Written from B§2-6 with the ports beside it, and from `docs/usage-record.md` for what a row says. It knows the tags that
a custom callback chose, and by their rows who is observed or exempt; neither smooth mode nor bounded debt.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from tests.oracles.quota_manager import PortedManager, ported_bits, ported_limit, ported_tags
from tests.oracles.sampled_rate import PortedRate, java_int, java_round

from tidegate.quota import DEFAULT, UNLIMITED, QuotaEntity, sanitize

__all__ = ["ported_differences"]

Event = dict[str, Any]
Tags = dict[str, str]
_PRODUCE, _FETCH = "producer_byte_rate", "consumer_byte_rate"
_REQUEST, _MUTATION = "request_percentage", "controller_mutation_rate"
_PERCENT_PER_NS = 100 / 1e9
_IDLE_MS = 3_600_000
_TOLD = (19, 20, 37)  # CreateTopics, DeleteTopics, CreatePartitions: their answers tell the throttle (B§5.5)


def ported_differences(events: Iterable[Event]) -> list[str]:
    """Return what was decided otherwise than by the port, of all requests and permits of one node."""
    node, found = _Node(), []
    for event in events:
        decided = node.take(event)
        recorded = {name: event[name] for name in decided}
        if decided != recorded:
            found.append(f"{decided}, not {recorded}, of {event}")
    return found


class _Manager(PortedManager):
    """A port that forgets who is idle, and counts by the tags of a callback where there are some."""

    def __init__(self, **windows: Any) -> None:
        super().__init__(**windows)
        self.custom = False
        self.tags: dict[tuple[str, str], Tags] = {}
        self.limits: dict[str, float] = {}

    @property
    def enabled(self) -> bool:
        return self.custom or bool(self.quotas)

    def tags_of(self, user: str, client_id: str) -> Tags:
        """Return the tags of a client."""
        if self.custom:
            return self.tags[user, client_id]
        tags = ported_tags(self.quotas, ported_bits(self.quotas), sanitize(user), client_id)
        return dict(zip(("user", "client-id"), tags, strict=True))

    def bound_of(self, tags: Tags) -> float:
        """Return the bound that holds for tags."""
        if self.custom:
            return self.limits[_name(tags)]
        pair = tags.get("user"), tags.get("client-id")
        limit = None if None in pair else ported_limit(self.quotas, pair)
        return UNLIMITED if limit is None else limit

    def _rate(self, user: str, client_id: str) -> PortedRate:
        tags = self.tags_of(user, client_id)
        name, bound = _name(tags), self.bound_of(tags)
        if name not in self.rates:
            self.rates[name] = PortedRate(bound=bound, **self._windows)
        self.rates[name].bound = bound
        return self.rates[name]

    def _refresh(self, all_tags: list[Any]) -> None:
        """Do nothing: bounds are looked up at each use."""

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Charge and return the throttle time; nothing while no quota is defined."""
        return self._rate(user, client_id).decide(value, now_ms) if self.enabled else 0

    def expire(self, now_ms: int) -> None:
        """Forget rates without a record for an hour."""
        for tags, rate in list(self.rates.items()):
            if now_ms - (rate.last_event() or now_ms) > _IDLE_MS:
                del self.rates[tags]


def _name(tags: Tags) -> str:
    """Return what usage is counted under (B§3.5): the values of tags."""
    return ":".join(tags.values())


@dataclass(slots=True)
class _Tokens:
    """A token bucket (B§1.6)."""

    charged_ms: int
    tokens: float = 0.0
    touched_ms: int = 0

    def refill(self, bound: float, burst: float, now_ms: int) -> float:
        self.tokens = min(burst, self.tokens + bound * ((now_ms - self.touched_ms) / 1000))
        self.touched_ms = now_ms
        return self.tokens


@dataclass(slots=True)
class _Asking:
    """The quota object of one request (B§5.1-5.2): its bucket, None where no quota was defined, and that one's tags."""

    bucket: _Tokens | None = None
    tags: Tags | None = None
    throttle_ms: int = 0
    throttled_at_ms: int = 0


class _Node:
    """The state of the engine, out of rows."""

    def __init__(self) -> None:
        self._settings: dict[str, int] = {}
        self._managers: dict[str, _Manager] = {}
        self._tokens: dict[str, _Tokens] = {}
        self._asking: dict[int, _Asking] = {}

    def take(self, event: Event) -> dict[str, Any]:
        """Take one event; return what is decided of it, by column."""
        match event["kind"]:
            case "start":
                self._settings.clear()
                self._managers.clear()
                self._asking.clear()
                self._tokens.clear()
            case "quota":
                self._define(event)
            case "callback":
                self._exchange(event["callback"] is not None)
            case "tags":
                manager, tags = self._manager(event["quota_key"]), json.loads(event["tags"])
                manager.tags[event["user"], event["client_id"]] = tags
                limit = event["quota_value"]
                manager.limits[_name(tags)] = UNLIMITED if limit is None else limit
            case "expire":
                self._expire(event["ts_ms"])
            case "network":
                self._network(event)
            case "mutation":
                return self._mutation(event)
            case "request":
                return self._request(event)
            case "forwarded":
                return {"mutation_throttle_ms": self._mutation_throttle_ms(event)}
        return {}

    def _manager(self, key: str) -> _Manager:
        if key not in self._managers:
            prefix = "controller." if key == _MUTATION else ""
            samples = self._settings[f"{prefix}quota.window.num"]
            window_ms = 1000 * self._settings[f"{prefix}quota.window.size.seconds"]
            cap_ms = window_ms if key == _REQUEST else None
            self._managers[key] = _Manager(samples=samples, window_ms=window_ms, cap_ms=cap_ms)
        return self._managers[key]

    def _define(self, event: Event) -> None:
        key, value = event["quota_key"], event["quota_value"]
        if "quota.window." in key:
            self._settings[key] = int(value)
        elif key in (_PRODUCE, _FETCH, _REQUEST, _MUTATION):
            user, client_id = (
                DEFAULT if name == "<default>" else name and unquote_plus(name)
                for name in (event["quota_user"], event["quota_client_id"])
            )
            self._manager(key).update_quota(QuotaEntity(user=user, client_id=client_id), value)

    def _exchange(self, custom: bool) -> None:
        for key in (_PRODUCE, _FETCH, _REQUEST, _MUTATION):
            manager = self._manager(key)
            manager.custom = custom
            manager.tags.clear()
            manager.limits.clear()
            manager.rates.clear()
        self._tokens.clear()

    def _expire(self, now_ms: int) -> None:
        for manager in self._managers.values():
            manager.expire(now_ms)
        for tags, bucket in list(self._tokens.items()):
            if now_ms - bucket.charged_ms > _IDLE_MS:
                del self._tokens[tags]

    def _network(self, event: Event) -> None:
        request = self._manager(_REQUEST)
        if request.enabled and not event["exempt"]:
            value = (event["network_ns"] or 0) * _PERCENT_PER_NS
            request.record_unchecked(event["user"], event["client_id"], value, event["ts_ms"])

    def _request(self, event: Event) -> dict[str, Any]:
        """Charge in Kafka's order: the bytes of a Produce, the time, the bytes of a Fetch (B§6.2-6.4)."""
        client, now_ms = (event["user"], event["client_id"]), event["ts_ms"]
        decided = dict.fromkeys(
            ("produce_throttle_ms", "request_throttle_ms", "fetch_throttle_ms", "mutation_throttle_ms"), 0
        )
        if event["produce_bytes"] is not None:
            decided["produce_throttle_ms"] = self._manager(_PRODUCE).record(
                *client, event["produce_bytes"], now_ms
            )
        if not event["exempt"]:
            self._network(event)
            value = event["handler_ns"] * _PERCENT_PER_NS
            decided["request_throttle_ms"] = self._manager(_REQUEST).record(*client, value, now_ms)
        if event["fetch_bytes"] is not None:
            fetch = self._manager(_FETCH)
            decided["fetch_throttle_ms"] = fetch.record(*client, event["fetch_bytes"], now_ms)
            if max(decided.values()) > 0 and not event["observed_only"]:
                fetch.record_unchecked(*client, -event["fetch_bytes"], now_ms)
        decided["mutation_throttle_ms"] = self._mutation_throttle_ms(event)
        if event["forwarded"]:  # the controller's record has it
            del decided["mutation_throttle_ms"]
        return decided

    def _mutation_throttle_ms(self, event: Event) -> int:
        """Return what is left of the throttle time of the permits that a request asked for (B§5.2)."""
        asking = self._asking.pop(event["connection_id"], None)
        if asking is None or not asking.throttle_ms or event["api_key"] not in _TOLD:
            return 0
        return max(0, java_int(asking.throttle_ms - (event["ts_ms"] - asking.throttled_at_ms)))

    def _mutation(self, event: Event) -> dict[str, Any]:
        """Ask for permits; a request has one quota object, of the tags that its client had when it first asked."""
        manager, now_ms = self._manager(_MUTATION), event["ts_ms"]
        asking = self._asking.get(event["connection_id"])
        if asking is None:
            asking = self._asking[event["connection_id"]] = _Asking()
            if manager.enabled:
                asking.tags = manager.tags_of(event["user"], event["client_id"])
                asking.bucket = self._tokens.setdefault(_name(asking.tags), _Tokens(charged_ms=now_ms))
        if asking.bucket is None or asking.tags is None:
            return {"rejected": False}
        bound, bucket = manager.bound_of(asking.tags), asking.bucket
        samples, window_ms = manager._windows["samples"], manager._windows["window_ms"]
        burst = samples * (window_ms / 1000) * bound
        exhausted = bucket.refill(bound, burst, now_ms) < 0
        rejected = event["strict"] and exhausted
        if not rejected:
            bucket.tokens, bucket.charged_ms = min(burst, bucket.tokens - event["mutations"]), now_ms
            exhausted = not event["strict"] and bucket.tokens < 0
        if exhausted:
            asking.throttle_ms, asking.throttled_at_ms = java_round(-bucket.tokens / bound * 1000), now_ms
        return {"rejected": rejected}
