"""The four managers together: where a stored definition goes, and what they share."""

import pytest
from tests.vectors.players._sweeping import expire_manager

from tidegate.callbacks import QuotaGroups
from tidegate.quota import QuotaManagers, QuotaRecord, QuotaType, QuotaWindow
from tidegate.quota.admin.entity import Level


@pytest.mark.parametrize("quota_type", QuotaType)
def test_a_definition_goes_to_the_manager_of_its_key(quota_type: QuotaType) -> None:
    """And to no other; removing it takes it away again."""
    managers = QuotaManagers()
    entity = (("client-id", None), ("user", "alice"))
    assert managers.apply(QuotaRecord(entity=entity, key=quota_type.key, value=5.0))
    assert [manager.enabled for manager in managers] == [m.quota_type is quota_type for m in managers]
    assert managers.manager(quota_type).bound("alice", "any") == 5.0
    assert managers.apply(QuotaRecord(entity=entity, key=quota_type.key, value=None))
    assert not any(manager.enabled for manager in managers)


@pytest.mark.parametrize(
    ("entity", "key"),
    [
        ((("ip", "127.0.0.1"),), "connection_creation_rate"),
        ((("user", "a"),), "connection_creation_rate"),
        ((("user", "a"),), "no_such_key"),
        ((("ip", None), ("user", "a")), "producer_byte_rate"),
        ((), "producer_byte_rate"),
    ],
)
def test_definitions_for_others_are_left_alone(entity: tuple, key: str) -> None:
    """Kafka logs a warning and ignores what it does not know (B§10.1)."""
    managers = QuotaManagers()
    assert not managers.apply(QuotaRecord(entity=entity, key=key, value=5.0))
    assert not any(manager.enabled for manager in managers)


def test_windows_of_controller_mutations_are_their_own() -> None:
    """`controller.quota.window.*` (B§3.1); the request cap is one window of the others."""
    managers = QuotaManagers(
        window=QuotaWindow(samples=2, window_ms=3000), controller_window=QuotaWindow(samples=5)
    )
    assert [manager.window.samples for manager in managers] == [2, 2, 2, 5]
    managers.apply(QuotaRecord(entity=(("user", "a"),), key="request_percentage", value=1.0))
    assert managers.request.record_times("a", "c", 0, 10**12, 0) == 3000


def test_sweep_and_snapshot_cover_all_four() -> None:
    """One call for the node."""
    managers = QuotaManagers()
    for quota_type in QuotaType:
        managers.apply(QuotaRecord(entity=(("user", "a"),), key=quota_type.key, value=1.0))
    managers.produce.record("a", "c", 1.0, 0)
    managers.controller_mutation.new_quota("a", "c", 19, 6, 0)
    names = {metric.name for metric in managers.metrics(0)}
    assert names == {"byte-rate", "throttle-time", "mutation-rate", "tokens", "exempt-request-time"}
    assert sum(len(expire_manager(manager, 3_600_001)) for manager in managers) == 4


def test_another_callback_is_told_everything_before_all_managers_follow_it() -> None:
    """From one step to the next; until then the one before holds. What it counted is let go of, a part at a time."""
    managers = QuotaManagers()
    records = [
        QuotaRecord(entity=(("user", f"user-{number}"),), key="producer_byte_rate", value=1000.0)
        for number in range(250)
    ]
    for number in range(1500):
        managers.produce.sensor("u", f"client-{number}", 0).decide(1.0, 0)
    before = managers.produce.sensors
    groups = QuotaGroups()
    prefix = "client.quota.callback.group.all"
    groups.configure({f"{prefix}.members": "user:alice", f"{prefix}.producer_byte_rate": "5"})
    steps = managers.exchange_in_slices(groups, records)
    while managers.callback is None:
        assert managers.produce.sensors is before
        next(steps)
    assert all(manager.levels is Level.CUSTOM for manager in managers)
    assert (len(managers.produce.sensors), managers.produce.bound("alice", "c")) == (0, 5.0)
    assert managers.produce.bound("user-249", "c") == 1000.0
    assert len(before) > 0
    for _ in steps:
        pass
    assert len(before) == 0
    for _ in managers.exchange_in_slices(None, records):
        pass
    assert managers.produce.levels is Level.USER
    assert not managers.fetch.enabled
    assert managers.produce.bound("user-0", "c") == 1000.0
    assert managers.produce.bound("alice", "c") > 1e18
