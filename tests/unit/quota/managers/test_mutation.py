"""The controller-mutation quota: which flavour, and what is charged."""

import pytest

from tidegate.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tidegate.quota import DEFAULT, STRICT_SINCE, MutationKind, MutationQuotaManager, QuotaEntity, QuotaWindow

NOW_MS = 1_700_000_000_000


def _manager() -> MutationQuotaManager:
    manager = MutationQuotaManager(QuotaWindow(samples=10, window_ms=1000))
    manager.update_quota(QuotaEntity(user="alice"), 10.0)
    return manager


@pytest.mark.parametrize(
    ("api_key", "first_strict"), [(CREATE_TOPICS, 6), (DELETE_TOPICS, 5), (CREATE_PARTITIONS, 3)]
)
def test_requests_are_strict_from_the_version_that_knows_the_error(api_key: int, first_strict: int) -> None:
    """B§5.1; below it the client would not understand error 89."""
    manager = _manager()
    assert STRICT_SINCE[api_key] == first_strict
    assert manager.new_quota("alice", "c", api_key, first_strict).kind is MutationKind.STRICT
    below = manager.new_quota("alice", "c", api_key, first_strict - 1)
    assert (below.kind, below.strict) == (MutationKind.PERMISSIVE, False)


def test_without_a_quota_everything_is_admitted_and_nothing_is_kept() -> None:
    """The quota object is unbounded."""
    manager = MutationQuotaManager()
    quota = manager.new_quota("alice", "c", CREATE_TOPICS, 7)
    assert quota.kind is MutationKind.UNBOUNDED
    assert quota.record(10**9, NOW_MS)
    assert (quota.throttle_time_ms(NOW_MS), len(manager.sensors)) == (0, 0)


def test_strict_refuses_only_after_the_bucket_is_overdrawn() -> None:
    """90, 90 admitted, 90 refused with 8 s, of which 3 s are left 5 s later (B§5.2); the refused are not charged."""
    manager = _manager()
    quota = manager.new_quota("alice", "c", CREATE_TOPICS, 6, NOW_MS)
    assert [quota.record(90.0, NOW_MS) for _ in range(3)] == [True, True, False]
    assert (quota.throttle_time_ms(NOW_MS), quota.throttle_time_ms(NOW_MS + 5000)) == (8000, 3000)
    assert manager.peek("alice", "c", NOW_MS) == -80.0
    assert quota.throttle_time_ms(NOW_MS + 9000) == 0


def test_permissive_admits_everything_and_throttles() -> None:
    """The client is told the time of the final balance."""
    quota = _manager().new_quota("alice", "c", CREATE_TOPICS, 5, NOW_MS)
    assert [quota.record(90.0, NOW_MS) for _ in range(3)] == [True, True, True]
    assert quota.throttle_time_ms(NOW_MS) == 17_000


def test_a_snapshot_has_rate_and_tokens() -> None:
    """`mutation-rate` without a bound, then `tokens` with one (B§3.5)."""
    manager = _manager()
    manager.new_quota("alice", "c", CREATE_TOPICS, 6, NOW_MS).record(90.0, NOW_MS)
    rows = [(m.name, m.value, m.bound) for m in list(manager.metrics(NOW_MS))[:2]]
    assert rows == [("mutation-rate", 3.0, None), ("tokens", 10.0, 10.0)]


def test_a_removed_quota_does_not_refill_an_exhausted_bucket() -> None:
    """Nobody touches the bucket while its level is off (B§1.6)."""
    manager = _manager()
    manager.new_quota("alice", "c", CREATE_TOPICS, 6, NOW_MS).record(500.0, NOW_MS)
    manager.update_quota(QuotaEntity(user="alice"), None)
    manager.update_quota(QuotaEntity(user="alice"), 10.0)
    assert manager.peek("alice", "c", NOW_MS + 1) == -399.99


def test_a_flood_of_client_ids_pays_nobodys_debt() -> None:
    """A bucket that owes tokens is kept, however long nobody asks for any."""
    managers = [
        MutationQuotaManager(QuotaWindow(samples=10, window_ms=1000), max_sensor_bytes=size)
        for size in (300_000, 1 << 30)
    ]
    for manager in managers:
        manager.update_quota(QuotaEntity(client_id=DEFAULT), 1.0)
        manager.new_quota("u", "greedy", CREATE_TOPICS, 7, NOW_MS).record(1_000, NOW_MS)
        for number in range(1_000):
            now_ms = NOW_MS + 30_000 + number
            manager.new_quota("u", f"client-{number}", CREATE_TOPICS, 7, now_ms).record(1, now_ms)
    after_ms = NOW_MS + 60_000
    admitted = [
        manager.new_quota("u", "greedy", CREATE_TOPICS, 7, after_ms).record(1, after_ms)
        for manager in managers
    ]
    assert admitted == [False, False]
    assert managers[0].sensors.dropped > 800
