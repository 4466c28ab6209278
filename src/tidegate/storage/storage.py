"""The data directory of a node: opened, recovered, kept and closed.

    <data>/.lock                              held while a process uses the directory
    <data>/.kafka_cleanshutdown               the last process closed every log
    <data>/recovery-point-offset-checkpoint   up to where each log is known to be synced
    <data>/tidegate.db                        topics, quotas, producer ids, groups, committed offsets
    <data>/groups-0.journal, groups-1.journal  commits of groups that are not in the database yet
    <data>/<topic>-<partition>/               a log

The marker, the checkpoint and the logs are Kafka's formats; the metadata is not.
"""

import contextlib
import itertools
import logging
import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidegate.clock import Clock
from tidegate.storage.checkpoint_file import CHECKPOINT, CheckpointFile
from tidegate.storage.config import StorageConfig
from tidegate.storage.data_directory import (
    DATABASE,
    NO_BOOT,
    current_boot_id,
    lock_directory,
    new_cluster_id,
    prepare_open_files,
)
from tidegate.storage.errors import StorageError
from tidegate.storage.groups.committed_offsets import OffsetTable
from tidegate.storage.groups.group_journal import GroupJournal
from tidegate.storage.groups.group_writes import GroupWrites
from tidegate.storage.log.all_logs import close_logs, delete_expired, mark_removed
from tidegate.storage.log.group_commit import GroupCommit, SyncFile, sync_path
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.producers import ProducerMemory
from tidegate.storage.log.recovery import Progress, open_log
from tidegate.storage.log.turn_writes import TurnWrites
from tidegate.storage.log.unpacking import Unpacker
from tidegate.storage.metadata.consistency import check_owner, check_store
from tidegate.storage.metadata.store import MetadataStore, StoredTopic
from tidegate.storage.private_files import make_private_directory, replace_private_file
from tidegate.storage.removal import FileRemoval
from tidegate.storage.topics.topic_settings import NEVER, TopicSettings
from tidegate.storage.topics.topics import Topics
from tidegate.storage.worker_thread import WorkerThread

__all__ = ["Storage"]

_CLEAN_MARKER = ".kafka_cleanshutdown"
_SAVED_AT_BYTES = 256 * 1024  # appended since the indexes were written last: they are written within a second
_CHECKPOINT_AT_BYTES = 4 << 20  # of the store's last commits: SQLite's own default
_SAVE_ALL_EACH = 10  # every so many seconds all that has grown is written
_logger = logging.getLogger(__name__)


