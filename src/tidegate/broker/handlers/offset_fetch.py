"""OffsetFetch (key 9), versions 1-10. KIP-709 (several groups, from 8), KIP-1071 (topic ids, from 10).

Answers the committed offset of each partition, -1 where there is none; with null topics, all of the group's. A group
that another broker coordinates is error 16. Nothing is transactional, so `require_stable` changes nothing. What is
asked for more than once is answered as often, as by Kafka.
Needs DESCRIBE on the group, else error 30, and on each topic, else error 29; of all topics those without it are left
out.
Memory: at most 40 bytes for each byte of the request (a partition of 4 bytes becomes a number and some bytes), and
three times the answer: at most `MAX_POSITIONS` positions, with `MAX_METADATA_BYTES`.
"""

import struct
from collections.abc import Callable, Generator, Sequence
from functools import cache, lru_cache, partial
from itertools import repeat

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import OFFSET_FETCH
from tidegate.broker.answering import answer_partitions
from tidegate.broker.cluster import ClusterView
from tidegate.in_slices import release_messages, run_at_once
from tidegate.server.requests.handler import (
    Answer,
    Charge,
    Deferred,
    Handler,
    Message,
    Request,
    Work,
)
from tidegate.storage.groups.committed_offsets import (
    METADATA_AT_ONCE,
    OFFSETS_AT_ONCE,
    VALUE_BYTES,
    Partitions,
    pack_position,
    times,
)
from tidegate.storage.storage import Storage
from tidegate.wire import API_BY_KEY, ZERO_ID, EncodedElements, field_since
from tidegate.wire.primitives import uvarint

__all__ = ["MAX_METADATA_BYTES", "MAX_POSITIONS", "offset_fetch_handler"]

_TOPIC_IDS_SINCE = field_since(OFFSET_FETCH, "request", "topic_id")
_GROUP_ERROR_SINCE = 2  # before, each partition has one
_LEADER_EPOCH_SINCE = field_since(OFFSET_FETCH, "response", "committed_leader_epoch")
_NOTHING = pack_position(-1, -1, "", times(0))  # of a partition without a position
_SHORT_FRAME_BYTES = 512  # of some hundred partitions, which have some hundred KB of metadata at most
_OFFSET_BYTES, _EPOCH_BYTES = 8, 12  # of a packed position: up to its leader epoch, and with it

MAX_POSITIONS = 100_000
"""Positions in one answer; a group with which it would have more gets error 42. Source: as many as W1 lets in."""
MAX_METADATA_BYTES = 32 << 20
"""Their metadata, likewise: twice what a group may keep with the 4000 partitions of a node, in ASCII, unless
`offset.metadata.max.bytes` was raised."""


def offset_fetch_handler(storage: Storage, cluster: ClusterView) -> Handler:
    """Return the handler that answers the offsets kept in `storage`."""

    def handle(request: Request) -> Answer | Deferred | Work:
        if len(request.frame) > _SHORT_FRAME_BYTES:
            return read(request)
        body = request.body()
        work = answer(request, body)
        is_short = all(group["topics"] is not None for group in body.get("groups", (body,)))
        return run_at_once(work) if is_short else work

    def read(request: Request) -> Work:
        body = yield from request.body_in_slices()
        return (yield from answer(request, body))

    def answer(request: Request, body: Message) -> Work:
        positions = _Positions(storage, cluster, request)
        if "groups" not in body:
            topics, error_code = yield from positions.of(body["group_id"], body["topics"])
            yield from request.release_body(body)
            message = {"throttle_time_ms": 0, "topics": topics, "error_code": error_code}
            return (yield from answer_partitions(request, message, topics, "partitions", Charge.REQUEST))
        groups = []
        for group in body["groups"]:
            topics, error_code = yield from positions.of(group["group_id"], group["topics"])
            groups.append({"group_id": group["group_id"], "topics": topics, "error_code": error_code})
            yield
        yield from request.release_body(body)
        message = {"throttle_time_ms": 0, "groups": groups}
        if len(groups) == 1:
            return (yield from answer_partitions(request, message, topics, "partitions", Charge.REQUEST))
        encoded = yield from request.answer_in_slices(message)
        yield from release_messages(groups)
        return encoded

    return handle


