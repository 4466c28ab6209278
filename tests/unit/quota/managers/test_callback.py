"""The callback interface: Kafka's own rules as a callback, and errors of a custom one."""

from collections.abc import Mapping
from random import Random

import pytest

from tidegate.quota import (
    CallbackError,
    ClientQuotaManager,
    ClusterMetadata,
    DefaultQuotaCallback,
    Level,
    QuotaEntity,
    QuotaManagers,
    QuotaType,
)

NOW_MS = 1_700_000_000_000


class _Tiers(DefaultQuotaCallback):
    """Clients share the quota of the tier that their name begins with; limits are given per tier."""

    def __init__(self, limits: dict[str, float]) -> None:
        super().__init__()
        self.limits = limits
        self.reset = False

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Mapping[str, str]:
        return {"tier": user.partition("-")[0]}

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        return self.limits.get(tags["tier"])

    def quota_reset_required(self, quota_type: QuotaType) -> bool:
        reset, self.reset = self.reset, False
        return reset

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        self.limits["gold"] = 10.0 * len(cluster.nodes)
        return True


def test_own_rules_answer_as_a_callback() -> None:
    """Tags by the levels in use, bounds by the tags, nothing to reset."""
    callback = DefaultQuotaCallback()
    callback.configure({})
    callback.update_quota(QuotaType.FETCH, QuotaEntity(user="a/b"), 7.0)
    tags = callback.quota_metric_tags(QuotaType.FETCH, "a/b", "c")
    assert tags == {"user": "a%2Fb", "client-id": ""}
    assert callback.quota_limit(QuotaType.FETCH, tags) == 7.0
    assert callback.quota_limit(QuotaType.FETCH, {"user": "a%2Fb"}) is None
    assert not callback.quota_reset_required(QuotaType.FETCH)
    assert not callback.update_cluster_metadata(ClusterMetadata.of({}, {}))
    callback.remove_quota(QuotaType.FETCH, QuotaEntity(user="a/b"))
    assert callback.levels is Level.NONE


def test_a_custom_callback_groups_clients_and_is_asked_each_time() -> None:
    """Users of one tier share its limit; a changed limit holds from the request that reports a reset."""
    callback = _Tiers({"gold": 100.0})
    manager = ClientQuotaManager(QuotaType.PRODUCE, callback=callback)
    assert (manager.enabled, manager.levels) == (True, Level.CUSTOM)
    assert manager.record("gold-ann", "c1", 900.0, NOW_MS) == 0
    assert manager.record("gold-bob", "c2", 200.0, NOW_MS) == 1000
    callback.limits["gold"] = 1000.0
    assert manager.record("gold-bob", "c2", 0.0, NOW_MS) == 1000
    callback.reset = True
    assert manager.record("gold-bob", "c2", 0.0, NOW_MS) == 0
    assert manager.record("other", "c1", 1e12, NOW_MS) == 0
    assert [sensor.name for sensor in manager.sensors] == ["Produce-gold", "Produce-other"]


def test_changed_metadata_refreshes_all_managers_when_the_callback_says_so() -> None:
    """Limits may depend on the number of brokers or partitions (KIP-257)."""
    callback = _Tiers({"gold": 1.0})
    managers = QuotaManagers(callback=callback, callback_config={"broker.id": 1})
    assert managers.produce.record("gold-ann", "c", 100.0, NOW_MS) == 90_000
    nodes = {1: (("node", 1),), 2: (("node", 2),)}
    assert managers.update_cluster_metadata(ClusterMetadata.of(nodes, {}))
    assert managers.produce.record("gold-ann", "c", 0.0, NOW_MS) == 0
    assert not QuotaManagers().update_cluster_metadata(ClusterMetadata.of(nodes, {}))


class _Counted(_Tiers):
    """Has a limit for each client, all changed by stored quotas, and counts how often it is asked."""

    asked = 0

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Mapping[str, str]:
        return {"tier": client_id}

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        self.asked += 1
        return self.limits.get(tags["tier"], self.limits.get("others"))

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        self.limits[str(entity.client_id)] = value


def test_limits_asked_for_late_decide_the_same() -> None:
    """As limits asked for at once, whatever changes between which requests; a change asks for none by itself."""
    random = Random(9)
    callbacks = [_Counted({"others": 50.0}) for _ in range(2)]
    at_once, late = (
        QuotaManagers(callback=callback, late_limits=late_limits)
        for callback, late_limits in zip(callbacks, (False, True), strict=True)
    )
    throttled, now_ms = 0, NOW_MS
    for _ in range(3000):
        now_ms += random.choice([0, 1, 300, 1500])
        name = f"c{random.randrange(20)}"
        match random.randrange(8):
            case 0:
                entity, bound = (
                    QuotaEntity(client_id=random.choice([name, "others"])),
                    random.choice([5.0, 80.0]),
                )
                at_once.produce.update_quota(entity, bound)
                asked = callbacks[1].asked
                late.produce.update_quota(entity, bound)
                assert callbacks[1].asked == asked
            case 1:
                for callback in callbacks:
                    callback.limits["others"] *= (
                        random.choice([0.5, 2.0]) if callback is callbacks[0] else 1.0
                    )
                    callback.limits["others"] = callbacks[0].limits["others"]
                    callback.reset = True
                at_once.produce.record("u", name, 0.0, now_ms)
                late.produce.record("u", name, 0.0, now_ms)
            case 2:
                at_once.update_cluster_metadata(ClusterMetadata.of({}, {}))
                late.update_cluster_metadata(ClusterMetadata.of({}, {}))
            case _:
                value = random.choice([1.0, 100.0, 400.0])
                throttle_ms = at_once.produce.record("u", name, value, now_ms)
                assert late.produce.record("u", name, value, now_ms) == throttle_ms
                throttled += throttle_ms > 0
    assert throttled > 200
    assert [m.bound for m in late.metrics(now_ms)] == [m.bound for m in at_once.metrics(now_ms)]
    assert callbacks[1].asked < callbacks[0].asked / 2


def test_tags_that_are_none_are_an_error_with_the_client_in_it() -> None:
    """Kafka throws a NullPointerException out of every call (B§8)."""
    callback = _Tiers({})
    callback.quota_metric_tags = lambda *client: None
    manager = ClientQuotaManager(QuotaType.PRODUCE, callback=callback)
    with pytest.raises(CallbackError) as refused:
        manager.record("alice", "c1", 1.0, NOW_MS)
    assert str(refused.value) == "callback returned no tags for user='alice', client_id='c1', expected a map"


def test_what_a_callback_raises_comes_through() -> None:
    """The engine catches nothing: who serves requests decides what then (a guard that keeps the last limit)."""
    callback = _Tiers({})
    manager = ClientQuotaManager(QuotaType.PRODUCE, callback=callback)
    callback.limits = None
    with pytest.raises(AttributeError):
        manager.record("alice", "c1", 1.0, NOW_MS)


def test_a_custom_callback_explains_its_bound() -> None:
    """No levels are involved."""
    manager = ClientQuotaManager(QuotaType.PRODUCE, callback=_Tiers({"gold": 5.0}))
    assert str(manager.explain("gold-ann", "c1")) == (
        "Produce quota of user 'gold-ann', client id 'c1': 5.0 by the custom callback; "
        "shared by all clients with tier='gold'"
    )
    assert manager.explain("tin-bob", "c1").bound is None
    assert "unlimited by the custom callback" in str(manager.explain("tin-bob", "c1"))