class Storage:
    """Everything a node keeps. Used from one thread, the event loop's."""

    def __init__(
        self,
        directory: Path,
        config: StorageConfig,
        clock: Clock,
        store: MetadataStore,
        lock_fd: int,
        sync: SyncFile,
    ) -> None:
        """Assemble the parts of a storage; call `open` to create one."""
        self.directory = directory
        self.config = config
        self.clock = clock
        self.store = store
        self.cluster_id = store.kept_meta("cluster_id", new_cluster_id)
        self.closed = False
        self._removal = FileRemoval(lambda: sync_path(store.recent_path))
        self.topics = Topics(
            directory,
            store,
            config,
            open_log=self._open_log,
            forget_offsets=self._forget_offsets,
            remove=self._removal.remove_directory,
        )
        self._lock_fd = lock_fd
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tidegate-disk")
        self.turn = TurnWrites()
        self.unpacker = Unpacker()
        self.commits = GroupCommit(self._worker, sync, metadata=store.recent_path, on_failed=self._distrust)
        self.offsets = OffsetTable()
        self._group_worker = WorkerThread("tidegate-groups")
        waits = config.log_flush_interval_messages != NEVER or config.log_flush_interval_ms != NEVER
        self._journal = GroupJournal(directory)
        self.group_writes = GroupWrites(
            store,
            self.offsets,
            self._group_worker,
            sync=sync_path if waits else None,
            journal=None if waits else self._journal,
        )
        self._producer_ids = range(0)
        self._producer_memory = ProducerMemory()
        self._lost: str | None = None
        self._saves = 0
        self._topics_synced = self._groups_synced = 0
        self._checkpoint = CheckpointFile(directory)

    @classmethod
    def open(
        cls, directory: str | Path, config: StorageConfig, clock: Clock, *, sync: SyncFile = os.fdatasync
    ) -> "Storage":
        """Open the data directory, made when absent, and recover its logs. Raises `StorageError`.

        `sync` brings a log file to the disk; it runs on a thread of its own.
        """
        directory = Path(directory)
        cls.check_owner(directory)
        try:
            make_private_directory(directory)
            lock_fd = lock_directory(directory)
        except OSError as error:
            raise StorageError(
                f"cannot use data directory {str(directory)!r}: {error.strerror}",
                hint="use a directory that the broker can write to (--data, log.dirs)",
            ) from error
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(os.close, lock_fd)
                prepare_open_files(config.max_partitions)
                check_store(directory, directory / DATABASE, directory / CHECKPOINT)
                store = MetadataStore(directory / DATABASE)
                undo.callback(store.close)
                storage = cls(directory, config, clock, store, lock_fd, sync)
                undo.callback(storage._journal.close)
                storage._recover()
                undo.pop_all()
        except OSError as error:
            raise StorageError(
                f"cannot open data directory {str(directory)!r}: {error}",
                hint="check the permissions of its files and the free space on its disk",
            ) from error
        return storage

    @staticmethod
    def check_owner(directory: Path) -> None:
        """Refuse the data directory of another broker, without writing to it. Raises `StorageError`."""
        check_owner(directory, directory / DATABASE)

    def _recover(self) -> None:
        marker = self.directory / _CLEAN_MARKER
        boot_id = current_boot_id()
        trust = marker.exists() or (boot_id != NO_BOOT and self.store.meta("boot_id") == boot_id)
        points = self._checkpoint.read()
        starts = self.store.start_offsets()
        marker.unlink(missing_ok=True)
        progress = Progress()
        count = sum(stored.partitions for stored in self.store.topics())
        numbers = itertools.count(1)

        def open_stored(
            stored: StoredTopic, partition: int, directory: Path, settings: TopicSettings
        ) -> PartitionLog:
            progress.at = f" (partition {next(numbers)} of {count})"
            key = stored.topic_id, partition
            start_offset = starts.get(key, 0)
            log = self._open_log(
                directory,
                settings,
                stored,
                points.get((stored.name, partition), 0),
                start_offset=start_offset,
                trust_writes=trust,
                progress=progress,
            )
            if log.start_offset < start_offset:  # later records are none of those that were lost
                self.store.put_start_offsets({key: log.start_offset})
            return log

        self.topics.load(open_stored, points)
        self.store.set_meta("boot_id", boot_id)  # set last: an interrupted recovery is repeated
        self._replay_journal()
        self.store.groups.load_offsets(self.offsets)
        self.topics.watch_log = self.commits.watch
        self.topics.before_create = self._forget_positions
        self._topics_synced = self.topics.version

    def _replay_journal(self) -> None:
        """Apply the changes that a killed process left in the journal to the database."""
        records = self._journal.read(self.store.groups.journaled())
        if records:
            self.store.groups.replay(records, self._journal.number)
            sync_path(self.store.recent_path)
        self._journal.empty()

    def _forget_offsets(self, topic: str) -> Iterator[None]:
        """Forget the offsets committed in a topic that was deleted, those that are being written included."""
        self.group_writes.drop_topic(topic)
        yield from self.offsets.forget_topic(topic)
        while self.store.groups.forget_topic(topic):
            yield

    def _open_log(
        self,
        directory: Path,
        settings: TopicSettings,
        stored: StoredTopic,
        recovery_point: int = 0,
        *,
        start_offset: int = 0,
        trust_writes: bool = True,
        progress: Progress | None = None,
    ) -> PartitionLog:
        """Open a log, a new one by default; let the disk thread sync it and remove its old files."""
        log = open_log(
            directory,
            settings,
            producer_expiration_ms=self.config.producer_id_expiration_ms,
            producer_memory=self._producer_memory,
            producer_owner=stored.principal,
            start_offset=start_offset,
            recovery_point=recovery_point,
            trust_writes=trust_writes,
            progress=progress,
        )
        log.on_set_aside = self._removal.remove_files
        return self.commits.watch(log)

    def follow_in_slices(self, config: StorageConfig) -> Generator[None, None, None]:
        """Follow other settings of the node: in force for each log when it is over, and for new ones at once."""
        self.config = config
        yield from self.topics.follow_in_slices(config)
        for log in self._all_logs():
            log.producers.expiration_ms = config.producer_id_expiration_ms
            yield

    def take_producer_id(self) -> int:
        """Return a producer id that was never given out before."""
        if not self._producer_ids:
            self._producer_ids = self.store.take_producer_ids()
        producer_id, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
        return producer_id

    def clean(self, now_ms: int) -> Iterator[None]:
        """Delete expired segments and producers, and store the synced offsets, in slices of about a millisecond."""
        self._producer_memory.begin_period()
        yield from delete_expired(self._all_logs(), now_ms)
        yield from self._checkpoint.write_later(self.topics, self._worker.submit)

    def save_positions(self) -> Iterator[None]:
        """Write the newest index entries and producers of logs that have grown, so that a start after a kill is fast.

        Each yield is a pause after at most a slice of the work for one log.
        """
        self._saves += 1
        least_bytes = 1 if self._saves % _SAVE_ALL_EACH == 0 else _SAVED_AT_BYTES
        for log in self._all_logs():
            if log.unsaved_bytes >= least_bytes:
                yield from log.checkpoint_in_slices()
                yield
        self._group_worker.submit(self._checkpoint_store)
        written = self.group_writes.written
        if self._topics_synced != self.topics.version or self._groups_synced != written:
            self._topics_synced, self._groups_synced = self.topics.version, written
            self._worker.submit(self._sync_recent)

    def _sync_recent(self) -> None:
        """Sync the last commits of the database, and the journal. On the disk thread."""
        sync_path(self.store.recent_path)
        self._journal.sync()

    def _checkpoint_store(self) -> None:
        """Move the last commits into the database, and make its file smaller. On the thread that writes groups."""
        self.store.checkpoint(_CHECKPOINT_AT_BYTES)
        self.store.shrink()
        self.group_writes.retire_journal()

    def _all_logs(self) -> list[PartitionLog]:
        return [log for topic in self.topics for log in topic.logs]

    def check_files(self) -> Iterator[None]:
        """Check for files that were removed while in use; log them, and refuse further requests for them.

        Each yield is a pause after a few microseconds.
        """
        if not self.directory.is_dir():
            self._lose(f"data directory {str(self.directory)!r} was deleted while in use")
        self._lose(self.store.check_files())
        self._journal.check_files()
        yield from mark_removed(self._all_logs())

    def _lose(self, problem: str | None) -> None:
        """Record and log, once, what has happened to the database or to the whole directory."""
        if problem is not None and self._lost is None:
            self._lost = problem
            _logger.error(
                "%s: changes of topics, quotas and offsets fail now; hint: stop the broker and restore the data",
                problem,
            )

    def close(self) -> None:
        """Sync and close every log and leave the marker of a clean end."""
        if self.closed:
            return
        self.closed = True
        self.commits.close()
        all_written = self.group_writes.close()
        self.unpacker.close()
        self._group_worker.close()
        self._worker.shutdown(wait=True)
        self._removal.close()
        try:
            if self._close_logs():
                replace_private_file(self.directory / _CLEAN_MARKER, b'{"version":0,"brokerEpoch":-1}')
        except OSError as error:
            _logger.error("clean shutdown failed: %s; the next start recovers the logs", error)
        self._close_journal(all_written)
        self.store.close()
        os.close(self._lock_fd)

    def _close_journal(self, all_written: bool) -> None:
        """Close the journal; empty it if the database has all of it, and is synced."""
        try:
            if all_written:
                sync_path(self.store.recent_path)
                self._journal.empty()
        except OSError as error:
            _logger.warning("cannot empty the groups' journal: %s; the next start reads it", error)
        self._journal.close()

    def _close_logs(self) -> bool:
        """Sync and close every log; return whether all of them are whole. Raises `OSError`."""
        logs = self._all_logs()
        close_logs(logs)
        self._checkpoint.write(self.topics)
        return not any(log.failed for log in logs)

    def _distrust(self) -> None:
        """Reset the stored boot id: the next start checks all that is not known to be synced, as after a power cut."""
        if self.closed:
            return
        try:
            self.store.set_meta("boot_id", NO_BOOT)
        except StorageError as error:  # the same disk: nothing more can be done
            _logger.warning("cannot record a failed sync in the database: %s", error)

    def _forget_positions(self, name: str) -> None:
        """Remove a deleted topic from the checkpoint: its positions do not apply to a new topic of the same name."""
        if name in self._checkpoint.names and name not in self.topics.by_name:
            self._checkpoint.try_to_write(self.topics)
