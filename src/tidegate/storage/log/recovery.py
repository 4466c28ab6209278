"""Open a partition's log and make sure that what it holds is whole.

Only the end of a log can be torn when a process dies: the kernel has every finished write. So after a clean end,
or any end of the process since the machine was started, only the newest segment is walked, from its last index
entry or producer snapshot on. After the machine itself went down everything past the recovery point (what is
known to be synced) is walked and its indexes are rebuilt. Batches that are walked are checked by CRC; the log is cut
before the first batch that fails, and everything after that batch is dropped.
Follows: Kafka `LogLoader`, `LogSegment.recover`.
"""

import logging
import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.storage.errors import LogDamagedError
from tidegate.storage.log.closed_segments import begins_batch, take_closed, take_largest_time
from tidegate.storage.log.partition_log import NO_TIME, PartitionLog
from tidegate.storage.log.producers import ProducerMemory, Producers
from tidegate.storage.log.segment import DELETED_SUFFIX, Segment
from tidegate.storage.private_files import PRIVATE_DIRECTORY, make_private_file, remove_files
from tidegate.storage.topics.topic_settings import TopicSettings
from tidegate.wire import checksum
from tidegate.wire.batch import ATTRIBUTES_AT, HEADER, HEADER_BYTES, MAGIC, NO_PRODUCER_ID, OVERHEAD_BYTES

__all__ = ["Progress", "open_log", "reopen_log"]

_NAME_DIGITS = 20
_NOTED_EVERY_BYTES = 4 * 1024 * 1024
_PROGRESS_EVERY_S = 3.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Walk:
    """State of a walk through the log: the next offset, and the offset from which producers are noted."""

    producers: Producers
    producers_from: int
    interval: int
    progress: "Progress"
    end_offset: int = 0


