"""What the rows of the usage record add up to, by the rules and without the engine.

* Every throttle time is that of plain ports: of Kafka's classes (`tests/oracles`), and of the token buckets.
* Of bytes and times no entity gets past its bound and a burst, over any time: what was admitted unthrottled fills
  a bucket that runs out at the bound Q. While it holds, at each admission the samples that are left have at most
  Q · window in them (B§2.1), and a window is shorter than (n + 1) · w (B§1.4). What was charged to other requests only
  makes it less. So the bucket never has more in it than Q · (n + 1) · w / 1000. Who was throttled is muted instead.
* Of a smooth quota it is the burst that was set, and of fetches the last one besides, which may find it just used up;
  what is forgiven of a debt is out of the bucket too.
* Permits are granted while the token bucket is not below zero, and refused while it is (B§1.6, B§5.2).
* Who is exempt is charged nothing, who is observed is told of nothing, nobody is told of more than the cap.
* Each answer that came has its row, in order, with its size and its throttle time.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from tests.oracles.quota_manager import Quotas
from tests.oracles.sampled_rate import PortedRate, java_int, java_round
from tests.simulation.callbacks import Scheme
from tests.simulation.rules import (
    BURST_S,
    CAP_MS,
    DEBT_S,
    DEFAULT_NAME,
    EXEMPT,
    OBSERVE,
    SMOOTH,
    Names,
    Rules,
)

from tidegate.api_keys import METADATA
from tidegate.quota import DEFAULT, UNLIMITED, sanitize

__all__ = ["KEYS", "SCHEME", "SHARE", "Accounts", "Answered", "LeakingBucket", "Window"]

SCHEME, SHARE = "simulation.scheme", "simulation.share"
"""Keys of rows that say since when another quota callback is asked, by its number, and what a node leads."""
SENSOR_IDLE_MS = 3_600_000
_ROUNDING = 1e-6
_HALF_MS = 0.0005  # in seconds: less than that is no throttle time

Event = dict[str, Any]
_PRODUCE, _FETCH, _REQUEST, _MUTATION = (
    "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
)  # fmt: skip
KEYS = (_PRODUCE, _FETCH, _REQUEST, _MUTATION)
_PERCENT_PER_NS = 100 / 1e9
_THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")

Answered = tuple[int, int, int, int, int | None, int | None]
"""An answer that came: api key and version, bytes of the request and of the answer, the throttle time that it tells if
it tells any, and the number of its connection at the controller if that was asked for permits."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The samples of a quota: n and w."""

    samples: int
    window_ms: int


class LeakingBucket:
    """What was admitted and has not run out, at `bound` a second. It must never have more in it than `burst`.

    most: what is past it runs out at once, as a debt that is forgiven.
    """

    __slots__ = ("_burst", "_level", "_most", "_since_ms", "bound")

    def __init__(self, bound: float, burst: float, now_ms: int, most: float = math.inf) -> None:
        self.bound = bound
        self._most = most
        self._burst = burst * (1 + _ROUNDING) + bound * _HALF_MS
        self._level = 0.0
        self._since_ms = now_ms

    @classmethod
    def of_samples(cls, bound: float, window: Window, now_ms: int) -> "LeakingBucket":
        """Return the bucket of a sampled rate: n + 1 samples at once."""
        return cls(bound, bound * (window.samples + 1) * window.window_ms / 1000, now_ms)

    def admit(self, value: float, now_ms: int) -> float:
        """Add `value`; return by how much it is too much."""
        self._level = max(0.0, self._level - self.bound * (now_ms - self._since_ms) / 1000) + value
        self._since_ms = now_ms
        too_much = self._level - self._burst
        self._level = min(self._level, self._most)
        return too_much


