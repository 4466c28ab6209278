"""Small record batches, and logs of partitions to append them to."""

from pathlib import Path
from typing import Any

from tests.unit.in_slices import whole

from tidegate.storage.log import retention
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.recovery import open_log
from tidegate.storage.topic_settings import TopicSettings
from tidegate.wire.batch_builder import build_batch

NOW_MS = 1_700_000_000_000


def batch(count: int = 1, *, value: bytes = b"v", time_ms: int = NOW_MS, **fields: Any) -> bytes:
    """Return a batch of `count` equal records."""
    return build_batch([(None, value)] * count, timestamp_ms=time_ms, **fields)


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
    return whole(retention.expire(log, now_ms))


def contents(log: PartitionLog) -> bytes:
    """Return every byte of a log, segment by segment, as reads give it out."""
    parts, offset = [], log.start_offset
    while (found := log.read(offset, 2**31 - 1)) is not None:
        parts.append(found.read())
        following = [segment.base_offset for segment in log.segments if segment.base_offset > offset]
        offset = following[0] if following else log.end_offset
    return b"".join(parts)
