"""The rows of groups and of committed offsets in the metadata store.

A group has a row while it has, or had, members; one whose consumers assign partitions themselves has offsets alone.
Members are one value of their group's row: they change together, when a generation has its assignment.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from sqlite3 import Cursor

from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.groups import StoredGroup, StoredMember
from tidegate.storage.committed_offsets import OFFSETS_AT_ONCE, CommittedOffset, OffsetTable
from tidegate.storage.errors import StorageError

__all__ = ["GroupChange", "GroupRows", "batched_positions"]

_ROW_BYTES = 4096  # of a page
_METADATA_OF_A_ROW = 1024  # characters: with so many a row takes twice as long
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
_NOW_MS = "CAST(strftime('%s', 'now') AS INTEGER) * 1000"
_OFFSET_COLUMNS = "group_id, topic, partition, committed_offset, leader_epoch, metadata, commit_ms, expire_ms"
_PUT_OFFSETS = (
    " ON CONFLICT (group_id, topic, partition) DO UPDATE SET committed_offset=excluded.committed_offset,"
    " leader_epoch=excluded.leader_epoch, metadata=excluded.metadata, commit_ms=excluded.commit_ms,"
    " expire_ms=excluded.expire_ms"
)
_FORGET_OWNER = (
    "DELETE FROM group_owners WHERE group_id=?1 AND NOT EXISTS (SELECT 1 FROM offsets WHERE group_id=?1)"
    " AND NOT EXISTS (SELECT 1 FROM groups WHERE group_id=?1)"
)
_NUMBERS = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_NULL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """What is kept all together or not at all.

    offsets: positions of one group that are committed. forgotten: positions that go, if they were not committed again.
    group: a group as it is from here on. removed: the id of a group that goes, without its offsets.
    owner: the principal that the group of the offsets counts for; is_new: that is to be kept. reserved: bytes that were
    reserved for them (`OffsetTable.bound`).
    """

    offsets: Sequence[CommittedOffset] = ()
    owner: str = UNKNOWN_OWNER
    is_new: bool = False
    reserved: int = 0
    forgotten: Sequence[CommittedOffset] = ()
    group: StoredGroup | None = None
    removed: str | None = None

    @property
    def is_only_offsets(self) -> bool:
        """Whether it says nothing but positions of a group whose owner is kept."""
        return not (self.is_new or self.forgotten or self.group is not None or self.removed is not None)

    @property
    def group_ids(self) -> set[str]:
        """The groups of which it says anything."""
        found = {at.group_id for positions in (self.offsets, self.forgotten) for at in positions}
        if self.removed is not None:
            found.add(self.removed)
        if self.group is not None:
            found.add(self.group.group_id)
        return found

    @property
    def rows(self) -> int:
        """About how many rows it takes as long as: a member, or a page of one or of a position, as a position."""
        rows = 1 + sum(map(_rows, self.offsets)) + len(self.forgotten)
        if self.group is None:
            return rows
        sizes = [len(member.metadata) + len(member.assignment) for member in self.group.members]
        return rows + len(sizes) + sum(sizes) // _ROW_BYTES


class GroupRows:
    """The groups and offsets of one store, by one connection. Every method raises `StorageError` where SQLite fails.

    run: executes a statement. change: executes one that is a transaction by itself. transaction: what happens inside
    is committed, or none of it.
    """

    def __init__(
        self,
        run: Callable[..., Cursor],
        change: Callable[..., None],
        transaction: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._run = run
        self._change = change
        self._transaction = transaction

    def prepare(self) -> None:
        """Make what is missing. Offsets of earlier versions count as committed now."""
        for statement in _TABLES.split(";"):
            self._run(statement)
        columns = {row[1] for row in self._run("PRAGMA table_info(offsets)")}
        if "commit_ms" not in columns:
            self._run("ALTER TABLE offsets ADD COLUMN commit_ms INTEGER")
            self._run("ALTER TABLE offsets ADD COLUMN expire_ms INTEGER")
        self._run(f"UPDATE offsets SET commit_ms = {_NOW_MS} WHERE commit_ms IS NULL")

    def apply(self, changes: Sequence[GroupChange]) -> None:
        """Keep what `changes` say, in this order, all or nothing."""
        offsets = changes[0].offsets
        if len(changes) == 1 and len(offsets) in _ROWS_OF_A_STATEMENT and changes[0].is_only_offsets:
            self._change(_put_statement(len(offsets)), tuple(chain.from_iterable(offsets)))
            return
        with self._transaction():
            for change in changes:
                self._apply(change)

    def _apply(self, change: GroupChange) -> None:
        self._put_offsets(change.offsets)
        if change.is_new:
            group_id = change.offsets[0].group_id
            self._run(
                "INSERT INTO group_owners (group_id, owner) VALUES (?, ?)"
                " ON CONFLICT (group_id) DO UPDATE SET owner=excluded.owner",
                (group_id, change.owner),
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
                b"".join(_packed(group.members)),
            ),
        )
        self._run(
            "INSERT OR REPLACE INTO group_owners VALUES (?, ?, ?)",
            (group.group_id, group.owner, _packed_owners(group.members)),
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
                unpacked = tuple(_unpacked(members, _unpacked_owners(owners)))
            except (struct.error, UnicodeDecodeError, TypeError, ValueError) as error:
                raise StorageError(f"the members of group {group_id!r} cannot be read: {error}") from error
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
        """Fill a table with all positions; forget what a kill has left: of topics and groups that are gone."""
        owners: dict[str, str] = dict(self._run("SELECT group_id, owner FROM group_owners").fetchall())
        topics = {name for (name,) in self._run("SELECT name FROM topics")}
        gone = {topic for (topic,) in self._run("SELECT DISTINCT topic FROM offsets")} - topics
        for topic in gone:
            self._run("DELETE FROM offsets WHERE topic=?", (topic,))
        table.load(self._run(f"SELECT {_OFFSET_COLUMNS} FROM offsets ORDER BY group_id, topic"), owners)
        for group_id in owners:
            if group_id not in table:
                self._run(_FORGET_OWNER, (group_id,))

    def offsets_of(self, group_id: str) -> list[CommittedOffset]:
        """Return a group's positions, by topic and partition."""
        rows = self._run(
            f"SELECT {_OFFSET_COLUMNS} FROM offsets WHERE group_id=? ORDER BY topic, partition", (group_id,)
        )
        return [CommittedOffset(*row) for row in rows]

    def forget_topic(self, topic: str) -> bool:
        """Forget some of the positions in a topic that is there no more; return whether there may be more."""
        with self._transaction():
            deleted = self._run(
                "DELETE FROM offsets WHERE (group_id, topic, partition) IN"
                " (SELECT group_id, topic, partition FROM offsets WHERE topic=?1"
                " AND NOT EXISTS (SELECT 1 FROM topics WHERE name=?1) LIMIT ?2)",
                (topic, OFFSETS_AT_ONCE),
            )
        return deleted.rowcount > 0


