"""What the rows of the usage record add up to, by the rules and without the engine.

* Every throttle time of bytes and times is that of a plain port of Kafka's classes (`tests/oracles`).
* Of bytes and times no entity gets past its bound and a burst, over any time: what was admitted unthrottled fills
  a bucket that runs out at the bound Q. While it holds, at each admission the samples that are left have at most
  Q · window in them (B§2.1), and a window is shorter than (n + 1) · w (B§1.4). What was charged to other requests only
  makes it less. So the bucket never has more in it than Q · (n + 1) · w / 1000. Who was throttled is muted instead.
* Permits are granted while the token bucket is not below zero, and refused while it is (B§1.6, B§5.2).
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from tests.oracles.quota_manager import PortedManager, ported_bits, ported_limit, ported_tags

from tidegate.quota import DEFAULT, UNLIMITED, QuotaEntity, sanitize

__all__ = ["Accounts", "LeakingBucket", "Window"]

SENSOR_IDLE_MS = 3_600_000
_ROUNDING = 1e-6

Event = dict[str, Any]
_BYTES = {"produce_bytes": "producer_byte_rate", "fetch_bytes": "consumer_byte_rate"}
_PERCENT_PER_NS = 100 / 1e9
_REQUEST, _MUTATION = "request_percentage", "controller_mutation_rate"


@dataclass(frozen=True, kw_only=True)
class Window:
    """The samples of a quota: n and w."""

    samples: int
    window_ms: int


class LeakingBucket:
    """What was admitted and has not run out. It must never have more in it than `bound` gives in n + 1 samples."""

    __slots__ = ("_burst", "_level", "_since_ms", "bound")

    def __init__(self, bound: float, window: Window, now_ms: int) -> None:
        self.bound = bound
        self._burst = bound * (window.samples + 1) * window.window_ms / 1000 * (1 + _ROUNDING)
        self._level = 0.0
        self._since_ms = now_ms

    def admit(self, value: float, now_ms: int) -> float:
        """Add `value`; return by how much it is too much."""
        self._level = max(0.0, self._level - self.bound * (now_ms - self._since_ms) / 1000) + value
        self._since_ms = now_ms
        return self._level - self._burst


class _Manager(PortedManager):
    """A port that forgets who is idle."""

    def expire(self, now_ms: int) -> None:
        """Forget rates without a record for an hour."""
        for tags, rate in list(self.rates.items()):
            last_ms = rate.last_event()
            if last_ms is not None and now_ms - last_ms > SENSOR_IDLE_MS:
                del self.rates[tags]


@dataclass(slots=True)
class _Tokens:
    """The token bucket of B§1.6."""

    charged_ms: int
    tokens: float = 0.0
    touched_ms: int = 0

    def refill(self, bound: float, burst: float, now_ms: int) -> float:
        self.tokens = min(burst, self.tokens + bound * ((now_ms - self.touched_ms) / 1000))
        self.touched_ms = now_ms
        return self.tokens


class Accounts:
    """Goes through the events of one run of a node, in order; `problems` says what was wrong.

    admitted: how many charges were looked at, by quota key.
    """

    def __init__(self, window: Window, controller_window: Window) -> None:
        self.problems: list[str] = []
        self._window, self._controller_window = window, controller_window
        keys = (*_BYTES.values(), _REQUEST, _MUTATION)
        self.admitted = dict.fromkeys(keys, 0)
        self._managers = {
            key: _Manager(
                samples=window.samples,
                window_ms=window.window_ms,
                cap_ms=window.window_ms if key == _REQUEST else None,
            )
            for key in keys
        }
        self._trusted_from_ms = dict.fromkeys(keys, 0)
        self._buckets: dict[tuple[str, tuple[str, str]], LeakingBucket] = {}
        self._tokens: dict[tuple[str, str], _Tokens] = {}
        self._asking: dict[int, tuple[str, str] | None] = {}

    def take(self, event: Event) -> None:
        """Take one event."""
        kind = event["kind"]
        if kind == "request":
            self._request(event)
        elif kind == "network":
            self._network(event)
        elif kind == "mutation":
            self._mutation(event)
        elif kind == "quota" and event["quota_key"] in self._managers:
            self._define(event)
        elif kind == "expire":
            self._expire(event["ts_ms"])

    def _define(self, event: Event) -> None:
        key = event["quota_key"]
        manager, names = self._managers[key], (event["quota_user"], event["quota_client_id"])
        if not manager.quotas:  # fetches that were taken back while there was no quota are a credit (B§6.3)
            self._trusted_from_ms[key] = event["ts_ms"] + (self._window.samples + 1) * self._window.window_ms
        user, client_id = (DEFAULT if name == "<default>" else name and unquote_plus(name) for name in names)
        manager.update_quota(QuotaEntity(user=user, client_id=client_id), event["quota_value"])

    def _expire(self, now_ms: int) -> None:
        for manager in self._managers.values():
            manager.expire(now_ms)
        for tags, bucket in list(self._tokens.items()):
            if now_ms - bucket.charged_ms > SENSOR_IDLE_MS:
                del self._tokens[tags]

    def _bound(self, key: str, event: Event) -> tuple[tuple[str, str], float]:
        quotas = self._managers[key].quotas
        tags = ported_tags(quotas, ported_bits(quotas), sanitize(event["user"]), event["client_id"])
        return tags, self._bound_of(key, tags)

    def _bound_of(self, key: str, tags: tuple[str, str]) -> float:
        limit = ported_limit(self._managers[key].quotas, tags)
        return UNLIMITED if limit is None else limit

    def _network(self, event: Event) -> None:
        request = self._managers[_REQUEST]
        if request.quotas and not event["exempt"]:
            value = event["network_ns"] * _PERCENT_PER_NS
            request.record_unchecked(event["user"], event["client_id"], value, event["ts_ms"])

    def _request(self, event: Event) -> None:
        """Charge in Kafka's order: the bytes of a Produce, the time, the bytes of a Fetch (B§6.2-6.4)."""
        self._asking.pop(event["connection_id"], None)
        user, client_id, now_ms = event["user"], event["client_id"], event["ts_ms"]
        produce_bytes, fetch_bytes = event["produce_bytes"], event["fetch_bytes"]
        request_ms = event["request_throttle_ms"]
        if produce_bytes is not None:
            throttle_ms = self._managers["producer_byte_rate"].record(user, client_id, produce_bytes, now_ms)
            self._compare("produce_throttle_ms", throttle_ms, event)
            if throttle_ms == 0:
                self._admit("producer_byte_rate", event, produce_bytes)
        if not event["exempt"]:
            self._network(event)
            value = event["handler_ns"] * _PERCENT_PER_NS
            throttle_ms = self._managers[_REQUEST].record(user, client_id, value, now_ms)
            self._compare("request_throttle_ms", throttle_ms, event)
            if throttle_ms == 0:
                self._admit(_REQUEST, event, value)
        if fetch_bytes is not None:
            fetch = self._managers["consumer_byte_rate"]
            throttle_ms = fetch.record(user, client_id, fetch_bytes, now_ms)
            self._compare("fetch_throttle_ms", throttle_ms, event)
            if max(throttle_ms, request_ms) > 0:
                fetch.record_unchecked(user, client_id, -fetch_bytes, now_ms)
            else:
                self._admit("consumer_byte_rate", event, fetch_bytes)

    def _compare(self, column: str, throttle_ms: int, event: Event) -> None:
        if event[column] != throttle_ms:
            self.problems.append(f"{column} should be {throttle_ms}: {event}")

    def _admit(self, key: str, event: Event, value: float) -> None:
        now_ms = event["ts_ms"]
        if not self._managers[key].quotas or now_ms < self._trusted_from_ms[key]:
            return
        tags, bound = self._bound(key, event)
        bucket = self._buckets.get((key, tags))
        if bucket is None or bucket.bound != bound:
            bucket = self._buckets[key, tags] = LeakingBucket(bound, self._window, now_ms)
        self.admitted[key] += 1
        too_much = bucket.admit(value, now_ms)
        if too_much > 0:
            self.problems.append(f"{key} of {tags} is {bound}, and {too_much} too much was admitted: {event}")

    def _mutation(self, event: Event) -> None:
        """Look at permits; a request has one quota object, of the tags that its client had when it first asked."""
        now_ms = event["ts_ms"]
        first = self._bound(_MUTATION, event)[0] if self._managers[_MUTATION].quotas else None
        tags = self._asking.setdefault(event["connection_id"], first)
        if tags is None:
            return
        bound = self._bound_of(_MUTATION, tags)
        bucket = self._tokens.setdefault(tags, _Tokens(charged_ms=now_ms))
        burst = self._controller_window.samples * (self._controller_window.window_ms / 1000) * bound
        left = bucket.refill(bound, burst, now_ms)
        self.admitted[_MUTATION] += 1
        if not event["rejected"]:
            bucket.tokens, bucket.charged_ms = min(burst, left - event["mutations"]), now_ms
        if event["strict"] and event["rejected"] is not (left < 0):
            self.problems.append(f"{left} permits were left of {tags}, bound {bound}: {event}")
