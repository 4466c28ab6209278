"""What the log does to record batches beyond `wire.batch`: the checks before an append, and the broker's time.

Inner records are not looked at, so what Kafka checks in each of them is not checked here.
Follows: Kafka `UnifiedLog.analyzeAndValidateRecords`, `LogValidator`.
"""

import struct
from typing import Final, NoReturn

from tidegate.storage import error_codes
from tidegate.storage.errors import AppendError
from tidegate.storage.topic_settings import TopicSettings
from tidegate.wire import checksum
from tidegate.wire.batch import (
    CorruptRecordsError,
    InvalidRecordsError,
    batches,
    check_produced,
    crc_matches,
    read_header,
)

__all__ = [
    "CRC_FROM",
    "HEADER",
    "HEADER_BYTES",
    "LEAST_RECORD_BYTES",
    "MAGIC",
    "NO_PRODUCER_ID",
    "OVERHEAD_BYTES",
    "ZSTD",
    "ZSTD_SINCE_PRODUCE_VERSION",
    "is_one_batch",
    "last_sequence",
    "only_batch",
    "raise_unparsable",
    "refuse",
    "stamp_append_time",
]

HEADER = struct.Struct(">qiibIhiqqqhii")  # as in `wire.batch`, unpacked here without making an object
HEADER_BYTES: Final = 61
OVERHEAD_BYTES: Final = 12  # base offset and length: what the length does not count
LEAST_RECORD_BYTES: Final = (
    7  # of an uncompressed record: length, attributes, deltas, no key, value or header
)
MAGIC: Final = 2
ZSTD: Final = 4
ZSTD_SINCE_PRODUCE_VERSION: Final = 7  # KIP-110
CRC_FROM: Final = 21
NO_PRODUCER_ID: Final = -1

_LENGTH = struct.Struct(">i")
_CRC_AND_ATTRIBUTES = struct.Struct(">Ih")
_TIME = struct.Struct(">q")
_CRC_AT = 17
_MAX_TIME_AT = 35
_LOG_APPEND_TIME_FLAG = 0x08
_SEQUENCES = 1 << 31  # sequence numbers wrap from 2**31 - 1 to 0


def is_one_batch(records: memoryview | None) -> bool:
    """Return whether these are the bytes of one batch of magic 2, by its length and magic: the ordinary case."""
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and records[16] == MAGIC
        and _LENGTH.unpack_from(records, 8)[0] + OVERHEAD_BYTES == len(records)
    )


def raise_unparsable(records: memoryview | None) -> None:
    """Raise `CorruptRecordsError` where Kafka fails the whole request: the first batch has no sense at all."""
    try:
        next(batches(records or b""), None)
    except InvalidRecordsError:
        return


def only_batch(records: memoryview | None, produce_version: int) -> memoryview:
    """Return the one batch that `records` hold, without a broken rest. Raises `AppendError`."""
    try:
        header = check_produced(records, api_version=produce_version)
    except CorruptRecordsError as error:
        raise AppendError(error_codes.CORRUPT_MESSAGE, str(error)) from error
    except InvalidRecordsError as error:
        raise AppendError(error.error_code, str(error)) from error
    assert records is not None
    return records[: header.end]


def refuse(batch: memoryview, settings: TopicSettings, now_ms: int, produce_version: int) -> NoReturn:
    """Raise `AppendError` for a batch that must not be stored: what Kafka would check first goes first."""
    only_batch(batch, produce_version)
    header = read_header(batch)
    code = error_codes.INVALID_RECORD
    if header.base_offset:
        problem = f"base offset is {header.base_offset}, expected 0"
    elif len(batch) > settings.max_message_bytes:
        problem = f"batch is {len(batch)} bytes, expected at most {settings.max_message_bytes}"
        raise AppendError(error_codes.MESSAGE_TOO_LARGE, problem)
    elif not crc_matches(batch, header):
        raise AppendError(error_codes.CORRUPT_MESSAGE, f"batch does not match its crc {header.crc:#x}")
    elif header.is_transactional:
        code, problem = error_codes.INVALID_TXN_STATE, "the producer has no transaction"
    elif header.is_log_append_time:
        code, problem = error_codes.INVALID_TIMESTAMP, "producers may not set the append time"
    elif not 0 <= header.attributes <= ZSTD:
        problem = f"attributes are {header.attributes:#x}"
    elif not header.attributes and header.record_count * LEAST_RECORD_BYTES > len(batch) - HEADER_BYTES:
        problem = f"{header.record_count} records in {len(batch)} bytes"
    else:
        code, problem = (
            error_codes.INVALID_TIMESTAMP,
            f"largest time {header.max_timestamp} is too far after {now_ms}",
        )
    raise AppendError(code, problem, log_start_known=True)


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Return the sequence of a batch's last record.

    >>> last_sequence(2**31 - 1, 1)
    0
    """
    return (base_sequence + last_offset_delta) % _SEQUENCES


def stamp_append_time(batch: memoryview, now_ms: int) -> None:
    """Set the broker's time on a writable batch and renew its CRC (`message.timestamp.type=LogAppendTime`)."""
    _, attributes = _CRC_AND_ATTRIBUTES.unpack_from(batch, _CRC_AT)
    _TIME.pack_into(batch, _MAX_TIME_AT, now_ms)
    _CRC_AND_ATTRIBUTES.pack_into(batch, _CRC_AT, 0, attributes | _LOG_APPEND_TIME_FLAG)
    _CRC_AND_ATTRIBUTES.pack_into(
        batch, _CRC_AT, checksum.crc32c(batch[CRC_FROM:]), attributes | _LOG_APPEND_TIME_FLAG
    )
