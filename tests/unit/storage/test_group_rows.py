"""Tests of the rows of groups and offsets: what is kept, what may be forgotten, what an earlier version has left."""

import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.groups import StoredGroup, StoredMember
from tidegate.storage import StorageError, group_rows
from tidegate.storage.group_rows import OFFSETS_AT_ONCE, CommittedOffset, GroupChange, batched_positions
from tidegate.storage.store import MetadataStore

MEMBER = StoredMember(
    member_id="m-ü",
    instance_id=None,
    client_id="c",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=60_000,
    session_timeout_ms=10_000,
    metadata=b"\0\1",
    assignment=b"",
)
GROUP = StoredGroup(
    group_id="g",
    protocol_type="consumer",
    generation=3,
    protocol="range",
    leader_id="m-ü",
    state_at_ms=5,
    members=(MEMBER, MEMBER._replace(instance_id="i", assignment=b"x" * 100_000)),
)
OFFSET = CommittedOffset(
    group_id="g", topic="t", partition=1, offset=5, leader_epoch=0, metadata="m", commit_ms=7
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    """Return an empty store."""
    store = MetadataStore(tmp_path / "db")
    yield store
    store.close()


def test_groups_are_kept_and_removed(store: MetadataStore) -> None:
    """A group is read back as it was, with all its members."""
    empty = StoredGroup(
        group_id="h", protocol_type=None, generation=0, protocol=None, leader_id=None, state_at_ms=1
    )
    store.groups.apply([GroupChange(group=GROUP), GroupChange(group=empty)])
    assert sorted(store.groups.load(), key=lambda group: group.group_id) == [GROUP, empty]
    store.groups.apply([GroupChange(group=dataclasses.replace(GROUP, generation=4, members=()))])
    store.groups.apply([GroupChange(removed="h")])
    assert [(group.generation, group.members) for group in store.groups.load()] == [(4, ())]


def test_members_that_cannot_be_read(store: MetadataStore) -> None:
    """A damaged row is named."""
    store.groups.apply([GroupChange(group=GROUP)])
    store._db.execute("UPDATE groups SET members = substr(members, 1, 30)")
    with pytest.raises(StorageError, match="members of group 'g' cannot be read"):
        list(store.groups.load())


def test_offsets_that_were_committed_again_are_not_forgotten(store: MetadataStore) -> None:
    """What is to be forgotten is forgotten as it was seen."""
    other = dataclasses.replace(OFFSET, partition=2, expire_ms=9)
    store.groups.apply([GroupChange(offsets=[OFFSET, other])])
    later = dataclasses.replace(OFFSET, commit_ms=8)
    store.groups.apply([GroupChange(offsets=[later]), GroupChange(forgotten=[OFFSET, other])])
    assert store.groups.offsets_after("g", None) == [later]
    assert store.groups.offset("g", "t", 1) == later
    assert store.groups.offset("g", "t", 2) is None


def test_groups_with_offsets(store: MetadataStore) -> None:
    """They are found one after another."""
    offsets = [
        dataclasses.replace(OFFSET, group_id=group_id, partition=part)
        for group_id in ("b", "", "a")
        for part in (1, 2)
    ]
    store.groups.apply([GroupChange(offsets=offsets)])
    found: list[str | None] = [store.groups.group_after(None)]
    while found[-1] is not None:
        found.append(store.groups.group_after(found[-1]))
    assert found == ["", "a", "b", None]


def test_the_next_group_is_found_at_once(store: MetadataStore) -> None:
    """However many positions there are before it."""
    offsets = [dataclasses.replace(OFFSET, partition=part) for part in range(10_000)]
    store.groups.apply([GroupChange(offsets=offsets)])
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    store._db.set_progress_handler(count, 10)
    assert store.groups.group_after(OFFSET.group_id) is None
    assert store.groups.group_after(None) == OFFSET.group_id
    store._db.set_progress_handler(None, 0)
    assert steps < 20


def test_offsets_of_an_earlier_version(tmp_path: Path) -> None:
    """They had no times: they count as committed when the store is opened."""
    MetadataStore(tmp_path / "db").close()
    with sqlite3.connect(tmp_path / "db") as db:
        db.execute("DROP TABLE offsets")
        db.execute(
            "CREATE TABLE offsets (group_id TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,"
            " committed_offset INTEGER NOT NULL, leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL,"
            " PRIMARY KEY (group_id, topic, partition)) WITHOUT ROWID"
        )
        db.execute("INSERT INTO offsets VALUES ('g', 't', 1, 5, 0, 'm')")
    db.close()
    store = MetadataStore(tmp_path / "db")
    (found,) = store.groups.offsets_after("g", None)
    assert dataclasses.replace(found, commit_ms=7) == OFFSET
    assert found.commit_ms > 1_700_000_000_000
    store.close()


def test_size_is_bounded(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room that was given back may be used again."""
    assert not store.groups.is_full()
    monkeypatch.setattr(group_rows, "MAX_DATABASE_BYTES", 400_000)
    offsets = [dataclasses.replace(OFFSET, partition=part, metadata="m" * 1000) for part in range(400)]
    store.groups.apply([GroupChange(offsets=offsets)])
    assert store.groups.is_full()
    store.groups.apply([GroupChange(forgotten=offsets)])
    assert not store.groups.is_full()


def test_long_metadata_are_read_and_written_a_few_at_a_time(store: MetadataStore) -> None:
    """What takes long is what is in a row, not the row: 200 of 4 KB would hold the loop for ten milliseconds."""
    long = [dataclasses.replace(OFFSET, partition=at, metadata="m" * 4096) for at in range(100)]
    parts = list(batched_positions(long))
    assert [part for some in parts for part in some] == long
    assert {len(some) for some in parts} == {40, 20}
    assert GroupChange(offsets=parts[0]).rows == 1 + OFFSETS_AT_ONCE
    assert [len(some) for some in batched_positions(long[:0])] == []
    for some in parts:
        store.groups.apply([GroupChange(offsets=some)])
    read, after = [], None
    while page := store.groups.offsets_after("g", after):
        assert len(page) <= 32
        read += page
        after = page[-1]
    assert read == long
