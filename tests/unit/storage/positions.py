"""Committed offsets for tests of storage: rows as changes, and as entries of the table."""

from collections.abc import Iterable
from typing import Any

from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.storage.groups.committed_offsets import (
    CommittedOffset,
    OffsetTable,
    Partitions,
    pack_position,
    times,
)
from tidegate.storage.groups.group_rows import GroupChange
from tidegate.storage.metadata.store import MetadataStore

__all__ = ["OFFSET", "commit", "packed", "put", "stored_offsets"]

OFFSET = CommittedOffset(
    group_id="g", topic="t", partition=1, offset=5, leader_epoch=0, metadata="m", commit_ms=7
)


def packed(at: CommittedOffset) -> bytes:
    """Return a position as the table holds it."""
    return pack_position(at.offset, at.leader_epoch, at.metadata, times(at.commit_ms, at.expire_ms))


def commit(*offsets: CommittedOffset, **fields: Any) -> GroupChange:
    """Return the commit of positions of one group."""
    positions: dict[str, Partitions] = {}
    for at in offsets:
        positions.setdefault(at.topic, {})[at.partition] = packed(at)
    return GroupChange(group_id=offsets[0].group_id, positions=positions, **fields)


def put(table: OffsetTable, offsets: Iterable[CommittedOffset], owner: str = UNKNOWN_OWNER) -> None:
    """Set positions one by one."""
    for at in offsets:
        table.set_positions(at.group_id, at.topic, {at.partition: packed(at)}, owner)


def stored_offsets(store: MetadataStore, group_id: str) -> list[CommittedOffset]:
    """Return the positions of a group that the database has, by topic and partition."""
    rows = store._run("SELECT * FROM offsets WHERE group_id=? ORDER BY topic, partition", (group_id,))
    return [CommittedOffset(*row) for row in rows]
