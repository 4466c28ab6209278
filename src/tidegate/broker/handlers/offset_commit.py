"""OffsetCommit (key 8), versions 2-10. KIP-98, KIP-345 (static members, from 7), KIP-1071 (topic ids, from 10).

Keeps the positions of a group's members, in their generation, and of consumers that assign partitions themselves (no
member, no generation); the answer leaves when they are on the disk. A member's commit keeps its session.
Of several positions for one partition the last is kept, and each is answered, as by Kafka. Many positions are kept in
several transactions: where the process ends in between, and the client has no answer, some of them are kept.
Needs READ on the group, else error 30 for all, and on each topic, else error 29.
A group that another broker coordinates is error 16. Without room for more (`OffsetTable.bound`, which the owners of
groups share) it is error 28; a position that takes no more room than the one before it is always kept.
Memory: at most 100 bytes for each byte of the request (a position of 14 bytes becomes two dicts, an object and three
entries), and the answer.
"""

from collections.abc import Generator, Iterable

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import OFFSET_COMMIT
from tidegate.broker.node_groups import NodeGroups, Writes
from tidegate.broker.releasing import answer_partitions, release
from tidegate.server.handler import Charge, Deferred, Handler, Message, Request, Work
from tidegate.storage.committed_offsets import CommittedOffset, growth
from tidegate.storage.group_rows import GroupChange, batched_positions
from tidegate.storage.topics import Topic
from tidegate.wire import field_since

__all__ = ["offset_commit_handler"]

NO_GENERATION = -1
_NO_RETENTION = -1
_CHECKED_AT_ONCE = 100  # partitions: a quarter of a millisecond
_LATEST_MS = 2**63 - 1
_GROUP_NOT_FOUND_SINCE = 9
_TOPIC_IDS_SINCE = field_since(OFFSET_COMMIT, "request", "topic_id")


