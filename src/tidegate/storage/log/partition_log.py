"""The log of one partition: a directory of segments that is appended to, read by slices, rolled and recovered.

When `append` returns or, with a turn, when the turn ends, the batch is in the file and survives the end of the process.
The files are Kafka's: `<topic>-<partition>/%020d.log` with its indexes and producer snapshots.
Follows: Kafka `UnifiedLog`, `LocalLog`, `LogSegments`.
"""

import contextlib
import errno
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol

from tidegate import error_codes
from tidegate.in_slices import run_at_once
from tidegate.storage.errors import AppendError, LogDamagedError, OffsetOutOfRangeError
from tidegate.storage.log.file_slice import FileSlice, SegmentFile
from tidegate.storage.log.producers import PACKED_AT_ONCE, Producers
from tidegate.storage.log.records import LEAST_RECORD_BYTES, accepted, stamp_append_time
from tidegate.storage.log.segment import Segment, segment_path
from tidegate.storage.private_files import remove_files, replace_private_file
from tidegate.storage.topics.topic_settings import NEVER, TopicSettings
from tidegate.wire import checksum
from tidegate.wire.batch import (
    ATTRIBUTES_AT,
    HEADER,
    HEADER_BYTES,
    NO_PRODUCER_ID,
    OFFSET_LENGTH_EPOCH,
    OVERHEAD_BYTES,
    ZSTD,
    ZSTD_SINCE_PRODUCE,
)

__all__ = ["CHECKPOINT_BYTES", "LEADER_EPOCH", "PartitionLog"]

CHECKPOINT_BYTES = 8 * 1024 * 1024  # appended before index entries and producers are saved
GATHERED_BYTES = 64 * 1024  # batches up to this size may be written together: they are copied
LEADER_EPOCH = 0  # one node leads every partition for ever
NO_TIME = -1
_KEPT_SNAPSHOTS = 2

_MAX_RELATIVE_OFFSET = 2**31 - 1  # an index entry holds the offset in 32 bits

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_unpack = HEADER.unpack_from
_logger = logging.getLogger(__name__)


class Turn(Protocol):
    """Interface that `append` needs of the writer of batches at the end of a turn: `turn_writes.TurnWrites`."""

    def add_log(self, log: "PartitionLog") -> None:
        """Call `log.write_gathered` before any answer leaves."""


