"""The committed offsets of all groups, in memory: what OffsetFetch answers, and how many bytes each group takes.

A position is one `bytes` object: 28 bytes of numbers, then its metadata in UTF-8. Its group and topic are keys that all
positions share. The database has the same rows (`group_rows`). A commit changes this table after it
was written to the journal or to the database, so no answer shows a position that a crash would take back.

>>> table = OffsetTable()
>>> table.set_positions("g", "orders", {3: pack_position(42, 0, "", times(1000))})
>>> table.position("g", "orders", 3).offset, table.bytes_of("g") > POSITION_BYTES
(42, True)
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

from tidegate.fair_share import UNKNOWN_OWNER, ThresholdBound

__all__ = [
    "MAX_OFFSET_BYTES",
    "METADATA_AT_ONCE",
    "OFFSETS_AT_ONCE",
    "POSITION_BYTES",
    "VALUE_BYTES",
    "CommittedOffset",
    "OffsetTable",
    "Partitions",
    "growth",
    "pack_position",
    "times",
    "unpack_position",
]

MAX_OFFSET_BYTES: Final = 256 << 20
"""Memory for committed offsets, as counted here: 1.6 million positions without metadata."""
POSITION_BYTES: Final = 160
"""About what a position takes besides its metadata: 64 for its values, the rest for its entry in a dict."""
OFFSETS_AT_ONCE: Final = 200
"""Positions read or written between two yields: well under a millisecond."""

_TOPIC_BYTES = 500  # of a group's first position in a topic: a dict, and its entries in two others
_GROUP_BYTES = 700  # of a group's first position: a dict, an object, its entry, its id as text
_VALUES = struct.Struct(">qiqq")  # offset, leader epoch, time of commit, time of expiry
_POSITION = struct.Struct(">qi")  # the first two of them, as OffsetFetch answers them
_TIMES = struct.Struct(">qq")
VALUE_BYTES: Final = _VALUES.size
"""Bytes of a packed position without metadata; the first 12 are offset and leader epoch, big-endian."""
_NO_EXPIRY = -(2**63)
METADATA_AT_ONCE = 128 * 1024  # bytes read or encoded between two yields

Partitions = dict[int, bytes]
"""A group's positions in one topic, packed, by partition."""


