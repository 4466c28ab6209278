"""Small record batches, and logs of partitions to append them to."""

import gzip
import struct
from pathlib import Path
from typing import Any

import cramjam
import lz4.frame
from tests.batches import _sized, _zigzag, build_batch, renew_crc
from tests.unit.in_slices import whole

from tidegate.storage.log import all_logs
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.recovery import open_log
from tidegate.storage.topics.topic_settings import TopicSettings
from tidegate.wire.batch import HEADER_BYTES

NOW_MS = 1_700_000_000_000


def batch(count: int = 1, *, value: bytes = b"v", time_ms: int = NOW_MS, **fields: Any) -> bytes:
    """Return a batch of `count` equal records."""
    return build_batch([(None, value)] * count, timestamp_ms=time_ms, **fields)


def timed_batch(times_ms: list[int], *, value: bytes = b"", codec: int = 0, base_ms: int = NOW_MS) -> bytes:
    """Return a batch of records with times of their own; codec: as in its attributes."""
    body = bytearray()
    for number, time_ms in enumerate(times_ms):
        record = b"\0" + _zigzag(time_ms - base_ms) + _zigzag(number) + b"\x01" + _sized(value) + b"\0"
        body += _zigzag(len(record)) + record
    return batch_of(packed(codec, bytes(body)), times_ms, codec=codec, base_ms=base_ms)


def batch_of(body: bytes, times_ms: list[int], *, codec: int, base_ms: int = NOW_MS) -> bytes:
    """Return a batch whose header is right for records of these times, whatever its `body` is."""
    out = bytearray(batch(attributes=codec, time_ms=base_ms)[:HEADER_BYTES]) + body
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">i", out, 23, len(times_ms) - 1)
    struct.pack_into(">q", out, 35, max(times_ms))
    struct.pack_into(">i", out, 57, len(times_ms))
    renew_crc(out)
    return bytes(out)


def packed(codec: int, body: bytes) -> bytes:
    """Return records as Kafka's clients compress them: snappy in the blocks of Java's stream, lz4 in frames."""
    if codec == 1:
        return gzip.compress(body, mtime=0)
    if codec == 2:
        blocks = [
            bytes(cramjam.snappy.compress_raw(body[at : at + 32_768])) for at in range(0, len(body), 32_768)
        ]
        sized = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
        return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + sized
    if codec == 3:
        return bytes(lz4.frame.compress(body, block_linked=False))
    return bytes(cramjam.zstd.compress(body)) if codec == 4 else body


def new_log(
    directory: Path, *, trust_writes: bool = True, recovery_point: int = 0, **settings: Any
) -> PartitionLog:
    """Open a log of its own."""
    return open_log(
        directory,
        TopicSettings(**settings),
        producer_expiration_ms=86_400_000,
        trust_writes=trust_writes,
        recovery_point=recovery_point,
    )


def append(log: PartitionLog, data: bytes, now_ms: int = NOW_MS) -> int:
    """Append a batch; return its base offset."""
    return log.append(memoryview(bytearray(data)), now_ms, 9)[0]


def expire(log: PartitionLog, now_ms: int) -> int:
    """Delete what is past its retention, without a pause; return how many segments."""
    return whole(all_logs.expire(log, now_ms))


def contents(log: PartitionLog) -> bytes:
    """Return every byte of a log, segment by segment, as reads give it out."""
    parts, offset = [], log.start_offset
    while (found := log.read(offset, 2**31 - 1)) is not None:
        parts.append(found.read())
        following = [segment.base_offset for segment in log.segments if segment.base_offset > offset]
        offset = following[0] if following else log.end_offset
    return b"".join(parts)
