"""A warning about a byte rate that is so low that clients give up instead of waiting.

The broker accepts a batch of `message.max.bytes` under any quota, and a fetch returns at least one batch (B§6.3.1).
With batch size B, bound T and full window W, the throttle time is at most B / T - W (B§2). Clients wait 30 s for a
response (`request.timeout.ms`); a client that ignores throttle times then closes its connection and tries again.

>>> record = QuotaRecord(entity=(("client-id", "a"),), key=PRODUCER_BYTE_RATE, value=1024.0)
>>> print(low_quota_warning(record, ServerConfig.load({})))
producer_byte_rate 1024.0 of client-id='a' is low: one batch of message.max.bytes (1048588) can throttle the client \
for 1014 s, longer than clients wait (30 s); hint: set at least 26215, or set tidegate.quota.throttle.max.ms

Request quotas have no such warning: their throttle time is at most one sample, 1 s by default.
`broker/quota_effects.py` warns about consumers that a quota starves, and about members of groups.
"""

import math

from tidegate.config.values import entity_text
from tidegate.quota import QuotaRecord
from tidegate.quota.admin.keys import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from tidegate.quota.managers.extensions import THROTTLE_MAX_MS
from tidegate.quota.measure.throttle import MS_PER_S
from tidegate.server.settings.config import ServerConfig

__all__ = ["CLIENT_TIMEOUT_MS", "low_quota_warning"]

CLIENT_TIMEOUT_MS = 30_000
"""Default of `request.timeout.ms`. Source: Kafka `ProducerConfig`, `ConsumerConfig`."""


def low_quota_warning(record: QuotaRecord, config: ServerConfig) -> str | None:
    """Return why a new byte rate is too low, and what to set; None if it is not, or is no byte rate."""
    if record.key not in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE) or record.value is None:
        return None
    largest = config["message.max.bytes"]
    window_s = (config["quota.window.num"] - 1) * config["quota.window.size.seconds"]
    least = math.ceil(largest / (CLIENT_TIMEOUT_MS / MS_PER_S + window_s))
    if not record.value < least or 0 < config[THROTTLE_MAX_MS] <= CLIENT_TIMEOUT_MS:
        return None
    throttle_s = largest / record.value - window_s
    return (
        f"{record.key} {record.value!r} of {entity_text(record.entity)} is low: one batch of message.max.bytes "
        f"({largest}) can throttle the client for {throttle_s:.0f} s, longer than clients wait "
        f"({CLIENT_TIMEOUT_MS // 1000} s); hint: set at least {least}, or set {THROTTLE_MAX_MS}"
    )
