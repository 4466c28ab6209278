"""Record batches (magic 2) as opaque bytes: header fields read in place, CRC-32C, offsets patched in place.

    offset  0  base offset        int64      24+ the CRC covers the rest, from attributes on
            8  length after it    int32  | 21  attributes        int16  | 43  producer id      int64
           12  leader epoch       int32  | 23  last offset delta int32  | 51  producer epoch   int16
           16  magic              int8   | 27  base timestamp    int64  | 53  base sequence    int32
           17  CRC-32C            uint32 | 35  max timestamp     int64  | 57  record count     int32

The base offset and the leader epoch lie before the CRC, so a broker can set both without touching the rest. What is
inside the records is never looked at here.

Follows: Kafka `DefaultRecordBatch`, `ByteBufferLogInputStream`, `ProduceRequest.validateRecords`, `LogValidator`.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from tidegate.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from tidegate.wire import checksum
from tidegate.wire.errors import ProtocolError

__all__ = [
    "ATTRIBUTES_AT",
    "CRC_AND_ATTRIBUTES",
    "CRC_AT",
    "HEADER",
    "HEADER_BYTES",
    "LAST_OFFSET_DELTA_AT",
    "LEAST_LENGTH",
    "LENGTH_AT",
    "LOG_APPEND_TIME_FLAG",
    "MAGIC",
    "MAGIC_AT",
    "MAX_TIMESTAMP_AT",
    "NO_PRODUCER_ID",
    "OFFSET_AND_LENGTH",
    "OFFSET_LENGTH_EPOCH",
    "OVERHEAD_BYTES",
    "TRANSACTIONAL_FLAG",
    "ZSTD",
    "ZSTD_SINCE_PRODUCE",
    "BatchHeader",
    "BatchSizeOverflowError",
    "CorruptRecordsError",
    "InvalidRecordsError",
    "batches",
    "check_counts",
    "crc_matches",
    "find_only_batch",
    "read_header",
]

Buffer = bytes | bytearray | memoryview

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
OFFSET_LENGTH_EPOCH: Final = struct.Struct(">qii")
CRC_AND_ATTRIBUTES: Final = struct.Struct(">Ih")

LENGTH_AT: Final = 8
OVERHEAD_BYTES: Final = 12  # base offset and length, which the length does not count
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21  # from here on the CRC covers a batch
LAST_OFFSET_DELTA_AT: Final = 23
MAX_TIMESTAMP_AT: Final = 35

LEAST_LENGTH: Final = HEADER_BYTES - OVERHEAD_BYTES
MAGIC: Final = 2
COMPRESSION_BITS: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
ZSTD: Final = 4
ZSTD_SINCE_PRODUCE: Final = 7  # KIP-110
NO_PRODUCER_ID: Final = -1

_MINIMUM_LENGTH = 14  # Kafka `LegacyRecord.RECORD_OVERHEAD_V0`
UNBOUNDED_BYTES = 2**31 - 1
_LONGEST = UNBOUNDED_BYTES - OVERHEAD_BYTES  # with which a batch's size is still an `int` of Java

_LENGTH = struct.Struct(">i")


class CorruptRecordsError(ProtocolError):
    """Raise when bytes cannot be taken apart into batches: error 2, and the whole Produce request fails.

    The message is Kafka's, because clients get it.
    """

    error_code = CORRUPT_MESSAGE


class BatchSizeOverflowError(CorruptRecordsError):
    """Raise for a length that is no size in Java, where it overflows: Kafka fails the request as unforeseen."""

    error_code = UNKNOWN_SERVER_ERROR


class InvalidRecordsError(ProtocolError):
    """Raise when a batch may not be produced; only its partition fails, with `error_code`. Messages are Kafka's."""

    def __init__(self, message: str, *, error_code: int = INVALID_RECORD) -> None:
        super().__init__(message)
        self.error_code = error_code


class BatchHeader(NamedTuple):
    """The header of the batch that begins at `at` in some buffer."""

    at: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Return the size of the whole batch in bytes."""
        return self.length + OVERHEAD_BYTES

    @property
    def end_index(self) -> int:
        """Return where the next batch begins in the buffer."""
        return self.at + self.length + OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """Return the offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> int:
        """Return the codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_BITS

    @property
    def is_log_append_time(self) -> bool:
        """Return whether the timestamps are the broker's own."""
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        """Return whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Return whether this is a marker of a broker's, not records of a producer's."""
        return bool(self.attributes & CONTROL_FLAG)


_new_header = tuple.__new__  # what the class does too, one call deeper


def read_header(records: Buffer, at: int = 0) -> BatchHeader:
    """Return the header of the batch at `at`. Raises `CorruptRecordsError` where fewer than 61 bytes are left."""
    try:
        return _new_header(BatchHeader, (at, *HEADER.unpack_from(records, at)))
    except struct.error:
        raise CorruptRecordsError(
            f"a batch header has {HEADER_BYTES} bytes, {max(len(records) - at, 0)} remain", byte_offset=at
        ) from None


