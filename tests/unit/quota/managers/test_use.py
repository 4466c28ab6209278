"""What is used of a quota, as metrics and `tidegate top` show it: without effect, and equal to the next decision."""

from tidegate.api_keys import CREATE_TOPICS
from tidegate.quota import (
    DEFAULT,
    ClientQuotaManager,
    MutationQuotaManager,
    QuotaEntity,
    QuotaManagers,
    QuotaRecord,
    QuotaType,
)
from tidegate.quota.measure.throttle import UNLIMITED

T0 = 1_700_000_000_000
CLIENT = QuotaEntity(client_id="c1")


def test_a_throttle_time_is_that_of_the_next_decision() -> None:
    """At any time after a burst, as long as it lasts; what was asked changes nothing."""
    asked, twin = (ClientQuotaManager(QuotaType.PRODUCE) for _ in range(2))
    for manager in (asked, twin):
        manager.update_quota(CLIENT, 100.0)
        manager.record("alice", "c1", 1900.0, T0)
    seen = set()
    for later_ms in (0, 1, 999, 1000, 5500, 9900, 11_000, 60_000):
        now_ms = T0 + later_ms
        sensor = asked.existing_sensor("alice", "c1")
        assert sensor is not None
        throttle_ms = sensor.peek_throttle_ms(now_ms)
        assert sensor.peek_throttle_ms(now_ms) == throttle_ms
        assert sensor.utilization(now_ms) == sensor.peek_rate(now_ms) / 100.0
        assert (sensor.utilization(now_ms) > 1.0) == (throttle_ms > 0)
        seen.add(throttle_ms)
        assert (
            asked.record("alice", "c1", 0.0, now_ms) == twin.record("alice", "c1", 0.0, now_ms) == throttle_ms
        )
    assert 0 in seen
    assert max(seen) == 9000


def test_a_request_is_throttled_for_a_sample_at_most() -> None:
    """As its decision is."""
    managers = QuotaManagers()
    managers.request.update_quota(CLIENT, 1.0)
    managers.request.record_times("alice", "c1", 0, 9_000_000_000, T0)
    sensor = managers.request.existing_sensor("alice", "c1")
    assert sensor is not None
    assert sensor.peek_throttle_ms(T0) == 1000


def test_mutations_use_a_bucket() -> None:
    """Above 1 where tokens are owed, and throttled for so long."""
    manager = MutationQuotaManager()
    manager.update_quota(CLIENT, 10.0)
    manager.new_quota("alice", "c1", CREATE_TOPICS, 6, T0).record(220.0, T0)
    sensor = manager.existing_sensor("alice", "c1")
    assert sensor is not None
    assert (sensor.utilization(T0), sensor.peek_throttle_ms(T0)) == (2.0, 11_000)
    assert (sensor.utilization(T0 + 11_000), sensor.peek_throttle_ms(T0 + 11_000)) == (1.0, 0)
    assert sensor.peek_rate(T0) > 0.0


def test_smooth_mode_uses_its_bucket() -> None:
    """The rate is far below the limit while tokens are owed."""
    managers = QuotaManagers()
    managers.apply(QuotaRecord(entity=(), key="tidegate.quota.smooth", value=1.0))
    managers.produce.update_quota(CLIENT, 100.0)
    assert managers.produce.record("alice", "c1", 150.0, T0) == 500
    sensor = managers.produce.existing_sensor("alice", "c1")
    assert sensor is not None
    assert (sensor.utilization(T0), sensor.peek_throttle_ms(T0)) == (1.5, 500)
    assert sensor.peek_rate(T0) < 100.0


def test_without_a_quota_nothing_is_used() -> None:
    """None, for no quota and for a quota of NaN, which Kafka stores."""
    manager = ClientQuotaManager(QuotaType.PRODUCE)
    manager.update_quota(QuotaEntity(user="bob"), 1.0)
    manager.record("alice", "c1", 1e9, T0)
    sensor = manager.existing_sensor("alice", "c1")
    assert sensor is not None
    assert (sensor.bound, sensor.utilization(T0), sensor.peek_throttle_ms(T0)) == (UNLIMITED, None, 0)
    manager.update_quota(QuotaEntity(user="alice"), float("nan"))
    sensor = manager.sensor("alice", "c1", T0)
    sensor.record(1e9, T0)
    assert (sensor.utilization(T0), sensor.peek_throttle_ms(T0)) == (None, 0)


def test_all_eight_levels_are_explained() -> None:
    """One applies; those before it have no quota, those behind it are less specific."""
    manager = ClientQuotaManager(QuotaType.PRODUCE)
    entities = [
        QuotaEntity(user=user, client_id=client_id)
        for user, client_id in (
            ("alice", "c1"), ("alice", DEFAULT), ("alice", None), (DEFAULT, "c1"),
            (DEFAULT, DEFAULT), (DEFAULT, None), (None, "c1"), (None, DEFAULT),
        )
    ]  # fmt: skip
    for number in reversed(range(8)):  # each is more specific than those before it
        manager.update_quota(entities[number], float(number + 1))
        outcomes = list(manager.explain("alice", "c1").outcomes())
        assert [entity for entity, _, _ in outcomes] == entities
        assert [bound for _, bound, _ in outcomes] == [None] * number + [
            float(n + 1) for n in range(number, 8)
        ]
        reasons = (
            ["no quota is defined"] * number + ["applies"] + ["a more specific quota applies"] * (7 - number)
        )
        assert [reason for _, _, reason in outcomes] == reasons


def test_an_empty_client_id_is_on_no_level_of_client_ids() -> None:
    """The default of client ids does not apply to it, and the reason says why (B§3.4)."""
    manager = ClientQuotaManager(QuotaType.PRODUCE)
    manager.update_quota(QuotaEntity(client_id=DEFAULT), 5.0)
    *_, (entity, bound, reason) = manager.explain("alice", "").outcomes()
    assert (entity, bound) == (QuotaEntity(client_id=DEFAULT), 5.0)
    assert reason == "does not apply to an empty client id"