@dataclass(slots=True)
class _Tokens:
    """The token bucket of B§1.6, made at `last_ms`."""

    last_ms: int
    bound: float = UNLIMITED
    tokens: float = 0.0
    touched_ms: int = 0

    def refill(self, burst_s: float, now_ms: int) -> float:
        self.tokens = min(
            burst_s * self.bound, self.tokens + self.bound * ((now_ms - self.touched_ms) / 1000)
        )
        self.touched_ms = now_ms
        return self.tokens

    def charge(self, value: float, burst_s: float, now_ms: int) -> None:
        self.tokens = min(burst_s * self.bound, self.refill(burst_s, now_ms) - value)
        self.last_ms = now_ms

    def forgive(self, debt_s: float) -> float:
        """Owe no more than so many seconds; return how much that takes."""
        least = -debt_s * self.bound
        forgiven = max(least - self.tokens, 0.0)
        self.tokens = max(self.tokens, least)
        return forgiven

    def throttle_ms(self) -> int:
        return java_round(-self.tokens / self.bound * 1000) if self.tokens < 0 else 0

    def last_event(self) -> int:
        return self.last_ms


@dataclass(frozen=True, slots=True)
class _Mode:
    """Of a smooth quota: how many seconds it holds and may owe, and whether those who share it are observed."""

    burst_s: int
    debt_s: int
    observed: bool


class _Smooth(_Tokens):
    """A smooth quota; checks_first: what is fetched is admitted by what was there before."""

    __slots__ = ("_checks_first", "_forgiven", "mode")

    def __init__(self, mode: _Mode, now_ms: int, *, checks_first: bool) -> None:
        super().__init__(last_ms=now_ms)
        self.mode = mode
        self._checks_first = checks_first and not mode.observed
        self._forgiven = 0.0

    def record(self, value: float, now_ms: int) -> None:
        """Charge, or take back what was charged last and not forgiven."""
        self.charge(value if value >= 0 else min(value + self._forgiven, 0.0), self.mode.burst_s, now_ms)
        self._forgiven = 0.0

    def decide(self, value: float, now_ms: int) -> int:
        """Charge, and return the throttle time."""
        self.refill(self.mode.burst_s, now_ms)
        before_ms = self.throttle_ms()
        self.charge(value, self.mode.burst_s, now_ms)
        self._forgiven = self.forgive(self.mode.debt_s) if self.mode.debt_s else 0.0
        throttle_ms = before_ms if self._checks_first else self.throttle_ms()
        if self.mode.observed:
            self._forgiven += self.forgive(0)
        return min(throttle_ms, 2**31 - 1)


