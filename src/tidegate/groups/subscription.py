"""The topics that a consumer subscribes to, as its metadata say, and the partitions that its leader assigned to it.

Follows: Kafka `ClassicGroup.computeSubscribedTopics`, `ConsumerProtocol.deserializeSubscription` (version 0).
"""

import struct
from collections.abc import Container, Generator
from dataclasses import dataclass

__all__ = ["CONSUMER", "Subscription", "assigned_partitions_in_slices", "subscribed_topics_in_slices"]

CONSUMER = "consumer"
"""The protocol type whose metadata say which topics a member subscribes to."""

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_AT_ONCE = 500  # topics read between two yields: well under a millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The topics that the members of a generation read. topics: None if unknown; a consumer may then read any topic."""

    generation: int
    is_consumer: bool
    topics: frozenset[str] | None

    def has(self, topic: str) -> bool:
        """Return whether a member may read a topic."""
        return self.is_consumer if self.topics is None else topic in self.topics


def subscribed_topics_in_slices(
    metadata: bytes, among: Container[str]
) -> Generator[None, None, set[str] | None]:
    """Return the topics of a subscription that are also in `among`, None where it cannot be read.

    Only the fields of version 0 are read, whatever version a subscription names: some clients name a version and leave
    out its further fields. A subscription of a megabyte may name half a million topics. So many are neither read at
    once nor kept.

    >>> from tidegate.in_slices import run_at_once
    >>> run_at_once(subscribed_topics_in_slices(bytes.fromhex("0000 00000001 0001 74 00000000"), {"t", "u"}))
    {'t'}
    >>> run_at_once(subscribed_topics_in_slices(bytes.fromhex("0000 00000001 0001 74"), {"t", "u"})) is None
    True
    """
    try:
        return (yield from _read(_Reader(metadata), among))
    except (struct.error, ValueError):
        return None


def assigned_partitions_in_slices(
    assignment: bytes, *, most: int
) -> Generator[None, None, list[tuple[str, int]]]:
    """Return at most `most` assigned partitions by topic name; of a malformed assignment, those before the damage.

    >>> from tidegate.in_slices import run_at_once
    >>> assignment = bytes.fromhex("0000 00000001 0001 74 00000002 00000000 00000003")
    >>> run_at_once(assigned_partitions_in_slices(assignment, most=9))
    [('t', 0), ('t', 3)]
    """
    found: list[tuple[str, int]] = []
    reader = _Reader(assignment)
    try:
        reader.read_number(_SHORT)
        for _ in range(reader.count()):
            topic = reader.content(reader.read_number(_SHORT)).decode("utf-8", "replace")
            for number in range(reader.count()):
                if len(found) >= most:
                    return found
                found.append((topic, reader.read_number(_INT)))
                if number % _AT_ONCE == 0:
                    yield
            yield
    except (struct.error, ValueError):
        pass
    return found


class _Reader:
    """Reads values one after the other. Raises `struct.error` or `ValueError` where there is none."""

    __slots__ = ("_at", "_metadata")

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata
        self._at = 0

    def read_number(self, packed: struct.Struct) -> int:
        (value,) = packed.unpack_from(self._metadata, self._at)
        self._at += packed.size
        return int(value)

    def content(self, length: int) -> bytes:
        at = self._at
        if not 0 <= length <= len(self._metadata) - at:
            raise ValueError(length)
        self._at = at + length
        return self._metadata[at : at + length]

    def count(self) -> int:
        value = self.read_number(_INT)
        if value < 0:
            raise ValueError(value)
        return value


def _read(reader: _Reader, among: Container[str]) -> Generator[None, None, set[str]]:
    reader.read_number(_SHORT)  # the version; all versions begin with the fields that are read here
    topics = set()
    for number in range(reader.count()):
        topic = reader.content(reader.read_number(_SHORT)).decode("utf-8", "replace")
        if topic in among:
            topics.add(topic)
        if number % _AT_ONCE == 0:
            yield
    user_data = reader.read_number(_INT)
    reader.content(max(user_data, 0))
    return topics