def offset_commit_handler(groups: NodeGroups) -> Handler:
    """Return the handler that keeps offsets."""

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        if not request.authorized(acl.READ, acl.GROUP, body["group_id"]):
            return (yield from _refuse(request, body))
        commit = _Commit(groups, request, body)
        yield from commit.check()
        yield from request.release_body(body)
        if not (yield from commit.store()):
            return (yield from commit.answer_in_slices(()))
        deferred = Deferred()
        commit.writes.when_over(
            lambda failed: groups.late.complete(deferred, commit.answer_in_slices(failed))
        )
        return deferred

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

    def __init__(self, groups: NodeGroups, request: Request, body: Message) -> None:
        self.field = "name" if request.header.api_version < _TOPIC_IDS_SINCE else "topic_id"
        self.topics: list[Message] = []
        self.writes = Writes(groups.storage)
        self._groups = groups
        self._request = request
        self._topics_there = groups.storage.topics
        self._offsets = groups.storage.offsets
        self._most_metadata = groups.storage.config.offset_metadata_max_bytes
        self._body = body
        self._group_id: str = body["group_id"]
        self._member = (
            body["member_id"],
            body.get("group_instance_id"),
            body["generation_id_or_member_epoch"],
        )
        now_ms, retention_ms = groups.now_ms(), body.get("retention_time_ms", _NO_RETENTION)
        self._commit_ms = now_ms
        self._expire_ms = None if retention_ms == _NO_RETENTION else min(now_ms + retention_ms, _LATEST_MS)
        self._missing: dict[str, list[Message]] = {}
        self._found: list[tuple[str, list[Message]]] = []
        self._kept: list[tuple[Message, CommittedOffset]] = []
        self._accepted: dict[tuple[str, int], CommittedOffset] = {}
        self._owner = groups.owner(self._group_id) or request.connection.owner
        self._room = self._offsets.bound.room(self._owner)
        self._grown = self._reserved = 0

    def check(self) -> Generator[None, None, None]:
        """Look every partition up. Of several positions for one partition the last is kept."""
        refused = self._problem()
        for part in self._body["topics"]:
            name = part[self.field]
            topic, missing = self._find(name)
            if topic is None:
                self._missing.setdefault(name, [])  # Kafka answers it though no partition is asked for
                code = missing
            else:
                code = refused
            yield from self._check_partitions(name, topic, part["partitions"], code)
            self._reserve()
            yield
            self._room = self._offsets.bound.room(self._owner)
        for name, found in self._found:
            if self._missing:
                self._missing.setdefault(name, []).extend(found)
            else:
                self.topics.append({self.field: name, "partitions": found})
            yield
        for name, results in self._missing.items():
            self.topics.append({self.field: name, "partitions": results})
            yield

    def _check_partitions(
        self, name: str, topic: Topic | None, wanted: list[Message], refused: int
    ) -> Generator[None, None, None]:
        """Look the partitions of one topic up. refused: the error for all of them, if any."""
        found: list[Message] = []
        group_id, commit_ms, expire_ms = self._group_id, self._commit_ms, self._expire_ms
        before = {} if topic is None else self._offsets.partitions(group_id, topic.name)
        of_topic = 0 if topic is None else self._offsets.growth_of_new(group_id, topic.name)
        count = 0 if topic is None else len(topic.logs)
        for number, part in enumerate(wanted, 1):
            index, metadata = part["partition_index"], part["committed_metadata"] or ""
            if topic is None or not 0 <= index < count:
                code = refused if topic is None else error_codes.UNKNOWN_TOPIC_OR_PARTITION
                self._missing.setdefault(name, []).append(_result(index, code))
            elif refused or (metadata and _java_length(metadata) > self._most_metadata):
                found.append(_result(index, refused or error_codes.OFFSET_METADATA_TOO_LARGE))
            else:
                size = len(metadata.encode()) if metadata else 0
                grown = of_topic + growth(before.get(index), size)
                if grown > 0 and self._grown + grown > self._room:
                    found.append(_result(index, error_codes.INVALID_COMMIT_OFFSET_SIZE))
                else:
                    self._grown += max(grown, 0)
                    of_topic = 0
                    offset, leader_epoch = part["committed_offset"], part.get("committed_leader_epoch", -1)
                    position = CommittedOffset(
                        group_id, topic.name, index, offset, leader_epoch, metadata, commit_ms, expire_ms
                    )
                    result = _result(index, error_codes.NONE)
                    found.append(result)
                    self._accepted[topic.name, index] = position
                    self._kept.append((result, position))
            if number % _CHECKED_AT_ONCE == 0:
                self._reserve()
                yield
                self._room = self._offsets.bound.room(self._owner)
        if found:
            self._found.append((name, found))

    def _reserve(self) -> None:
        """Count what was accepted since the last time: others may commit before the next slice."""
        self._offsets.bound.add(self._owner, self._grown)
        self._reserved += self._grown
        self._grown = 0

    def store(self) -> Generator[None, None, bool]:
        """Keep what was accepted, some positions in a transaction; return whether there was any.

        Not what has become another generation's meanwhile, nor in topics that were deleted since they were found.
        """
        refused: dict[tuple[str, int], int] = {}
        there = self._topics_there.by_name
        is_new = self._group_id not in self._offsets
        left = len(self._accepted)
        for some in batched_positions(self._accepted.values()):
            problem = self._problem()
            kept = [at for at in some if at.topic in there]
            left -= len(some)
            if problem:
                refused |= {(at.topic, at.partition): problem for at in some}
            elif kept:
                reserved = 0 if left else self._reserved  # given back with the last, when all are counted
                self.writes.add(
                    GroupChange(offsets=kept, owner=self._owner, is_new=is_new, reserved=reserved)
                )
                self._reserved -= reserved
                is_new = False
            yield
        self._offsets.bound.remove(self._owner, self._reserved)
        if refused:
            for answer, at in self._kept:
                answer["error_code"] = refused.get((at.topic, at.partition), answer["error_code"])
                yield
        return bool(self._accepted)

    def answer_in_slices(self, failed: Iterable[GroupChange]) -> Work:
        """Return the answer when all is on the disk but the changes that failed."""
        lost = {(at.topic, at.partition) for change in failed for at in change.offsets}
        for answer, at in self._kept if lost else ():
            if (at.topic, at.partition) in lost:
                answer["error_code"] = error_codes.COORDINATOR_NOT_AVAILABLE
            yield
        yield from release(self._found, self._kept, self._missing, self._accepted)
        message = {"throttle_time_ms": 0, "topics": self.topics}
        return (
            yield from answer_partitions(self._request, message, self.topics, "partitions", Charge.REQUEST)
        )

    def _problem(self) -> int:
        """Return the error for all positions of the request."""
        groups, (member_id, instance_id, generation) = self._groups, self._member
        if not groups.coordinates(self._group_id):
            return error_codes.NOT_COORDINATOR
        problem = groups.coordinator.commit_problem(
            self._group_id, member_id, instance_id, generation, groups.now_ms(), self._request.connection
        )
        if problem is None:
            problem = self._problem_without_members()
        return problem

    def _problem_without_members(self) -> int:
        """Return the error for a commit to a group that never had members: in a generation it cannot be.

        Without a generation a member's id says nothing, as in Kafka. A group is known from its first position on.
        """
        if self._member[2] <= NO_GENERATION:
            return error_codes.NONE
        if self._groups.is_known(self._group_id):
            return error_codes.UNKNOWN_MEMBER_ID
        if self._request.header.api_version < _GROUP_NOT_FOUND_SINCE:
            return error_codes.ILLEGAL_GENERATION
        return error_codes.GROUP_ID_NOT_FOUND

    def _find(self, name: str) -> tuple[Topic | None, int]:
        """Return the topic of a name or id, and the error where there is none, or none for this client."""
        if self.field == "name":
            topic, missing = (
                self._topics_there.by_name.get(name),
                error_codes.UNKNOWN_TOPIC_OR_PARTITION,
            )
        else:
            topic, missing = self._topics_there.by_id.get(name), error_codes.UNKNOWN_TOPIC_ID
            if topic is None:
                return topic, missing
        if not self._request.authorized(acl.READ, acl.TOPIC, name if topic is None else topic.name):
            return None, error_codes.TOPIC_AUTHORIZATION_FAILED
        return topic, missing


def _java_length(text: str) -> int:
    """Return the length of a text as Java counts it, which is what Kafka bounds."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def _result(index: int, error_code: int) -> Message:
    return {"partition_index": index, "error_code": error_code}
