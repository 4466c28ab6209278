"""Quota groups: who is in one, what it may use, and whose rules hold for all others."""

import pytest

from tidegate.callbacks import QuotaGroups
from tidegate.errors import ConfigError
from tidegate.quota import QuotaEntity, QuotaManagers, QuotaType

PREFIX = "client.quota.callback.group"
NOW_MS = 1_700_000_000_000


def groups(**settings: str) -> QuotaGroups:
    """Return groups made from settings whose names follow the prefix, `__` standing for a full stop."""
    made = QuotaGroups()
    made.configure({f"{PREFIX}.{name.replace('__', '.')}": value for name, value in settings.items()})
    return made


def test_members_share_one_limit() -> None:
    """What one of them uses the others cannot, users and client ids alike; a user's group counts first."""
    callback = groups(
        etl__members="user:alice, client-id:nightly, user:a%2Cb",
        etl__producer_byte_rate="1000",
        big__members="user:bob",
        big__producer_byte_rate="1e6",
    )
    managers = QuotaManagers(callback=callback)
    assert managers.produce.record("alice", "c1", 10_000.0, NOW_MS) == 0
    assert managers.produce.record("carol", "nightly", 5_000.0, NOW_MS) > 0
    assert managers.produce.record("a,b", "c2", 1.0, NOW_MS) > 0
    assert managers.produce.record("bob", "nightly", 1.0, NOW_MS) == 0
    assert managers.produce.bound("bob", "nightly") == 1e6


def test_others_have_kafkas_own_rules() -> None:
    """With stored quotas, which do not concern who is in a group; a group without a limit is unlimited."""
    callback = groups(etl__members="user:alice", etl__producer_byte_rate="1000")
    managers = QuotaManagers(callback=callback)
    for manager in managers:
        manager.update_quota(QuotaEntity(user="alice"), 7.0)
        manager.update_quota(QuotaEntity(user="dave"), 8.0)
    assert managers.produce.bound("dave", "c1") == 8.0
    assert managers.produce.bound("alice", "c1") == 1000.0
    assert (
        callback.quota_limit(QuotaType.FETCH, callback.quota_metric_tags(QuotaType.FETCH, "alice", "c"))
        is None
    )
    managers.produce.update_quota(QuotaEntity(user="dave"), None)
    assert managers.produce.bound("dave", "c1") > 1e18


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"a__members": "alice"}, "expected user:NAME or client-id:NAME"),
        ({"a__members": "ip:127.0.0.1"}, "expected user:NAME or client-id:NAME"),
        ({"a__members": "user:x", "b__members": "user:x"}, "already in group 'a'"),
        ({"a__producer_byte_rate": "5"}, "group 'a' has limits but no members"),
        ({"a__members": "user:x", "a__producer_byte_rate": "nan"}, "expected a number above 0"),
        ({"a__members": "user:x", "a__producer_byte_rate": "0"}, "expected a number above 0"),
        (
            {"a__members": "user:x", "a__byte_rate": "5"},
            "unknown setting client.quota.callback.group.a.byte_rate",
        ),
    ],
)
def test_mistakes_are_named(settings: dict[str, str], reason: str) -> None:
    """With the setting that has them."""
    with pytest.raises(ConfigError, match=reason):
        groups(**settings)