def batches(records: Buffer, at: int = 0, *, max_bytes: int = UNBOUNDED_BYTES) -> Iterator[BatchHeader]:
    """Yield the header of each whole batch from `at` on; a batch cut short at the end is left out, as by Kafka.

    Raises `CorruptRecordsError` for a size below the least possible or above `max_bytes` and for an unknown magic,
    `BatchSizeOverflowError` for a size beyond Java's, `InvalidRecordsError` for an old magic and a size below that of
    a header.
    """
    end = len(records)
    while end - at > MAGIC_AT:
        (length,) = _LENGTH.unpack_from(records, at + LENGTH_AT)
        _check_frame(length, records[at + MAGIC_AT], at, max_bytes=max_bytes)
        if length + OVERHEAD_BYTES > end - at:
            if length > _LONGEST:
                raise BatchSizeOverflowError(
                    f"batch length {length}, expected at most {_LONGEST}", byte_offset=at
                )
            return
        batch = read_header(records, at)
        yield batch
        at = batch.end_index
    # Kafka checks the size even if the batch is cut short before its magic.
    if end - at >= OVERHEAD_BYTES:
        _check_size(_LENGTH.unpack_from(records, at + LENGTH_AT)[0], at, max_bytes=max_bytes)


def crc_matches(records: Buffer, batch: BatchHeader) -> bool:
    """Return whether the batch's CRC-32C is right. Nothing is copied."""
    covered = memoryview(records)[batch.at + ATTRIBUTES_AT : batch.end_index]
    return checksum.crc32c(covered) == batch.crc


def find_only_batch(records: Buffer | None, *, api_version: int) -> BatchHeader:
    """Return the one batch that a partition of a Produce request holds, its counts not checked.

    Raises `CorruptRecordsError` (the request fails) or `InvalidRecordsError` (the partition fails).
    """
    batch = _only_batch(records or b"", api_version)
    if batch.compression == ZSTD and api_version < ZSTD_SINCE_PRODUCE:
        raise InvalidRecordsError(
            f"Produce requests with version {api_version} are not allowed to use ZStandard compression",
            error_code=UNSUPPORTED_COMPRESSION_TYPE,
        )
    return batch


def check_counts(batch: BatchHeader) -> None:
    """Refuse counts and marks that a producer cannot send: raises `InvalidRecordsError`.

    Follows: Kafka `LogValidator.validateBatch`.
    """
    if batch.last_offset_delta < 0:
        raise InvalidRecordsError(
            f"Batch has an invalid offset range: [{batch.base_offset}, {batch.last_offset}]"
        )
    if batch.record_count <= 0:
        raise InvalidRecordsError(f"Invalid reported count for record batch: {batch.record_count}")
    if batch.record_count != batch.last_offset_delta + 1:
        raise InvalidRecordsError(
            f"Inconsistent batch offset range [{batch.base_offset}, {batch.last_offset}] and count of records "
            f"{batch.record_count}"
        )
    if batch.is_control:
        raise InvalidRecordsError("Clients are not allowed to write control records")
    if batch.producer_id > NO_PRODUCER_ID and batch.base_sequence < 0:
        raise InvalidRecordsError(
            f"Invalid sequence number {batch.base_sequence} in record batch with producerId {batch.producer_id}"
        )


def _only_batch(records: Buffer, api_version: int) -> BatchHeader:
    """Return the header of the one batch in `records`; mostly it fills them."""
    if len(records) >= HEADER_BYTES:
        batch = read_header(records)
        if batch.magic == MAGIC and batch.end_index == len(records):
            return batch
    found = batches(records)
    first, second = next(found, None), next(found, None)
    wanted = f"Produce requests with version {api_version}"
    if first is None:
        raise InvalidRecordsError(f"{wanted} must have at least one record batch per partition")
    if second is not None:
        raise InvalidRecordsError(
            f"{wanted} are only allowed to contain exactly one record batch per partition"
        )
    return first


def _check_size(length: int, at: int, *, max_bytes: int) -> None:
    if length < _MINIMUM_LENGTH:
        raise CorruptRecordsError(
            f"Record size {length} is less than the minimum record overhead ({_MINIMUM_LENGTH})",
            byte_offset=at,
        )
    if length > max_bytes:
        raise CorruptRecordsError(
            f"Record size {length} exceeds the largest allowable message size ({max_bytes}).", byte_offset=at
        )


def _check_frame(length: int, magic: int, at: int, *, max_bytes: int) -> None:
    """Refuse a size or magic that no batch has. Batches of magic 0 and 1 went out of use with Produce v3."""
    _check_size(length, at, max_bytes=max_bytes)
    if magic > MAGIC:
        # Java's bytes are signed, and the message is Kafka's.
        shown = magic - 256 if magic > 127 else magic
        raise CorruptRecordsError(f"Invalid magic found in record: {shown}", byte_offset=at)
    if magic < MAGIC:
        raise InvalidRecordsError("only record batches with magic version 2 can be read")
    if length < LEAST_LENGTH:
        raise InvalidRecordsError(
            f"Record batch is corrupted (the size {length + OVERHEAD_BYTES} is smaller than the minimum allowed "
            f"overhead {HEADER_BYTES})",
            error_code=CORRUPT_MESSAGE,
        )
