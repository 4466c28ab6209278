"""Changes of groups and offsets, gathered: one transaction for those of a turn, one sync for all that wait for one.

A change is over when it is on the disk. Those that come while a sync is under way share the next one; with a
thousand consumers that commit at once there are a few transactions and two or three syncs.
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from tidegate.scheduling import Scheduler
from tidegate.storage.errors import StorageError
from tidegate.storage.group_rows import OFFSETS_AT_ONCE, GroupChange, GroupRows

__all__ = ["GroupWrites", "SyncPath"]

SyncPath = Callable[[Path], None]
"""Brings a file, given by its path, to the disk. Raises `OSError`."""

_OnOver = Callable[[bool], None]
_logger = logging.getLogger(__name__)


class _Entry:
    """A change that is not yet written, and who is told when it is on the disk."""

    __slots__ = ("change", "on_over")

    def __init__(self, change: GroupChange, on_over: _OnOver) -> None:
        self.change = change
        self.on_over = [on_over]

    @property
    def group_id(self) -> str | None:
        """The group that it is all about, None where it has anything else."""
        change = self.change
        if change.group is None or change.offsets or change.forgotten or change.removed is not None:
            return None
        return change.group.group_id


class GroupWrites:
    """The changes of one store. Called on the event loop; syncs run on the disk thread.

    Of a group that is given several times before it is written the last counts, in the place of the first: a thousand
    static members of one that are started anew would write a thousand members each. Not past anything else that is
    said of the group in between: who is told of a generation finds what was committed before it.
    """

    def __init__(self, rows: GroupRows, worker: Executor, sync: SyncPath, path: Path) -> None:
        """Make one that gathers until `start`. path: the file that holds what was committed last."""
        self._rows = rows
        self._worker = worker
        self._sync = sync
        self._path = path
        self._scheduler: Scheduler | None = None
        self._gathered: deque[_Entry] = deque()
        self._groups: dict[
            str, _Entry
        ] = {}  # of what is gathered of each group the last, if it is the group itself
        self._written: list[_OnOver] = []
        self._planned = self._syncing = self._closed = False

    def start(self, scheduler: Scheduler) -> None:
        """Begin with what was gathered so far."""
        self._scheduler = scheduler
        self._plan()

    def add(self, change: GroupChange, on_over: _OnOver) -> None:
        """Keep a change; `on_over` is called once, later, on the loop: whether it is on the disk."""
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

    def close(self) -> None:
        """Write what was gathered; nobody who waits is called."""
        self._closed = True
        while self._gathered:
            self._write(self._some())

    def _plan(self) -> None:
        """Write in the next turn, so that all who ask in this one share it."""
        if self._gathered and not self._planned and self._scheduler is not None:
            self._planned = True
            self._scheduler.call_soon(self._turn)

    def _turn(self) -> None:
        self._planned = False
        if self._closed:
            return
        some = self._some()
        written = self._write(some)
        failed = []
        for entry, is_written in zip(some, written, strict=True):
            if is_written:
                self._written += entry.on_over
            else:
                failed += entry.on_over
        self._begin_sync()
        self._plan()
        for on_over in failed:
            on_over(False)

    def _some(self) -> list[_Entry]:
        """Take as many changes as one transaction may have, at least one."""
        some: list[_Entry] = []
        rows = 0
        while self._gathered:
            rows += self._gathered[0].change.rows
            if some and rows > OFFSETS_AT_ONCE:
                break
            some.append(self._gathered.popleft())
        for entry in some:
            group_id = entry.group_id
            if group_id is not None and self._groups.get(group_id) is entry:
                del self._groups[group_id]
        return some

    def _write(self, some: list[_Entry]) -> list[bool]:
        """Write changes in one transaction, each in its own where that fails; return which were."""
        changes = [entry.change for entry in some]
        if len(changes) > 1 and self._applied(changes):
            return [True] * len(changes)
        return [self._applied([change]) for change in changes]

    def _applied(self, changes: list[GroupChange]) -> bool:
        try:
            self._rows.apply(changes)
        except StorageError as error:
            _logger.error("cannot keep groups and offsets: %s", error, extra={"repeats": "groups"})
            return False
        return True

    def _begin_sync(self) -> None:
        if self._written and not self._syncing:
            self._syncing = True
            written, self._written = self._written, []
            self._worker.submit(self._run, written)

    def _over(self, written: list[_OnOver], is_synced: bool) -> None:
        if self._closed:
            return
        self._syncing = False
        self._begin_sync()
        for on_over in written:
            on_over(is_synced)

    # --- on the disk thread

    def _run(self, written: list[_OnOver]) -> None:
        assert self._scheduler is not None
        is_synced = False
        try:
            self._sync(self._path)
            is_synced = True
        except OSError as error:
            _logger.error("cannot sync %s: %s", self._path, error, extra={"repeats": "sync groups"})
        finally:
            self._scheduler.call_soon_threadsafe(self._over, written, is_synced)
