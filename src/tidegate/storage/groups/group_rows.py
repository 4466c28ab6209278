"""The rows of groups and of committed offsets in the metadata store.

A group has a row while it has, or had, members; one whose consumers assign partitions themselves has offsets alone.
Members are one value of their group's row: they change together, when a generation has its assignment.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.groups import StoredGroup
from tidegate.in_slices import lots
from tidegate.storage.errors import StorageError
from tidegate.storage.groups.committed_offsets import (
    OFFSETS_AT_ONCE,
    VALUE_BYTES,
    CommittedOffset,
    OffsetTable,
    Partitions,
    unpack_position,
)
from tidegate.storage.groups.group_records import (
    JournaledPositions,
    decode_record,
    pack_members,
    pack_owners,
    unpack_members,
)
from tidegate.storage.metadata.store_connection import StoreConnection

__all__ = [
    "ROW_BYTES",
    "GroupChange",
    "GroupRows",
    "batched_partitions",
    "batched_positions",
]

_ROW_BYTES = 4096  # of a page
ROW_BYTES: Final = 1024  # characters: with so many a row takes twice as long
_ROWS_OF_A_STATEMENT = (64, 16, 4, 1)
"""Rows that one statement writes: each step of a statement gives up the interpreter's lock, and waits for it again."""

_TABLES = """
CREATE TABLE IF NOT EXISTS offsets (
    group_id TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, committed_offset INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL, commit_ms INTEGER, expire_ms INTEGER,
    PRIMARY KEY (group_id, topic, partition)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS offsets_by_topic ON offsets (topic);
CREATE TABLE IF NOT EXISTS groups (
    group_id TEXT PRIMARY KEY, protocol_type TEXT, generation INTEGER NOT NULL, protocol TEXT, leader_id TEXT,
    state_ms INTEGER NOT NULL, members BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS group_owners (
    group_id TEXT PRIMARY KEY, owner TEXT NOT NULL, members TEXT
) WITHOUT ROWID
"""
_JOURNALED = "groups_journal"  # in table meta
_NOW_MS = "CAST(strftime('%s', 'now') AS INTEGER) * 1000"
_OFFSET_COLUMNS = "group_id, topic, partition, committed_offset, leader_epoch, metadata, commit_ms, expire_ms"
_PUT_OFFSETS = (
    " ON CONFLICT (group_id, topic, partition) DO UPDATE SET committed_offset=excluded.committed_offset,"
    " leader_epoch=excluded.leader_epoch, metadata=excluded.metadata, commit_ms=excluded.commit_ms,"
    " expire_ms=excluded.expire_ms"
)
_FORGET_OWNER = (
    "DELETE FROM group_owners WHERE group_id=?"
    " AND NOT EXISTS (SELECT 1 FROM offsets WHERE offsets.group_id=group_owners.group_id)"
    " AND NOT EXISTS (SELECT 1 FROM groups WHERE groups.group_id=group_owners.group_id)"
)


class GroupChange(NamedTuple):
    """Changes that are kept all together or not at all.

    group_id, positions: committed positions of one group, packed, by topic. topic_ids: of these topics, by name;
    positions are written only where the topic of that id, if one is given, is there. owner: the principal that the
    group counts for. is_new: whether the owner is to be kept. reserved: bytes that were reserved for the positions
    (`OffsetTable.bound`).
    forgotten: positions that are deleted unless they were committed again. group: a group with its new state.
    removed: the id of a group that is deleted; its positions stay.
    """

    group_id: str = ""
    positions: Mapping[str, Partitions] = MappingProxyType({})
    topic_ids: Mapping[str, str] = MappingProxyType({})
    owner: str = UNKNOWN_OWNER
    is_new: bool = False
    reserved: int = 0
    forgotten: Sequence[CommittedOffset] = ()
    group: StoredGroup | None = None
    removed: str | None = None

    @property
    def group_ids(self) -> set[str]:
        """The groups that it changes."""
        found = {at.group_id for at in self.forgotten}
        if self.positions:
            found.add(self.group_id)
        if self.removed is not None:
            found.add(self.removed)
        if self.group is not None:
            found.add(self.group.group_id)
        return found

    @property
    def rows(self) -> int:
        """The approximate cost in rows: a member, 4 KB of a member, and 1 KB of metadata each count as one row."""
        rows = 1 + len(self.forgotten)
        for positions in self.positions.values():
            rows += len(positions) + _metadata_rows(positions)
        if self.group is None:
            return rows
        sizes = [len(member.metadata) + len(member.assignment) for member in self.group.members]
        return rows + len(sizes) + sum(sizes) // _ROW_BYTES

    def committed(self, topic: str) -> list[CommittedOffset]:
        """Return its positions in a topic as rows."""
        return [
            unpack_position(self.group_id, topic, partition, packed)
            for partition, packed in self.positions[topic].items()
        ]


