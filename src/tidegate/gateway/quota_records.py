"""Definitions of quotas as records of the quota topic.

    key    {"entity": [["user", "alice"]], "key": "producer_byte_rate"}
    value  1048576.0

The value is empty if the quota was removed. A record with the header `restored` was written to a topic that was created
again after it had been deleted.
"""

import json
import logging

from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaRecord, entity_parts
from tidegate.quota.admin.alterations import entity_error, value_error_in_slices
from tidegate.wire.records import NO_TIMESTAMP, Record

__all__ = ["QUOTA_TOPIC", "decode_definition", "encode_definition", "is_restored"]

_log = logging.getLogger("tidegate.gateway")

QUOTA_TOPIC = "__tidegate_quotas"
_MAX_SHOWN = 80
_RESTORED = "restored"


def encode_definition(record: QuotaRecord, *, is_restored: bool = False) -> Record:
    """Return a definition as a record of the topic, without the time: brokers refuse one of a clock that is ahead."""
    key = json.dumps({"entity": record.entity, "key": record.key}, separators=(",", ":"))
    value = None if record.value is None else repr(record.value).encode()
    headers = ((_RESTORED, b""),) if is_restored else ()
    return Record(key=key.encode(), value=value, headers=headers, timestamp_ms=NO_TIMESTAMP)


def is_restored(record: Record) -> bool:
    """Return whether a record was written because the topic had been deleted."""
    return any(name == _RESTORED for name, _ in record.headers)


def decode_definition(record: Record) -> QuotaRecord | None:
    """Return the definition in a record of the topic; None, with a warning, where it is none.

    >>> decode_definition(encode_definition(QuotaRecord(entity=(("user", None),), key="producer_byte_rate", value=5.0)))
    QuotaRecord(entity=(('user', None),), key='producer_byte_rate', value=5.0)
    """
    try:
        definition = json.loads(record.key or b"")
        entity, key = entity_parts((part[0], part[1]) for part in definition["entity"]), definition["key"]
        if not all(isinstance(text, str) for part in entity for text in part if text is not None):
            raise ValueError("an entity whose type or name is not a text")
        value = None if record.value is None else float(record.value)
        wrong = entity_error(entity, is_known_host=lambda name: True) or run_at_once(
            value_error_in_slices(entity, {key: value})
        )
        if wrong is not None:
            raise ValueError(wrong)
        return QuotaRecord(entity=entity, key=key, value=value)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        _log.warning(
            "skipped record %d of topic %s: not a quota: %s",
            record.offset,
            QUOTA_TOPIC,
            str(error)[:_MAX_SHOWN],
            extra={"repeats": QUOTA_TOPIC},
        )
        return None
