"""Work over all logs of a node: deletion of expired segments, removed files, and the end.

A segment is as old as its newest record, or as its file where no record has a time; the newest segment goes too, after
a new one has been begun. Follows: Kafka `UnifiedLog.deleteOldSegments`, `LogSegment.largestTimestamp`.
"""

import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tidegate.storage.errors import LogDamagedError
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.segment import Segment

__all__ = ["close_logs", "delete_expired", "expire", "mark_removed"]

_CLOSED_AT_ONCE = 8  # logs
_NAMED = 5  # partitions in one line of the log
_logger = logging.getLogger("tidegate.storage.storage")  # that of the storage


def delete_expired(logs: Iterable[PartitionLog], now_ms: int) -> Iterator[None]:
    """Delete expired segments and producers.

    Each yield is a pause after at most about a millisecond.
    """
    deleted: list[str] = []
    for log in logs:
        try:
            log.producers.expire(now_ms)
            yield
            for segment in [segment for segment in log.segments if not segment.time_is_sure]:
                yield from segment.check_time()
                if segment.sealed:
                    segment.close_unless_sent()
            if (count := (yield from expire(log, now_ms))) > 0:
                deleted.append(f"{log.directory.name} ({count} before offset {log.start_offset})")
        except LogDamagedError as error:
            log.mark_damaged(str(error))
        except OSError as error:  # the next time it may work
            _logger.warning("cannot delete old segments of %s: %s", log.directory.name, error)
        yield
    if deleted:
        more = f" and {len(deleted) - _NAMED} more partitions" if len(deleted) > _NAMED else ""
        _logger.info("deleted expired segments: %s%s", ", ".join(deleted[:_NAMED]), more)


def expire(log: PartitionLog, now_ms: int) -> Generator[None, None, int]:
    """Delete segments of one log that are too old, beyond the size kept, or before its start; return how many.

    Raises `OSError`. Each yield is a pause after at most about a millisecond.
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


def mark_removed(logs: Iterable[PartitionLog]) -> Iterator[None]:
    """Mark logs as damaged whose files were removed while in use; they take no more requests.

    Each yield is a pause after a few microseconds.
    """
    said = 0
    for log in logs:
        problem = log.problem()
        if problem is not None:
            said += 1
            log.mark_damaged(problem if said <= _NAMED else None)
        yield
    if said > _NAMED:
        _logger.error("%d more partitions are damaged in the same way", said - _NAMED)


def close_logs(logs: Sequence[PartitionLog]) -> None:
    """Sync and close every log, and mark those as damaged that cannot be closed.

    Several logs are closed at once: the disk then syncs them faster than one after another, which takes 8 s for 4,000.
    """
    with ThreadPoolExecutor(_CLOSED_AT_ONCE, thread_name_prefix="tidegate-close") as threads:
        for log, error in zip(logs, threads.map(_close, logs), strict=True):
            if error is not None:
                log.mark_damaged(f"cannot close it: {error}")


def _close(log: PartitionLog) -> OSError | None:
    """Close a log that is no longer used; return why it cannot be closed, if so."""
    try:
        log.close()
    except OSError as error:
        return error
    return None