class _Positions:
    """The positions that one request is answered."""

    def __init__(self, storage: Storage, cluster: ClusterView, request: Request) -> None:
        version = request.header.api_version
        self._storage = storage
        self._request = request
        self._cluster = cluster
        self._with_errors = version >= _GROUP_ERROR_SINCE
        self._field = "topic_id" if version >= _TOPIC_IDS_SINCE else "name"
        self._layout = _layout(version)
        self._left = MAX_POSITIONS
        self._left_bytes = MAX_METADATA_BYTES

    def of(
        self, group_id: str, wanted: list[Message] | None
    ) -> Generator[None, None, tuple[list[Message], int]]:
        """Return the topics of a group in which it has positions, or those wanted, and an error code."""
        topics: list[Message] = []
        refused = error_codes.NONE
        if not self._request.authorized(acl.DESCRIBE, acl.GROUP, group_id):
            refused = error_codes.GROUP_AUTHORIZATION_FAILED
        elif self._cluster.coordinator(group_id) != self._cluster.node_id:
            refused = error_codes.NOT_COORDINATOR
        if refused:
            if not self._with_errors:  # then each partition has the error
                for part in wanted or ():
                    yield from self._add(topics, part[self._field], part["partition_indexes"], {}, refused)
            return topics, refused
        if wanted is None:
            has_room = yield from self._add_all(group_id, topics)
        else:
            has_room = yield from self._add_named(group_id, wanted, topics)
        if has_room:
            return topics, error_codes.NONE
        return [], error_codes.INVALID_REQUEST

    def _add_all(self, group_id: str, topics: list[Message]) -> Generator[None, None, bool]:
        """Encode all positions of a group; return whether the answer has room for them."""
        for name in self._storage.offsets.topics(group_id):
            if not self._request.authorized(acl.DESCRIBE, acl.TOPIC, name):
                continue
            topic = self._storage.topics.by_name.get(name)
            key = name if self._field == "name" else ZERO_ID if topic is None else topic.topic_id
            found = dict(self._storage.offsets.partitions(group_id, name))  # it may change between two slices
            if found and not (yield from self._add(topics, key, sorted(found), found)):
                return False
        return True

    def _add_named(
        self, group_id: str, wanted: list[Message], topics: list[Message]
    ) -> Generator[None, None, bool]:
        """Encode the positions that are asked for; last what is refused, as Kafka does."""
        unknown: list[Message] = []
        for part in wanted:
            key, indexes = part[self._field], part["partition_indexes"]
            topic = self._storage.topics.by_id.get(key) if self._field == "topic_id" else None
            name = key if self._field == "name" else None if topic is None else topic.name
            if name is None:
                has_room = yield from self._add(unknown, key, indexes, {}, error_codes.UNKNOWN_TOPIC_ID)
            elif not self._request.authorized(acl.DESCRIBE, acl.TOPIC, name):
                refused = error_codes.TOPIC_AUTHORIZATION_FAILED
                has_room = yield from self._add(unknown, key, indexes, {}, refused)
            else:
                found = self._storage.offsets.partitions(group_id, name)
                may_have_metadata = partial(self._storage.offsets.may_have_metadata, group_id, name)
                has_room = yield from self._add(
                    topics, key, indexes, found, may_have_metadata=may_have_metadata
                )
            if not has_room:
                return False
        topics += unknown
        return True

    def _add(
        self,
        topics: list[Message],
        key: str,
        indexes: Sequence[int],
        found: Partitions,
        error_code: int = error_codes.NONE,
        *,
        may_have_metadata: Callable[[], bool] = lambda: True,
    ) -> Generator[None, None, bool]:
        """Encode partitions of one topic; return whether the answer has room for them.

        may_have_metadata: whether a position in `found` may have metadata now; if not, sizes are not looked up.
        """
        chunks: list[bytes] = []
        topics.append({self._field: key, "partitions": EncodedElements(len(indexes), chunks)})
        yield
        self._left -= len(indexes)
        if self._left < 0:
            return False
        for at in range(0, len(indexes), OFFSETS_AT_ONCE):
            some = indexes[at : at + OFFSETS_AT_ONCE]
            values = list(map(found.get, some, repeat(_NOTHING)))
            metadata_bytes = 0
            if may_have_metadata():
                metadata_bytes = sum(map(len, values)) - VALUE_BYTES * len(values)
            self._left_bytes -= metadata_bytes
            if self._left_bytes < 0:
                return False
            # Many clients may ask at the same moment: others wait for the first step of each.
            step = max(len(some) * METADATA_AT_ONCE // max(metadata_bytes, METADATA_AT_ONCE), 1)
            for begin in range(0, len(some), step):
                end = begin + step
                chunks += self._layout.encode(
                    some[begin:end], values[begin:end], error_code, has_metadata=metadata_bytes > 0
                )
                yield
        return True


@lru_cache(maxsize=32)
def _repeated(fields: str, count: int) -> struct.Struct:
    return struct.Struct(">" + fields * count)


class _Layout:
    """The encoding of a partition in one version: index, offset, leader epoch (from 5), metadata and error code.

    Partitions without metadata are packed together, by one call.
    """

    def __init__(self, version: int) -> None:
        self._is_flexible = API_BY_KEY[OFFSET_FETCH].is_flexible(version)
        self._value_bytes = _EPOCH_BYTES if version >= _LEADER_EPOCH_SINCE else _OFFSET_BYTES
        self._plain = f"i{self._value_bytes}sI"
        self._head = struct.Struct(f">i{self._value_bytes}s")

    def encode(
        self, indexes: Sequence[int], values: Sequence[bytes], error_code: int, *, has_metadata: bool
    ) -> list[bytes]:
        """Return partitions, a part with long metadata after the other. values: packed positions."""
        if has_metadata:
            return [
                self._with_metadata(index, packed, error_code)
                for index, packed in zip(indexes, values, strict=True)
            ]
        # length of the metadata, error code and, where there are tagged fields, their number
        end = 1 << 24 | error_code << 8 if self._is_flexible else error_code
        fields: list[int | bytes] = [end] * (3 * len(indexes))
        fields[::3], fields[1::3] = indexes, values
        return [_repeated(self._plain, len(indexes)).pack(*fields)]

    def _with_metadata(self, index: int, packed: bytes, error_code: int) -> bytes:
        """Return one partition. Texts that were committed are shorter than 32 KB."""
        size, metadata = len(packed) - VALUE_BYTES, packed[VALUE_BYTES:]
        if not self._is_flexible:
            length, end = struct.pack(">h", size), struct.pack(">h", error_code)
        else:
            length, end = uvarint(size + 1), struct.pack(">hx", error_code)
        return b"".join((self._head.pack(index, packed), length, metadata, end))


_layout = cache(_Layout)
