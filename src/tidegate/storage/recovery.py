"""Open a partition's log and make sure that what it holds is whole.

Only the end of a log can be torn when a process dies: the kernel has every finished write. So after a clean end,
or any end of the process since the machine was started, only the newest segment is walked, from its last index
entry or producer snapshot on. After the machine itself went down everything past the recovery point (what is
known to be synced) is walked and its indexes are built again. What is walked is checked by CRC; the log is cut
before the first batch that fails, and whatever came after it goes.
Follows: Kafka `LogLoader`, `LogSegment.recover`.
"""

import logging
import mmap
from dataclasses import dataclass
from pathlib import Path

from tidegate.storage.log import PartitionLog
from tidegate.storage.producers import Producers
from tidegate.storage.records import CRC_FROM, HEADER, HEADER_BYTES, MAGIC, NO_PRODUCER_ID, OVERHEAD_BYTES
from tidegate.storage.segment import Segment
from tidegate.storage.topic_settings import TopicSettings
from tidegate.wire import checksum

__all__ = ["open_log"]

_NAME_DIGITS = 20

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Walk:
    """Where a walk through the log stands: the next offset, and the offset from which producers are noted."""

    producers: Producers
    producers_from: int
    interval: int
    end_offset: int = 0


def open_log(
    directory: Path,
    settings: TopicSettings,
    *,
    producer_expiration_ms: int,
    recovery_point: int = 0,
    trust_writes: bool = False,
) -> PartitionLog:
    """Return the log in `directory`, made when absent, recovered when it was not closed.

    trust_writes: the machine has not gone down since the files were written, so finished writes are intact.
    recovery_point: offset up to which the log is known to be synced, where writes cannot be trusted.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = PartitionLog(directory, settings, Producers(producer_expiration_ms))
    segments = [Segment(directory, base) for base in _base_offsets(directory)] or [Segment(directory, 0)]
    walk = _Walk(log.producers, 0, settings.index_interval_bytes)
    start_offset = segments[0].base_offset
    walk.producers_from = _load_snapshot(log, start_offset)
    sound_to = segments[-1].base_offset if trust_writes else recovery_point
    segments = _recover_segments(segments, walk, sound_to=sound_to, rebuild=not trust_writes)
    log.begin(segments, start_offset=start_offset, end_offset=walk.end_offset)
    log.recovery_point = min(max(recovery_point, start_offset), walk.end_offset)
    if _drop_snapshots_past(log) and walk.producers_from > walk.end_offset:
        _rebuild_producers(log)
    return log


def reopen_log(log: PartitionLog) -> None:
    """Make the books of a log anew from its files, after a write that failed. Raises `OSError`."""
    log.segments[-1].drop_gathered()
    for segment in log.segments:
        segment.let_go()
    again = open_log(
        log.directory,
        log.settings,
        producer_expiration_ms=log.producers.expiration_ms,
        recovery_point=log.recovery_point,
        trust_writes=True,
    )
    log.producers = again.producers
    log.snapshots = again.snapshots
    log.begin(again.segments, start_offset=again.start_offset, end_offset=again.end_offset)


def _base_offsets(directory: Path) -> list[int]:
    names = (path.stem for path in directory.glob("*.log"))
    return sorted(
        int(name) for name in names if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()
    )


def _load_snapshot(log: PartitionLog, start_offset: int) -> int:
    """Read the newest sound snapshot; return the offset from which batches have to be looked at."""
    log.producers.clear()
    log.snapshots = sorted(log.directory.glob("*.snapshot"))
    for path in reversed(log.snapshots):
        if path.stem.isdigit() and log.producers.load(path):
            return int(path.stem)
        _logger.warning("ignoring the broken producer snapshot %s of %s", path.name, log.directory.name)
    return start_offset


def _drop_snapshots_past(log: PartitionLog) -> bool:
    """Remove snapshots of an end that the log no longer has; return whether there were any."""
    gone = [path for path in log.snapshots if not path.stem.isdigit() or int(path.stem) > log.end_offset]
    for path in gone:
        path.unlink(missing_ok=True)
        log.snapshots.remove(path)
    return bool(gone)


def _rebuild_producers(log: PartitionLog) -> None:
    """Find out the producers again after the snapshot that was read turned out to be ahead of the log."""
    since = _load_snapshot(log, log.start_offset)
    for segment in log.segments:
        for _, batch in segment.batches(segment.position_of(since)):
            if batch.producer_id != NO_PRODUCER_ID and batch.base_offset >= since:
                log.producers.note(
                    batch.producer_id,
                    batch.producer_epoch,
                    batch.base_sequence,
                    batch.last_offset_delta,
                    batch.base_offset,
                    batch.max_timestamp,
                )


def _recover_segments(segments: list[Segment], walk: _Walk, *, sound_to: int, rebuild: bool) -> list[Segment]:
    """Bring each segment's books up to date; return the segments kept. The last one ends the log."""
    kept: list[Segment] = []
    for at, segment in enumerate(segments):
        newest = at == len(segments) - 1
        next_base = None if newest else segments[at + 1].base_offset
        kept.append(segment)
        if next_base is not None and next_base <= min(sound_to, walk.producers_from):
            _seal_unread(segment)
            walk.end_offset = next_base
            continue
        whole = _recover(
            segment, walk, rebuild=rebuild and (newest or segments[at + 1].base_offset > sound_to)
        )
        if newest:
            break
        if not whole or walk.end_offset != next_base:
            _delete_rest(segments[at + 1 :], walk)
            break
        segment.flush_indexes()
        segment.seal()
        segment.let_go()
    return kept


