"""Changes of groups and offsets, gathered and written together by a thread of their own.

A change is over when SQLite has handed it to the kernel: it outlives the process from then on, as in Kafka. Where
`log.flush.interval.messages` or `log.flush.interval.ms` is set a change is over when it is on the disk. Those that come
while others are written share the next transaction and the next sync. Once a change is over its offsets are in
`OffsetTable`, from which they are answered.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tidegate.scheduling import Scheduler
from tidegate.storage.committed_offsets import OffsetTable
from tidegate.storage.errors import StorageError
from tidegate.storage.group_rows import GroupChange
from tidegate.storage.store import MetadataStore
from tidegate.storage.worker_thread import WorkerThread

__all__ = ["CHECKPOINT_AT_BYTES", "ROWS_AT_ONCE", "GroupWrites", "SyncPath"]

SyncPath = Callable[[Path], None]
"""Brings a file, given by its path, to the disk. Raises `OSError`."""

ROWS_AT_ONCE: Final = 800
"""Rows of one transaction, written in a millisecond or two: so long another change of the store may wait."""
CHECKPOINT_AT_BYTES: Final = 32 << 20
"""Last commits after which they are moved into the database before more are written: a tenth of a second."""

_LOOK_EVERY = 64  # changes, of up to 200 rows each, between two looks at how many bytes that made

_OnOver = Callable[[bool], None]
_logger = logging.getLogger(__name__)


class _Entry:
    """A change that is not yet over, and the calls to make when it is.

    dropped: topics of its offsets that were deleted meanwhile.
    """

    __slots__ = ("change", "dropped", "on_over")

    def __init__(self, change: GroupChange, on_over: _OnOver) -> None:
        self.change = change
        self.on_over = [on_over]
        self.dropped: set[str] = set()

    @property
    def group_id(self) -> str | None:
        """The group that it is all about, None where it has anything else."""
        change = self.change
        if change.group is None or change.offsets or change.forgotten or change.removed is not None:
            return None
        return change.group.group_id


class GroupWrites:
    """The changes of one store. Called on the event loop.

    Of a group that is given several times before it is written the last counts, in the place of the first: a thousand
    static members of one that are started anew would write a thousand members each. Not past anything else that is
    said of the group in between: a member that is told of a generation finds what was committed before it.
    """

    def __init__(
        self,
        store: MetadataStore,
        offsets: OffsetTable,
        worker: WorkerThread,
        sync: SyncPath | None = None,
    ) -> None:
        """Make one that gathers until `start`. sync: brings what was written to the disk before a change is over."""
        self._store = store
        self._offsets = offsets
        self._worker = worker
        self._sync = sync
        self._scheduler: Scheduler | None = None
        self._gathered: deque[_Entry] = deque()
        self._groups: dict[
            str, _Entry
        ] = {}  # of what is gathered of each group the last, if it is the group itself
        self._writing: list[_Entry] = []
        self._planned = self._closed = False
        self._since_look = 0  # transactions since the size of the file was looked at
        self.written = 0
        """How many transactions there were: what is to be synced has grown when this has."""

    def start(self, scheduler: Scheduler) -> None:
        """Begin with what was gathered so far."""
        self._scheduler = scheduler
        self._plan()

    def add(self, change: GroupChange, on_over: _OnOver) -> None:
        """Keep a change; `on_over` is called once, later, on the loop: whether it is kept."""
        entry = _Entry(change, on_over)
        group_id = entry.group_id
        before = None if group_id is None else self._groups.get(group_id)
        if before is not None:
            before.change = change
            before.on_over.append(on_over)
            return
        self._gathered.append(entry)
        if self._groups:
            for named in change.group_ids:
                self._groups.pop(named, None)
        if group_id is not None:
            self._groups[group_id] = entry
        self._plan()

    def drop_topic(self, topic: str) -> None:
        """Forget what is under way for a topic that was deleted, once it is written."""
        for entry in (*self._writing, *self._gathered):
            if any(at.topic == topic for at in entry.change.offsets):
                entry.dropped.add(topic)

    def close(self) -> None:
        """Write what was gathered, when what is under way has ended; nothing that waits is called."""
        self._closed = True
        self._worker.wait()
        while self._gathered:
            self._write([entry.change for entry in self._some()])

    def _plan(self) -> None:
        """Write what has gathered, unless something is being written: what comes meanwhile shares the next transaction.

        Where a sync is waited for, write in the next turn, so that all changes of this one share it.
        """
        if self._gathered and not (self._planned or self._writing) and self._scheduler is not None:
            if self._sync is None:
                self._turn()
            else:
                self._planned = True
                self._scheduler.call_soon(self._turn)

    def _turn(self) -> None:
        self._planned = False
        if not self._closed:
            self._writing = self._some()
            self._worker.submit(self._run, [entry.change for entry in self._writing])

    def _some(self) -> list[_Entry]:
        """Take as many changes as one transaction may have, at least one."""
        some: list[_Entry] = []
        rows = 0
        if len(self._gathered) == 1:  # nearly always: its rows need not be counted
            some.append(self._gathered.popleft())
        while self._gathered:
            rows += self._gathered[0].change.rows
            if some and rows > ROWS_AT_ONCE:
                break
            some.append(self._gathered.popleft())
        for entry in some:
            group_id = entry.group_id
            if group_id is not None and self._groups.get(group_id) is entry:
                del self._groups[group_id]
        return some

    def _over(self, written: Sequence[bool]) -> None:
        """Answer what was written, and go on with what came meanwhile."""
        if self._closed:
            return
        self.written += 1
        entries = self._writing
        for entry, is_written in zip(entries, written, strict=True):
            self._count(entry, is_written)
        self._writing = []
        self._plan()
        for entry, is_written in zip(entries, written, strict=True):
            for on_over in entry.on_over:
                on_over(is_written)

    def _count(self, entry: _Entry, is_written: bool) -> None:
        """Take what was written over into the table."""
        change = entry.change
        if change.reserved:
            self._offsets.bound.remove(change.owner, change.reserved)
        if not is_written:
            return
        offsets = change.offsets
        if entry.dropped:
            strays = [at for at in offsets if at.topic in entry.dropped]
            offsets = [at for at in offsets if at.topic not in entry.dropped]
            self.add(GroupChange(forgotten=strays), _nothing)
        self._offsets.put_all(offsets, change.owner)
        if change.forgotten:
            self._offsets.forget(change.forgotten)

    # --- on the thread

    def _run(self, changes: list[GroupChange]) -> None:
        assert self._scheduler is not None
        written = [False] * len(changes)
        try:
            written = self._write(changes)
            if self._sync is not None and any(written) and not self._is_synced(self._sync):
                written = [False] * len(changes)
        finally:
            self._scheduler.call_soon_threadsafe(self._over, written)
        self._since_look += len(changes)
        if self._since_look >= _LOOK_EVERY:
            self._since_look = 0
            self._store.checkpoint(CHECKPOINT_AT_BYTES)

    def _write(self, changes: list[GroupChange]) -> list[bool]:
        """Write changes in one transaction, each in its own where that fails; return which were."""
        if len(changes) > 1 and self._applied(changes):
            return [True] * len(changes)
        return [self._applied([change]) for change in changes]

    def _applied(self, changes: list[GroupChange]) -> bool:
        try:
            self._store.written_groups.apply(changes)
        except StorageError as error:
            _logger.error("cannot keep groups and offsets: %s", error, extra={"repeats": "groups"})
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


def _nothing(*_: object) -> None:
    """Do nothing."""
