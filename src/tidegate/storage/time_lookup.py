"""Find offsets by time, for ListOffsets.

Batches are found by the times in their headers; inside an uncompressed batch the record is found too. Compressed
batches are not opened: their first offset stands for any record in them.
Follows: Kafka `UnifiedLog.fetchOffsetByTimestamp`.
"""

from tidegate.storage.log import PartitionLog
from tidegate.storage.segment import Segment
from tidegate.wire.batch import BatchHeader, CorruptRecordsError
from tidegate.wire.batch_builder import read_records

__all__ = ["TimeAndOffset", "offset_by_time", "offset_of_latest_time"]

TimeAndOffset = tuple[int, int]


def offset_by_time(log: PartitionLog, time_ms: int) -> TimeAndOffset | None:
    """Return time and offset of the first record that is not older than `time_ms`, None where there is none."""
    _make_sure(log)
    for segment in log.segments:
        if segment.max_time_ms < time_ms:
            continue
        for position, batch in segment.batches(segment.position_by_time(time_ms)):
            if batch.max_timestamp >= time_ms:
                return _first_record(segment, position, batch, time_ms)
    return None


def offset_of_latest_time(log: PartitionLog) -> TimeAndOffset | None:
    """Return time and offset of the first record with the largest time, None where no record has a time."""
    _make_sure(log)
    latest = max(log.segments, key=lambda segment: segment.max_time_ms)
    if latest.max_time_ms < 0:
        return None
    for position, batch in latest.batches(latest.position_by_time(latest.max_time_ms)):
        if batch.max_timestamp == latest.max_time_ms:
            return _first_record(latest, position, batch, latest.max_time_ms)
    return None


def _make_sure(log: PartitionLog) -> None:
    """Look for the largest times that recovery left open: housekeeping does so, too, soon after the start."""
    for segment in log.segments:
        if not segment.time_is_sure:
            for _ in segment.check_time():
                pass


def _first_record(segment: Segment, position: int, batch: BatchHeader, time_ms: int) -> TimeAndOffset:
    """Return time and offset of the first record of `batch`, which has one, not older than `time_ms`."""
    if batch.is_log_append_time:
        return batch.max_timestamp, batch.base_offset
    if not batch.compression:
        try:
            for record in read_records(segment.read_batch(position, batch.size)):
                if record.timestamp_ms >= time_ms:
                    return record.timestamp_ms, record.offset
        except CorruptRecordsError:
            pass  # a producer's nonsense within a batch whose CRC is right: treat it like a compressed one
    first_time_ms = batch.base_timestamp if batch.base_timestamp >= time_ms else batch.max_timestamp
    return first_time_ms, batch.base_offset
