"""Makes and takes apart uncompressed record batches: for loaders, demos and tests. A broker needs
no more than the heads of records.

    >>> batch = build_batch([(None, b"one"), (b"k", b"two")])
    >>> [(record.key, record.value) for record in read_records(batch)]
    [(None, b'one'), (b'k', b'two')]

Follows: Kafka `DefaultRecord` (KIP-98).
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidegate.wire.batch import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    OVERHEAD_BYTES,
    Buffer,
    CorruptRecordsError,
    read_header,
    renew_crc,
)

__all__ = ["RECORD_HEAD_BYTES", "Record", "build_batch", "read_record_head", "read_records"]

MAX_VARLONG_BYTES = 10  # Kafka `ByteUtils.readVarlong`
RECORD_HEAD_BYTES = 3 * MAX_VARLONG_BYTES + 1
"""At most so many bytes of a record hold its size, its time and its offset."""


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
        size, at = _varlong(view, at)
        end = _bounded(size, at, header.end_index)
        timestamp_delta, at = _varlong(view, at + 1)
        offset_delta, at = _varlong(view, at)
        key, at = _bytes(view, at, end)
        value, at = _bytes(view, at, end)
        headers, at = _headers(view, at, end)
        yield Record(
            header.base_offset + offset_delta, header.base_timestamp + timestamp_delta, key, value, headers
        )
        at = end


def read_record_head(piece: bytes, at: int) -> tuple[int, int, int]:
    """Return where the record at `at` ends, and how far its time and offset are from those of its batch.

    The end may lie behind `piece`. Raises `CorruptRecordsError` where that is no record.
    """
    size, at = _varlong(piece, at)
    time_delta, after = _varlong(piece, at + 1)
    offset_delta, after = _varlong(piece, after)
    if at + size < after:
        raise CorruptRecordsError(f"a record has {size} bytes, its times alone have more", byte_offset=at)
    return at + size, time_delta, offset_delta


def _headers(view: memoryview, at: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = _varlong(view, at)
    headers = []
    for _ in range(count):
        name, at = _bytes(view, at, end)
        value, at = _bytes(view, at, end)
        headers.append(((name or b"").decode("utf-8", "replace"), value))
    return tuple(headers), at


def _bytes(view: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = _varlong(view, at)
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


def _varlong(view: memoryview | bytes, at: int) -> tuple[int, int]:
    """Return (signed number, offset after it)."""
    value = 0
    for place in range(MAX_VARLONG_BYTES):
        if at + place >= len(view):
            raise CorruptRecordsError("a varint is cut off", byte_offset=at)
        byte = view[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise CorruptRecordsError(
        f"a varint has at most {MAX_VARLONG_BYTES} bytes, this one goes on", byte_offset=at
    )


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