class _Manager:
    """The quotas of one key, by the rules as written: everything is looked up for each use."""

    def __init__(self, key: str, window: Window, rules: Rules) -> None:
        self.quotas: Quotas = {}
        self.scheme = Scheme({})
        self._key, self._window, self._rules = key, window, rules
        self._rates: dict[tuple[str, ...], PortedRate | _Smooth | _Tokens] = {}
        self._buckets: dict[tuple[str, ...], tuple[object, LeakingBucket]] = {}

    @property
    def enabled(self) -> bool:
        """Whether anything of this key is defined."""
        return self.scheme.is_custom or bool(self.quotas)

    def follow(self, scheme: Scheme) -> None:
        """Follow another callback, from nothing on."""
        self.scheme = scheme
        self._rates.clear()
        self._buckets.clear()

    def tags(self, user: str, client_id: str) -> tuple[str, ...]:
        """Return what a client's usage is counted under."""
        return self.scheme.tags(self.quotas, user, client_id)

    def bound(self, tags: tuple[str, ...]) -> float:
        """Return the bound of these tags."""
        limit = self.scheme.limit(self._key, self.quotas, tags)
        return UNLIMITED if limit is None else limit

    def level(self, tags: tuple[str, ...]) -> str:
        """Return what kind of entity it is whose bound holds for these tags, "" if none does."""
        if len(tags) != 2:
            return "callback"
        user, client_id = tags
        users, client_ids = ((name, DEFAULT) if name else (None,) for name in (user, client_id))
        for one in users:
            for other in client_ids:
                if (one, other) in self.quotas:
                    parts = (("user", one), ("client-id", other))
                    named = [(kind, part) for kind, part in parts if part is not None]
                    return ", ".join(
                        kind if part is not DEFAULT else f"default {kind}" for kind, part in named
                    )
        return ""

    def expire(self, now_ms: int) -> None:
        """Forget what has no record for an hour."""
        for tags, rate in list(self._rates.items()):
            last_ms = rate.last_event()
            if last_ms is not None and now_ms - last_ms > SENSOR_IDLE_MS:
                del self._rates[tags]

    def decide(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Charge and return the throttle time; nothing while nothing is defined."""
        return self._rate(user, client_id, now_ms).decide(value, now_ms) if self.enabled else 0

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Charge without asking."""
        self._rate(user, client_id, now_ms).record(value, now_ms)

    def tokens(self, tags: tuple[str, ...], now_ms: int) -> _Tokens:
        """Return the bucket of permits."""
        bucket = self._rates.setdefault(tags, _Tokens(last_ms=now_ms))
        assert isinstance(bucket, _Tokens)
        bucket.bound = self.bound(tags)
        return bucket

    def admit(self, user: str, client_id: str, value: float, now_ms: int) -> float:
        """Note what was admitted; return by how much it is too much."""
        tags = self.tags(user, client_id)
        bound, mode, rate = self.bound(tags), self._mode(tags), self._rates[tags]
        known = self._buckets.get(tags)
        if (
            known is None or known[0] is not rate or known[1].bound != bound
        ):  # what begins anew may burst anew
            if mode is None:
                made = LeakingBucket.of_samples(bound, self._window, now_ms)
            else:
                most = (mode.burst_s + mode.debt_s) * bound if mode.debt_s else math.inf
                made = LeakingBucket(bound, mode.burst_s * bound, now_ms, most)
            known = self._buckets[tags] = rate, made
        too_much = known[1].admit(value, now_ms)
        return too_much - value if mode is not None and self._key == _FETCH else too_much

    def _rate(self, user: str, client_id: str, now_ms: int) -> PortedRate | _Smooth:
        tags = self.tags(user, client_id)
        mode, rate = self._mode(tags), self._rates.get(tags)
        if rate is None or getattr(rate, "mode", None) != mode:
            if mode is not None:
                rate = _Smooth(mode, now_ms, checks_first=self._key == _FETCH)
            else:
                rate = PortedRate(
                    samples=self._window.samples, window_ms=self._window.window_ms, bound=UNLIMITED,
                    cap_ms=self._window.window_ms if self._key == _REQUEST else None,
                )  # fmt: skip
            self._rates[tags] = rate
        assert isinstance(rate, (PortedRate, _Smooth))
        rate.bound = self.bound(tags)
        return rate

    def _mode(self, tags: tuple[str, ...]) -> _Mode | None:
        """Return how a smooth quota is kept; of clients that share one, its name is what counts."""
        user, client_id = (unquote_plus(tags[0]), tags[1]) if len(tags) == 2 else ("", "")
        rules = self._rules
        if self._key not in (_PRODUCE, _FETCH) or not rules.selects(SMOOTH, user, client_id):
            return None
        observed = rules.selects(OBSERVE, user, client_id)
        return _Mode(rules.numbers[BURST_S], rules.numbers[DEBT_S], observed)


@dataclass(slots=True)
class _Asked:
    """What a request was told when it asked for permits: of the tags that its client had first (B§5.2)."""

    tags: tuple[str, ...] | None
    throttle_ms: int = 0
    at_ms: int = 0


class Accounts:
    """Goes through the events of one run of a node, in order; `problems` says what was wrong.

    schemes: by the numbers in the rows of `SCHEME`. answers: by connection, those that came. is_exact: every charge is
    looked at; else clients may have been forgotten, or counted together, where there was no room for them.
    admitted: how many charges were looked at, by quota key. forwarded: mutation throttles by connection, of requests
    that other nodes answer. was_custom, was_beyond: whether there was a callback, or more beyond Kafka
    than exempt clients.
    """

    def __init__(
        self,
        window: Window,
        controller_window: Window,
        *,
        schemes: Sequence[Scheme] = (),
        answers: Mapping[int, Sequence[Answered]] | None = None,
        forwarded: Mapping[int, deque[int]] | None = None,
        is_exact: bool = True,
    ) -> None:
        self.problems: list[str] = []
        self.seen: Counter[str] = Counter()
        self.rules = Rules()
        self.was_custom = self.was_beyond = False
        self.forwarded: defaultdict[int, deque[int]] = defaultdict(deque)
        self.admitted = dict.fromkeys(KEYS, 0)
        self._window, self._controller_window, self._schemes = window, controller_window, schemes
        self._answers = {number: deque(came) for number, came in (answers or {}).items()}
        self._forwarded = forwarded or {}
        self.is_exact = is_exact
        self._managers = {key: _Manager(key, window, self.rules) for key in KEYS}
        self._trusted_from_ms = dict.fromkeys(KEYS, 0)
        self._asking: dict[int, _Asked] = {}

    def take(self, event: Event) -> None:
        """Take one event."""
        kind = event["kind"]
        if kind == "request":
            self._request(event)
        elif kind == "network":
            self._network(event)
        elif kind == "forwarded":
            self._expect("mutation_throttle_ms", self._mutation_ms(event), event)
            self.forwarded[event["connection_id"]].append(event["mutation_throttle_ms"])
        elif kind == "mutation":
            self._mutation(event)
        elif kind == "quota":
            self._define(event)
        elif kind == "expire":
            for manager in self._managers.values():
                manager.expire(event["ts_ms"])

    def end(self) -> None:
        """Look whether each answer had its row."""
        left = sum(map(len, self._answers.values()))
        if left:
            self.problems.append(f"{left} answers have no row")

    def _define(self, event: Event) -> None:
        key, value = event["quota_key"], event["quota_value"]
        if key == SCHEME:
            self.was_custom = self.was_custom or self._schemes[int(value)].is_custom
            for manager in self._managers.values():
                manager.follow(self._schemes[int(value)])
        elif key == SHARE:
            for manager in self._managers.values():
                manager.scheme.share = value
        elif self.rules.apply(key, self._names(event), value):
            self.was_beyond = self.was_beyond or self.rules.beyond_exempt
        elif key in self._managers:
            manager = self._managers[key]
            if (
                not manager.enabled
            ):  # fetches that were taken back while there was no quota are a credit (B§6.3)
                self._trusted_from_ms[key] = (
                    event["ts_ms"] + (self._window.samples + 1) * self._window.window_ms
                )
            user, client_id = self._names(event)
            entity = (
                DEFAULT if user == DEFAULT_NAME else user and sanitize(user),
                DEFAULT if client_id == DEFAULT_NAME else client_id,
            )
            if value is None:
                manager.quotas.pop(entity, None)
            else:
                manager.quotas[entity] = value

    @staticmethod
    def _names(event: Event) -> Names:
        user, client_id = event["quota_user"], event["quota_client_id"]
        return user and unquote_plus(user), client_id and unquote_plus(client_id)

    def _network(self, event: Event) -> None:
        request = self._managers[_REQUEST]
        if request.enabled and not event["exempt"]:
            value = event["network_ns"] * _PERCENT_PER_NS
            request.record(event["user"], event["client_id"], value, event["ts_ms"])

    def _request(self, event: Event) -> None:
        """Charge in Kafka's order: the bytes of a Produce, the time, the bytes of a Fetch (B§6.2-6.4)."""
        user, client_id, now_ms = event["user"], event["client_id"], event["ts_ms"]
        produce_bytes, fetch_bytes = event["produce_bytes"], event["fetch_bytes"]
        if self.rules.selects(EXEMPT, user, client_id):
            self.seen["exempt"] += 1
            if not event["exempt"] or any(event[name] for name in _THROTTLES) or produce_bytes or fetch_bytes:
                self._say("an exempt client is charged", event)
        if not event["forwarded"]:
            self._expect("mutation_throttle_ms", self._mutation_ms(event), event)
        if produce_bytes is not None and not self._decide(
            _PRODUCE, "produce_throttle_ms", event, produce_bytes
        ):
            self._admit(_PRODUCE, event, produce_bytes)
        if not event["exempt"]:
            self._network(event)
            value = event["handler_ns"] * _PERCENT_PER_NS
            if self._decide(_REQUEST, "request_throttle_ms", event, value) == 0:
                self._admit(_REQUEST, event, value)
        decided_ms = max(event[name] for name in _THROTTLES)
        observed = self.rules.selects(OBSERVE, user, client_id)
        if fetch_bytes is not None:
            self._decide(_FETCH, "fetch_throttle_ms", event, fetch_bytes)
            if decided_ms <= 0:
                self._admit(_FETCH, event, fetch_bytes)
            elif not observed:
                self._managers[_FETCH].record(user, client_id, -fetch_bytes, now_ms)
        self._expect("observed_only", decided_ms > 0 and observed, event)
        self.seen["observed"] += event["observed_only"]
        self._compare_answer(event, decided_ms)

    def _compare_answer(self, event: Event, decided_ms: int) -> None:
        """Compare a row with the answer that came, if it came."""
        answers = self._answers.get(event["connection_id"])
        if not event["response_bytes"] or not answers:
            return
        *answer, told_ms, at_controller = answers.popleft()
        row = [event[name] for name in ("api_key", "api_version", "request_bytes", "response_bytes")]
        if at_controller is not None:
            self._expect("mutation_throttle_ms", self._forwarded[at_controller].popleft(), event)
        cap_ms = self.rules.numbers[CAP_MS]
        expected_ms = 0 if event["observed_only"] else min(max(decided_ms, 0), cap_ms or decided_ms)
        self.seen["capped"] += 0 < cap_ms < decided_ms
        if row != answer or told_ms not in (None, expected_ms):
            self._say(f"the answer was {answer}, {told_ms} ms, where {expected_ms} ms are due", event)

    def _decide(self, key: str, column: str, event: Event, value: float) -> int:
        """Charge, and compare; return the throttle time."""
        manager, user, client_id = self._managers[key], event["user"], event["client_id"]
        throttle_ms = manager.decide(user, client_id, value, event["ts_ms"])
        self._expect(column, throttle_ms, event)
        if throttle_ms > 0:
            self.seen[f"held by {manager.level(manager.tags(user, client_id))}"] += 1
        return throttle_ms

    def _expect(self, column: str, value: int, event: Event) -> None:
        if event[column] != value and self.is_exact:
            self._say(f"{column} should be {value}", event)

    def _say(self, problem: str, event: Event) -> None:
        self.problems.append(f"{problem}: {event}")

    def _admit(self, key: str, event: Event, value: float) -> None:
        now_ms, manager = event["ts_ms"], self._managers[key]
        if not (self.is_exact and manager.enabled) or now_ms < self._trusted_from_ms[key]:
            return
        self.admitted[key] += 1
        too_much = manager.admit(event["user"], event["client_id"], value, now_ms)
        if too_much > 0:
            tags = manager.tags(event["user"], event["client_id"])
            self._say(
                f"{key} of {tags} is {manager.bound(tags)}, and {too_much} too much was admitted", event
            )

    def _mutation(self, event: Event) -> None:
        """Look at permits; a request has one quota object, of the tags that its client had when it first asked."""
        now_ms, manager = event["ts_ms"], self._managers[_MUTATION]
        asked = self._asking.get(event["connection_id"])
        if asked is None:
            tags = manager.tags(event["user"], event["client_id"]) if manager.enabled else None
            asked = self._asking[event["connection_id"]] = _Asked(tags)
        if asked.tags is None or not self.is_exact:
            return
        bucket = manager.tokens(asked.tags, now_ms)
        burst_s = self._controller_window.samples * (self._controller_window.window_ms / 1000)
        left = bucket.refill(burst_s, now_ms)
        self.admitted[_MUTATION] += 1
        if not event["rejected"]:
            bucket.charge(event["mutations"], burst_s, now_ms)
            debt_s = self.rules.numbers[DEBT_S]
            if debt_s:
                bucket.forgive(debt_s)
        if event["strict"] and event["rejected"] is not (left < 0):
            self._say(f"{left} permits were left of {asked.tags}, bound {bucket.bound}", event)
        if bucket.tokens < 0 and (event["rejected"] or not event["strict"]):
            asked.throttle_ms, asked.at_ms = bucket.throttle_ms(), now_ms

    def _mutation_ms(self, event: Event) -> int:
        """Return what is left of the throttle time that came of permits; who is exempt is told nothing (B§5.5)."""
        asked = self._asking.pop(event["connection_id"], None)
        if asked is None:
            return 0
        left_ms = 0
        if event["api_key"] != METADATA and asked.throttle_ms:
            left_ms = max(0, java_int(asked.throttle_ms - (event["ts_ms"] - asked.at_ms)))
        return 0 if event["exempt"] and event["kind"] == "request" else left_ms
