"""Tests of gathered writes: one transaction and one sync for those of a turn, and what becomes of failures."""

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.storage.node import ManualScheduler
from tests.unit.storage.test_group_rows import GROUP, OFFSET

from tidegate.storage.committed_offsets import OFFSETS_AT_ONCE, OffsetTable
from tidegate.storage.group_rows import GroupChange
from tidegate.storage.group_writes import ROWS_AT_ONCE, GroupWrites
from tidegate.storage.store import MetadataStore
from tidegate.storage.worker_thread import WorkerThread


class Disk:
    """A store with its writes, whose syncs are counted, and fail where they are told to."""

    def __init__(self, directory: Path) -> None:
        self.store = MetadataStore(directory / "db")
        self.syncs = 0
        self.fails = False
        self.scheduler = ManualScheduler()
        self.worker = WorkerThread("groups")
        self.offsets = OffsetTable()
        self.writes = GroupWrites(self.store, self.offsets, self.worker, self._sync)
        self.over: list[bool] = []

    def _sync(self, path: Path) -> None:
        assert path.name == "db-wal"
        self.syncs += 1
        if self.fails:
            raise OSError(5, "input/output error")

    def add(self, *parts: int, group_id: str = "g") -> None:
        """Commit in some partitions."""
        offsets = [OFFSET._replace(partition=part, group_id=group_id) for part in parts]
        self.writes.add(GroupChange(offsets=offsets), self.over.append)

    def thread(self) -> None:
        """Do what is to be done on the thread."""
        self.worker.wait()

    def round(self) -> None:
        """Do what is to be done on the loop, on the thread, and on the loop again."""
        self.scheduler.turn()
        self.thread()
        self.scheduler.turn()

    def kept(self) -> list[int]:
        """Return the partitions with an offset of group g."""
        return [at.partition for at in self.store.groups.offsets_of("g")]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Return writes that have started."""
    disk = Disk(tmp_path)
    disk.writes.start(disk.scheduler)
    return disk


def test_changes_of_a_turn_share_a_sync(disk: Disk) -> None:
    """None is over, and answered from the table, before it is on the disk."""
    for part in range(50):
        disk.add(part)
    disk.scheduler.one_turn()
    disk.thread()
    assert (disk.kept(), disk.over, len(disk.offsets)) == (list(range(50)), [], 0)
    disk.round()
    assert (disk.over, disk.syncs) == ([True] * 50, 1)
    assert [at.partition for page in disk.offsets.pages("g") for at in page] == list(range(50))


def test_without_a_sync(tmp_path: Path) -> None:
    """A change is over when the kernel has it: another process reads it from the file."""
    disk = Disk(tmp_path)
    writes = GroupWrites(disk.store, disk.offsets, disk.worker)
    writes.start(disk.scheduler)
    writes.add(GroupChange(offsets=[OFFSET]), disk.over.append)
    disk.round()
    assert (disk.over, disk.syncs, writes.written) == ([True], 0, 1)
    with closing(sqlite3.connect(tmp_path / "db")) as other:
        assert other.execute("SELECT count(*) FROM offsets").fetchone() == (1,)


def test_many_changes_take_several_transactions(disk: Disk) -> None:
    """None keeps other changes of the store waiting for long; a change is never cut."""
    for at in range(0, 3 * ROWS_AT_ONCE, 150):
        disk.add(*range(at, at + 150))
    disk.scheduler.one_turn()
    disk.thread()
    assert len(disk.kept()) == 5 * 150
    for _ in range(4):
        disk.round()
    assert len(disk.over) == 16


def test_offsets_of_a_topic_that_is_deleted_meanwhile(disk: Disk) -> None:
    """What was being written when its topic was deleted is forgotten again, also for a topic of the same name."""
    disk.writes.add(GroupChange(offsets=[OFFSET, OFFSET._replace(topic="u")]), disk.over.append)
    disk.scheduler.one_turn()
    disk.add(2)
    disk.writes.drop_topic("t")
    disk.add(3)
    for _ in range(4):
        disk.round()
    assert disk.over == [True] * 3
    found = [(at.topic, at.partition) for page in disk.offsets.pages("g") for at in page]
    assert found == [("t", 3), ("u", 1)]
    assert [(at.topic, at.partition) for at in disk.store.groups.offsets_of("g")] == found


def groups_gathered(disk: Disk) -> list[int]:
    """Return the generations that are to be written, in their order."""
    return [entry.change.group.generation for entry in disk.writes._gathered if entry.change.group]


def save(disk: Disk, generation: int) -> None:
    """Keep a generation of group g."""
    group = dataclasses.replace(GROUP, generation=generation)
    disk.writes.add(GroupChange(group=group), disk.over.append)


def test_of_a_group_the_last_counts(disk: Disk) -> None:
    """It is written once, in the place of the first, for all who wait: they do not wait behind what came later."""
    save(disk, 0)
    for part in range(3 * OFFSETS_AT_ONCE):
        disk.add(part, group_id="other")
        save(disk, part)
    assert groups_gathered(disk) == [3 * OFFSETS_AT_ONCE - 1]
    for _ in range(6):
        disk.round()
    assert [kept.generation for kept in disk.store.groups.load()] == [3 * OFFSETS_AT_ONCE - 1]
    assert disk.over == [True] * (6 * OFFSETS_AT_ONCE + 1)


@pytest.mark.parametrize("kind", ["offsets", "forgotten", "removed"])
def test_a_group_is_not_written_before_what_was_said_of_it(disk: Disk, kind: str) -> None:
    """Neither before a commit that was accepted earlier, nor before its own removal."""
    between = GroupChange(**{kind: GROUP.group_id if kind == "removed" else [OFFSET]})
    save(disk, 1)
    save(disk, 2)
    disk.writes.add(between, disk.over.append)
    save(disk, 3)
    save(disk, 4)
    changes = [entry.change for entry in disk.writes._gathered]
    assert (groups_gathered(disk), changes[1]) == ([2, 4], between)
    disk.round()
    assert [kept.generation for kept in disk.store.groups.load()] == [4]
    assert disk.over == [True] * 5
    save(disk, 5)
    disk.round()
    assert [kept.generation for kept in disk.store.groups.load()] == [5]


def test_failed_sync(disk: Disk) -> None:
    """It is told so; the next one may succeed."""
    disk.fails = True
    disk.add(1)
    disk.round()
    disk.fails = False
    disk.add(2)
    disk.round()
    assert disk.over == [False, True]


def test_change_that_cannot_be_written_fails_alone(disk: Disk) -> None:
    """Others of the turn are kept all the same."""
    disk.store._db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON offsets WHEN new.partition = 2"
        " BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    for part in (1, 2, 3):
        disk.add(part)
    disk.round()
    assert (sorted(disk.over), disk.kept()) == ([False, True, True], [1, 3])


def test_what_was_gathered_is_written_at_the_end(tmp_path: Path) -> None:
    """Also before anything has started; nobody is told any more."""
    disk = Disk(tmp_path)
    disk.add(1)
    disk.writes.close()
    assert (disk.kept(), disk.over) == ([1], [])
