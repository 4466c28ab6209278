"""Changes of groups and offsets: acknowledged from a journal, and written to the database by a thread.

A small change is appended to the journal (`group_journal`) and is kept from then on: it outlives the
process. Journaled changes gather in a batch, in which the newest position and the newest state of a group replace
earlier ones, until the thread writes the batch to the database.

Any other change (a large one, a deletion, and each change while the journal is full) is stored once it is in the
database. So is every change if `log.flush.interval.messages` or `log.flush.interval.ms` is set: a sync then follows,
which waiting changes share. While a change of a group waits for the database, later changes of the group wait behind
it, so the order in the database is the order of the calls.

Once a change is stored, its positions are in `OffsetTable`, which answers requests for them.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tidegate.groups import StoredGroup
from tidegate.scheduling import Scheduler, Timer
from tidegate.storage.errors import StorageError
from tidegate.storage.groups.committed_offsets import OffsetTable
from tidegate.storage.groups.group_journal import GroupJournal
from tidegate.storage.groups.group_records import encode_group, encode_positions
from tidegate.storage.groups.group_rows import GroupChange
from tidegate.storage.groups.waiting_changes import ROWS_AT_ONCE, Batch, OnStored, WaitingChange, last_number
from tidegate.storage.log.group_commit import sync_path
from tidegate.storage.metadata.store import MetadataStore
from tidegate.storage.worker_thread import WorkerThread

__all__ = ["CHECKPOINT_AT_BYTES", "RETRY_AFTER_S", "WRITE_AFTER_S", "GroupWrites", "SyncPath"]

SyncPath = Callable[[Path], None]
"""Brings a file, given by its path, to the disk. Raises `OSError`."""

WRITE_AFTER_S: Final = 0.05
"""Delay before the thread writes journaled changes, in seconds. A full transaction is written at once."""
RETRY_AFTER_S: Final = 1.0
"""Delay before journaled changes that the database did not take are written again, in seconds."""
CHECKPOINT_AT_BYTES: Final = 32 << 20
"""Size of the write-ahead log at which it is moved into the database before more is written: a tenth of a second."""

_JOURNALED_MEMBERS, _JOURNALED_GROUP_BYTES = 50, 16 * 1024
"""Larger groups are not journaled, because encoding one takes a while: the thread writes only their newest state."""
_LOOK_EVERY = 64  # changes, of up to 200 rows each, between two checks of the size of the write-ahead log

_logger = logging.getLogger(__name__)


class GroupWrites:
    """The changes of one store. Called on the event loop.

    If a group gets several new states before one is written, only the last state is written, in the place of the first:
    otherwise a thousand restarted static members would write a thousand members each. A state is not written before
    changes that were made to the group earlier: a member that knows a generation finds the positions that were
    committed before it.

    written: number of changes that were stored. It has grown when there is something new to sync.
    """

    def __init__(
        self,
        store: MetadataStore,
        offsets: OffsetTable,
        worker: WorkerThread,
        sync: SyncPath | None = None,
        journal: GroupJournal | None = None,
    ) -> None:
        """Gather changes until `start`. sync: is called before `on_stored` of a change.

        journal: acknowledges small changes; None if `sync` is given.
        """
        assert sync is None or journal is None
        self._store = store
        self._offsets = offsets
        self._worker = worker
        self._sync = sync
        self._journal = journal
        self._scheduler: Scheduler | None = None
        self._gathered: deque[WaitingChange | Batch] = deque()
        self._batch = Batch()  # the last of `_gathered`, where it is open
        self._batch.is_open = False
        self._waiting = 0  # entries that are gathered
        self._waiting_of: Counter[str] = Counter()  # entries that are not over, by group
        self._groups: dict[str, WaitingChange] = {}  # the group's last entry, if that is a new state
        self._writing: list[WaitingChange | Batch] = []
        self._written: list[bool] = []  # of `_writing`, set by the thread
        self._timer: Timer | None = None
        self._planned = self._closed = False
        self._since_look = 0  # changes since the size of the write-ahead log was checked
        self._last_written = 0  # number of the last record that the database has; set by the thread
        self.written = 0

    def start(self, scheduler: Scheduler) -> None:
        """Begin to write what was gathered so far."""
        self._scheduler = scheduler
        self._plan()

    def add_change(self, change: GroupChange, on_stored: OnStored) -> None:
        """Keep a change. `on_stored` is called once, on the loop, with whether it is kept: at once, or later."""
        if self._closed:
            on_stored(False)
            return
        if self.journal_change(change):
            on_stored(True)
            return
        entry = WaitingChange(change, on_stored)
        group_id = entry.group_id
        before = None if group_id is None else self._groups.get(group_id)
        if before is not None:
            before.change = change
            before.on_stored.append(on_stored)
            return
        # Changes that are journaled from now on come after this one in the database: the order of the calls.
        self._batch.is_open = False
        self._gathered.append(entry)
        self._waiting += 1
        named = change.group_ids
        self._waiting_of.update(named)
        if self._groups:
            # A later state must not be merged into an entry that comes before this change.
            for name in named:
                self._groups.pop(name, None)
        if group_id is not None:
            self._groups[group_id] = entry
        self._plan()

    @property
    def has_journal(self) -> bool:
        """Return whether small changes can be stored at once, which they cannot if each one waits for a sync."""
        return self._journal is not None

    def journal_change(self, change: GroupChange) -> bool:
        """Keep a small change at once; False: nothing is done, and it has to wait for the database (`add_change`)."""
        if self._closed or self._journal is None or not self._append(change, self._journal):
            return False
        self.written += 1
        self._count(change)
        return True

    def drop_topic(self, topic: str) -> None:
        """Drop the positions in a deleted topic from waiting changes. The database has no topic of that id any more."""
        self._batch.is_open = False  # a batch holds one topic of a name
        for unit in (*self._writing, *self._gathered):
            if isinstance(unit, WaitingChange) and topic in unit.change.positions:
                unit.dropped.add(topic)

    def close(self) -> bool:
        """Wait for the current write, then write everything gathered. Call no callback of a change that waits.

        Return whether the database contains everything that is in the journal.
        """
        self._closed = True
        self._worker.wait()
        unwritten = [
            unit
            for unit, is_written in zip(self._writing, self._written, strict=True)
            if isinstance(unit, Batch) and not is_written
        ]
        # Batches that failed come first: nothing overtakes them, as in `_refuse_waiting`.
        return all(self._write_in_order([*unwritten, *self._gathered]))

    # --- the journal

    def _append(self, change: GroupChange, journal: GroupJournal) -> bool:
        """Append a change to the journal; return False where it has to wait for the database."""
        group = change.group
        if change.forgotten or change.removed is not None or self._store.is_lost:
            return False
        if group is None:
            if change.group_id in self._waiting_of:
                # An earlier change of the group waits for the database: this one must not be kept before it.
                return False
            owner = change.owner if change.is_new else None
            record = encode_positions(change.group_id, change.positions, change.topic_ids, owner)
        elif change.positions or group.group_id in self._waiting_of or not _is_small(group):
            return False
        else:
            record = encode_group(group)
        number = journal.append(record)
        if number is None:
            return False
        batch = self._batch
        if not batch.is_open:
            batch = self._batch = Batch()
            self._gathered.append(batch)
        batch.add_change(change, number, len(record))
        if self._timer is None or batch.rows >= ROWS_AT_ONCE:
            self._plan()
        return True

    # --- what is written, and when

    def _plan(self) -> None:
        """Write what has gathered, unless something is being written: what comes meanwhile shares the next transaction.

        Journaled changes that nothing waits for gather for a while. Where a sync is waited for, write in the next turn,
        so that all changes of this one share it.
        """
        if self._planned or self._writing or not self._gathered or self._scheduler is None:
            return
        if self._sync is not None:
            self._planned = True
            self._scheduler.call_soon(self._turn)
        elif self._waiting or self._gathered[0].rows >= ROWS_AT_ONCE:
            self._turn()
        elif self._timer is None:
            self._timer = self._scheduler.call_later(WRITE_AFTER_S, self._turn)

    def _turn(self) -> None:
        self._planned = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not (self._closed or self._writing) and self._gathered:
            self._writing = self._some()
            self._written = [False] * len(self._writing)
            self._worker.submit(self._run, self._writing)

    def _some(self) -> list[WaitingChange | Batch]:
        """Remove and return as many gathered changes as one transaction may have, at least one."""
        some: list[WaitingChange | Batch] = []
        rows = 0
        while self._gathered:
            rows += self._gathered[0].rows
            if some and rows > ROWS_AT_ONCE:
                break
            unit = self._gathered.popleft()
            some.append(unit)
            if isinstance(unit, Batch):
                unit.is_open = False
                continue
            self._waiting -= 1
            group_id = unit.group_id
            if group_id is not None and self._groups.get(group_id) is unit:
                del self._groups[group_id]
        return some

    def _over(self, written: Sequence[bool]) -> None:
        """Answer the changes that were written, and plan to write those that were added meanwhile."""
        if self._closed:
            return
        over: list[tuple[WaitingChange, bool]] = []
        unwritten: list[Batch] = []
        for unit, is_written in zip(self._writing, written, strict=True):
            if isinstance(unit, WaitingChange):
                over.append((unit, is_written))
            elif not is_written:
                unwritten.append(unit)
        if unwritten:
            over += self._refuse_waiting(unwritten)
        self._writing, self._written = [], []
        for entry, is_written in over:
            self._settle(entry, is_written)
        if not unwritten:
            self._plan()
        for entry, is_written in over:
            # Last, because a callback may add changes: everything above is up to date for them.
            for on_stored in entry.on_stored:
                on_stored(is_written)

    def _refuse_waiting(self, unwritten: list[Batch]) -> list[tuple[WaitingChange, bool]]:
        """Schedule another attempt to write batches, before anything else. Return the changes behind them: refused."""
        assert self._scheduler is not None
        # Written now, they would overtake an unwritten batch, which would undo them later (decision 0113).
        entries = [unit for unit in self._gathered if isinstance(unit, WaitingChange)]
        batches = [unit for unit in self._gathered if isinstance(unit, Batch)]
        self._gathered = deque([*unwritten, *batches])
        self._groups.clear()
        self._waiting = 0
        self._timer = self._scheduler.call_later(RETRY_AFTER_S, self._turn)
        return [(entry, False) for entry in entries]

    def _settle(self, entry: WaitingChange, is_written: bool) -> None:
        """Apply a written change to the table of offsets; of one that was not written, release the reserved bytes."""
        change = entry.change
        self.written += 1
        for group_id in change.group_ids:
            self._waiting_of[group_id] -= 1
            if not self._waiting_of[group_id]:
                del self._waiting_of[group_id]
        if not is_written:
            if change.reserved:
                self._offsets.bound.remove(change.owner, change.reserved)
            return
        self._count(change, entry.dropped)

    def _count(self, change: GroupChange, dropped: frozenset[str] | set[str] = frozenset()) -> None:
        """Apply a change that is kept to the table."""
        if change.reserved:
            self._offsets.bound.remove(change.owner, change.reserved)
        for topic, positions in change.positions.items():
            if topic not in dropped:
                self._offsets.set_positions(change.group_id, topic, positions, change.owner)
        if change.forgotten:
            self._offsets.forget(change.forgotten)

    # --- on the thread

    def _run(self, units: list[WaitingChange | Batch]) -> None:
        assert self._scheduler is not None
        try:
            written = self._write(units)
            if self._sync is not None and any(written) and not self._is_synced(self._sync):
                written = [False] * len(units)
            self._written = written
        finally:
            # Before the files: no client waits for a checkpoint, which waits for the disk.
            self._scheduler.call_soon_threadsafe(self._over, self._written)
        self._look_after_files(units, written)

    def _look_after_files(self, units: list[WaitingChange | Batch], written: list[bool]) -> None:
        """Checkpoint the database if its write-ahead log is large, and empty a journal file that is not needed."""
        self._since_look += len(units)
        if self._since_look >= _LOOK_EVERY or any(unit.rows > ROWS_AT_ONCE for unit in units):
            self._since_look = 0
            self._store.checkpoint(CHECKPOINT_AT_BYTES)
        self._last_written = max(
            self._last_written,
            last_number([unit for unit, is_written in zip(units, written, strict=True) if is_written]) or 0,
        )
        self.retire_journal()

    def retire_journal(self) -> None:
        """Empty a journal file if the database contains all of its records and is synced. Runs on the thread."""
        journal = self._journal
        if journal is not None and journal.can_retire(self._last_written) and self._is_synced(sync_path):
            journal.retire()

    def _write(self, units: list[WaitingChange | Batch]) -> list[bool]:
        """Write changes in one transaction or, if that fails, each in its own. Return which were written."""
        if len(units) > 1:
            changes = [change for unit in units for part in unit.parts() for change in part]
            if self._applied(changes, last_number(units)):
                return [True] * len(units)
        return self._write_in_order(units)

    def _write_in_order(self, units: list[WaitingChange | Batch]) -> list[bool]:
        """Write each change in a transaction of its own. After a batch that cannot be written, write nothing more."""
        written: list[bool] = []
        is_blocked = False
        for unit in units:
            written.append(not is_blocked and self._write_unit(unit))
            is_blocked = is_blocked or (isinstance(unit, Batch) and not written[-1])
        return written

    def _write_unit(self, unit: WaitingChange | Batch) -> bool:
        """Write one change, or a batch in several transactions. The last of these stores the batch's record number."""
        last: list[GroupChange] = []
        for part in unit.parts():
            # Without the number: if the process ends in between, the next start takes the whole batch from the journal.
            if last and not self._applied(last, None):
                return False
            last = part
        return self._applied(last, unit.number)

    def _applied(self, changes: list[GroupChange], number: int | None) -> bool:
        try:
            self._store.written_groups.apply(changes, number)
        except StorageError as error:
            _logger.error("cannot store groups and offsets: %s", error, extra={"repeats": "groups"})
            return False
        return True

    def _is_synced(self, sync: SyncPath) -> bool:
        path = self._store.recent_path
        try:
            sync(path)
        except OSError as error:
            _logger.error("cannot sync %s: %s", path, error, extra={"repeats": "sync groups"})
            return False
        return True


def _is_small(group: StoredGroup) -> bool:
    return len(group.members) <= _JOURNALED_MEMBERS and group.size <= _JOURNALED_GROUP_BYTES