def _seal_unread(segment: Segment) -> None:
    """Take an older segment as it lies: its size, and its largest time from the end of its time index."""
    segment.size = segment.path.stat().st_size
    newest = segment.times.floor_on_disk(2**63 - 1)
    if newest is not None:
        segment.max_time_ms, segment.max_time_offset = newest[0], segment.base_offset + newest[1]
    segment.sealed = True


def _delete_rest(segments: list[Segment], walk: _Walk) -> None:
    for segment in segments:
        _logger.warning(
            "deleting %s: the log ends at offset %d before it", segment.path.name, walk.end_offset
        )
        segment.delete()


def _recover(segment: Segment, walk: _Walk, *, rebuild: bool) -> bool:
    """Walk a segment from where its books end; cut off what is torn. Return False where something was."""
    file_size = segment.path.stat().st_size if segment.path.exists() else 0
    if file_size:
        segment.first_append_ms = int(segment.path.stat().st_mtime * 1000)
    segment.offsets.load()
    segment.times.load()
    start = 0 if rebuild else _start_of_walk(segment, walk.producers_from, file_size)
    _walk_from(segment, walk, start, file_size)
    if start and segment.size == start:  # the index was wrong: nothing begins there
        _walk_from(segment, walk, 0, file_size)
    if segment.size == file_size:
        return True
    _logger.warning(
        "cutting %d torn bytes off %s/%s",
        file_size - segment.size,
        segment.path.parent.name,
        segment.path.name,
    )
    segment.cut(segment.size)
    return False


def _walk_from(segment: Segment, walk: _Walk, start: int, file_size: int) -> None:
    _keep_entries_before(segment, start)
    segment.size = start
    walk.end_offset = segment.base_offset
    if start < file_size:
        with mmap.mmap(segment.file.fd, file_size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            _walk(segment, walk, view)


def _start_of_walk(segment: Segment, producers_from: int, file_size: int) -> int:
    """Return the position of the last index entry before the producers' snapshot, 0 where there is none."""
    entry = segment.offsets.floor(producers_from - 1 - segment.base_offset)
    return entry[1] if entry is not None and 0 <= entry[1] < file_size else 0


def _keep_entries_before(segment: Segment, position: int) -> None:
    """Forget index entries of batches that are about to be walked again."""
    segment.offsets.keep(segment.offsets.values_below(position))
    last = segment.offsets.last()
    segment.times.keep(segment.times.values_below(last[0] + 1 if last else 0))
    newest = segment.times.last()
    if newest is not None:
        segment.max_time_ms, segment.max_time_offset = newest[0], segment.base_offset + newest[1]


def _walk(segment: Segment, walk: _Walk, view: memoryview) -> None:
    """Take every whole batch from `segment.size` on into the books; stop at the first that is not."""
    producers, expected = walk.producers, segment.base_offset
    position, end = segment.size, len(view)
    while position + HEADER_BYTES <= end:
        header = HEADER.unpack_from(view, position)
        offset, length, _, magic, crc, _, last_delta, _, max_time_ms, producer_id, epoch, sequence, _ = header
        size = length + OVERHEAD_BYTES
        if (
            size < HEADER_BYTES
            or position + size > end
            or magic != MAGIC
            or offset < expected
            or last_delta < 0
        ):
            return
        if checksum.crc32c(view[position + CRC_FROM : position + size]) != crc:
            return
        last_offset = offset + last_delta
        segment.note(position, size, offset, last_offset, max_time_ms, walk.interval)
        if producer_id != NO_PRODUCER_ID and offset >= walk.producers_from:
            producers.note(producer_id, epoch, sequence, last_delta, offset, max_time_ms)
        position += size
        expected = walk.end_offset = last_offset + 1
