"""A record is enough: the engine, and a plain port of Kafka's classes, decide random traffic again as recorded."""

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.oracles.recorded import ported_differences
from tests.replaying.engine import decisions, replay_with_engine
from tests.replaying.logs import CLIENTS, START_MS, random_records, random_traffic, random_window
from tests.replaying.node import RecordingNode

from tidegate.callbacks import LimitsByLedPartitions, QuotaGroups
from tidegate.callbacks.own_rules import OwnRules
from tidegate.quota import ClusterMetadata, QuotaRecord, QuotaType

_SEEDS = st.integers(0, 2**32 - 1)
_LONG = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")
_EXTENSIONS = (
    QuotaRecord(entity=(("client-id", "c1"),), key="tidegate.quota.observe", value=1.0),
    QuotaRecord(entity=(("user", "bob"),), key="tidegate.quota.exempt", value=1.0),
    QuotaRecord(entity=(), key="tidegate.quota.throttle.max.ms", value=700.0),
)
_BEYOND_THE_PORT = (
    QuotaRecord(entity=(("user", "alice"),), key="tidegate.quota.smooth", value=1.0),
    QuotaRecord(entity=(), key="tidegate.quota.debt.max.seconds", value=3.0),
)


class Fickle(OwnRules):
    """Counts a client under other tags, with other limits, whenever it is told to change its mind."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._salt, self._rng, self._changed = rng.randrange(1000), rng, set(QuotaType)

    def change(self) -> None:
        """Change its mind."""
        self._salt, self._changed = self._rng.randrange(1000), set(QuotaType)

    def quota_metric_tags(self, quota_type, user, client_id):
        """Return one of five shelves, by turns under another name."""
        place = sum(map(ord, f"{quota_type.key}{user}{client_id}")) + self._salt
        return {("shelf", "Regal")[self._salt % 2]: str(place % 5), "é": "\ud800"}

    def quota_limit(self, quota_type, tags):
        """Return one of some limits, or none."""
        limits = (None, 0.01, 3.0, 100.0, 2000.0, 50_000.0)
        return limits[(sum(map(ord, "".join(tags.values()))) + self._salt) % len(limits)]

    def quota_reset_required(self, quota_type):
        """Return True once after a change."""
        changed = quota_type in self._changed
        self._changed.discard(quota_type)
        return changed


def _groups() -> QuotaGroups:
    groups, prefix = QuotaGroups(), "client.quota.callback.group.etl"
    limits = {"producer_byte_rate": 2000, "request_percentage": 0.5, "controller_mutation_rate": 2}
    members = {f"{prefix}.members": "user:alice, user:bob, client-id:c2"}
    groups.configure(members | {f"{prefix}.{key}": value for key, value in limits.items()})
    return groups


def _led() -> LimitsByLedPartitions:
    callback = LimitsByLedPartitions()
    callback.configure({"node.id": 1})
    return callback


def _disturb(node: RecordingNode, rng: Random, now_ms: int) -> None:
    """Exchange the callback, have it change its mind, or move partitions."""
    current = node.managers.callback
    if isinstance(current, Fickle) and rng.random() < 0.6:
        current.change()
    elif isinstance(current, LimitsByLedPartitions) and rng.random() < 0.7:
        leaders = {("t", number): rng.choice((1, 1, 2)) for number in range(4)}
        node.managers.update_cluster_metadata(ClusterMetadata(nodes={}, leaders=leaders))
    else:
        name, make = rng.choice([
            ("groups", _groups), ("led", _led), ("fickle", lambda: Fickle(rng)), (None, lambda: None)
        ])  # fmt: skip
        node.exchange(make(), name, now_ms)


def _random_node(
    seed: int, *, extensions: tuple[QuotaRecord, ...] = (), callbacks: bool = True
) -> RecordingNode:
    rng = Random(seed)
    node, now_ms = RecordingNode(), START_MS
    node.start(
        now_ms,
        window=random_window(rng),
        controller_window=random_window(rng),
        records=random_records(rng, at_most=8),
    )
    for _ in range(10):
        if extensions:
            record = rng.choice(extensions)
            value = rng.choice((record.value, None))
            node.quota(QuotaRecord(entity=record.entity, key=record.key, value=value), now_ms)
        if callbacks:
            _disturb(node, rng, now_ms)
        now_ms = random_traffic(node, rng, events=40, now_ms=now_ms)
    return node


@_LONG
@given(_SEEDS)
def test_the_engine_decides_again_as_recorded(seed):
    """With callbacks that are exchanged and change their minds, and with all that goes beyond Kafka."""
    events = _random_node(seed, extensions=_EXTENSIONS + _BEYOND_THE_PORT).events
    assert decisions(replay_with_engine(events)) == decisions(events)


@_LONG
@given(_SEEDS, st.booleans())
def test_the_port_decides_again_as_recorded(seed, callbacks):
    """By Kafka's rules alone, with clients that are observed or exempt, and with callbacks."""
    events = _random_node(seed, extensions=_EXTENSIONS, callbacks=callbacks).events
    assert ported_differences(events) == []


@pytest.mark.parametrize("callback", [None, "groups", "led", "fickle"])
def test_the_random_logs_have_every_kind_of_decision(callback):
    """Throttles of all four quotas under each callback, and of several clients that share a limit."""
    seen: Counter[str] = Counter()
    for seed in range(60):
        current, sharing = None, {}
        for event in _random_node(seed, extensions=_EXTENSIONS).events:
            if event["kind"] in ("start", "callback"):
                current = event["callback"]
            if current != callback:
                continue
            if event["kind"] == "tags":
                sharing.setdefault((event["quota_key"], event["tags"]), set()).add(
                    (event["user"], event["client_id"])
                )
            for name in _THROTTLES:
                seen[name] += event[name] > 0
            seen["rejected"] += event["rejected"]
        seen["shared"] += max((len(clients) for clients in sharing.values()), default=0) > len(CLIENTS) // 8
    expected = {*_THROTTLES, "rejected", *(("shared",) if callback in ("groups", "fickle") else ())}
    assert {name for name in expected if seen[name] < 5} == set(), seen
