"""The four kinds of client quota, and how their metrics are named.

>>> QuotaType.PRODUCE.value, QuotaType.PRODUCE.metric, QuotaType("ControllerMutation").key
('Produce', 'byte-rate', 'controller_mutation_rate')

Follows: Kafka `QuotaType`, `ClientQuotaType`, B§3.1–3.2, 3.5.
"""

import enum

from tidegate.quota.admin.keys import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)

__all__ = ["QUOTA_TYPE_BY_KEY", "QuotaType"]


class QuotaType(enum.Enum):
    """A kind of quota; the value is Kafka's printed name: metric group and prefix of sensor names."""

    PRODUCE = "Produce"
    FETCH = "Fetch"
    REQUEST = "Request"
    CONTROLLER_MUTATION = "ControllerMutation"

    @property
    def key(self) -> str:
        """The key under which quotas of this kind are stored."""
        return _KEYS[self]

    @property
    def metric(self) -> str:
        """The name of the metric that carries the bound."""
        return _METRICS[self]


_KEYS = {
    QuotaType.PRODUCE: PRODUCER_BYTE_RATE,
    QuotaType.FETCH: CONSUMER_BYTE_RATE,
    QuotaType.REQUEST: REQUEST_PERCENTAGE,
    QuotaType.CONTROLLER_MUTATION: CONTROLLER_MUTATION_RATE,
}
_METRICS = {
    QuotaType.PRODUCE: "byte-rate",
    QuotaType.FETCH: "byte-rate",
    QuotaType.REQUEST: "request-time",
    QuotaType.CONTROLLER_MUTATION: "tokens",
}
QUOTA_TYPE_BY_KEY = {key: quota_type for quota_type, key in _KEYS.items()}
