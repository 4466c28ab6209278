"""Build and read uncompressed record batches, for tests and benchmarks.

    >>> batch = build_batch([(None, b"one"), (b"k", b"two")])
    >>> [(record.key, record.value) for record in read_records(batch)]
    [(None, b'one'), (b'k', b'two')]

Follows: Kafka `DefaultRecord` (KIP-98).
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidegate.wire import checksum
from tidegate.wire.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    CorruptRecordsError,
    check_counts,
    find_only_batch,
    read_header,
)
from tidegate.wire.records import read_varlong

__all__ = ["Record", "assign_offsets", "build_batch", "check_produced", "read_records", "renew_crc"]


class Record(NamedTuple):
    """One record of a batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def build_batch(
    pairs: Iterable[tuple[bytes | None, bytes | None]],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    timestamp_ms: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Return one uncompressed batch of (key, value) pairs, all with the same timestamp and without headers."""
    out = bytearray(HEADER_BYTES)
    count = 0
    for count, (key, value) in enumerate(pairs, start=1):
        body = b"\0" + _zigzag(0) + _zigzag(count - 1) + _sized(key) + _sized(value) + _zigzag(0)
        out += _zigzag(len(body)) + body
    HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - OVERHEAD_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        count - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    renew_crc(out)
    return bytes(out)


def read_records(batch: Buffer, at: int = 0) -> Iterator[Record]:
    """Yield the records of the uncompressed batch at `at`. Raises `CorruptRecordsError` where they are malformed."""
    header = read_header(batch, at)
    if header.compression:
        raise CorruptRecordsError(f"only uncompressed batches can be read, got codec {header.compression!r}")
    view = memoryview(batch)[: header.end_index]
    at += HEADER_BYTES
    for _ in range(header.record_count):
        size, at = read_varlong(view, at)
        end = _bounded(size, at, header.end_index)
        timestamp_delta, at = read_varlong(view, at + 1)
        offset_delta, at = read_varlong(view, at)
        key, at = _bytes(view, at, end)
        value, at = _bytes(view, at, end)
        headers, at = _headers(view, at, end)
        yield Record(
            header.base_offset + offset_delta, header.base_timestamp + timestamp_delta, key, value, headers
        )
        at = end


def check_produced(records: Buffer | None, *, api_version: int) -> BatchHeader:
    """Return the one batch that a partition of a Produce request holds, its header checked but not its CRC.

    Raises `CorruptRecordsError` or `InvalidRecordsError`.
    """
    batch = find_only_batch(records, api_version=api_version)
    check_counts(batch)
    return batch


def assign_offsets(records: bytearray, *, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the leader epoch of the batch that `records` begins with; its CRC does not change."""
    struct.pack_into(">q", records, 0, base_offset)
    struct.pack_into(">i", records, OVERHEAD_BYTES, leader_epoch)


def renew_crc(records: bytearray | memoryview, at: int = 0) -> None:
    """Set the CRC of the batch at `at` to that of its bytes."""
    batch = read_header(records, at)
    crc = checksum.crc32c(memoryview(records)[at + ATTRIBUTES_AT : batch.end_index])
    struct.pack_into(">I", records, at + CRC_AT, crc)


def _headers(view: memoryview, at: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = read_varlong(view, at)
    headers = []
    for _ in range(count):
        name, at = _bytes(view, at, end)
        value, at = _bytes(view, at, end)
        headers.append(((name or b"").decode("utf-8", "replace"), value))
    return tuple(headers), at


def _bytes(view: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varlong(view, at)
    if size < 0:
        return None, at
    stop = _bounded(size, at, end)
    return bytes(view[at:stop]), stop


def _bounded(size: int, at: int, end: int) -> int:
    if not 0 <= size <= end - at:
        raise CorruptRecordsError(
            f"{size} bytes of a record expected, {max(end - at, 0)} remain", byte_offset=at
        )
    return at + size


def _zigzag(value: int) -> bytes:
    """Return a signed varint."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(value: bytes | None) -> bytes:
    return _zigzag(-1) if value is None else _zigzag(len(value)) + value
