"""Tests of gathered writes: those of a turn share a transaction and a sync, small ones go to the journal first."""

import dataclasses
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.open_stores import closed_after_test
from tests.unit.storage.node import ManualScheduler
from tests.unit.storage.positions import OFFSET, commit, stored_offsets
from tests.unit.storage.test_group_rows import GROUP, MEMBER

from tidegate.storage.groups import group_journal, group_writes
from tidegate.storage.groups.committed_offsets import OFFSETS_AT_ONCE, CommittedOffset, OffsetTable
from tidegate.storage.groups.group_journal import GroupJournal
from tidegate.storage.groups.group_rows import GroupChange
from tidegate.storage.groups.group_writes import RETRY_AFTER_S, WRITE_AFTER_S, GroupWrites
from tidegate.storage.groups.waiting_changes import ROWS_AT_ONCE
from tidegate.storage.metadata.store import MetadataStore, StoredTopic
from tidegate.storage.worker_thread import WorkerThread


class Disk:
    """A store with its writes, whose syncs are counted, and fail where they are told to."""

    def __init__(self, directory: Path) -> None:
        self.store = closed_after_test(MetadataStore(directory / "db"))
        self.syncs = 0
        self.fails = False
        self.scheduler = ManualScheduler()
        self.worker = WorkerThread("groups")
        self.offsets = OffsetTable()
        self.topics: dict[str, StoredTopic] = {}
        for name in "tuv":
            self.create(name)
        self.writes = GroupWrites(self.store, self.offsets, self.worker, self._sync)
        self.over: list[bool] = []

    def create(self, name: str) -> None:
        """Create a topic."""
        self.topics[name] = StoredTopic(topic_id=str(uuid.uuid4()), name=name, partitions=1)
        self.store.put_topic(self.topics[name])

    def delete(self, name: str) -> None:
        """Delete a topic, and the positions in it, as a storage does."""
        self.store.delete_topic(self.topics.pop(name))
        self.writes.drop_topic(name)
        list(self.offsets.forget_topic(name))
        while self.store.groups.forget_topic(name):
            pass

    def _sync(self, path: Path) -> None:
        assert path.name == "db-wal"
        self.syncs += 1
        if self.fails:
            raise OSError(5, "input/output error")

    def add(self, *parts: int, group_id: str = "g") -> None:
        """Commit in some partitions."""
        offsets = [OFFSET._replace(partition=part, group_id=group_id) for part in parts]
        self.commit(*offsets)

    def commit(self, *offsets: CommittedOffset, **fields: Any) -> None:
        """Commit positions of one group in the topics that there are."""
        ids = {at.topic: self.topics[at.topic].topic_id for at in offsets}
        self.writes.add_change(commit(*offsets, topic_ids=ids, **fields), self.over.append)

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
        return [at.partition for at in stored_offsets(self.store, "g")]


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
    writes.add_change(commit(OFFSET), disk.over.append)
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
    disk.commit(OFFSET, OFFSET._replace(topic="u"))
    disk.scheduler.one_turn()
    disk.add(2)
    disk.delete("t")
    disk.create("t")
    disk.add(3)
    for _ in range(4):
        disk.round()
    assert disk.over == [True] * 3
    found = [(at.topic, at.partition) for page in disk.offsets.pages("g") for at in page]
    assert found == [("t", 3), ("u", 1)]
    assert [(at.topic, at.partition) for at in stored_offsets(disk.store, "g")] == found


def groups_gathered(disk: Disk) -> list[int]:
    """Return the generations that are to be written, in their order."""
    return [entry.change.group.generation for entry in disk.writes._gathered if entry.change.group]


def save(disk: Disk, generation: int) -> None:
    """Keep a generation of group g."""
    group = dataclasses.replace(GROUP, generation=generation)
    disk.writes.add_change(GroupChange(group=group), disk.over.append)


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