class GroupRows:
    """The groups and offsets of one store, by one connection. Every method raises `StorageError` where SQLite fails."""

    def __init__(self, connection: StoreConnection) -> None:
        self._run, self._transaction = connection.run, connection.transaction

    def prepare(self) -> None:
        """Create missing tables and columns. Offsets of earlier versions get the present time as time of commit."""
        for statement in _TABLES.split(";"):
            self._run(statement)
        columns = {row[1] for row in self._run("PRAGMA table_info(offsets)")}
        if "commit_ms" not in columns:
            self._run("ALTER TABLE offsets ADD COLUMN commit_ms INTEGER")
            self._run("ALTER TABLE offsets ADD COLUMN expire_ms INTEGER")
        self._run(f"UPDATE offsets SET commit_ms = {_NOW_MS} WHERE commit_ms IS NULL")

    def apply(self, changes: Sequence[GroupChange], journaled: int | None = None) -> None:
        """Keep `changes`, in this order, all or nothing.

        journaled: the number of the last record of the journal that is contained in them and those before them.
        """
        with self._transaction():
            for change in changes:
                self._apply(change)
            if journaled is not None:
                self._put_journaled(journaled)

    def journaled(self) -> int:
        """Return the number of the last record of the journal that the rows contain; 0: none."""
        row = self._run("SELECT value FROM meta WHERE name=?", (_JOURNALED,)).fetchone()
        return 0 if row is None else int(row[0])

    def replay(self, records: Sequence[bytes], number: int) -> None:
        """Apply the records of the journal that are not in the rows yet: all or none. number: of the last record.

        Positions in deleted topics are ignored.
        """
        names: dict[str, str] = dict(self._run("SELECT topic_id, name FROM topics").fetchall())
        with self._transaction():
            for record in records:
                try:
                    decoded = decode_record(record)
                except (struct.error, ValueError, KeyError, TypeError) as error:
                    raise StorageError(f"cannot read a record of the groups' journal: {error}") from error
                self._apply(_change(decoded, names))
            self._put_journaled(number)

    def _put_journaled(self, number: int) -> None:
        """Store the number of the last record that the rows contain. It never becomes smaller."""
        self._run(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value=excluded.value"
            " WHERE CAST(value AS INTEGER) < CAST(excluded.value AS INTEGER)",
            (_JOURNALED, str(number)),
        )

    def _apply(self, change: GroupChange) -> None:
        for topic in change.positions:
            topic_id = change.topic_ids.get(topic)
            if topic_id is None or self._has_topic(topic, topic_id):
                self._put_offsets(change.committed(topic))
        if change.is_new:
            self._run(
                "INSERT INTO group_owners (group_id, owner) VALUES (?, ?)"
                " ON CONFLICT (group_id) DO UPDATE SET owner=excluded.owner",
                (change.group_id, change.owner),
            )
        for at in change.forgotten:
            self._run(
                "DELETE FROM offsets WHERE group_id=? AND topic=? AND partition=? AND commit_ms=?",
                (at.group_id, at.topic, at.partition, at.commit_ms),
            )
        if change.removed is not None:
            self._run("DELETE FROM groups WHERE group_id=?", (change.removed,))
        if change.forgotten or change.removed is not None:
            for group_id in change.group_ids:
                self._run(_FORGET_OWNER, (group_id,))
        if change.group is not None:
            self._put_group(change.group)

    def _has_topic(self, name: str, topic_id: str) -> bool:
        found = self._run("SELECT 1 FROM topics WHERE topic_id=? AND name=?", (topic_id, name)).fetchone()
        return found is not None

    def _put_offsets(self, offsets: Sequence[CommittedOffset]) -> None:
        at = 0
        for count in _ROWS_OF_A_STATEMENT:
            while len(offsets) - at >= count:
                self._run(_put_statement(count), tuple(chain.from_iterable(offsets[at : at + count])))
                at += count

    def _put_group(self, group: StoredGroup) -> None:
        self._run(
            "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                group.group_id,
                group.protocol_type,
                group.generation,
                group.protocol,
                group.leader_id,
                group.state_at_ms,
                b"".join(pack_members(group.members)),
            ),
        )
        self._run(
            "INSERT OR REPLACE INTO group_owners VALUES (?, ?, ?)",
            (group.group_id, group.owner, pack_owners(group.members)),
        )

    def load(self) -> Iterator[StoredGroup]:
        """Yield every group that has, or had, members. Raises `StorageError` where one cannot be read."""
        for (
            group_id,
            protocol_type,
            generation,
            protocol,
            leader_id,
            state_ms,
            members,
            owner,
            owners,
        ) in self._run(
            "SELECT g.group_id, protocol_type, generation, protocol, leader_id, state_ms, g.members, owner, o.members"
            " FROM groups g LEFT JOIN group_owners o ON o.group_id = g.group_id"
        ):
            try:
                unpacked = tuple(unpack_members(members, owners))
            except (struct.error, UnicodeDecodeError, TypeError, ValueError) as error:
                raise StorageError(f"cannot read the members of group {group_id!r}: {error}") from error
            yield StoredGroup(
                group_id=group_id,
                protocol_type=protocol_type,
                generation=generation,
                protocol=protocol,
                leader_id=leader_id,
                state_at_ms=state_ms,
                members=unpacked,
                owner=owner or UNKNOWN_OWNER,
            )

    # --- committed offsets

    def load_offsets(self, table: OffsetTable) -> None:
        """Fill a table with all positions, and delete those of deleted topics and groups that a killed process left."""
        owners: dict[str, str] = dict(self._run("SELECT group_id, owner FROM group_owners").fetchall())
        topics = {name for (name,) in self._run("SELECT name FROM topics")}
        gone = {topic for (topic,) in self._run("SELECT DISTINCT topic FROM offsets")} - topics
        for topic in gone:
            self._run("DELETE FROM offsets WHERE topic=?", (topic,))
        table.load(self._run(f"SELECT {_OFFSET_COLUMNS} FROM offsets ORDER BY group_id, topic"), owners)
        for group_id in owners:
            if group_id not in table:
                self._run(_FORGET_OWNER, (group_id,))

    def forget_topic(self, topic: str) -> bool:
        """Delete some of the positions in a topic that no longer exists. Return whether there may be more."""
        with self._transaction():
            deleted = self._run(
                "DELETE FROM offsets WHERE (group_id, topic, partition) IN"
                " (SELECT group_id, topic, partition FROM offsets WHERE topic=?"
                " AND NOT EXISTS (SELECT 1 FROM topics WHERE name=?) LIMIT ?)",
                (topic, topic, OFFSETS_AT_ONCE),
            )
        return deleted.rowcount > 0


