"""The rows of groups and of committed offsets in the metadata store.

A group has a row while it has, or had, members; one whose consumers assign partitions themselves has offsets alone.
Members are one value of their group's row: they change together, when a generation has its assignment.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from sqlite3 import Cursor
from typing import Any, Final

from tidegate.groups import StoredGroup, StoredMember
from tidegate.storage.errors import StorageError

__all__ = [
    "MAX_DATABASE_BYTES",
    "OFFSETS_AT_ONCE",
    "CommittedOffset",
    "GroupChange",
    "GroupRows",
    "batched_positions",
]

OFFSETS_AT_ONCE = 200  # read or written in well under a millisecond
_METADATA_READ_AT_ONCE = 128 * 1024  # characters

_ROW_BYTES = 4096  # of a page
_METADATA_OF_A_ROW = 1024  # characters: with so many a row takes twice as long
MAX_DATABASE_BYTES: Final = 1 << 30
"""Size of the metadata at which no more offsets are taken: some ten million positions."""

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
) WITHOUT ROWID
"""
_NOW_MS = "CAST(strftime('%s', 'now') AS INTEGER) * 1000"
_OFFSET_COLUMNS = "group_id, topic, partition, committed_offset, leader_epoch, metadata, commit_ms, expire_ms"
_NUMBERS = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_NULL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A group's position in one partition.

    commit_ms: when it was committed. expire_ms: when it is forgotten, where its client said so (OffsetCommit up to v4).
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """What is kept all together or not at all.

    offsets: positions that are committed. forgotten: positions that go, if they are still as they are here.
    group: a group as it is from here on. removed: the id of a group that goes, without its offsets.
    """

    offsets: Sequence[CommittedOffset] = ()
    forgotten: Sequence[CommittedOffset] = ()
    group: StoredGroup | None = None
    removed: str | None = None

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
    """The groups and offsets of one store. Every method raises `StorageError` where SQLite fails.

    run: executes a statement. transaction: what happens inside is committed, or none of it.
    """

    def __init__(
        self,
        run: Callable[..., Cursor],
        transaction: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._run = run
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
        with self._transaction():
            for change in changes:
                self._apply(change)

    def _apply(self, change: GroupChange) -> None:
        for at in change.offsets:
            self._run(
                "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    at.group_id,
                    at.topic,
                    at.partition,
                    at.offset,
                    at.leader_epoch,
                    at.metadata,
                    at.commit_ms,
                    at.expire_ms,
                ),
            )
        for at in change.forgotten:
            self._run(
                "DELETE FROM offsets WHERE group_id=? AND topic=? AND partition=? AND commit_ms=?",
                (at.group_id, at.topic, at.partition, at.commit_ms),
            )
        if change.removed is not None:
            self._run("DELETE FROM groups WHERE group_id=?", (change.removed,))
        if change.group is not None:
            group = change.group
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

    def is_full(self) -> bool:
        """Return whether no more offsets are to be taken."""
        (pages,) = self._run("PRAGMA page_count").fetchone()
        (free,) = self._run("PRAGMA freelist_count").fetchone()
        (size,) = self._run("PRAGMA page_size").fetchone()
        return int(pages - free) * int(size) >= MAX_DATABASE_BYTES

    def load(self) -> Iterator[StoredGroup]:
        """Yield every group that has, or had, members. Raises `StorageError` where one cannot be read."""
        for group_id, protocol_type, generation, protocol, leader_id, state_ms, members in self._run(
            "SELECT group_id, protocol_type, generation, protocol, leader_id, state_ms, members FROM groups"
        ):
            try:
                unpacked = tuple(_unpacked(members))
            except (struct.error, UnicodeDecodeError, TypeError) as error:
                raise StorageError(f"the members of group {group_id!r} cannot be read: {error}") from error
            yield StoredGroup(
                group_id=group_id,
                protocol_type=protocol_type,
                generation=generation,
                protocol=protocol,
                leader_id=leader_id,
                state_at_ms=state_ms,
                members=unpacked,
            )

    # --- committed offsets

    def offset(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """Return a group's position in one partition, None where it has none."""
        row = self._run(
            f"SELECT {_OFFSET_COLUMNS} FROM offsets WHERE group_id=? AND topic=? AND partition=?",
            (group_id, topic, partition),
        ).fetchone()
        return None if row is None else _position(row)

    def offsets_after(self, group_id: str, after: CommittedOffset | None) -> list[CommittedOffset]:
        """Return a group's next positions, by topic name and partition, after one: at most `OFFSETS_AT_ONCE`.

        Fewer of those with long metadata; none where there is none.
        """
        topic, partition = ("", -1) if after is None else (after.topic, after.partition)
        rows = self._run(
            f"SELECT {_OFFSET_COLUMNS} FROM offsets"
            " WHERE group_id=? AND (topic, partition) > (?, ?) ORDER BY topic, partition LIMIT ?",
            (group_id, topic, partition, OFFSETS_AT_ONCE),
        )
        found: list[CommittedOffset] = []
        left = _METADATA_READ_AT_ONCE
        for row in rows:
            found.append(_position(row))
            left -= len(found[-1].metadata)
            if left <= 0:
                break
        return found

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

    def has_offsets(self, group_id: str) -> bool:
        """Return whether a group has a position anywhere."""
        row = self._run("SELECT 1 FROM offsets WHERE group_id=? LIMIT 1", (group_id,)).fetchone()
        return row is not None

    def group_after(self, group_id: str | None) -> str | None:
        """Return the next group that has positions, in the order of their ids; None: there is no more."""
        beyond, ids = ("WHERE group_id > ? ", (group_id,)) if group_id is not None else ("", ())
        row = self._run(f"SELECT group_id FROM offsets {beyond}ORDER BY group_id LIMIT 1", ids).fetchone()
        return None if row is None else str(row[0])


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


def _position(row: Sequence[Any]) -> CommittedOffset:
    group_id, topic, partition, offset, leader_epoch, metadata, commit_ms, expire_ms = row
    return CommittedOffset(
        group_id=group_id,
        topic=topic,
        partition=partition,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_ms=commit_ms,
        expire_ms=expire_ms,
    )


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


def _unpacked(packed: bytes) -> Iterator[StoredMember]:
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
        )
