"""The quota keys that Kafka defines, and the settings of the windows that quotas are measured in.

A quota definition is an entity, one of these keys and a double. An unset key means unlimited: the declared
defaults are documentation only.

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
    "WindowSetting",
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
    """One key: which entities may carry it, its type, and the default and text that Kafka declares."""

    name: str
    entity_types: frozenset[str]
    value_type: ValueType
    declared_default: float
    documentation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSetting:
    """One window setting: an INT of at least `minimum`, read at start."""

    name: str
    default: int
    documentation: str
    minimum: int = 1


_CLIENTS = frozenset({"user", "client-id"})

QUOTA_KEYS: Mapping[str, QuotaKey] = MappingProxyType(
    {
        key.name: key
        for key in (
            QuotaKey(
                name=PRODUCER_BYTE_RATE,
                entity_types=_CLIENTS,
                value_type=ValueType.LONG,
                declared_default=float(MAX_INT64),
                documentation="A rate representing the upper bound (bytes/sec) for producer traffic.",
            ),
            QuotaKey(
                name=CONSUMER_BYTE_RATE,
                entity_types=_CLIENTS,
                value_type=ValueType.LONG,
                declared_default=float(MAX_INT64),
                documentation="A rate representing the upper bound (bytes/sec) for consumer traffic.",
            ),
            QuotaKey(
                name=REQUEST_PERCENTAGE,
                entity_types=_CLIENTS,
                value_type=ValueType.DOUBLE,
                declared_default=float(MAX_INT32),
                documentation="A percentage representing the upper bound of time spent "
                "for processing requests.",
            ),
            QuotaKey(
                name=CONTROLLER_MUTATION_RATE,
                entity_types=_CLIENTS,
                value_type=ValueType.DOUBLE,
                declared_default=float(MAX_INT32),
                documentation="The rate at which mutations are accepted for the create topics request, "
                "the create partitions request and the delete topics request. The rate is accumulated "
                "by the number of partitions created or deleted.",
            ),
            QuotaKey(
                name=CONNECTION_CREATION_RATE,
                entity_types=frozenset({"ip"}),
                value_type=ValueType.INT,
                declared_default=float(MAX_INT32),
                documentation="An int representing the upper bound of connections accepted "
                "for the specified IP.",
            ),
        )
    }
)

WINDOW_SETTINGS: Mapping[str, WindowSetting] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            WindowSetting(
                name="quota.window.num",
                default=11,
                documentation="The number of samples to retain in memory for client quotas",
            ),
            WindowSetting(
                name="quota.window.size.seconds",
                default=1,
                documentation="The time span of each sample for client quotas",
            ),
            WindowSetting(
                name="controller.quota.window.num",
                default=11,
                documentation="The number of samples to retain in memory for controller mutation quotas",
            ),
            WindowSetting(
                name="controller.quota.window.size.seconds",
                default=1,
                documentation="The time span of each sample for controller mutations quotas",
            ),
        )
    }
)


def keys_for(entity_type: str) -> Mapping[str, QuotaKey]:
    """Return the keys that an entity with a part of `entity_type` may carry; none for an unknown type."""
    return {name: key for name, key in QUOTA_KEYS.items() if entity_type in key.entity_types}
