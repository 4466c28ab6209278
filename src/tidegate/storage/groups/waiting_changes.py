"""Changes of groups and offsets that wait for the database: single ones, and batches of those in the journal."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.groups import StoredGroup
from tidegate.storage.groups.committed_offsets import Partitions
from tidegate.storage.groups.group_rows import ROW_BYTES, GroupChange, batched_partitions

__all__ = ["ROWS_AT_ONCE", "Batch", "OnStored", "WaitingChange", "last_number"]

ROWS_AT_ONCE: Final = 800
"""Rows of one transaction. They take a millisecond or two, for which another change of the store may have to wait."""

OnStored = Callable[[bool], None]


class WaitingChange:
    """A change that waits for the database, and the calls to make when it is over.

    dropped: topics that were deleted meanwhile: positions in them are not put into the table.
    """

    __slots__ = ("change", "dropped", "on_stored")
    number = None

    def __init__(self, change: GroupChange, on_stored: OnStored) -> None:
        self.change = change
        self.on_stored = [on_stored]
        self.dropped: set[str] = set()

    @property
    def rows(self) -> int:
        """See `GroupChange.rows`."""
        return self.change.rows

    @property
    def group_id(self) -> str | None:
        """The group whose new state is all that it changes; None for any other change."""
        change = self.change
        if change.group is None or change.positions or change.forgotten or change.removed is not None:
            return None
        return change.group.group_id

    def parts(self) -> Iterator[list[GroupChange]]:
        """Yield what is written in one transaction."""
        yield [self.change]


class Batch:
    """Journaled changes that are not in the database yet.

    number: of the last record in it. rows: at least as many as it will write. is_open: more may be added.
    """

    __slots__ = ("groups", "is_open", "number", "owners", "positions", "rows", "topic_ids")

    def __init__(self) -> None:
        self.positions: dict[str, dict[str, Partitions]] = {}
        self.owners: dict[str, str] = {}  # of new groups
        self.groups: dict[str, StoredGroup] = {}
        self.topic_ids: dict[str, str] = {}
        self.number = self.rows = 0
        self.is_open = True

    def add_change(self, change: GroupChange, number: int, record_bytes: int) -> None:
        """Add a change with record `number`, which replaces earlier ones of the same positions or group."""
        self.number = number
        self.rows += record_bytes // ROW_BYTES
        if change.positions:
            topics = self.positions.setdefault(change.group_id, {})
            for topic, positions in change.positions.items():
                known = topics.setdefault(topic, {})
                before = len(known)
                known.update(positions)
                self.rows += len(known) - before
            self.topic_ids.update(change.topic_ids)
            if change.is_new:
                self.owners[change.group_id] = change.owner
        group = change.group
        if group is not None:
            self.rows += 1 + len(group.members)
            self.groups[group.group_id] = group

    def parts(self) -> Iterator[list[GroupChange]]:
        """Yield what is written in one transaction."""
        part: list[GroupChange] = []
        rows = 0
        for change in self._changes():
            part.append(change)
            rows += change.rows
            if rows >= ROWS_AT_ONCE:
                yield part
                part, rows = [], 0
        yield part

    def _changes(self) -> Iterator[GroupChange]:
        for group_id, topics in self.positions.items():
            owner = self.owners.get(group_id)
            is_new = owner is not None
            for topic, positions in topics.items():
                ids = {topic: self.topic_ids[topic]}
                for some in batched_partitions(positions):
                    yield GroupChange(group_id, {topic: some}, ids, owner or UNKNOWN_OWNER, is_new)
        for group in self.groups.values():
            yield GroupChange(group=group)


def last_number(units: Sequence[WaitingChange | Batch]) -> int | None:
    """Return the number of the last record of the journal in some changes."""
    return max([unit.number for unit in units if unit.number is not None], default=None)
