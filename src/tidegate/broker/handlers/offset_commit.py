"""OffsetCommit (key 8), versions 2-10. KIP-98, KIP-1071 (topic ids, from 10).

Keeps the positions of consumers that assign partitions themselves (no member, no generation); they survive `kill -9`.
Of several positions for one partition the last is kept, and each is answered, as by Kafka. Many positions are kept in
several transactions: where the process ends in between, and the client has no answer, some of them are kept.
Needs READ on the group, else error 30 for all, and on each topic, else error 29.
A group that another broker coordinates is error 16.
Memory: at most 100 bytes for each byte of the request (a position of 14 bytes becomes two dicts, an object and three
entries), and the answer.
Not implemented: members of a group (a commit in a generation is error 25; where the group is not known, 22, and from
version 9 on 69), expiry of offsets.
"""

import logging
from collections.abc import Generator, Iterable
from itertools import islice

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import OFFSET_COMMIT
from tidegate.broker.cluster import ClusterView
from tidegate.broker.releasing import answer_partitions, release
from tidegate.server.handler import Charge, Handler, Message, Request, Work
from tidegate.storage.config import OFFSET_METADATA_MAX_BYTES
from tidegate.storage.errors import StorageError
from tidegate.storage.storage import Storage
from tidegate.storage.store import OFFSETS_AT_ONCE, CommittedOffset
from tidegate.storage.topics import Topic
from tidegate.wire import field_since

__all__ = ["offset_commit_handler"]

NO_GENERATION = -1
_GROUP_NOT_FOUND_SINCE = 9
_TOPIC_IDS_SINCE = field_since(OFFSET_COMMIT, "request", "topic_id")
_logger = logging.getLogger(__name__)


def offset_commit_handler(storage: Storage, cluster: ClusterView) -> Handler:
    """Return the handler that keeps offsets in `storage`."""

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        if not request.authorized(acl.READ, acl.GROUP, body["group_id"]):
            return (yield from _refuse(request, body))
        commit = _Commit(storage, cluster, body, request)
        yield from commit.check()
        yield from request.release_body(body)
        yield from commit.store()
        yield from commit.release()
        topics = commit.topics
        message = {"throttle_time_ms": 0, "topics": topics}
        return (yield from answer_partitions(request, message, topics, "partitions", Charge.REQUEST))

    return handle


def _refuse(request: Request, body: Message) -> Work:
    """Answer that the client may not commit for the group."""
    field = "name" if request.header.api_version < _TOPIC_IDS_SINCE else "topic_id"
    topics: list[Message] = []
    for part in body["topics"]:
        partitions = []
        for wanted in part["partitions"]:
            partitions.append(_result(wanted["partition_index"], error_codes.GROUP_AUTHORIZATION_FAILED))
            yield
        topics.append({field: part[field], "partitions": partitions})
        yield
    yield from request.release_body(body)
    message = {"throttle_time_ms": 0, "topics": topics}
    return (yield from answer_partitions(request, message, topics, "partitions", Charge.REQUEST))


