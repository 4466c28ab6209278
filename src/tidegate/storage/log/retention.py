"""Delete the segments of a log that are past their retention, or lie before its start.

A segment is as old as its newest record, or as its file where no record has a time; the newest segment goes too, after
a new one has been begun. Follows: Kafka `UnifiedLog.deleteOldSegments`, `LogSegment.largestTimestamp`.
"""

from collections.abc import Generator

from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.segment import Segment

__all__ = ["expire"]


def expire(log: PartitionLog, now_ms: int) -> Generator[None, None, int]:
    """Delete what is too old or beyond the size kept; return how many segments. Raises `OSError`.

    Each yield is a pause after at most about a millisecond.
    """
    deleted = 0
    while not log.deleted and not log.failed:
        oldest = log.segments[0]
        if not oldest.size and len(log.segments) == 1:
            break
        if not (_before_start(log) or _too_large(log, oldest)):
            if not _too_old(log, oldest, now_ms):
                break
            if not oldest.time_is_sure:
                yield from oldest.check_time()
                continue
        log.drop_oldest()
        deleted += 1
        yield
    return deleted


def _before_start(log: PartitionLog) -> bool:
    """Return whether the records of the oldest segment have all been deleted (`PartitionLog.raise_start`)."""
    return len(log.segments) > 1 and log.segments[1].base_offset <= log.start_offset


def _too_old(log: PartitionLog, oldest: Segment, now_ms: int) -> bool:
    return 0 <= log.settings.retention_ms < now_ms - oldest.newest_time_ms()


def _too_large(log: PartitionLog, oldest: Segment) -> bool:
    return 0 <= log.settings.retention_bytes <= log.size_bytes - oldest.size
