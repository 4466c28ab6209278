"""Topics of the Produce and Fetch requests of a gateway, for its usage record.

The topic is read where that costs least. For a Produce with one topic, that is the response, next to the error code
that tells whether the broker stored the records. The sizes of records are read only for a request with several topics.
For a Fetch, the topic is in the response, too. A long response is forwarded while it arrives: read the topic from the
part that was received.
"""

import struct
import uuid
from collections.abc import Mapping

from tidegate import error_codes
from tidegate.gateway import metadata
from tidegate.gateway.topic_names import IDS_SINCE, TopicNames
from tidegate.wire import Message
from tidegate.wire.errors import MalformedError
from tidegate.wire.primitives import varint

__all__ = [
    "FIRST_TOPIC",
    "NO_RECORDS",
    "ONE",
    "UNKNOWN_TOPICS",
    "Topics",
    "fetched_topics",
    "produced_sizes",
    "stored_topics",
]

Topics = tuple[str | None, int]
"""The topic with the most bytes and the number of others with records, as `Answer` has them."""
UNKNOWN_TOPICS: Topics = None, -1
NO_RECORDS: Topics = None, 0
Sizes = dict[tuple[bytes, int], int]
"""Bytes of records by topic (its name, or its id) and partition."""

MAX_PARTITIONS = 1000
"""Topics, and partitions in all, of a message that is looked at, which takes about a millisecond."""
MAX_TAGS = 4
"""Tagged fields of a structure in a message that is looked at. Kafka 4.3 has at most three."""
_ID_BYTES = 16
_PRODUCE_COMPACT_SINCE, _FETCH_COMPACT_SINCE = 9, 12
_TRANSACTIONS_SINCE, _LOG_START_SINCE, _PREFERRED_REPLICA_SINCE = 4, 5, 11
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
ONE = 2
"""The length of a compact array with one element."""
_LONG = 127  # the first byte of a longer string's length has its highest bit set
FIRST_TOPIC = struct.Struct(">ih")
"""The number of topics, and the length of the first one's name, before versions with compact arrays."""
_PREFERRED_REPLICA_BYTES = 4
_TRANSACTION_BYTES = 16  # without tagged fields


class _Layouts(dict[int, struct.Struct]):
    """Number of partitions, number of transactions and length of the records of a response with one, by version.

    Versions before `_TRANSACTIONS_SINCE` are not in it.
    """

    def __missing__(self, version: int) -> struct.Struct:
        count = "B" if version >= _FETCH_COMPACT_SINCE else "i"
        replica = _PREFERRED_REPLICA_BYTES if version >= _PREFERRED_REPLICA_SINCE else 0
        found = self[version] = struct.Struct(f">{count}{_offsets_end(version)}x{count}{replica}x{count}")
        return found


def _offsets_end(version: int) -> int:
    """Return the size of a partition up to its transactions: its index, its error code, and offsets."""
    return 14 + 8 * (version >= _TRANSACTIONS_SINCE) + 8 * (version >= _LOG_START_SINCE)


_ONE_PARTITION = _Layouts()
_READ_ERRORS = struct.error, IndexError, MalformedError


# --- Produce ----------------------------------------------------------------------------------------------------------


def produced_sizes(frame: memoryview, version: int, at: int) -> Sizes | None:
    """Return the bytes of records of a Produce request with several topics; None: it has one, or too many partitions.

    at: the offset behind the request's acks.
    """
    at += _INT32.size  # the timeout
    is_compact = version >= _PRODUCE_COMPACT_SINCE
    sizes: Sizes = {}
    try:
        if frame[at] == ONE if is_compact else _INT32.unpack_from(frame, at)[0] == 1:
            return None
        topics, at = _count(frame, at, is_compact=is_compact)
        if topics > MAX_PARTITIONS:
            return None
        for _ in range(topics):
            key, at = _key(frame, at, version, is_compact=is_compact)
            partitions, at = _count(frame, at, is_compact=is_compact)
            if len(sizes) + partitions > MAX_PARTITIONS:
                return None
            for _ in range(partitions):
                (index,) = _INT32.unpack_from(frame, at)
                size, at = _count(frame, at + _INT32.size, is_compact=is_compact)
                at += size
                at = _after_tags(frame, at) if is_compact else at
                sizes[key, index] = sizes.get((key, index), 0) + size
            at = _after_tags(frame, at) if is_compact else at
    except _READ_ERRORS:
        return None  # the broker refuses it
    return sizes


def stored_topics(message: Message, version: int, sizes: Sizes | None, names: TopicNames) -> Topics:
    """Return the topics of a Produce that the broker has stored, from its decoded response.

    sizes: `produced_sizes` of the request; None: unknown.
    """
    stored: dict[bytes, int] = {}
    for topic in message["responses"]:
        key = uuid.UUID(topic["topic_id"]).bytes if version >= IDS_SINCE else topic["name"].encode()
        for each in topic["partition_responses"]:
            if each["error_code"] == error_codes.NONE:
                stored[key] = stored.get(key, 0) + (sizes.get((key, each["index"]), 0) if sizes else 0)
    if sizes is None and len(stored) > 1:
        return UNKNOWN_TOPICS
    return _largest(stored, version, names)


# --- Fetch ------------------------------------------------------------------------------------------------------------


