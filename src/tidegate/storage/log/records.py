"""Operations on record batches beyond `wire.batch`: the log's checks before an append, and the broker's time.

Inner records are not read, so the checks that Kafka makes on each of them are not made here.
Follows: Kafka `UnifiedLog.analyzeAndValidateRecords`, `LogValidator`.
"""

import struct
from typing import Final

from tidegate import error_codes
from tidegate.storage.errors import AppendError
from tidegate.storage.topics.topic_settings import TopicSettings
from tidegate.wire import checksum
from tidegate.wire.batch import (
    ATTRIBUTES_AT,
    CRC_AND_ATTRIBUTES,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    OVERHEAD_BYTES,
    TRANSACTIONAL_FLAG,
    ZSTD,
    BatchHeader,
    BatchSizeOverflowError,
    CorruptRecordsError,
    InvalidRecordsError,
    batches,
    check_counts,
    crc_matches,
    find_only_batch,
    read_header,
)

__all__ = [
    "INVALID_TIMESTAMP_TEXT",
    "LEAST_RECORD_BYTES",
    "accepted",
    "is_one_batch",
    "is_transactional",
    "last_sequence",
    "only_batch",
    "raise_unparsable",
    "stamp_append_time",
]

LEAST_RECORD_BYTES: Final = 7
"""Size of the smallest uncompressed record: length, attributes, deltas, no key, value or header."""
INVALID_TIMESTAMP_TEXT: Final = "One or more records have been rejected due to invalid timestamp"

_LENGTH = struct.Struct(">i")
_TIME = struct.Struct(">q")
_SEQUENCES = 1 << 31  # sequence numbers wrap from 2**31 - 1 to 0


def is_one_batch(records: memoryview | None) -> bool:
    """Return whether these are the bytes of one batch of magic 2, by its length and magic: the ordinary case."""
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and records[MAGIC_AT] == MAGIC
        and _LENGTH.unpack_from(records, LENGTH_AT)[0] + OVERHEAD_BYTES == len(records)
    )


def raise_unparsable(records: memoryview | None) -> None:
    """Raise `CorruptRecordsError` where Kafka fails the whole request: the first batch has no sense at all."""
    try:
        next(batches(records or b""), None)
    except InvalidRecordsError:
        return


def is_transactional(records: memoryview | None) -> bool:
    """Return whether the first whole batch belongs to a transaction, whatever else is wrong with it."""
    return (
        records is not None
        and len(records) >= HEADER_BYTES
        and records[MAGIC_AT] == MAGIC
        and _LENGTH.unpack_from(records, LENGTH_AT)[0] + OVERHEAD_BYTES <= len(records)
        and bool(CRC_AND_ATTRIBUTES.unpack_from(records, CRC_AT)[1] & TRANSACTIONAL_FLAG)
    )


def only_batch(records: memoryview | None, produce_version: int) -> memoryview:
    """Return the one batch that `records` hold, without a broken rest.

    Raises `AppendError`, or `BatchSizeOverflowError`, which fails the whole request.
    """
    try:
        header = find_only_batch(records, api_version=produce_version)
    except BatchSizeOverflowError:
        raise  # fails the request
    except CorruptRecordsError as error:
        raise AppendError(error_codes.CORRUPT_MESSAGE, str(error)) from error
    except InvalidRecordsError as error:
        raise AppendError(error.error_code, str(error)) from error
    assert records is not None
    return records[: header.end_index]


def accepted(batch: memoryview, settings: TopicSettings, now_ms: int, produce_version: int) -> memoryview:
    """Return a batch that is out of the ordinary as it is to be stored, or raise `AppendError`.

    What Kafka checks first goes first; with what is wrong about the records themselves it answers the log start.
    """
    only_batch(batch, produce_version)
    header = read_header(batch)
    if header.is_transactional:
        raise AppendError(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not served")
    if header.base_offset:
        raise _invalid(f"base offset is {header.base_offset}, expected 0")
    if header.size > settings.max_message_bytes:
        problem = f"batch is {header.size} bytes, expected at most {settings.max_message_bytes}"
        raise AppendError(error_codes.MESSAGE_TOO_LARGE, problem)
    if not crc_matches(batch, header):
        raise AppendError(error_codes.CORRUPT_MESSAGE, f"batch does not match its CRC {header.crc:#x}")
    try:
        check_counts(header)
    except InvalidRecordsError as error:
        raise _invalid(str(error)) from error
    if header.compression > ZSTD:
        problem = f"compression codec is {header.compression}, expected at most {ZSTD}"
        raise AppendError(error_codes.UNKNOWN_SERVER_ERROR, problem, log_start_known=True)
    if not header.compression and header.record_count * LEAST_RECORD_BYTES > header.size - HEADER_BYTES:
        raise _invalid(f"batch has {header.record_count} records in {header.size} bytes, expected fewer")
    _check_time(header, settings, now_ms)
    if header.size > settings.segment_bytes:
        problem = f"batch is {header.size} bytes, expected at most segment.bytes, {settings.segment_bytes}"
        raise AppendError(error_codes.RECORD_LIST_TOO_LARGE, problem)
    return _with_own_times(batch) if header.is_log_append_time else batch


def _check_time(header: BatchHeader, settings: TopicSettings, now_ms: int) -> None:
    """Raise `AppendError` for times that a producer may not set; those of the single records are not looked at."""
    if settings.log_append_time:
        problem = "producer set the append time of the batch" if header.is_log_append_time else None
    else:
        late = header.max_timestamp - now_ms > settings.timestamp_after_max_ms
        problem = f"largest timestamp {header.max_timestamp} is too far ahead of {now_ms}" if late else None
    if problem is not None:
        raise AppendError(
            error_codes.INVALID_TIMESTAMP, problem, log_start_known=True, error_message=INVALID_TIMESTAMP_TEXT
        )


def _invalid(problem: str) -> AppendError:
    return AppendError(error_codes.INVALID_RECORD, problem, log_start_known=True)


def _with_own_times(batch: memoryview) -> memoryview:
    """Return a copy whose records have the producer's times, which is what the topic keeps."""
    batch = memoryview(bytearray(batch))
    _, attributes = CRC_AND_ATTRIBUTES.unpack_from(batch, CRC_AT)
    _set_attributes(batch, attributes & ~LOG_APPEND_TIME_FLAG)
    return batch


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Return the sequence of a batch's last record.

    >>> last_sequence(2**31 - 1, 1)
    0
    """
    return (base_sequence + last_offset_delta) % _SEQUENCES


def stamp_append_time(batch: memoryview, now_ms: int) -> None:
    """Set the broker's time on a writable batch and renew its CRC (`message.timestamp.type=LogAppendTime`)."""
    _, attributes = CRC_AND_ATTRIBUTES.unpack_from(batch, CRC_AT)
    _TIME.pack_into(batch, MAX_TIMESTAMP_AT, now_ms)
    _set_attributes(batch, attributes | LOG_APPEND_TIME_FLAG)


def _set_attributes(batch: memoryview, attributes: int) -> None:
    CRC_AND_ATTRIBUTES.pack_into(batch, CRC_AT, 0, attributes)
    CRC_AND_ATTRIBUTES.pack_into(batch, CRC_AT, checksum.crc32c(batch[ATTRIBUTES_AT:]), attributes)