@lru_cache(maxsize=len(_ROWS_OF_A_STATEMENT))
def _put_statement(rows: int) -> str:
    return f"INSERT INTO offsets VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?)'] * rows)}{_PUT_OFFSETS}"


def batched_positions(positions: Iterable[CommittedOffset]) -> Iterator[list[CommittedOffset]]:
    """Yield positions as many at a time as one transaction should have: `OFFSETS_AT_ONCE` with short metadata."""
    some: list[CommittedOffset] = []
    rows = 0
    for position in positions:
        some.append(position)
        rows += _rows(position)
        if rows >= OFFSETS_AT_ONCE:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _rows(position: CommittedOffset) -> int:
    """Return about how many rows of short metadata a position takes as long as."""
    return 1 + len(position.metadata) // _METADATA_OF_A_ROW


def _packed(members: Sequence[StoredMember]) -> Iterator[bytes]:
    """Yield members as bytes: two numbers, then six values with their lengths."""
    for member in members:
        yield _NUMBERS.pack(member.rebalance_timeout_ms, member.session_timeout_ms)
        for value in (
            member.member_id.encode(),
            None if member.instance_id is None else member.instance_id.encode(),
            member.client_id.encode(),
            member.client_host.encode(),
            member.metadata,
            member.assignment,
        ):
            if value is None:
                yield _LENGTH.pack(_NULL)
            else:
                yield _LENGTH.pack(len(value))
                yield value


def _packed_owners(members: Sequence[StoredMember]) -> str | None:
    """Return the owners of members as JSON: a list, or one text where all have the same."""
    owners = [member.owner for member in members]
    if not owners:
        return None
    return json.dumps(owners[0] if owners.count(owners[0]) == len(owners) else owners)


def _unpacked_owners(packed: str | None) -> Iterator[str]:
    """Yield the owners of members, without end; those of an earlier version are not known."""
    owners = UNKNOWN_OWNER if packed is None else json.loads(packed)
    if isinstance(owners, list):
        yield from map(str, owners)
        owners = UNKNOWN_OWNER
    yield from repeat(str(owners))


def _unpacked(packed: bytes, owners: Iterator[str]) -> Iterator[StoredMember]:
    at = 0

    def value() -> bytes | None:
        nonlocal at
        (length,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size
        if length == _NULL:
            return None
        if not 0 <= length <= len(packed) - at:
            raise struct.error(f"a value of {length} bytes at {at} of {len(packed)}")
        at += length
        return packed[at - length : at]

    while at < len(packed):
        rebalance_timeout_ms, session_timeout_ms = _NUMBERS.unpack_from(packed, at)
        at += _NUMBERS.size
        member_id, instance_id, client_id, client_host, metadata, assignment = (value() for _ in range(6))
        yield StoredMember(
            member_id=(member_id or b"").decode(),
            instance_id=None if instance_id is None else instance_id.decode(),
            client_id=(client_id or b"").decode(),
            client_host=(client_host or b"").decode(),
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            metadata=metadata or b"",
            assignment=assignment or b"",
            owner=next(owners),
        )