def fetched_topics(frame: bytearray, version: int, at: int, names: TopicNames) -> Topics:
    """Return the topics with records in a Fetch response, of which `frame` may be the beginning.

    at: the offset of its topics. Of a response of several topics that is not here as a whole, every other topic counts
    as one with records.
    """
    one = _one_partition(frame, version, at)
    if one is not None:
        key, has_records = one
        if not has_records:
            return NO_RECORDS
        name = names.name(key, version)
        return UNKNOWN_TOPICS if name is None else (name, 0)
    sizes: dict[bytes, int] = {}
    topics = 0
    try:
        topics, at = _count(frame, at, is_compact=version >= _FETCH_COMPACT_SINCE)
        _add_fetched(frame, version, at, topics, sizes)
    except _READ_ERRORS:
        if not sizes:
            return UNKNOWN_TOPICS
        name, _ = _largest(sizes, version, names)
        return UNKNOWN_TOPICS if name is None else (name, min(topics, MAX_PARTITIONS) - 1)
    return _largest(sizes, version, names)


def _one_partition(frame: bytearray, version: int, at: int) -> tuple[bytes, bool] | None:
    """Return the topic of a response with one partition, and whether it has records.

    None: the response has another number of them, an aborted transaction, or a very long name. Most responses have one.
    """
    if version < _TRANSACTIONS_SINCE:
        return None
    layout = _ONE_PARTITION[version]
    try:
        if version < _FETCH_COMPACT_SINCE:
            topics, size = FIRST_TOPIC.unpack_from(frame, at)
            begin = at + FIRST_TOPIC.size
            end = begin + size
            partitions, transactions, records = layout.unpack_from(frame, end)
            if topics == partitions == 1 and transactions <= 0 <= size:
                return bytes(frame[begin:end]), records > 0
            return None
        begin, end = (
            (at + 1, at + 1 + _ID_BYTES) if version >= IDS_SINCE else (at + 2, at + 1 + frame[at + 1])
        )
        partitions, transactions, records = layout.unpack_from(frame, end)
        if frame[at] == partitions == ONE and transactions <= 1 and end - begin < _LONG:
            return bytes(frame[begin:end]), records > 1
    except _READ_ERRORS:
        pass
    return None


def _add_fetched(frame: bytearray, version: int, at: int, topics: int, sizes: dict[bytes, int]) -> None:
    """Add the bytes of records of each topic to `sizes`, up to where the frame ends: then it raises `IndexError`."""
    is_compact = version >= _FETCH_COMPACT_SINCE
    before = _offsets_end(version)
    left = MAX_PARTITIONS
    if topics > left:
        raise IndexError
    for _ in range(topics):
        key, at = _key(frame, at, version, is_compact=is_compact)
        partitions, at = _count(frame, at, is_compact=is_compact)
        left -= partitions
        if left < 0:
            raise IndexError
        for _ in range(partitions):
            at += before
            if version >= _TRANSACTIONS_SINCE:
                transactions, at = _count(frame, at, is_compact=is_compact)
                at = _after_transactions(frame, at, transactions, is_compact=is_compact)
            at += _PREFERRED_REPLICA_BYTES if version >= _PREFERRED_REPLICA_SINCE else 0
            size, at = _count(frame, at, is_compact=is_compact)
            if size:
                sizes[key] = sizes.get(key, 0) + size
            at += size
            at = _after_tags(frame, at) if is_compact else at
        at = _after_tags(frame, at) if is_compact else at
    if at > len(frame):
        raise IndexError


def _after_transactions(frame: bytearray, at: int, count: int, *, is_compact: bool) -> int:
    """Return the offset behind a list of aborted transactions."""
    if not is_compact:
        return at + count * _TRANSACTION_BYTES
    if count > MAX_PARTITIONS:
        raise IndexError
    for _ in range(count):
        at = _after_tags(frame, at + _TRANSACTION_BYTES)
    return at


# --- parts of messages ------------------------------------------------------------------------------------------------


def _largest(sizes: Mapping[bytes, int], version: int, names: TopicNames) -> Topics:
    if not sizes:
        return NO_RECORDS
    name = names.name(max(sizes, key=sizes.__getitem__), version)
    return UNKNOWN_TOPICS if name is None else (name, len(sizes) - 1)


def _count(frame: memoryview | bytearray, at: int, *, is_compact: bool) -> tuple[int, int]:
    """Return the length of an array, or of bytes, and the offset behind it. A length of -1 is null: 0."""
    if is_compact:
        size, at = varint(frame, at)
        return max(size - 1, 0), at
    return max(_INT32.unpack_from(frame, at)[0], 0), at + _INT32.size


def _after_tags(frame: memoryview | bytearray, at: int) -> int:
    """Return the offset behind a structure's tagged fields. Raises `IndexError` where they are more than `MAX_TAGS`."""
    if frame[at] > MAX_TAGS:
        raise IndexError
    return metadata.after_tags(frame, at)


def _key(frame: memoryview | bytearray, at: int, version: int, *, is_compact: bool) -> tuple[bytes, int]:
    """Return the name or the id of a topic, and the offset behind it."""
    if version >= IDS_SINCE:
        size = _ID_BYTES
    elif is_compact:
        size, at = varint(frame, at)
        size -= 1
    else:
        (size,) = _INT16.unpack_from(frame, at)
        at += _INT16.size
    if size < 0 or at + size > len(frame):
        raise IndexError
    return bytes(frame[at : at + size]), at + size
