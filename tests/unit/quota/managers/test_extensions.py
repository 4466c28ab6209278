"""What is set beyond Kafka's rules: as records, and back."""

from tidegate.quota import QuotaRecord
from tidegate.quota.managers.extensions import (
    EXTENSION_SETTINGS,
    Extensions,
    changed_records,
    extension_records,
)
from tidegate.server.config import SETTINGS

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
    back = changed_records(extension_records(_SET), extension_records(_OFF))
    assert [record.value for record in back] == [None] * 4
    assert all(map(extensions.apply, back))
    assert (extensions.observe.any, extensions.exempt.any, extensions.throttle_max_ms) == (False, False, 0)


def test_only_what_changes_is_a_record():
    """What stays is not said again."""
    other = {**_SET, "tidegate.quota.throttle.max.ms": 700}
    assert changed_records(extension_records(_SET), extension_records(other)) == [
        QuotaRecord(entity=(), key="tidegate.quota.throttle.max.ms", value=700.0)
    ]


def test_other_records_are_none_of_these():
    """A quota is left to the managers."""
    assert not Extensions().apply(QuotaRecord(entity=(), key="producer_byte_rate", value=1.0))
