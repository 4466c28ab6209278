"""The quota keys that Kafka defines, and the settings of the windows that quotas are measured in.

A quota definition is an entity, one of these keys and a double. An unset key means unlimited.

>>> QUOTA_KEYS["request_percentage"].value_type
<ValueType.DOUBLE: 'DOUBLE'>
>>> sorted(keys_for("ip"))
['connection_creation_rate']

Follows: Kafka `QuotaConfig`, B§3.1.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tidegate.quota.measure.throttle import MAX_INT32, MAX_INT64

__all__ = [
    "CONNECTION_CREATION_RATE",
    "CONSUMER_BYTE_RATE",
    "CONTROLLER_MUTATION_RATE",
    "ENTITY_TYPES",
    "PRODUCER_BYTE_RATE",
    "QUOTA_KEYS",
    "REQUEST_PERCENTAGE",
    "WINDOW_SETTINGS",
    "QuotaKey",
    "ValueType",
    "keys_for",
]

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

ENTITY_TYPES = ("user", "client-id", "ip")


class ValueType(enum.Enum):
    """The type that Kafka declares for a value. Stored values are doubles whatever the type."""

    LONG = "LONG"
    INT = "INT"
    DOUBLE = "DOUBLE"

    @property
    def maximum(self) -> float:
        """Return the largest value that is not too large, as the double that Kafka compares with."""
        return _MAXIMUM[self]


_MAXIMUM = {ValueType.LONG: float(MAX_INT64), ValueType.INT: float(MAX_INT32), ValueType.DOUBLE: float("inf")}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaKey:
    """One key: the types of the entities that may have it, and the type of its values."""

    name: str
    entity_types: frozenset[str]
    value_type: ValueType


_CLIENTS = frozenset({"user", "client-id"})

QUOTA_KEYS: Mapping[str, QuotaKey] = MappingProxyType(
    {
        name: QuotaKey(name=name, entity_types=entity_types, value_type=value_type)
        for name, entity_types, value_type in (
            (PRODUCER_BYTE_RATE, _CLIENTS, ValueType.LONG),
            (CONSUMER_BYTE_RATE, _CLIENTS, ValueType.LONG),
            (REQUEST_PERCENTAGE, _CLIENTS, ValueType.DOUBLE),
            (CONTROLLER_MUTATION_RATE, _CLIENTS, ValueType.DOUBLE),
            (CONNECTION_CREATION_RATE, frozenset({"ip"}), ValueType.INT),
        )
    }
)

WINDOW_SETTINGS = (
    "quota.window.num",
    "quota.window.size.seconds",
    "controller.quota.window.num",
    "controller.quota.window.size.seconds",
)


def keys_for(entity_type: str) -> Mapping[str, QuotaKey]:
    """Return the keys that an entity with a part of `entity_type` may carry; none for an unknown type."""
    return {name: key for name, key in QUOTA_KEYS.items() if entity_type in key.entity_types}