class _Commit:
    """One request: what is refused and kept.

    `topics` are answered: a topic's partitions as often as it is named; once, and those that are not there first, where
    there are any of these. As in Kafka.
    """

    def __init__(self, storage: Storage, cluster: ClusterView, body: Message, request: Request) -> None:
        self._request = request
        version = request.header.api_version
        self.field = "name" if version < _TOPIC_IDS_SINCE else "topic_id"
        self.topics: list[Message] = []
        self._storage = storage
        self._cluster = cluster
        self._body = body
        self._version = version
        self._group_id: str = body["group_id"]
        self._missing: dict[str, list[Message]] = {}
        self._found: list[tuple[str, list[Message]]] = []
        self._kept: list[tuple[Message, CommittedOffset]] = []
        self._accepted: dict[tuple[str, int], CommittedOffset] = {}

    def check(self) -> Generator[None, None, None]:
        """Look every partition up. Of several positions for one partition the last is kept."""
        if self._cluster.coordinator(self._group_id) != self._cluster.node_id:
            refused = error_codes.NOT_COORDINATOR
        else:
            refused = _membership_problem(self._storage, self._body, self._version)
        for part in self._body["topics"]:
            name = part[self.field]
            topic, missing = self._find(name)
            if topic is None:
                self._missing.setdefault(name, [])  # Kafka answers it though no partition is asked for
            found: list[Message] = []
            for wanted in part["partitions"]:
                index = wanted["partition_index"]
                if topic is None or topic.log(index) is None:
                    code = missing if topic is None else error_codes.UNKNOWN_TOPIC_OR_PARTITION
                    self._missing.setdefault(name, []).append(_result(index, code))
                elif refused or _is_too_long(wanted["committed_metadata"]):
                    found.append(_result(index, refused or error_codes.OFFSET_METADATA_TOO_LARGE))
                else:
                    position = _committed(self._group_id, topic.name, wanted)
                    self._accepted[topic.name, index] = position
                    found.append(_result(index, error_codes.NONE))
                    self._kept.append((found[-1], position))
                yield
            if found:
                self._found.append((name, found))
            yield
        for name, found in self._found:
            if self._missing:
                self._missing.setdefault(name, []).extend(found)
            else:
                self.topics.append({self.field: name, "partitions": found})
            yield
        for name, results in self._missing.items():
            self.topics.append({self.field: name, "partitions": results})
            yield

    def store(self) -> Generator[None, None, None]:
        """Keep what was accepted, `OFFSETS_AT_ONCE` positions in a transaction."""
        accepted = iter(self._accepted.values())
        failed: set[tuple[str, int]] = set()
        topics = self._storage.topics.by_name
        while some := list(islice(accepted, OFFSETS_AT_ONCE)):
            try:  # not in topics that were deleted since they were found
                self._storage.store.commit_offsets(
                    [position for position in some if position.topic in topics]
                )
            except StorageError as error:
                _logger.error(
                    "cannot keep offsets of group %r: %s",
                    self._group_id,
                    error,
                    extra={"repeats": "offset commit"},
                )
                failed |= {(position.topic, position.partition) for position in some}
            yield
        for answer, position in self._kept:
            if (position.topic, position.partition) in failed:
                answer["error_code"] = error_codes.COORDINATOR_NOT_AVAILABLE
            yield

    def release(self) -> Iterable[None]:
        """Empty all lists and tables but what is answered."""
        return release(self._found, self._kept, self._missing, self._accepted)

    def _find(self, name: str) -> tuple[Topic | None, int]:
        """Return the topic of a name or id, and the error where there is none, or none for this client."""
        if self.field == "name":
            topic, missing = (
                self._storage.topics.by_name.get(name),
                error_codes.UNKNOWN_TOPIC_OR_PARTITION,
            )
        else:
            topic, missing = self._storage.topics.by_id.get(name), error_codes.UNKNOWN_TOPIC_ID
            if topic is None:
                return topic, missing
        if not self._request.authorized(acl.READ, acl.TOPIC, name if topic is None else topic.name):
            return None, error_codes.TOPIC_AUTHORIZATION_FAILED
        return topic, missing


def _membership_problem(storage: Storage, body: Message, version: int) -> int:
    """Return the error for a commit in a generation of a group's members, of whom there are none.

    Without a generation a member's id says nothing, as in Kafka. A group is known from its first position on.
    """
    if body["generation_id_or_member_epoch"] <= NO_GENERATION:
        return error_codes.NONE
    if storage.store.has_offsets(body["group_id"]):
        return error_codes.UNKNOWN_MEMBER_ID
    return (
        error_codes.ILLEGAL_GENERATION if version < _GROUP_NOT_FOUND_SINCE else error_codes.GROUP_ID_NOT_FOUND
    )


def _result(index: int, error_code: int) -> Message:
    return {"partition_index": index, "error_code": error_code}


def _is_too_long(metadata: str | None) -> bool:
    return len((metadata or "").encode()) > OFFSET_METADATA_MAX_BYTES


def _committed(group_id: str, topic: str, wanted: Message) -> CommittedOffset:
    return CommittedOffset(
        group_id=group_id,
        topic=topic,
        partition=wanted["partition_index"],
        offset=wanted["committed_offset"],
        leader_epoch=wanted.get("committed_leader_epoch", -1),
        metadata=wanted["committed_metadata"] or "",
    )
