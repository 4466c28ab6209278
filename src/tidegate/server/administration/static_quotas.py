"""Quotas given as settings, by the names that Kafka had for them until 3.0 (KIP-13).

    quota.producer.default=1M
    quota.producer.override=billing:4M,loader:10M

An override acts like a quota of its client id, the default like a quota of the default client id. A quota of the same
entity that AlterClientQuotas sets takes precedence as long as it exists. The default also applies to clients without a
client id, which share the quota of the empty id; a quota that AlterClientQuotas sets cannot apply to them (B§3.4).
"""

import re
from collections.abc import Iterator, Mapping

from tidegate.errors import ConfigError
from tidegate.quota import QuotaRecord
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.admin.keys import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from tidegate.quota.measure.throttle import MAX_INT64
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.kafka_settings import NO_STATIC_QUOTA

__all__ = ["StaticQuotas", "static_quotas"]

StaticQuotas = Mapping[tuple[EntityParts, str], QuotaRecord]
"""Records by entity and key."""

_KEYS = {"producer": PRODUCER_BYTE_RATE, "consumer": CONSUMER_BYTE_RATE}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def static_quotas(config: ServerConfig) -> StaticQuotas:
    """Return what the settings give; nothing with `tidegate.kafka.exact`. Raises `ConfigError`.

    >>> config = ServerConfig.load({"quota.producer.default": "1024", "quota.producer.override": "a:4K"})
    >>> for record in static_quotas(config).values():
    ...     print(record.entity, record.key, record.value)
    (('client-id', None),) producer_byte_rate 1024.0
    (('client-id', ''),) producer_byte_rate 1024.0
    (('client-id', 'a'),) producer_byte_rate 4096.0
    """
    records = [record for kind, key in _KEYS.items() for record in _records(config, kind, key)]
    if config.is_exact:
        return {}
    return {(record.entity, record.key): record for record in records}


def _records(config: ServerConfig, kind: str, key: str) -> Iterator[QuotaRecord]:
    default = _bytes(config[f"quota.{kind}.default"], setting=f"quota.{kind}.default")
    if default < NO_STATIC_QUOTA:
        for name in (None, ""):
            yield QuotaRecord(entity=(("client-id", name),), key=key, value=float(default))
    setting = f"quota.{kind}.override"
    seen = set()
    for part in filter(None, map(str.strip, config[setting].split(","))):
        name, _, rate = part.rpartition(":")
        if not name:
            raise ConfigError(f"{setting} has {part!r}, expected CLIENT_ID:BYTES, such as billing:4M")
        if name in seen:
            raise ConfigError(f"{setting} has client id {name!r} twice, expected it once")
        seen.add(name)
        yield QuotaRecord(entity=(("client-id", name),), key=key, value=float(_bytes(rate, setting=setting)))


def _bytes(text: str, *, setting: str) -> int:
    """Return bytes a second: a whole number, with K, M or G for 1024, 1024² or 1024³."""
    match = re.fullmatch(r"([0-9]{1,19})([KMG]?)", text.strip())
    value = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= value <= MAX_INT64:
        raise ConfigError(
            f"{setting} has {text!r}, expected bytes per second from 1 to {MAX_INT64}, "
            "with K, M or G for 1024, 1024² or 1024³"
        )
    return value
