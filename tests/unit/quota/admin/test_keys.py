"""The tables of quota keys and window settings, against the published ones."""

import pytest

from tidegate.quota.admin.keys import QUOTA_KEYS, WINDOW_SETTINGS, ValueType, keys_for
from tidegate.server.settings.table import SETTINGS


@pytest.mark.parametrize(
    ("name", "kinds", "value_type"),
    [
        ("producer_byte_rate", {"user", "client-id"}, ValueType.LONG),
        ("consumer_byte_rate", {"user", "client-id"}, ValueType.LONG),
        ("request_percentage", {"user", "client-id"}, ValueType.DOUBLE),
        ("controller_mutation_rate", {"user", "client-id"}, ValueType.DOUBLE),
        ("connection_creation_rate", {"ip"}, ValueType.INT),
    ],
)
def test_keys_are_kafkas(name: str, kinds: set[str], value_type: ValueType) -> None:
    """Each key has its entities and its type."""
    key = QUOTA_KEYS[name]
    assert (key.name, key.entity_types, key.value_type) == (name, kinds, value_type)


def test_there_are_five_keys_and_four_settings() -> None:
    """No key or setting was invented."""
    assert len(QUOTA_KEYS) == 5
    assert {name: (SETTINGS[name].default, SETTINGS[name].least) for name in WINDOW_SETTINGS} == {
        "quota.window.num": (11, 1),
        "quota.window.size.seconds": (1, 1),
        "controller.quota.window.num": (11, 1),
        "controller.quota.window.size.seconds": (1, 1),
    }


def test_maximum_is_the_double_that_kafka_compares_with() -> None:
    """Long.MAX_VALUE as a double is 2**63, which therefore is not too large."""
    assert ValueType.LONG.maximum == 2.0**63
    assert ValueType.INT.maximum == 2147483647.0


def test_unknown_entity_type_has_no_keys() -> None:
    """Clients have four keys, addresses one, everything else none."""
    assert [len(keys_for(kind)) for kind in ("user", "client-id", "ip", "group")] == [4, 4, 1, 0]
