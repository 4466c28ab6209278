"""Groups and committed positions as bytes: the members of a group's row, and the records of the journal.

A record of the journal is the commit of one group's positions, or the new state of one group. Positions name their
topic by its id, so that a record never applies to a later topic of the same name.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from json.encoder import encode_basestring_ascii
from typing import Final

from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.groups import StoredGroup, StoredMember
from tidegate.storage.groups.committed_offsets import VALUE_BYTES, Partitions

__all__ = [
    "JournaledPositions",
    "decode_record",
    "encode_group",
    "encode_positions",
    "pack_members",
    "pack_owners",
    "unpack_members",
]

_POSITIONS: Final = 1
_GROUP: Final = 2
_NUMBERS = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">BBii")
"""Header of a record: kind, 1 for a commit that creates its group, bytes of the group's id and of its owner."""
_TOPIC = struct.Struct(">iii")
"""Bytes of the topic's id, how many positions, and bytes of each, 0 where they differ. The partitions follow, then the
sizes of positions that differ, then the positions."""
_GROUP_NUMBERS = struct.Struct(">iq")
"""Numbers of a group: generation, time of its state. Five texts follow, then the members."""
_NULL = -1
_NO_VALUE = _LENGTH.pack(_NULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledPositions:
    """A commit in the journal: positions by topic id. owner: the principal of a group that the commit has created."""

    group_id: str
    positions: Mapping[str, Partitions]
    owner: str | None


def encode_positions(
    group_id: str, positions: Mapping[str, Partitions], topic_ids: Mapping[str, str], owner: str | None
) -> bytes:
    """Return the record of a commit. positions, topic_ids: by topic name. owner: see `JournaledPositions`."""
    group, of_owner = group_id.encode(), (owner or "").encode()
    parts = [_HEADER.pack(_POSITIONS, owner is not None, len(group), len(of_owner)), group, of_owner]
    for topic, partitions in positions.items():
        of_topic, count = topic_ids[topic].encode(), len(partitions)
        values = b"".join(partitions.values())
        size = VALUE_BYTES if len(values) == count * VALUE_BYTES else 0
        parts.append(_TOPIC.pack(len(of_topic), count, size))
        parts.append(of_topic)
        parts.append(struct.pack(f">{count}i", *partitions))
        if not size:
            parts.append(struct.pack(f">{count}i", *map(len, partitions.values())))
        parts.append(values)
    return b"".join(parts)


def encode_group(group: StoredGroup) -> bytes:
    """Return the record of a group's new state."""
    of_group = group.group_id.encode()
    parts = [
        _HEADER.pack(_GROUP, 0, len(of_group), 0),
        of_group,
        _GROUP_NUMBERS.pack(group.generation, group.state_at_ms),
    ]
    texts = (group.protocol_type, group.protocol, group.leader_id, group.owner, pack_owners(group.members))
    _add_sized(parts, *[None if text is None else text.encode() for text in texts])
    parts += pack_members(group.members)
    return b"".join(parts)


def _decode_group(group_id: str, record: bytes, at: int) -> StoredGroup:
    generation, state_at_ms = _GROUP_NUMBERS.unpack_from(record, at)
    values = _Values(record, at + _GROUP_NUMBERS.size)
    protocol_type, protocol, leader_id, owner, owners = (values.text() for _ in range(5))
    return StoredGroup(
        group_id=group_id,
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader_id=leader_id,
        state_at_ms=state_at_ms,
        members=tuple(unpack_members(record[values.at :], owners)),
        owner=owner or UNKNOWN_OWNER,
    )


def decode_record(record: bytes) -> JournaledPositions | StoredGroup:
    """Return what a record says. Raises `struct.error`, `ValueError` or `TypeError` for other bytes."""
    kind, is_new, size, owner_size = _HEADER.unpack_from(record)
    at = _HEADER.size
    group_id = record[at : at + size].decode()
    at += size
    if kind == _GROUP:
        return _decode_group(group_id, record, at)
    if kind != _POSITIONS:
        raise ValueError(f"kind must be {_POSITIONS} or {_GROUP}, got {kind}")
    owner = record[at : at + owner_size].decode()
    at += owner_size
    positions: dict[str, Partitions] = {}
    while at < len(record):
        id_size, count, size = _TOPIC.unpack_from(record, at)
        at += _TOPIC.size
        topic_id = record[at : at + id_size].decode()
        at += id_size
        numbers = struct.unpack_from(f">{count if size else 2 * count}i", record, at)
        at += len(numbers) * _LENGTH.size
        partitions = positions[topic_id] = {}
        for partition, bytes_of in zip(numbers[:count], numbers[count:] or (size,) * count, strict=True):
            partitions[partition] = record[at : at + bytes_of]
            at += bytes_of
    return JournaledPositions(group_id=group_id, positions=positions, owner=owner if is_new else None)


def pack_members(members: Sequence[StoredMember]) -> list[bytes]:
    """Return members as bytes: of each two numbers, then six values with their lengths."""
    parts: list[bytes] = []
    for member in members:
        parts.append(_NUMBERS.pack(member.rebalance_timeout_ms, member.session_timeout_ms))
        instance_id = member.instance_id
        _add_sized(
            parts,
            member.member_id.encode(),
            None if instance_id is None else instance_id.encode(),
            member.client_id.encode(),
            member.client_host.encode(),
            member.metadata,
            member.assignment,
        )
    return parts


def _add_sized(parts: list[bytes], *values: bytes | None) -> None:
    """Add values with their lengths."""
    for value in values:
        if value is None:
            parts.append(_NO_VALUE)
        else:
            parts += _LENGTH.pack(len(value)), value


def pack_owners(members: Sequence[StoredMember]) -> str | None:
    """Return the owners of members as JSON: a list, or one text where all have the same."""
    if not members:
        return None
    owner = members[0].owner
    if all(member.owner == owner for member in members):
        return encode_basestring_ascii(owner)
    return json.dumps([member.owner for member in members])


def _unpacked_owners(packed: str | None) -> Iterator[str]:
    """Yield the owner of each member, endlessly; the owner is unknown for members stored by an earlier version."""
    owners = UNKNOWN_OWNER if packed is None else json.loads(packed)
    if isinstance(owners, list):
        yield from map(str, owners)
        owners = UNKNOWN_OWNER
    yield from repeat(str(owners))


def unpack_members(packed: bytes, packed_owners: str | None) -> Iterator[StoredMember]:
    """Yield the members that were packed. Raises `struct.error`, `ValueError` or `TypeError` for malformed bytes."""
    owners = _unpacked_owners(packed_owners)
    values = _Values(packed, 0)
    while values.at < len(packed):
        rebalance_timeout_ms, session_timeout_ms = _NUMBERS.unpack_from(packed, values.at)
        values.at += _NUMBERS.size
        member_id, instance_id, client_id, client_host = (values.text() for _ in range(4))
        metadata, assignment = values.value(), values.value()
        yield StoredMember(
            member_id=member_id or "",
            instance_id=instance_id,
            client_id=client_id or "",
            client_host=client_host or "",
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            metadata=metadata or b"",
            assignment=assignment or b"",
            owner=next(owners),
        )


class _Values:
    """Values with their lengths, read from `at` on. Raises `struct.error` where one goes past the end."""

    __slots__ = ("_packed", "at")

    def __init__(self, packed: bytes, at: int) -> None:
        self._packed = packed
        self.at = at

    def value(self) -> bytes | None:
        """Return the next value."""
        (length,) = _LENGTH.unpack_from(self._packed, self.at)
        self.at += _LENGTH.size
        if length == _NULL:
            return None
        if not 0 <= length <= len(self._packed) - self.at:
            raise struct.error(
                f"value has {length} bytes at byte {self.at}, expected at most {len(self._packed) - self.at}"
            )
        self.at += length
        return self._packed[self.at - length : self.at]

    def text(self) -> str | None:
        """Return the next value, decoded."""
        value = self.value()
        return None if value is None else value.decode()