@pytest.mark.parametrize(
    "between",
    [commit(OFFSET), GroupChange(forgotten=[OFFSET]), GroupChange(removed=GROUP.group_id)],
    ids=["commit", "forgotten", "removed"],
)
def test_a_group_is_not_written_before_what_was_said_of_it(disk: Disk, between: GroupChange) -> None:
    """Neither before a commit that was accepted earlier, nor before its own removal."""
    save(disk, 1)
    save(disk, 2)
    disk.writes.add_change(between, disk.over.append)
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
    disk.store._connection.db.execute(
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


# --- with a journal


class Journaled(Disk):
    """A disk whose small changes go to a journal."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory
        self.journal = GroupJournal(directory)
        self.journal.read(self.store.groups.journaled())
        self.writes = GroupWrites(self.store, self.offsets, self.worker, journal=self.journal)

    def end(self) -> None:
        """Stop and close everything."""
        assert self.writes.close()
        self.worker.close()
        self.journal.close()
        self.store.close()

    def in_database(self) -> list[int]:
        """Wait until the thread has written what has gathered; return the partitions with an offset of group g."""
        self.scheduler.advance(WRITE_AFTER_S)
        self.round()
        return self.kept()


def save_small(disk: Disk, generation: int) -> None:
    """Keep a generation of group g, of one member."""
    group = dataclasses.replace(GROUP, generation=generation, members=(MEMBER,))
    disk.writes.add_change(GroupChange(group=group), disk.over.append)


@pytest.fixture
def journaled(tmp_path: Path) -> Iterator[Journaled]:
    """Return writes that have started."""
    disk = Journaled(tmp_path)
    disk.writes.start(disk.scheduler)
    yield disk
    disk.end()


def test_small_changes_are_over_at_once(journaled: Journaled) -> None:
    """They are answered from the table, and written to the database together later."""
    for part in range(50):
        journaled.add(part)
    save_small(journaled, 1)
    assert (journaled.over, journaled.kept(), len(journaled.offsets)) == ([True] * 51, [], 1)
    assert journaled.in_database() == list(range(50))
    assert [kept.generation for kept in journaled.store.groups.load()] == [1]
    assert journaled.store.groups.journaled() == journaled.journal.number == 51


def test_the_newest_is_written(journaled: Journaled) -> None:
    """A position that moves, and a group that changes, are a row each, in one transaction."""
    statements: list[str] = []
    journaled.store._writer.db.set_trace_callback(statements.append)
    for offset in range(100):
        journaled.commit(OFFSET._replace(offset=offset))
        save_small(journaled, offset)
    journaled.in_database()
    assert [at.offset for at in stored_offsets(journaled.store, "g")] == [99]
    assert [kept.generation for kept in journaled.store.groups.load()] == [99]
    assert sum("INSERT INTO offsets" in text for text in statements) == 1
    assert statements.count("COMMIT") == 1


def test_a_change_is_not_written_before_those_before_it(journaled: Journaled) -> None:
    """A deletion waits for the database; it deletes what was committed before, not what is committed behind it."""
    journaled.add(1, 2)
    (page,) = journaled.offsets.pages("g")
    journaled.writes.add_change(GroupChange(forgotten=page), journaled.over.append)
    journaled.commit(OFFSET._replace(partition=2, commit_ms=8))
    assert journaled.over == [True]
    for _ in range(3):
        journaled.round()
    assert journaled.over == [True] * 3
    assert journaled.in_database() == [2]
    assert [at.partition for page in journaled.offsets.pages("g") for at in page] == [2]


def test_large_groups_wait_for_the_database(journaled: Journaled) -> None:
    """Only the last of several states is written; a small change of the same group waits behind them."""
    members = (MEMBER,) * 1000
    for generation in (1, 2, 3):
        group = dataclasses.replace(GROUP, generation=generation, members=members)
        journaled.writes.add_change(GroupChange(group=group), journaled.over.append)
    save_small(journaled, 4)
    journaled.add(1)
    assert journaled.over == []
    journaled.add(1, group_id="other")
    assert journaled.over == [True]
    for _ in range(3):
        journaled.round()
    assert journaled.over == [True] * 6
    assert [kept.generation for kept in journaled.store.groups.load()] == [4]


@pytest.mark.parametrize("is_being_written", [False, True])
def test_offsets_of_a_topic_that_is_created_anew(journaled: Journaled, is_being_written: bool) -> None:
    """Those of its predecessor are not written, or are deleted, whenever the thread comes to them."""
    journaled.add(1)
    if is_being_written:
        journaled.scheduler.advance(WRITE_AFTER_S)
        journaled.thread()
    journaled.delete("t")
    journaled.create("t")
    journaled.add(2)
    for _ in range(4):
        journaled.round()
    assert journaled.in_database() == [2]


def test_a_topic_that_is_created_anew_between_two_transactions(tmp_path: Path) -> None:
    """A batch is several transactions: the later ones do not give a new topic the positions of its predecessor."""
    disk = Journaled(tmp_path)
    for number in range(10):
        disk.add(*range(200), group_id=f"g{number}")
    (batch,) = disk.writes._gathered
    parts = batch.parts()
    disk.store.written_groups.apply(next(parts))
    assert stored_offsets(disk.store, "g0")
    disk.delete("t")
    disk.create("t")
    for part in parts:
        disk.store.written_groups.apply(part)
    assert [stored_offsets(disk.store, f"g{number}") for number in range(10)] == [[]] * 10
    disk.end()
    assert [path.stat().st_size > 0 for path in sorted(tmp_path.glob("*.journal"))] == [True, False]


def test_an_owner_outlives_the_topic_of_the_first_commit(journaled: Journaled) -> None:
    """The group has it from the first commit on, whatever becomes of its positions."""
    for topic, is_new in (("t", True), ("u", False)):
        journaled.commit(OFFSET._replace(topic=topic), owner="User:a", is_new=is_new)
    records = journaled.journal.read(0)
    journaled.delete("t")
    assert journaled.in_database() == [1]
    for again in (False, True):
        if again:
            journaled.store.groups.replay(records, journaled.journal.number)
        table = OffsetTable()
        journaled.store.groups.load_offsets(table)
        assert (table.owner("g"), len(table)) == ("User:a", 1)


def test_a_batch_that_was_not_written_is_not_overtaken(journaled: Journaled) -> None:
    """Neither by a later batch nor by a number: what the database has not is in the journal."""
    journaled.add(1, group_id="h")
    journaled.writes.drop_topic("other")
    journaled.commit(OFFSET._replace(topic="u"))
    journaled.store._connection.db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON offsets WHEN new.group_id = 'g'"
        " BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    journaled.scheduler.advance(WRITE_AFTER_S)
    journaled.delete("t")
    journaled.thread()
    journaled.commit(OFFSET._replace(topic="v", group_id="k"))
    journaled.store._connection.db.execute("DROP TRIGGER full")
    journaled.scheduler.turn()
    journaled.thread()
    assert (journaled.store.groups.journaled(), journaled.kept()) in [(1, []), (3, [1])]
    for _ in range(3):
        journaled.scheduler.advance(RETRY_AFTER_S)
        journaled.round()
    assert (journaled.store.groups.journaled(), journaled.kept()) == (3, [1])


def test_the_stored_number_never_becomes_smaller(journaled: Journaled) -> None:
    """Each record is replayed at most once."""
    for number, stored in ((5, 5), (3, 5), (10, 10), (9, 10)):
        journaled.store.groups.apply([], number)
        assert journaled.store.groups.journaled() == stored


def test_a_file_is_emptied_after_a_sync_that_failed(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where both files are full, so that no more batches come."""
    monkeypatch.setattr(group_journal, "SWITCH_BYTES", 1000)
    monkeypatch.setattr(group_journal, "FULL_BYTES", 2000)

    def fails(path: Path) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(group_writes, "sync_path", fails)
    for part in range(100):
        journaled.add(part, group_id=f"g{part}")
    for _ in range(5):
        journaled.scheduler.advance(WRITE_AFTER_S)
        journaled.round()
    journaled.add(1)
    assert len(journaled.over) == 100
    monkeypatch.undo()
    monkeypatch.setattr(group_journal, "SWITCH_BYTES", 1000)
    journaled.writes.retire_journal()
    for _ in range(2):
        journaled.round()
    journaled.add(2)
    assert len(journaled.over) == 102
    assert "cannot sync" in caplog.text


def test_after_the_end(tmp_path: Path) -> None:
    """A change that comes too late is refused: the files are closed."""
    disk = Journaled(tmp_path)
    disk.writes.start(disk.scheduler)
    disk.writes.close()
    disk.add(1)
    assert disk.over == [False]


def test_what_the_database_does_not_take(journaled: Journaled, caplog: pytest.LogCaptureFixture) -> None:
    """Acknowledged changes are written again later; those that wait are refused, in the order of the calls."""
    journaled.store._connection.db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON offsets BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    journaled.add(1)
    journaled.scheduler.advance(WRITE_AFTER_S)
    journaled.round()
    journaled.writes.add_change(GroupChange(removed="h"), journaled.over.append)
    journaled.add(2)
    journaled.writes.add_change(GroupChange(removed="i"), journaled.over.append)
    for _ in range(3):
        journaled.round()
    assert sorted(journaled.over) == [False, False, True, True]
    assert (journaled.kept(), journaled.store.groups.journaled()) == ([], 0)
    assert "disk full" in caplog.text
    journaled.store._connection.db.execute("DROP TRIGGER full")
    for _ in range(3):
        journaled.scheduler.advance(RETRY_AFTER_S)
        journaled.round()
    assert (journaled.kept(), journaled.store.groups.journaled()) == ([1, 2], 2)


def test_while_the_journal_is_full(journaled: Journaled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes wait for the database, which empties a file of the journal."""
    monkeypatch.setattr(group_journal, "SWITCH_BYTES", 1000)
    monkeypatch.setattr(group_journal, "FULL_BYTES", 2000)
    for part in range(200):
        journaled.add(part, group_id=f"g{part}")
    assert 20 < len(journaled.over) < 200
    for _ in range(5):
        journaled.round()
    assert journaled.over == [True] * 200
    journaled.add(1)
    assert len(journaled.over) == 201
    sizes = [path.stat().st_size for path in journaled.directory.glob("*.journal")]
    assert max(sizes) < 3000


def test_what_is_written_at_the_end(tmp_path: Path) -> None:
    """All that is in the journal is in the database then, also what a full disk had put off."""
    disk = Journaled(tmp_path)
    disk.writes.start(disk.scheduler)
    disk.add(1)
    disk.scheduler.advance(WRITE_AFTER_S)
    disk.add(2)
    disk.writes.add_change(GroupChange(removed="h"), disk.over.append)
    assert disk.writes.close()
    assert (disk.kept(), disk.store.groups.journaled()) == ([1, 2], 2)
    disk.worker.close()