class CommittedOffset(NamedTuple):
    """A group's position in one partition; the fields are in the order of the database's columns.

    commit_ms: time of the commit. expire_ms: time of expiry, if the client set one (OffsetCommit up to v4).
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int | None = None


class _Group:
    """The positions of a group by topic and partition, how many bytes they count for, and for which principal.

    with_metadata: the topics in which a position has, or had, metadata.
    """

    __slots__ = ("owner", "size", "topics", "with_metadata")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.size = 0
        self.topics: dict[str, Partitions] = {}
        self.with_metadata: set[str] = set()


class OffsetTable:
    """The positions of all groups of a node, counted by the principals that own the groups.

    bound: the bytes of all positions. Before it writes new positions, a caller reserves their bytes
    (`ThresholdBound.count_use`); it releases them when the positions are added here.
    """

    def __init__(self, capacity: int = MAX_OFFSET_BYTES) -> None:
        self.bound = ThresholdBound(capacity)
        self._groups: dict[str, _Group] = {}
        self._groups_of: dict[str, dict[str, None]] = {}  # by topic

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def group_ids(self) -> list[str]:
        """Return the ids of the groups that have positions."""
        return list(self._groups)

    def bytes_of(self, group_id: str) -> int:
        """Return how many bytes a group's positions count for."""
        group = self._groups.get(group_id)
        return 0 if group is None else group.size

    def owner(self, group_id: str) -> str | None:
        """Return the principal that a group's positions count for, None for a group without any."""
        group = self._groups.get(group_id)
        return None if group is None else group.owner

    def topics(self, group_id: str) -> list[str]:
        """Return the names of the topics in which a group has positions, sorted."""
        group = self._groups.get(group_id)
        return [] if group is None else sorted(group.topics)

    def partitions(self, group_id: str, topic: str) -> Partitions:
        """Return a group's packed positions in a topic by partition: to be read at once, not to be changed."""
        group = self._groups.get(group_id)
        return {} if group is None else group.topics.get(topic, {})

    def may_have_metadata(self, group_id: str, topic: str) -> bool:
        """Return whether a position of a group in a topic has metadata, or had some."""
        group = self._groups.get(group_id)
        return group is not None and topic in group.with_metadata

    def position(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """Return a group's position in one partition, None where it has none."""
        packed = self.partitions(group_id, topic).get(partition)
        return None if packed is None else unpack_position(group_id, topic, partition, packed)

    def pages(self, group_id: str) -> Iterator[list[CommittedOffset]]:
        """Yield a group's positions by topic name and partition, at most `OFFSETS_AT_ONCE` at a time.

        Fewer of those with long metadata. Positions may change between two pages: those that are gone are left out.
        """
        group = self._groups.get(group_id)
        page: list[CommittedOffset] = []
        left = METADATA_AT_ONCE
        for topic in sorted(group.topics) if group is not None else ():
            for partition in sorted(self.partitions(group_id, topic)):
                packed = self.partitions(group_id, topic).get(partition)
                if packed is None:
                    continue
                page.append(unpack_position(group_id, topic, partition, packed))
                left -= len(packed)
                if len(page) >= OFFSETS_AT_ONCE or left <= 0:
                    yield page
                    page, left = [], METADATA_AT_ONCE
        if page:
            yield page

    # --- changes

    def growth_of_new(self, group_id: str, topic: str) -> int:
        """Return the bytes that the first position of a group in a topic adds, besides those of the position itself."""
        group = self._groups.get(group_id)
        if group is None:
            return _group_size(group_id) + _TOPIC_BYTES
        return 0 if topic in group.topics else _TOPIC_BYTES

    def set_positions(
        self, group_id: str, topic: str, positions: Mapping[int, bytes], owner: str = UNKNOWN_OWNER
    ) -> None:
        """Set packed positions of one group in one topic. owner: the principal that a new group counts for."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = _Group(owner)
            self._count(group, _group_size(group_id))
        partitions = group.topics.get(topic)
        if partitions is None:
            partitions = group.topics[topic] = {}
            self._groups_of.setdefault(topic, {})[group_id] = None
            self._count(group, _TOPIC_BYTES)
        count = len(partitions)
        is_plain = sum(map(len, positions.values())) == len(positions) * VALUE_BYTES
        if is_plain and topic not in group.with_metadata:  # nearly always: the sizes need not be looked up
            partitions.update(positions)
            self._count(group, (len(partitions) - count) * POSITION_BYTES)
        else:
            group.with_metadata.add(topic)
            self._count(group, growth(partitions, positions))
            partitions.update(positions)

    def load(self, rows: Iterable[Sequence[Any]], owners: Mapping[str, str]) -> None:
        """Set positions from rows that are ordered by group and topic: a million in a second or two.

        rows: as `CommittedOffset`. owners: by group id.
        """
        names: dict[str, str] = {}  # one object of each for all groups
        group_id = topic = None
        positions: Partitions = {}
        for of_group, of_topic, partition, offset, leader_epoch, metadata, commit_ms, expire_ms in rows:
            if of_topic != topic or of_group != group_id:
                if group_id is not None and topic is not None:
                    self.set_positions(group_id, topic, positions, owners.get(group_id, UNKNOWN_OWNER))
                group_id, topic, positions = of_group, names.setdefault(of_topic, of_topic), {}
            expire = _NO_EXPIRY if expire_ms is None else expire_ms
            packed = _VALUES.pack(offset, leader_epoch, commit_ms, expire)
            positions[partition] = packed + metadata.encode() if metadata else packed
        if group_id is not None and topic is not None:
            self.set_positions(group_id, topic, positions, owners.get(group_id, UNKNOWN_OWNER))

    def forget(self, positions: Iterable[CommittedOffset]) -> None:
        """Delete positions, except those that were committed again since."""
        for at in positions:
            found = self.position(at.group_id, at.topic, at.partition)
            if found is not None and found.commit_ms == at.commit_ms:
                self._remove(at.group_id, at.topic, at.partition)

    def forget_topic(self, topic: str) -> Iterator[None]:
        """Forget all positions in a topic, yielding in between."""
        groups = self._groups_of.get(topic)
        while groups:
            group_id = next(iter(groups))
            for number, partition in enumerate(list(self.partitions(group_id, topic)), 1):
                self._remove(group_id, topic, partition)
                if number % OFFSETS_AT_ONCE == 0:
                    yield
            yield

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        group = self._groups[group_id]
        partitions = group.topics[topic]
        packed = partitions.pop(partition)
        gone = POSITION_BYTES + len(packed) - VALUE_BYTES
        if not partitions:
            del group.topics[topic]
            group.with_metadata.discard(topic)
            groups = self._groups_of[topic]
            del groups[group_id]
            if not groups:
                del self._groups_of[topic]
            gone += _TOPIC_BYTES
        if not group.topics:
            del self._groups[group_id]
            gone += _group_size(group_id)
        self._count(group, -gone)

    def _count(self, group: _Group, size: int) -> None:
        if size:
            group.size += size
            self.bound.count_use(group.owner, size)


def growth(before: Mapping[int, bytes], positions: Mapping[int, bytes]) -> int:
    """Return by how many bytes `positions` change the counted size of a topic: new partitions, and metadata."""
    bytes_before = sum(map(len, map(before.get, positions, repeat(b""))))
    added = 0 if positions.keys() <= before.keys() else len(positions.keys() - before.keys())
    return added * (POSITION_BYTES - VALUE_BYTES) + sum(map(len, positions.values())) - bytes_before


def times(commit_ms: int, expire_ms: int | None = None) -> bytes:
    """Return the packed times of a commit, which all its positions share. expire_ms: see `CommittedOffset`."""
    return _TIMES.pack(commit_ms, _NO_EXPIRY if expire_ms is None else expire_ms)


def pack_position(offset: int, leader_epoch: int, metadata: str, packed_times: bytes) -> bytes:
    """Return a packed position. packed_times: of `times`."""
    packed = _POSITION.pack(offset, leader_epoch) + packed_times
    return packed + metadata.encode() if metadata else packed


def unpack_position(group_id: str, topic: str, partition: int, packed: bytes) -> CommittedOffset:
    """Return the position that was packed."""
    offset, leader_epoch, commit_ms, expire_ms = _VALUES.unpack_from(packed)
    metadata = packed[VALUE_BYTES:].decode() if len(packed) > VALUE_BYTES else ""
    expires = None if expire_ms == _NO_EXPIRY else expire_ms
    return CommittedOffset(group_id, topic, partition, offset, leader_epoch, metadata, commit_ms, expires)


def _group_size(group_id: str) -> int:
    return _GROUP_BYTES + len(group_id.encode())
