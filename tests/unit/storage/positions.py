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

__all__ = ["OFFSET", "commit", "packed", "put"]

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
