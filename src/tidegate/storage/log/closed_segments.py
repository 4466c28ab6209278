"""Recovery of a log's closed segments without reading them whole, as far as their ends and indexes agree.

The batches after the last entry of a segment's offset index must end where the file ends and where the next segment
begins. The last entry of its time index must name a batch that has that time. If a check fails, the whole segment is
walked and its indexes are rebuilt; if that does not help, the segment is damaged.
"""

from tidegate.storage.errors import LogDamagedError
from tidegate.storage.log.segment import Segment

__all__ = ["begins_batch", "take_closed", "take_largest_time"]

_UNINDEXED_BYTES = 64 * 1024  # after the last index entry; the interval may have been larger before
_TIMES_LOOKED_AT_BYTES = 256 * 1024  # the rest is read before the segment is deleted for its age


def take_closed(segment: Segment, *, next_base: int, interval: int) -> bool:
    """Set size and largest time of a closed segment; return False if it must be walked. Raises `OSError`."""
    segment.sealed = True
    try:
        segment.size = segment.file_size()
        if _take(segment, next_base, max(interval, _UNINDEXED_BYTES)):
            return True
    except LogDamagedError:
        pass
    segment.sealed = False
    return False


def _take(segment: Segment, next_base: int, unindexed_bytes: int) -> bool:
    entry = segment.offsets.last_on_disk()
    if entry is not None and not begins_batch(segment, entry):
        return False
    indexed = position = entry[1] if entry is not None else 0
    end_offset, largest_ms, largest_at = segment.base_offset, -1, segment.base_offset
    for position, header in segment.batches(indexed):
        if position - indexed > unindexed_bytes or position + header.size > segment.size:
            return False
        end_offset = header.last_offset + 1
        if header.max_timestamp > largest_ms:
            largest_ms, largest_at = header.max_timestamp, header.last_offset
    if end_offset != next_base:
        return False
    if not (indexed == 0 or take_largest_time(segment, segment.times.last_on_disk(), before=indexed)):
        return False
    if largest_ms > segment.max_time_ms:
        segment.max_time_ms, segment.max_time_offset = largest_ms, largest_at
        if segment.time_is_sure:
            segment.times.set_last_on_disk(largest_ms, largest_at - segment.base_offset)
    return True


def begins_batch(segment: Segment, entry: tuple[int, int]) -> bool:
    """Return whether the batch of an entry of the offset index begins where the entry says."""
    relative_offset, position = entry
    if not 0 <= position < segment.size:
        return False
    try:
        return segment.header_at(position).last_offset == segment.base_offset + relative_offset
    except LogDamagedError:
        return False


def take_largest_time(segment: Segment, entry: tuple[int, int] | None, *, before: int) -> bool:
    """Set the largest time of the batches up to position `before` from the last entry of the time index.

    Return False if the entry cannot be right.
    """
    position = segment.position_of_time(*entry) if entry is not None else None
    if entry is None or position is None:
        return False
    if before - position > _TIMES_LOOKED_AT_BYTES:
        segment.time_is_sure = False
    else:
        for at, header in segment.batches(position):
            if at >= before:
                break
            if header.max_timestamp > entry[0]:
                return False
    segment.max_time_ms, segment.max_time_offset = entry[0], segment.base_offset + entry[1]
    return True
