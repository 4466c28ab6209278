"""The request quota: units, cap and exempt time."""

from tidegate.quota import QuotaEntity, RequestQuotaManager

NOW_MS = 1_700_000_000_000


def _manager() -> RequestQuotaManager:
    manager = RequestQuotaManager()
    manager.update_quota(QuotaEntity(user="alice"), 1.0)
    return manager


def test_nanoseconds_become_percent_seconds() -> None:
    """4 ms in a window of 10 s are 0.04 percent of one thread, to the bit (B§4.1)."""
    manager = _manager()
    assert manager.record_times("alice", "c1", 0, 4_000_000, NOW_MS) == 0
    assert manager.peek("alice", "c1", NOW_MS) == 0.039999999999999994


def test_a_throttle_is_at_most_one_window() -> None:
    """However far over the quota, a client is muted for a second per request."""
    assert _manager().record_times("alice", "c1", 0, 10**13, NOW_MS) == 1000


def test_network_time_bites_on_the_next_request() -> None:
    """It is charged unchecked (B§4.2)."""
    manager = _manager()
    manager.record_network_ns("alice", "c1", 5 * 10**9, NOW_MS)
    assert manager.record_times("alice", "c1", 0, 0, NOW_MS) == 1000


def test_exempt_time_is_kept_only_while_a_quota_is_defined() -> None:
    """The metric is there from the start and stays 0.0 until then (B§4.3)."""
    manager = RequestQuotaManager()
    manager.record_exempt(10**9, NOW_MS)
    assert [(m.name, m.value) for m in manager.metrics(NOW_MS)] == [("exempt-request-time", 0.0)]
    manager.update_quota(QuotaEntity(user="alice"), 1.0)
    manager.record_exempt(3 * 10**9, NOW_MS)
    assert list(manager.metrics(NOW_MS))[-1].value == 10.0
