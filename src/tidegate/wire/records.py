"""Records of a batch (magic 2): encoded, and decoded one after the other, uncompressed or gzip.

    >>> batch = encode_batch([Record(value=b"one"), Record(key=b"k", value=b"two")], now_ms=7, gzip=True)
    >>> [(record.offset, record.key, record.value) for record in decode_batch(batch, read_header(batch))]
    [(0, None, b'one'), (1, b'k', b'two')]

At most `MAX_UNPACKED_BYTES` of a batch are decompressed: the producer chooses what a batch expands to.
Follows: Kafka `DefaultRecord`, `DefaultRecordBatch` (KIP-98).
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

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
    crc_matches,
    read_header,
)

__all__ = [
    "GZIP",
    "GZIP_WINDOW",
    "MAX_UNPACKED_BYTES",
    "MAX_VARLONG_BYTES",
    "NO_TIMESTAMP",
    "Record",
    "decode_batch",
    "encode_batch",
    "read_header",
    "read_varlong",
]

GZIP: Final = 1
MAX_UNPACKED_BYTES: Final = 64 << 20
"""Most bytes that a compressed batch may expand to. Producers begin a new batch at 16 KB to 1 MB of records."""
MAX_VARLONG_BYTES: Final = 10  # Kafka `ByteUtils.readVarlong`
NO_TIMESTAMP: Final = -1
"""The timestamp of a record that has none: no clock of a broker is compared with it. Source: Kafka `RecordBatch`."""
GZIP_WINDOW = 16 + zlib.MAX_WBITS  # with gzip's header
_CRC = struct.Struct(">I")

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record. timestamp_ms: None is the time of sending. offset: -1 until it is stored."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    offset: int = -1


def encode_batch(records: Sequence[Record], *, now_ms: int, gzip: bool = False) -> bytes:
    """Return one batch of one or more records, without producer id. now_ms: of records without a timestamp."""
    times = [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records]
    body = bytearray()
    for at, record in enumerate(records):
        encoded = b"\0" + _varlong(times[at] - times[0]) + _varlong(at)
        encoded += _sized(record.key) + _sized(record.value) + _varlong(len(record.headers))
        encoded += b"".join(_sized(name.encode()) + _sized(value) for name, value in record.headers)
        body += _varlong(len(encoded)) + encoded
    packed = zlib.compress(bytes(body), wbits=GZIP_WINDOW) if gzip else bytes(body)
    out = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        out,
        0,
        0,  # base offset: the broker's
        HEADER_BYTES + len(packed) - OVERHEAD_BYTES,
        -1,  # leader epoch: the broker's
        MAGIC,
        0,  # CRC: below
        GZIP if gzip else 0,
        len(records) - 1,
        times[0],
        max(times),
        NO_PRODUCER_ID,
        -1,  # producer epoch
        -1,  # base sequence
        len(records),
    )
    out += packed
    _CRC.pack_into(out, CRC_AT, checksum.crc32c(memoryview(out)[ATTRIBUTES_AT:]))
    return bytes(out)


def decode_batch(buffer: Buffer, batch: BatchHeader) -> Iterator[Record]:
    """Yield the records of a batch of `buffer`, none of a control batch. Raises `CorruptRecordsError`."""
    if not crc_matches(buffer, batch):
        raise CorruptRecordsError("the CRC of a record batch is wrong", byte_offset=batch.at)
    if batch.is_control:
        return
    body = memoryview(buffer)[batch.at + HEADER_BYTES : batch.end_index]
    if batch.compression == GZIP:
        body = memoryview(_unpacked(body))
    elif batch.compression:
        raise CorruptRecordsError(
            f"compression codec {batch.compression} of a record batch, expected 0 (none) or 1 (gzip)",
            byte_offset=batch.at,
        )
    at = 0
    for _ in range(batch.record_count):
        size, at = read_varlong(body, at)
        if not 0 < size <= len(body) - at:
            raise CorruptRecordsError(f"a record of {size} bytes, {len(body) - at} remain", byte_offset=at)
        yield _record(body[at : at + size], batch)
        at += size
    if at != len(body):
        raise CorruptRecordsError(f"{len(body) - at} bytes behind the last record of a batch", byte_offset=at)


def read_varlong(view: memoryview | bytes, at: int) -> tuple[int, int]:
    """Return the signed number at `at` and the offset after it. Raises `CorruptRecordsError`."""
    value = 0
    for place in range(MAX_VARLONG_BYTES):
        if at + place >= len(view):
            raise CorruptRecordsError("a varint is cut off", byte_offset=at)
        byte = view[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise CorruptRecordsError(
        f"a varint has at most {MAX_VARLONG_BYTES} bytes, this one is longer", byte_offset=at
    )


def _unpacked(packed: memoryview) -> bytes:
    stream = zlib.decompressobj(GZIP_WINDOW)
    try:
        data = stream.decompress(packed, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise CorruptRecordsError(f"a record batch cannot be decompressed: {error}") from error
    if stream.unconsumed_tail or (not stream.eof and len(data) == MAX_UNPACKED_BYTES):
        raise CorruptRecordsError(
            f"a record batch expands to more than {MAX_UNPACKED_BYTES} bytes",
            hint="read it with another client, and limit max.message.bytes of the topic",
        )
    if not stream.eof or stream.unused_data:
        raise CorruptRecordsError("a record batch is not exactly one gzip stream")
    return data


def _record(view: memoryview, batch: BatchHeader) -> Record:
    time_delta, at = read_varlong(view, 1)  # behind the attributes, of which none is defined
    offset_delta, at = read_varlong(view, at)
    key, at = _bytes(view, at)
    value, at = _bytes(view, at)
    count, at = read_varlong(view, at)
    if not 0 <= count <= len(view) - at:
        raise CorruptRecordsError(f"{count} headers of a record, {len(view) - at} bytes remain")
    headers = []
    for _ in range(count):
        name, at = _bytes(view, at)
        header, at = _bytes(view, at)
        headers.append(((name or b"").decode("utf-8", "replace"), header))
    if at != len(view):
        raise CorruptRecordsError(f"{len(view) - at} bytes behind the end of a record")
    timestamp_ms = batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp + time_delta
    offset = batch.base_offset + offset_delta
    return Record(key=key, value=value, headers=tuple(headers), timestamp_ms=timestamp_ms, offset=offset)


def _bytes(view: memoryview, at: int) -> tuple[bytes | None, int]:
    size, at = read_varlong(view, at)
    if size < 0:
        return None, at
    if size > len(view) - at:
        raise CorruptRecordsError(f"{size} bytes of a record expected, {len(view) - at} remain")
    return bytes(view[at : at + size]), at + size


def _varlong(value: int) -> bytes:
    """Return a signed varint."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(value: bytes | None) -> bytes:
    return _varlong(-1) if value is None else _varlong(len(value)) + value
