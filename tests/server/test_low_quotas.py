"""Warnings about byte rates that are too low for one batch."""

import pytest

from tidegate.quota import QuotaRecord
from tidegate.server.administration.low_quotas import low_quota_warning
from tidegate.server.settings.config import ServerConfig

ENTITY = (("client-id", "a"),)


@pytest.mark.parametrize(
    ("key", "value", "settings", "warned"),
    [
        ("consumer_byte_rate", 26_214.0, {}, True),
        ("consumer_byte_rate", 26_215.0, {}, False),
        ("producer_byte_rate", 26_214.0, {"message.max.bytes": "1000"}, False),
        ("producer_byte_rate", 26_214.0, {"quota.window.size.seconds": "10"}, False),
        ("producer_byte_rate", 1.0, {"tidegate.quota.throttle.max.ms": "30000"}, False),
        ("producer_byte_rate", 1.0, {"tidegate.quota.throttle.max.ms": "30001"}, True),
        ("producer_byte_rate", float("nan"), {}, False),
        ("producer_byte_rate", None, {}, False),
        ("request_percentage", 0.1, {}, False),
    ],
)
def test_only_rates_that_one_batch_exceeds_for_long_are_warned_of(
    key: str, value: float | None, settings: dict[str, str], warned: bool
) -> None:
    """With the defaults, a batch of 1 MB within the window of 10 s and the client's 30 s needs 26,215 B/s."""
    record = QuotaRecord(entity=ENTITY, key=key, value=value)
    assert (low_quota_warning(record, ServerConfig.load(settings)) is not None) == warned
