"""What is set beyond Kafka's rules: as records, and back."""

import pytest

from tidegate.callbacks.own_rules import OwnRules
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaManagers, QuotaRecord
from tidegate.quota.managers.extensions import (
    EXTENSION_SETTINGS,
    Extensions,
    changed_records_in_slices,
    extension_records,
)
from tidegate.server.settings.table import SETTINGS

_OFF = {name: SETTINGS[name].default for name in EXTENSION_SETTINGS}
_SET = {
    **_OFF,
    "tidegate.quota.observe": "user=alice,client-id=<default>;client-id=c",
    "tidegate.quota.exempt": "all",
    "tidegate.quota.throttle.max.ms": 500,
}


def test_all_is_off_by_default():
    """Without a setting there is no record, and nobody is concerned."""
    extensions = Extensions()
    assert list(extension_records(_OFF)) == []
    assert (extensions.observe.any, extensions.exempt.any, extensions.throttle_max_ms) == (False, False, 0)


def test_settings_become_records():
    """A row for each entity, and one for each number."""
    assert list(extension_records(_SET)) == [
        QuotaRecord(entity=(("client-id", None), ("user", "alice")), key="tidegate.quota.observe", value=1.0),
        QuotaRecord(entity=(("client-id", "c"),), key="tidegate.quota.observe", value=1.0),
        QuotaRecord(entity=(), key="tidegate.quota.exempt", value=1.0),
        QuotaRecord(entity=(), key="tidegate.quota.throttle.max.ms", value=500.0),
    ]


def test_records_are_put_in_force_and_taken_back():
    """The way there and back ends where it began."""
    extensions = Extensions()
    assert all(map(extensions.apply, extension_records(_SET)))
    assert extensions.observe.selects("alice", "x")
    assert not extensions.observe.selects("alice", "")
    assert extensions.exempt.selects("anybody", "")
    assert extensions.throttle_max_ms == 500
    back = run_at_once(changed_records_in_slices(extension_records(_SET), extension_records(_OFF)))
    assert [record.value for record in back] == [None] * 4
    assert all(map(extensions.apply, back))
    assert (extensions.observe.any, extensions.exempt.any, extensions.throttle_max_ms) == (False, False, 0)


def test_only_what_changes_is_a_record():
    """What stays is not said again."""
    other = {**_SET, "tidegate.quota.throttle.max.ms": 700}
    assert run_at_once(changed_records_in_slices(extension_records(_SET), extension_records(other))) == [
        QuotaRecord(entity=(), key="tidegate.quota.throttle.max.ms", value=700.0)
    ]


def test_other_records_are_none_of_these():
    """A quota is left to the managers."""
    assert not Extensions().apply(QuotaRecord(entity=(), key="producer_byte_rate", value=1.0))


NOW_MS = 1_700_000_000_000
QUOTAS = [
    QuotaRecord(entity=(("user", "a b"),), key="producer_byte_rate", value=1000.0),
    QuotaRecord(entity=(("user", "a b"),), key="consumer_byte_rate", value=1000.0),
    QuotaRecord(entity=(("user", "a b"),), key="controller_mutation_rate", value=1.0),
]
SMOOTH = QuotaRecord(entity=(("user", "a b"),), key="tidegate.quota.smooth", value=1.0)


def _managers(*records):
    managers = QuotaManagers()
    for record in (*QUOTAS, *records):
        assert managers.apply(record)
    return managers


def test_smooth_mode_comes_and_goes():
    """From the next request on, with a bucket or a rate that begins anew; what is set again keeps it."""
    managers = _managers()
    produce = managers.produce
    assert produce.record("a b", "c", 9000.0, NOW_MS) == 0
    managers.apply(SMOOTH)
    assert produce.record("a b", "c", 1500.0, NOW_MS) == 500
    managers.apply(SMOOTH)
    assert produce.record("a b", "c", 100.0, NOW_MS) == 600
    assert len(produce.sensors) == 1
    managers.apply(QuotaRecord(entity=SMOOTH.entity, key=SMOOTH.key, value=None))
    assert produce.record("a b", "c", 9000.0, NOW_MS) == 0


def test_a_quota_is_smooth_by_whom_it_is_shared():
    """A client id does not name a quota that all clients of a user share."""
    managers = _managers(QuotaRecord(entity=(("client-id", "c"),), key=SMOOTH.key, value=1.0))
    assert managers.produce.record("a b", "c", 9000.0, NOW_MS) == 0


class _Raw(OwnRules):
    """Counts users under their names as they are."""

    def quota_metric_tags(self, quota_type, user, client_id):
        return {"user": user}

    def quota_limit(self, quota_type, tags):
        return 1000.0


@pytest.mark.parametrize("callback", [None, OwnRules(), _Raw()])
@pytest.mark.parametrize("user", ["a b", "50%", "a+b"])
def test_smooth_users_are_found_with_a_callback_too(callback, user):
    """Whether its tags have them sanitised, as Kafka's own rules have, or as they are."""
    managers = QuotaManagers(callback=callback)
    managers.apply(QuotaRecord(entity=(("user", user),), key="producer_byte_rate", value=1000.0))
    managers.apply(QuotaRecord(entity=(("user", user),), key="tidegate.quota.smooth", value=1.0))
    assert managers.produce.record(user, "c1", 2000.0, NOW_MS) == 1000


def test_a_smooth_fetch_carries_a_tenth():
    """Ten fetches fill a second; without smooth mode one may carry ten seconds' worth."""
    assert _managers().fetch.max_value_in_window("a b", "c", lambda: NOW_MS) == 10_000.0
    assert _managers(SMOOTH).fetch.max_value_in_window("a b", "c", lambda: NOW_MS) == 100.0


def test_a_longer_burst_is_a_fresh_bucket():
    """Whoever has used up the first has the second."""
    managers = _managers(SMOOTH)
    assert managers.produce.record("a b", "c", 1000.0, NOW_MS) == 0
    managers.apply(QuotaRecord(entity=(), key="tidegate.quota.smooth.burst.seconds", value=3.0))
    assert managers.produce.record("a b", "c", 3000.0, NOW_MS) == 0
    assert managers.produce.record("a b", "c", 1.0, NOW_MS) == 1


def test_debt_of_mutations_is_bounded_too():
    """A topic of a thousand partitions costs no more than the bound."""
    debt = QuotaRecord(entity=(), key="tidegate.quota.debt.max.seconds", value=30.0)
    for records, expected in (((), 989_000), ((debt,), 30_000)):
        quota = _managers(*records).controller_mutation.new_quota("a b", "c", 19, 5, NOW_MS)
        quota.record(1000.0, NOW_MS)
        assert quota.throttle_time_ms(NOW_MS) == expected
