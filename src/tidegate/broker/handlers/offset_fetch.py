"""OffsetFetch (key 9), versions 1-10. KIP-709 (several groups, from 8), KIP-1071 (topic ids, from 10).

Answers the committed offset of each partition, -1 where there is none; with null topics, all of the group's. A group
that another broker coordinates is error 16. Nothing is transactional, so `require_stable` changes nothing. What is
asked for more than once is answered as often, as by Kafka.
Needs DESCRIBE on the group, else error 30, and on each topic, else error 29; of all topics those without it are left
out.
Memory: at most 150 bytes for each byte of the request (a partition of 4 bytes becomes two numbers and a dict), and 20
times the answer: at most `MAX_POSITIONS` positions, with `MAX_METADATA_BYTES`.
"""

from collections.abc import Generator, Iterable

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import OFFSET_FETCH
from tidegate.broker.cluster import ZERO_ID, ClusterView
from tidegate.broker.releasing import answer_partitions
from tidegate.in_slices import release_messages
from tidegate.server.handler import Charge, Handler, Message, Request, Work
from tidegate.storage.committed_offsets import OFFSETS_AT_ONCE, Partitions, unpacked
from tidegate.storage.storage import Storage
from tidegate.wire import field_since

__all__ = ["MAX_METADATA_BYTES", "MAX_POSITIONS", "offset_fetch_handler"]

_TOPIC_IDS_SINCE = field_since(OFFSET_FETCH, "request", "topic_id")
_GROUP_ERROR_SINCE = 2  # before, each partition has one
_NOTHING = (-1, -1, "")  # of a partition without a position: offset, leader epoch, metadata

MAX_POSITIONS = 100_000
"""Positions in one answer; a group with which it would have more gets error 42. Source: as many as W1 lets in."""
MAX_METADATA_BYTES = 32 << 20
"""Their metadata, likewise: twice what a group may keep with the 4000 partitions of a node, in ASCII, unless
`offset.metadata.max.bytes` was raised."""


def offset_fetch_handler(storage: Storage, cluster: ClusterView) -> Handler:
    """Return the handler that answers the offsets kept in `storage`."""

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        version = request.header.api_version
        positions = _Positions(
            storage,
            cluster,
            request,
            by_id=version >= _TOPIC_IDS_SINCE,
            with_errors=version >= _GROUP_ERROR_SINCE,
        )
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
        answer = yield from request.answer_in_slices(message)
        yield from release_messages(groups)
        return answer

    return handle


class _Positions:
    """The positions that one request is answered."""

    def __init__(
        self, storage: Storage, cluster: ClusterView, request: Request, *, by_id: bool, with_errors: bool
    ) -> None:
        self._storage = storage
        self._request = request
        self._cluster = cluster
        self._with_errors = with_errors
        self._field = "topic_id" if by_id else "name"
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
            if not self._with_errors:
                yield from self._refused(wanted or (), refused, topics)
            return topics, refused
        found = (
            self._everything(group_id, topics) if wanted is None else self._named(group_id, wanted, topics)
        )
        if (yield from found):
            return topics, error_codes.NONE
        yield from release_messages(topics)
        return [], error_codes.INVALID_REQUEST

    def _everything(self, group_id: str, topics: list[Message]) -> Generator[None, None, bool]:
        """Describe all positions of a group; return whether the answer has room for them."""
        names, key, partitions = self._storage.topics.by_name, "", list[Message]()
        last = None
        may_describe = False
        for page in self._storage.offsets.pages(group_id):
            for position in page:
                if not self._has_room(position.metadata):
                    return False
                is_new = position.topic != last
                last = position.topic
                if is_new:
                    may_describe = self._may_describe(position.topic)
                if not may_describe:
                    continue
                if is_new:
                    topic = names.get(position.topic)
                    topic_id = ZERO_ID if topic is None else topic.topic_id
                    key = position.topic if self._field == "name" else topic_id
                    partitions = []
                    topics.append({self._field: key, "partitions": partitions})
                partitions.append(
                    _position(position.partition, position.offset, position.leader_epoch, position.metadata)
                )
            yield
        return True

    def _named(
        self, group_id: str, wanted: list[Message], topics: list[Message]
    ) -> Generator[None, None, bool]:
        """Describe the positions that are asked for; last what is refused, as Kafka does."""
        unknown: list[Message] = []
        for part in wanted:
            key = part[self._field]
            topic = self._storage.topics.by_id.get(key) if self._field == "topic_id" else None
            name = key if self._field == "name" else None if topic is None else topic.name
            partitions: list[Message] = []
            refused = error_codes.UNKNOWN_TOPIC_ID if name is None else error_codes.NONE
            if name is not None and not self._may_describe(name):
                refused = error_codes.TOPIC_AUTHORIZATION_FAILED
            (unknown if refused else topics).append({self._field: key, "partitions": partitions})
            found = {} if name is None or refused else self._storage.offsets.partitions(group_id, name)
            if not (yield from self._fill(part["partition_indexes"], found, refused, partitions)):
                topics += unknown
                return False
            yield
        topics += unknown
        return True

    def _fill(
        self, indexes: list[int], found: Partitions, refused: int, partitions: list[Message]
    ) -> Generator[None, None, bool]:
        """Describe partitions of one topic; return whether the answer has room for them."""
        for at in range(0, len(indexes), OFFSETS_AT_ONCE):
            some = indexes[at : at + OFFSETS_AT_ONCE]
            self._left -= len(some)
            if self._left < 0:
                return False
            for index in some:
                packed = found.get(index)
                offset, leader_epoch, metadata = _NOTHING if packed is None else unpacked(packed)
                if metadata:
                    self._left_bytes -= len(metadata) if metadata.isascii() else len(metadata.encode())
                partitions.append(
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_leader_epoch": leader_epoch,
                        "metadata": metadata,
                        "error_code": refused,
                    }
                )
            if self._left_bytes < 0:
                return False
            yield
        return True

    def _has_room(self, metadata: str) -> bool:
        """Return whether the answer has room for one more position."""
        self._left -= 1
        if metadata:
            self._left_bytes -= len(metadata) if metadata.isascii() else len(metadata.encode())
        return self._left >= 0 and self._left_bytes >= 0

    def _may_describe(self, topic: str) -> bool:
        return self._request.authorized(acl.DESCRIBE, acl.TOPIC, topic)

    def _refused(
        self, wanted: Iterable[Message], error_code: int, topics: list[Message]
    ) -> Generator[None, None, None]:
        """Answer an error for each partition, where the version has none for the group."""
        for part in wanted:
            partitions: list[Message] = []
            for index in part["partition_indexes"]:
                partitions.append(_position(index, *_NOTHING, error_code))
                yield
            topics.append({self._field: part[self._field], "partitions": partitions})
            yield


def _position(
    index: int, offset: int, leader_epoch: int, metadata: str, error_code: int = error_codes.NONE
) -> Message:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": leader_epoch,
        "metadata": metadata,
        "error_code": error_code,
    }