class PartitionLog:
    """One partition's records, from `start_offset` up to, not including, `end_offset`."""

    __slots__ = (
        "_active",
        "_last_read",
        "_saving_producers",
        "_unsaved_room_bytes",
        "damaged",
        "deleted",
        "directory",
        "end_offset",
        "failed",
        "on_append",
        "on_sealed",
        "on_set_aside",
        "on_sync_due",
        "producers",
        "recovery_point",
        "segments",
        "settings",
        "snapshots",
        "start_offset",
        "sync_asked_offset",
        "sync_due_offset",
    )

    def __init__(self, directory: Path, settings: TopicSettings, producers: Producers) -> None:
        """Make a log in memory without touching its files; `recovery.open_log` opens one."""
        self.directory = directory
        self.settings = settings
        self.producers = producers
        self.segments: list[Segment] = []
        self.snapshots: list[Path] = []
        self.start_offset = 0
        self.end_offset = 0
        self.recovery_point = 0
        self.sync_asked_offset = 0  # a sync of all records before it has been requested
        self.sync_due_offset = NEVER  # `on_sync_due` is called when the log reaches this end offset
        self.failed = False  # a sync failed: the content of the disk is unknown, and nothing more is appended
        self.damaged = False  # records are missing or cannot be read: nothing is appended or read any more
        self.deleted = False
        self.on_set_aside: Callable[[list[Path]], None] = remove_files
        self.on_append: Callable[[int], None] | None = None
        self.on_sync_due: Callable[[PartitionLog], None] | None = None
        self.on_sealed: Callable[[PartitionLog, Segment, SegmentFile], None] | None = None
        self._saving_producers = False
        self._unsaved_room_bytes = CHECKPOINT_BYTES
        self._last_read: Segment | None = None
        self._active: Segment

    def set_segments(self, segments: list[Segment], *, start_offset: int, end_offset: int) -> None:
        """Set the recovered segments; batches are appended to the last."""
        self.segments = segments
        self._active = segments[-1]
        self.start_offset = start_offset
        self.end_offset = end_offset

    # --- append

    def append(
        self,
        batch: memoryview,
        now_ms: int,
        produce_version: int,
        turn: Turn | None = None,
        owner: str | None = None,
    ) -> tuple[int, int]:
        """Store one batch; return its base offset and the append time to answer (-1 with CreateTime).

        turn: given if the answer is sent only after `turn.end()`; the batch may be written then. owner: the principal
        that the producer's state counts for; None: the owner of the partition's producers.

        `batch` is one whole batch (`records.is_one_batch`). It is patched in place where the memory allows it, and
        copied first where it is read-only. Raises `AppendError` with the client's error code; then nothing was stored.
        """
        offset, _, _, _, crc, attributes, last_delta, _, max_time_ms, producer_id, epoch, sequence, count = (
            _unpack(batch)
        )
        settings = self.settings
        size = len(batch)
        if (
            offset
            or size > settings.max_batch_bytes
            or checksum.crc32c(batch[ATTRIBUTES_AT:]) != crc
            or count != last_delta + 1
            or count <= 0
            or attributes > ZSTD
            or attributes < 0
            or (not attributes and count * LEAST_RECORD_BYTES > size - HEADER_BYTES)
            or (sequence < 0 <= producer_id)
            or (attributes == ZSTD and produce_version < ZSTD_SINCE_PRODUCE)
            or (max_time_ms - now_ms > settings.timestamp_after_max_ms and not settings.log_append_time)
        ):
            batch = accepted(batch, settings, now_ms, produce_version)
        if self.failed:
            why = "is damaged" if self.damaged else "could not be synced"
            raise AppendError(error_codes.KAFKA_STORAGE_ERROR, f"{self.directory.name} {why}")
        if producer_id > NO_PRODUCER_ID:
            repeated = self.producers.check(producer_id, epoch, sequence, last_delta)
            if repeated is not None:
                return repeated
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        append_time_ms = NO_TIME
        if settings.log_append_time:
            stamp_append_time(batch, now_ms)
            append_time_ms = max_time_ms = now_ms
        base_offset = self._write(batch, size, last_delta, max_time_ms, now_ms, turn)
        if producer_id > NO_PRODUCER_ID:
            self.producers.record_batch(
                producer_id, epoch, sequence, last_delta, base_offset, max_time_ms, owner
            )
        if self.end_offset >= self.sync_due_offset and self.on_sync_due is not None:
            self.on_sync_due(self)
        if self.on_append is not None:
            self.on_append(size)
        return base_offset, append_time_ms

    def _write(
        self,
        batch: memoryview,
        size: int,
        last_delta: int,
        max_time_ms: int,
        now_ms: int,
        turn: Turn | None,
    ) -> int:
        """Set the base offset, write the batch to the newest segment and return the offset."""
        base_offset = self.end_offset
        last_offset = base_offset + last_delta
        settings = self.settings
        active = self._active
        try:
            begun_ms = active.first_time_ms
            if not active.size:
                active.created_ms = now_ms
            elif (
                active.size + size > settings.segment_bytes
                or (max_time_ms - begun_ms if begun_ms >= 0 else now_ms - active.created_ms)
                > settings.segment_ms
                or last_offset - active.base_offset > _MAX_RELATIVE_OFFSET
            ):
                active = self._roll()
                active.created_ms = now_ms
            OFFSET_LENGTH_EPOCH.pack_into(batch, 0, base_offset, size - OVERHEAD_BYTES, LEADER_EPOCH)
            interval = settings.index_interval_bytes
            if turn is None or size > GATHERED_BYTES:
                active.append(batch, size, base_offset, last_offset, max_time_ms, interval)
            elif active.gather(batch, size, base_offset, last_offset, max_time_ms, interval):
                turn.add_log(self)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self.mark_damaged(f"{error.filename or active.path} was deleted while in use")
            else:
                name = self.directory.name
                _logger.error("cannot append to %s: %s", name, error, extra={"repeats": f"append {name}"})
            raise AppendError(error_codes.KAFKA_STORAGE_ERROR, str(error)) from error
        self.end_offset = last_offset + 1
        self._unsaved_room_bytes -= size
        if self._unsaved_room_bytes <= 0 and len(self.producers) <= PACKED_AT_ONCE:
            self.checkpoint()  # with more producers it takes too long here: `save_positions` does it later
        return base_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which a client that reads committed records may read: no transaction is open, so the end."""
        return self.end_offset

    def write_gathered(self) -> None:
        """Write what was gathered for the end of the turn. Raises `OSError`; then the log must be made anew."""
        if not self.deleted:
            self._active.written_file()

    def _roll(self) -> Segment:
        """Close the newest segment and begin the next one. Raises `OSError`; then nothing has changed."""
        full = self._active
        file = full.written_file()
        full.add_time_entry()
        full.flush_indexes()
        if len(self.producers) <= PACKED_AT_ONCE:
            self._save_producers()
        segment = Segment(self.directory, self.end_offset)
        segment.create()
        full.seal()
        full.close_unless_sent()
        self._active = segment
        self.segments.append(segment)
        if self.on_sealed is not None:
            self.on_sealed(self, full, file)
        return segment

    # --- read

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> FileSlice | None:
        """Return records from the batch that holds `offset` on, at most `max_bytes`; None where there are none.

        As in Kafka the last batch of the slice may be cut off (clients ignore it), but with `at_least_one` the
        first one is whole even when it is larger. Raises `OffsetOutOfRangeError` and `LogDamagedError`.
        """
        if self.damaged:
            raise LogDamagedError(f"{self.directory.name} is damaged")
        if offset >= self.end_offset or offset < self.start_offset:
            if offset == self.end_offset:
                return None
            raise OffsetOutOfRangeError(
                f"offset is {offset}, expected {self.start_offset} to {self.end_offset}"
            )
        segment = self._active
        try:
            if offset < segment.base_offset:
                segment = self._segment_of(offset)
            position = segment.position_of(offset)
            size = segment.size - position
            if max_bytes < size:
                size = max_bytes
                if max_bytes < segment.largest_batch_bytes:
                    first_bytes = segment.batch_size(position)
                    if max_bytes < first_bytes and not at_least_one:
                        return None
                    size = max(max_bytes, first_bytes)
            elif size <= 0:
                raise self._damage(f"offset {offset} is not in {segment.name}")
            return segment.slice(position, size)
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                raise LogDamagedError(f"cannot read {segment.name} for now: {error.strerror}") from error
            raise self._damage(f"cannot read {segment.name}: {error.strerror}") from error

    def lag_bytes(self, lag: int) -> int:
        """Return the approximate size of the last `lag` records, by the mean size in the newest segment.

        Return -1 if that has no records.
        """
        active = self._active
        records = self.end_offset - active.base_offset
        if not records:
            return -1 if lag else 0
        return lag * active.size // records

    def _segment_of(self, offset: int) -> Segment:
        """Return the older segment with `offset`. Of the older segments, only the one read last stays open."""
        at = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        segment = self.segments[max(at, 0)]
        if segment is not self._last_read:
            if self._last_read is not None and self._last_read.sealed:
                self._last_read.close_unless_sent()
            self._last_read = segment
            problem = segment.problem()
            if problem is not None:
                raise self._damage(problem)
        return segment

    def _damage(self, why: str) -> LogDamagedError:
        self.mark_damaged(why)
        return LogDamagedError(why)

    def mark_damaged(self, why: str | None) -> None:
        """Mark the log as damaged and log `why`, once. It accepts no requests until the next start, which checks it."""
        if self.damaged or self.deleted:
            return
        self.damaged = self.failed = True
        if why is not None:
            _logger.error(
                "%s is damaged: %s; produce and fetch requests get error 56 (KAFKA_STORAGE_ERROR)",
                self.directory.name,
                why,
            )
        if self.on_append is not None:
            self.on_append(0)  # ends the wait of fetches

    def problem(self) -> str | None:
        """Return what has happened to the newest file while it is in use."""
        return None if self.damaged or self.deleted else self._active.problem()

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all records."""
        return sum(segment.size for segment in self.segments)

    # --- keeping

    def checkpoint(self) -> None:
        """Write the newest index entries and the producers, so that recovery need not walk far."""
        run_at_once(self.checkpoint_in_slices())

    def checkpoint_in_slices(self) -> Generator[None, None, None]:
        """Write what `checkpoint` writes, yielding in between; batches may be appended meanwhile."""
        self._unsaved_room_bytes = CHECKPOINT_BYTES
        if self.failed or self.deleted:  # the directory may be a successor's
            return
        try:
            self._active.written_file()  # indexes must not be ahead of the records
            self._active.flush_indexes()
            yield from self._save_producers_in_slices()
        except OSError as error:  # this only makes recovery longer: the records themselves are written
            _logger.warning(
                "cannot write the indexes of %s: %s", self.directory.name, error, extra={"repeats": "indexes"}
            )

    @property
    def unsaved_bytes(self) -> int:
        """Return the bytes appended since the last `checkpoint`, through which a start after a kill has to walk."""
        return CHECKPOINT_BYTES - self._unsaved_room_bytes if not self.failed else 0

    def _save_producers(self) -> None:
        run_at_once(self._save_producers_in_slices())

    def _save_producers_in_slices(self) -> Generator[None, None, None]:
        """Write a snapshot of the producers at the log's present end."""
        producers = self.producers
        path = segment_path(self.directory, self.end_offset, ".snapshot")
        # While a snapshot is being made, `changed` says what happened after it began; the newest file is older.
        if self.snapshots and not producers.changed and not self._saving_producers:
            with contextlib.suppress(FileNotFoundError):
                self.snapshots[-1] = self.snapshots[-1].rename(path)  # the same producers, to a later offset
                return
        self._saving_producers = True
        try:
            parts = yield from producers.snapshot_in_slices()
            if self.deleted or producers is not self.producers or path < max(self.snapshots, default=path):
                return  # the files are another log's, the log was opened anew, or a later snapshot has been written
            replace_private_file(path, *parts)
        except BaseException:
            producers.changed = True
            raise
        finally:
            self._saving_producers = False
        if path not in self.snapshots:
            self.snapshots.append(path)
        while len(self.snapshots) > _KEPT_SNAPSHOTS:
            self.snapshots.pop(0).unlink(missing_ok=True)

    def raise_start(self, offset: int) -> None:
        """Move the log's start to `offset`, which is not past its end; earlier records can no longer be read.

        The next call of `all_logs.expire` deletes their segments. The caller has stored the offset for the next start.
        Follows: Kafka `UnifiedLog.maybeIncrementLogStartOffset`.
        """
        assert offset <= self.end_offset, "there are no records to leave out"
        self.start_offset = max(self.start_offset, offset)

    def drop_oldest(self) -> None:
        """Delete the oldest segment. If it is the only one, begin a new one first. Raises `OSError`."""
        if len(self.segments) == 1:
            self._begin_anew()
        elif not self.snapshots or self.snapshots[-1].stem < self.segments[1].path.stem:
            self.checkpoint()  # recovery cannot find the producers of deleted batches
        oldest = self.segments.pop(0)
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)
        if self._last_read is oldest:
            self._last_read = None
        self.on_set_aside(oldest.set_aside())

    def _begin_anew(self) -> None:
        """Begin a new segment after one that will be deleted, without the work of closing that one."""
        segment = Segment(self.directory, self.end_offset)
        segment.create()
        self._save_producers()
        self.recovery_point = max(self.recovery_point, self.end_offset)
        self._active = segment
        self.segments.append(segment)

    def unsynced_files(self) -> list[SegmentFile]:
        """Return the files that hold records past the recovery point, and the newest. Raises `OSError`."""
        active, point = self._active, self.recovery_point
        files = [active.written_file()]
        if active.base_offset > point:
            newer = zip(self.segments, self.segments[1:], strict=False)
            files += [SegmentFile(segment.path) for segment, after in newer if after.base_offset > point]
        return files

    def close(self) -> None:
        """Write the state that recovery would otherwise rebuild, sync unsynced records, and close the files."""
        if self.end_offset > self.recovery_point:
            self.checkpoint()
            if not self.failed:
                for file in self.unsynced_files():
                    os.fsync(file.fd)
                self.recovery_point = self.end_offset
        for segment in self.segments:
            segment.close_unless_sent()

    def forget(self) -> None:
        """Close the files of a log that is being deleted; slices on their way out still read them."""
        self.deleted = True
        self.producers.clear()
        for segment in self.segments:
            segment.close_unless_sent()
        if self.on_append is not None:
            self.on_append(0)
