"""Tests of the rows of groups and offsets: what is kept, what may be forgotten, what an earlier version has left."""

import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.storage.positions import OFFSET, commit, packed, stored_offsets

from tidegate.groups import StoredGroup, StoredMember
from tidegate.storage import StorageError
from tidegate.storage.groups.committed_offsets import OFFSETS_AT_ONCE
from tidegate.storage.groups.group_rows import GroupChange, batched_partitions, batched_positions
from tidegate.storage.metadata.store import MetadataStore

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
    store._connection.db.execute("UPDATE groups SET members = substr(members, 1, 30)")
    with pytest.raises(StorageError, match="cannot read the members of group 'g'"):
        list(store.groups.load())


def test_offsets_that_were_committed_again_are_not_forgotten(store: MetadataStore) -> None:
    """What is to be forgotten is forgotten as it was seen."""
    other = OFFSET._replace(partition=2, expire_ms=9)
    store.groups.apply([commit(OFFSET, other)])
    later = OFFSET._replace(commit_ms=8)
    store.groups.apply([commit(later), GroupChange(forgotten=[OFFSET, other])])
    assert stored_offsets(store, "g") == [later]


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
    (found,) = stored_offsets(store, "g")
    assert found._replace(commit_ms=7) == OFFSET
    assert found.commit_ms > 1_700_000_000_000
    store.close()


def test_long_metadata_are_written_a_few_at_a_time(store: MetadataStore) -> None:
    """What takes long is what is in a row, not the row: 200 of 4 KB would hold the loop for ten milliseconds."""
    long = [OFFSET._replace(partition=at, metadata="m" * 4096) for at in range(100)]
    parts = list(batched_positions(long))
    assert [part for some in parts for part in some] == long
    assert {len(some) for some in parts} == {40, 20}
    assert commit(*parts[0]).rows == 1 + OFFSETS_AT_ONCE
    assert [len(some) for some in batched_positions(long[:0])] == []
    by_partition = {at.partition: packed(at) for at in long}
    assert [list(some.items()) for some in batched_partitions(by_partition)] == [
        [(at.partition, packed(at)) for at in some] for some in parts
    ]
    for some in parts:
        store.groups.apply([commit(*some)])
    assert stored_offsets(store, "g") == long
