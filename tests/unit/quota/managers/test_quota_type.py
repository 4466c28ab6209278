"""Quota types: keys and metrics."""

from tidegate.quota.admin.keys import QUOTA_KEYS
from tidegate.quota.managers.quota_type import QuotaType


def test_each_type_has_the_key_and_metric_of_kafka() -> None:
    """B§3.1 (consumer → Fetch, producer → Produce, …) and B§3.5."""
    assert {kind.value: (kind.key, kind.metric) for kind in QuotaType} == {
        "Produce": ("producer_byte_rate", "byte-rate"),
        "Fetch": ("consumer_byte_rate", "byte-rate"),
        "Request": ("request_percentage", "request-time"),
        "ControllerMutation": ("controller_mutation_rate", "tokens"),
    }
    assert {kind.key for kind in QuotaType} == QUOTA_KEYS.keys() - {"connection_creation_rate"}