@lru_cache(maxsize=len(_ROWS_OF_A_STATEMENT))
def _put_statement(rows: int) -> str:
    return f"INSERT INTO offsets VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?)'] * rows)}{_PUT_OFFSETS}"


def _change(decoded: JournaledPositions | StoredGroup, names: Mapping[str, str]) -> GroupChange:
    """Return the change that a record of the journal contains. names: topic names by id."""
    if isinstance(decoded, StoredGroup):
        return GroupChange(group=decoded)
    there = [(names[topic_id], topic_id) for topic_id in decoded.positions if topic_id in names]
    owner = decoded.owner
    return GroupChange(
        group_id=decoded.group_id,
        positions={name: decoded.positions[topic_id] for name, topic_id in there},
        topic_ids=dict(there),
        owner=UNKNOWN_OWNER if owner is None else owner,
        is_new=owner is not None,
    )


def batched_positions(positions: Iterable[CommittedOffset]) -> Iterator[list[CommittedOffset]]:
    """Yield positions as many at a time as one transaction should have: `OFFSETS_AT_ONCE` with short metadata."""
    return lots(positions, lambda at: 1 + len(at.metadata) // ROW_BYTES, most_size=OFFSETS_AT_ONCE)


def batched_partitions(positions: Partitions) -> Iterator[Partitions]:
    """Yield packed positions in parts, as `batched_positions` does."""
    if len(positions) + _metadata_rows(positions) <= OFFSETS_AT_ONCE:
        return iter((positions,))
    return map(dict, lots(positions.items(), _rows_of, most_size=OFFSETS_AT_ONCE))


def _rows_of(position: tuple[int, bytes]) -> int:
    return 1 + (len(position[1]) - VALUE_BYTES) // ROW_BYTES


def _metadata_rows(positions: Partitions) -> int:
    """Return for how many rows the metadata of some positions count, besides one row for each position."""
    return (sum(map(len, positions.values())) - len(positions) * VALUE_BYTES) // ROW_BYTES
