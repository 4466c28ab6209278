"""Syncing logs to the disk: after so many records, at such an age, many logs in one round.

A log requests a sync when `flush.messages` records are not synced, or when the oldest of them is `flush.ms` old.
Requests that are made in one turn of the loop, or while the disk is busy, share the next round: the disk thread syncs
each file once, however many producers wait for it.
After a failed sync, the log accepts no more records: the kernel may have dropped data that it could not write, and the
next sync would still succeed.
Follows: Kafka `UnifiedLog.append` and `flush`, `LogManager.flushDirtyLogs`; there every append syncs for itself.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from tidegate.scheduling import Scheduler, Timer
from tidegate.storage.log.file_slice import SegmentFile
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.segment import Segment
from tidegate.storage.private_files import opened_file
from tidegate.storage.topics.topic_settings import NEVER

__all__ = ["GroupCommit", "SyncFile", "sync_path"]

SyncFile = Callable[[int], None]
"""Brings a file, given by descriptor, to the disk, as `os.fdatasync` does. Raises `OSError`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Work of one round for one log: once `files` are synced, all records before `end_offset` are."""

    log: PartitionLog
    files: list[SegmentFile]
    end_offset: int
    new_names: bool


class GroupCommit:
    """The syncs of one data directory. Called on the event loop; the last part below runs on the disk thread."""

    def __init__(
        self, worker: Executor, sync: SyncFile, *, metadata: Path, on_failed: Callable[[], None]
    ) -> None:
        """Collect requests until `start`.

        metadata: the file in which a log's topic may be new; synced with the log's own name.
        on_failed: called on the loop when a log has failed.
        """
        self._worker = worker
        self._sync = sync
        self._metadata = metadata
        self._on_failed = on_failed
        self._scheduler: Scheduler | None = None
        self._asked: dict[PartitionLog, None] = {}
        self._waiters: list[Callable[[], None]] = []
        self._timers: dict[PartitionLog, Timer] = {}
        self._busy = False
        self._closed = False

    def start(self, scheduler: Scheduler) -> None:
        """Begin to sync, first the logs for which a sync was requested so far."""
        self._scheduler = scheduler
        self._begin_soon()

    def watch(self, log: PartitionLog) -> PartitionLog:
        """Follow the flush settings of a log from now on, and return it."""
        log.on_sealed = self._sealed
        log.on_sync_due = self._due
        self._note_asked(log, log.recovery_point)
        if log.end_offset > log.recovery_point and log.settings.flushes:
            self.ask(log)  # a killed process left records that are not synced
        return log

    def ask(self, log: PartitionLog) -> None:
        """Request a sync of everything appended to `log`, in the next round."""
        self._note_asked(log, log.end_offset)
        timer = self._timers.pop(log, None)
        if timer is not None:
            timer.cancel()
        self._asked[log] = None
        self._begin_soon()

    def wait(self, logs: list[PartitionLog], on_synced: Callable[[], None]) -> None:
        """Request a sync of `logs` in the next round; call `on_synced` after it, on the loop, even if the sync failed.

        Afterwards `log.recovery_point` is the offset up to which a log is synced.
        """
        for log in logs:
            self.ask(log)
        self._waiters.append(on_synced)

    def close(self) -> None:
        """Begin no more rounds; waiting callbacks are not called."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._asked.clear()
        self._waiters.clear()

    # --- on the loop

    def _note_asked(self, log: PartitionLog, offset: int) -> None:
        """Set the offset from which no sync has been requested, and the end offset at which `_due` is called."""
        log.sync_asked_offset = offset
        log.sync_due_offset = offset + (log.settings.flush_messages if log.settings.flush_ms == NEVER else 1)

    def _due(self, log: PartitionLog) -> None:
        """Request a sync if there are enough records; otherwise request it when the oldest record is old enough."""
        enough_offset = log.sync_asked_offset + log.settings.flush_messages
        if log.end_offset >= enough_offset:
            self.ask(log)
            return
        log.sync_due_offset = enough_offset
        if log not in self._timers and self._scheduler is not None:
            self._timers[log] = self._scheduler.call_later(log.settings.flush_ms / 1000, self._old, log)

    def _old(self, log: PartitionLog) -> None:
        self._timers.pop(log, None)
        self.ask(log)

    def _sealed(self, log: PartitionLog, segment: Segment, file: SegmentFile) -> None:
        self._worker.submit(self._sync_sealed, log, segment.base_offset, log.end_offset, file)

    def _begin_soon(self) -> None:
        """Begin a round in the next turn, so that all requests of this turn share it."""
        if self._asked and not self._busy and self._scheduler is not None:
            # Busy until `_over`: syncs that are requested while the disk works make up the next round.
            self._busy = True
            self._scheduler.call_soon(self._begin)

    def _begin(self) -> None:
        if self._closed:
            return
        asked, self._asked = self._asked, {}
        waiters, self._waiters = self._waiters, []
        jobs = [job for job in map(_job, asked) if job is not None]
        self._worker.submit(self._run, jobs, waiters)

    def _over(self, waiters: list[Callable[[], None]]) -> None:
        if self._closed:
            return
        self._busy = False
        for on_synced in waiters:
            on_synced()
        self._begin_soon()

    # --- on the disk thread

    def _run(self, jobs: list[_Job], waiters: list[Callable[[], None]]) -> None:
        assert self._scheduler is not None
        try:
            for job in jobs:
                if self._succeeds(job) and job.end_offset > job.log.recovery_point:
                    # Set before `_over` is scheduled: waiting callbacks compare it on the loop.
                    job.log.recovery_point = job.end_offset
        finally:
            self._scheduler.call_soon_threadsafe(self._over, waiters)

    def _succeeds(self, job: _Job) -> bool:
        """Sync the files of a log; return whether they, and all before them, are on the disk."""
        if job.log.failed:
            return False
        try:
            for file in job.files:
                self._sync(file.fd)
            if job.new_names:
                # A synced file is still lost if its name or its topic's row is not on the disk.
                for path in (job.log.directory, job.log.directory.parent, self._metadata):
                    sync_path(path)
        except OSError as error:
            self._fail(job.log, error)
            return False
        return True

    def _sync_sealed(self, log: PartitionLog, base_offset: int, end_offset: int, file: SegmentFile) -> None:
        """Sync a closed segment. If the recovery point has reached it, move that to the segment's end."""
        job = _Job(log=log, files=[file], end_offset=end_offset, new_names=False)
        # Only without a gap: an earlier segment may not be synced yet.
        if self._succeeds(job) and base_offset <= log.recovery_point < end_offset:
            log.recovery_point = end_offset

    def _fail(self, log: PartitionLog, error: OSError) -> None:
        log.failed = True
        _logger.error("cannot sync %s: %s; it accepts no more records", log.directory.name, error)
        if self._scheduler is not None:
            self._scheduler.call_soon_threadsafe(self._on_failed)


def _job(log: PartitionLog) -> _Job | None:
    """Return the job of syncing a log; None if the log is deleted or its files cannot be opened."""
    if log.deleted:
        return None
    try:
        # This also writes what the turn has gathered, so that the files hold all records before `end_offset`.
        files = log.unsynced_files()
    except OSError as error:  # no descriptor left: waiting requests are refused; the next round may succeed
        name = log.directory.name
        _logger.warning(
            "cannot open %s to sync it: %s", name, error, extra={"repeats": f"open to sync {name}"}
        )
        return None
    return _Job(
        log=log,
        files=files,
        end_offset=log.end_offset,
        new_names=log.segments[-1].base_offset >= log.recovery_point,
    )


def sync_path(path: Path) -> None:
    """Sync a file or directory by name; one that is deleted by now needs no sync."""
    with contextlib.suppress(FileNotFoundError), opened_file(path) as fd:
        os.fsync(fd)