class Progress:
    """Logs the progress of a long recovery every few seconds. `at` names the partition among all of them."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.at = ""
        self._monotonic = monotonic
        self._due = monotonic() + _PROGRESS_EVERY_S

    def report(self, segment: Segment, position: int, end: int) -> None:
        """Note that a segment has been walked up to `position`."""
        now = self._monotonic()
        if now >= self._due:
            self._due = now + _PROGRESS_EVERY_S
            where = f"{position / 1e6:.0f} of {end / 1e6:.0f} MB"
            _logger.info("recovering %s%s: read %s", segment.name, self.at, where)


def open_log(
    directory: Path,
    settings: TopicSettings,
    *,
    producer_expiration_ms: int,
    producer_memory: ProducerMemory | None = None,
    producer_owner: str = UNKNOWN_OWNER,
    start_offset: int = 0,
    recovery_point: int = 0,
    trust_writes: bool = False,
    progress: Progress | None = None,
) -> PartitionLog:
    """Return the log in `directory`, made when absent, recovered when it was not closed.

    trust_writes: the machine has not gone down since the files were written, so finished writes are intact.
    start_offset: earlier records are deleted, though their segment may still exist.
    producer_owner: the principal that producers read from the files count for.
    recovery_point: offset up to which the log is known to be synced, used if writes cannot be trusted.
    """
    directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
    remove_files(directory.glob(f"*{DELETED_SUFFIX}"))
    log = PartitionLog(
        directory, settings, Producers(producer_expiration_ms, producer_memory, producer_owner)
    )
    segments = [Segment(directory, base) for base in _base_offsets(directory)]
    if not segments:
        segments.append(Segment(directory, 0))
        make_private_file(segments[0].path)
    walk = _Walk(log.producers, 0, settings.index_interval_bytes, progress or Progress())
    base_offset = segments[0].base_offset
    walk.producers_from = _load_snapshot(log, base_offset)
    # A finished write survives the process, but not the machine (decision 0020).
    sound_to = segments[-1].base_offset if trust_writes else recovery_point
    segments = _recover_segments(segments, walk, sound_to=sound_to, rebuild=not trust_writes)
    # A stored start can lie past the end, where the machine went down and records were lost.
    start_offset = min(max(base_offset, start_offset), walk.end_offset)
    log.set_segments(segments, start_offset=start_offset, end_offset=walk.end_offset)
    if recovery_point > log.end_offset:
        lost = f"synced records from {log.end_offset} to {recovery_point - 1} are missing"
        _logger.error("%s: %s at the end of the log", directory.name, lost)
    log.recovery_point = min(max(recovery_point, base_offset), walk.end_offset)
    if _drop_snapshots_past(log) and walk.producers_from > walk.end_offset:
        # The snapshot knows batches that were cut: a retry would be answered with an offset that does not exist.
        _rebuild_producers(log)
    return log


def reopen_log(log: PartitionLog) -> None:
    """Open a log anew from its files, after a write that failed. Raises `OSError`, `LogDamagedError`."""
    # Gathered batches have offsets, but are not in the file: their requests are answered with error 56 (decision 0023).
    log.segments[-1].drop_gathered()
    problem = log.problem()
    if problem is not None:
        raise LogDamagedError(problem)
    for segment in log.segments:
        segment.close_unless_sent()
    log.producers.clear()
    again = open_log(
        log.directory,
        log.settings,
        producer_expiration_ms=log.producers.expiration_ms,
        producer_memory=log.producers.memory,
        producer_owner=log.producers.owner,
        start_offset=log.start_offset,
        recovery_point=log.recovery_point,
        trust_writes=True,
    )
    log.producers = again.producers
    log.snapshots = again.snapshots
    log.set_segments(again.segments, start_offset=again.start_offset, end_offset=again.end_offset)


def _base_offsets(directory: Path) -> list[int]:
    names = (path.stem for path in directory.glob("*.log"))
    return sorted(
        int(name) for name in names if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()
    )


def _load_snapshot(log: PartitionLog, start_offset: int) -> int:
    """Read the newest sound snapshot; return the offset from which batches have to be looked at."""
    log.producers.clear()
    log.snapshots = sorted(log.directory.glob("*.snapshot"))
    while log.snapshots:
        path = log.snapshots[-1]
        if path.stem.isdigit() and log.producers.load(path):
            return int(path.stem)
        _logger.warning("deleting damaged producer snapshot %s of %s", path.name, log.directory.name)
        remove_files([log.snapshots.pop()])
    return start_offset


def _drop_snapshots_past(log: PartitionLog) -> bool:
    """Remove snapshots of an end that the log no longer has; return whether there were any."""
    gone = [path for path in log.snapshots if not path.stem.isdigit() or int(path.stem) > log.end_offset]
    for path in gone:
        path.unlink(missing_ok=True)
        log.snapshots.remove(path)
    return bool(gone)


def _rebuild_producers(log: PartitionLog) -> None:
    """Rebuild the producers after the snapshot that was read turned out to be ahead of the log."""
    since = _load_snapshot(log, log.start_offset)
    walk = _Walk(log.producers, since, log.settings.index_interval_bytes, Progress())
    for segment in log.segments:
        _note_producers(segment, walk)


def _note_producers(segment: Segment, walk: _Walk) -> None:
    """Note the producers of a segment that is whole."""
    for _, batch in segment.batches(segment.position_of(walk.producers_from)):
        if batch.producer_id > NO_PRODUCER_ID and batch.base_offset >= walk.producers_from:
            walk.producers.record_batch(
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_offset_delta,
                batch.base_offset,
                batch.max_timestamp,
            )


def _recover_segments(segments: list[Segment], walk: _Walk, *, sound_to: int, rebuild: bool) -> list[Segment]:
    """Bring sizes, times and indexes of each segment up to date; return the segments kept. The last one ends the log.

    sound_to: segments that end there or before are whole; one that is not has been damaged since.
    """
    for at, segment in enumerate(segments[:-1]):
        next_base = segments[at + 1].base_offset
        sound = next_base <= sound_to
        if sound and take_closed(segment, next_base=next_base, interval=walk.interval):
            walk.end_offset = next_base
            if next_base > walk.producers_from:
                _note_producers(segment, walk)
        else:
            whole = _walk_all(segment, walk)
            if not whole or walk.end_offset != next_base:
                if sound:
                    # Records were lost after a clean write. Cutting the log here would hide that (decision 0024).
                    raise _damage(segment, walk.end_offset, next_base)
                _cut(segment)
                _delete_rest(segments[at + 1 :], walk)
                # The log ends here, so that this segment is the newest: it is not sealed.
                return segments[: at + 1]
            segment.add_time_entry()
            segment.flush_indexes()
            segment.seal()
        segment.close_unless_sent()
    newest = segments[-1]
    if not (_walk_all(newest, walk) if rebuild else _walk_end(newest, walk)):
        _cut(newest)
    return segments


def _damage(segment: Segment, end_offset: int, next_base: int) -> LogDamagedError:
    return LogDamagedError(
        f"offsets {end_offset} to {next_base - 1} of {segment.path} and the records after them are missing or damaged",
        hint="restore the partition's files from a backup; or move the segments up to this one away to start"
        f" the log at offset {next_base}",
    )


def _delete_rest(segments: list[Segment], walk: _Walk) -> None:
    for segment in segments:
        _logger.warning(
            "deleting segment %s: log ends before it, at offset %d", segment.path.name, walk.end_offset
        )
        remove_files(segment.set_aside())


def _cut(segment: Segment) -> None:
    torn = segment.file_size() - segment.size
    _logger.warning("cutting %d incomplete bytes from the end of %s", torn, segment.name)
    segment.cut(segment.size)


def _walk_all(segment: Segment, walk: _Walk) -> bool:
    """Walk a whole segment and make its indexes anew; return False where something in it is torn."""
    segment.time_is_sure = True
    return _walk_from(segment, walk, 0)


def _walk_end(segment: Segment, walk: _Walk) -> bool:
    """Walk the newest segment from where its indexes end; return False where something in it is torn."""
    sound = segment.times.load()
    # In this order, because both must be loaded, even if the first is damaged.
    sound = segment.offsets.load() and sound
    segment.size = segment.file_size()
    start = _start_of_walk(segment, walk.producers_from) if sound else 0
    return _walk_from(segment, walk, start) if start else _walk_all(segment, walk)


def _walk_from(segment: Segment, walk: _Walk, start: int) -> bool:
    file_size = segment.file_size()
    if file_size:
        segment.created_ms = segment.modified_ms()
    if not start:
        segment.offsets.clear()
        segment.times.clear()
        segment.max_time_ms = NO_TIME
    segment.size = start
    walk.end_offset = segment.base_offset
    # An empty file cannot be mapped.
    if start < file_size:
        with (
            mmap.mmap(segment.written_file().fd, file_size, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as view,
        ):
            _walk(segment, walk, view)
    return segment.size == file_size


def _start_of_walk(segment: Segment, producers_from: int) -> int:
    """Return the position from which the newest segment has to be walked; 0 if its indexes cannot be trusted.

    That is the last index entry before the producers' snapshot; later entries are dropped. The largest time of the
    batches before it is read from the time index.
    """
    entry = segment.offsets.floor(producers_from - 1 - segment.base_offset)
    if entry is None or not begins_batch(segment, entry):
        return 0
    start = entry[1]
    header = segment.header_at(start)
    segment.offsets.truncate(segment.offsets.values_below(start))
    segment.times.truncate(segment.times.values_below(header.base_offset - segment.base_offset))
    segment.first_time_ms = segment.header_at(0).max_timestamp
    return start if take_largest_time(segment, segment.times.last(), before=start) else 0


def _walk(segment: Segment, walk: _Walk, view: memoryview) -> None:
    """Note every whole batch from `segment.size` on; stop at the first that is incomplete or invalid."""
    producers, expected = walk.producers, segment.base_offset
    position, end = segment.size, len(view)
    noted = position + _NOTED_EVERY_BYTES
    while position + HEADER_BYTES <= end:
        header = HEADER.unpack_from(view, position)
        offset, length, _, magic, crc, _, last_delta, _, max_time_ms, producer_id, epoch, sequence, _ = header
        size = length + OVERHEAD_BYTES
        # Checked before the CRC: in a torn batch, the length in the header can be any number.
        if (
            size < HEADER_BYTES
            or position + size > end
            or magic != MAGIC
            or offset < expected
            or last_delta < 0
        ):
            return
        if checksum.crc32c(view[position + ATTRIBUTES_AT : position + size]) != crc:
            return
        last_offset = offset + last_delta
        segment.record_batch(position, size, offset, last_offset, max_time_ms, walk.interval)
        if producer_id > NO_PRODUCER_ID and offset >= walk.producers_from:
            producers.record_batch(producer_id, epoch, sequence, last_delta, offset, max_time_ms)
        position += size
        expected = walk.end_offset = last_offset + 1
        if position >= noted:
            noted = position + _NOTED_EVERY_BYTES
            walk.progress.report(segment, position, end)
