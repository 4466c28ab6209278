"""OffsetCommit (key 8), versions 2-10. KIP-98, KIP-345 (static members, from 7), KIP-1071 (topic ids, from 10).

Stores offsets ("positions") for members of a group, in their generation, and for consumers that assign partitions
themselves (no member, no generation). The answer leaves when the positions would survive the end of the process. A
commit also keeps the member's session alive. If a partition has several positions, the last is stored, and each is
answered, as in Kafka. Many positions are stored in several parts: if the process ends in between, some are stored, and
the client gets no answer.
Needs READ on the group, else error 30 for all, and on each topic, else error 29.
A group that another broker coordinates is error 16. Without room for more (`OffsetTable.bound`, which the owners of
groups share) it is error 28; a position that takes no more room than the one before it is always kept.
Memory: at most 100 bytes for each byte of the request (a position of 14 bytes becomes a dict, an object, an entry and
two numbers), and the answer.
"""

import struct
from collections.abc import Collection, Generator, Iterable, Sequence
from itertools import chain, repeat

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import OFFSET_COMMIT
from tidegate.broker.answering import answer_partitions, release
from tidegate.broker.node_groups import NodeGroups, Writes
from tidegate.in_slices import batched
from tidegate.server.requests.handler import (
    Answer,
    Charge,
    Handler,
    Message,
    Request,
    Work,
    at_once_if_short,
)
from tidegate.storage.groups.committed_offsets import (
    POSITION_BYTES,
    Partitions,
    growth,
    pack_position,
    times,
)
from tidegate.storage.groups.group_rows import GroupChange, batched_partitions
from tidegate.storage.topics.topic import Topic
from tidegate.wire import API_BY_KEY, AT_ONCE_BYTES, EncodedElements, PlainRows, field_since

__all__ = ["offset_commit_handler"]

NO_GENERATION = -1
_NO_RETENTION = -1
_CHECKED_AT_ONCE = 100  # partitions: a quarter of a millisecond
_ENCODED_AT_ONCE = 1000  # results
_TABLES = 16
"""Tables of topics that are not there: one table of tens of thousands takes 5 ms when it grows."""
_CHAR_BYTES = 3  # in UTF-8, of a character as Java counts them, at most
_LATEST_MS = 2**63 - 1
_GROUP_NOT_FOUND_SINCE = 9
_LEADER_EPOCH_SINCE = field_since(OFFSET_COMMIT, "request", "committed_leader_epoch")
_ROW, _ROW_WITHOUT_EPOCH = struct.Struct(">i12s2x"), struct.Struct(">i8s2x")
"""A partition without metadata: index, offset and leader epoch as they are packed; then its length, or the length and
the number of tagged fields."""
_NO_EPOCH = struct.pack(">i", -1)
_TOPIC_IDS_SINCE = field_since(OFFSET_COMMIT, "request", "topic_id")


def _messages(partitions: PlainRows | list[Message]) -> list[Message]:
    """Return partitions as dicts."""
    if not isinstance(partitions, PlainRows):
        return partitions
    is_short = partitions.count * _ROW.size != len(partitions.data)
    return [
        {
            "partition_index": index,
            "committed_offset": int.from_bytes(value[:8], "big", signed=True),
            "committed_leader_epoch": int.from_bytes(value[8:] or _NO_EPOCH, "big", signed=True),
            "committed_metadata": None,
        }
        for index, value in (_ROW_WITHOUT_EPOCH if is_short else _ROW).iter_unpack(partitions.data)
    ]


def offset_commit_handler(groups: NodeGroups) -> Handler:
    """Return the handler that keeps offsets."""

    def handle(request: Request) -> Work:
        if len(request.frame) <= AT_ONCE_BYTES:
            body = request.body_with_rows()
        else:
            body = yield from request.body_in_slices()
        if not request.authorized(acl.READ, acl.GROUP, body["group_id"]):
            return (yield from _refuse(request, body))
        commit = _Commit(groups, request, body)
        answer = commit.commit_rows()
        if answer is not None:
            return answer
        yield from commit.check()
        yield from request.release_body(body)
        if not (yield from commit.store()):
            return (yield from commit.answer_in_slices(()))
        if commit.writes.are_over:
            return (yield from commit.answer_in_slices(commit.writes.failed))
        return commit.writes.answer(commit.answer_in_slices, groups.late)

    return at_once_if_short(handle)


def _refuse(request: Request, body: Message) -> Work:
    """Answer that the client may not commit for the group."""
    field = "name" if request.header.api_version < _TOPIC_IDS_SINCE else "topic_id"
    topics: list[Message] = []
    for part in body["topics"]:
        partitions = []
        for wanted in _messages(part["partitions"]):
            code = error_codes.GROUP_AUTHORIZATION_FAILED
            partitions.append({"partition_index": wanted["partition_index"], "error_code": code})
            yield
        topics.append({field: part[field], "partitions": partitions})
        yield
    yield from request.release_body(body)
    message = {"throttle_time_ms": 0, "topics": topics}
    return (yield from answer_partitions(request, message, topics, "partitions", Charge.REQUEST))


class _Commit:
    """One request: the positions that are refused, and those that are stored.

    As in Kafka, a topic is answered as often as it is named; but if any topic does not exist, each is answered once,
    and missing topics come first. Results are a flat list: partition, error code, partition, error code, ...
    """

    def __init__(self, groups: NodeGroups, request: Request, body: Message) -> None:
        self.field = "name" if request.header.api_version < _TOPIC_IDS_SINCE else "topic_id"
        is_flexible = API_BY_KEY[OFFSET_COMMIT].is_flexible(request.header.api_version)
        self._result = "ihx" if is_flexible else "ih"
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
        expire_ms = None if retention_ms == _NO_RETENTION else min(now_ms + retention_ms, _LATEST_MS)
        self._times = times(now_ms, expire_ms)
        self._missing: list[tuple[str, list[int]]] = []  # name or id in the request, results
        self._missing_tables: list[dict[str, list[int]]] = []  # the same, by key
        self._found: list[tuple[str, str, list[int]]] = []  # name or id in the request, name, results
        self._accepted: dict[str, Partitions] = {}
        self._refused: dict[tuple[str, int], int] = {}
        # Offsets count for the principal that created the group, even if another one commits (decision 0100).
        self._owner = groups.owner(self._group_id) or request.connection.owner
        self._room = self._reserved = 0

    def commit_rows(self) -> Answer | None:
        """Store positions without metadata in one topic, the usual case. None: nothing was done; call `check`."""
        topics = self._body["topics"]
        writes = self._groups.storage.group_writes
        if len(topics) != 1 or not writes.has_journal or self._problem():
            return None
        key = topics[0][self.field]
        topic, _ = self._find(key)
        self._room = self._offsets.bound.room(self._owner)
        rows = None if topic is None else self._read_rows(topic, topics[0]["partitions"])
        if topic is None or not rows:
            return None
        indexes, positions, _ = rows
        is_new = self._group_id not in self._offsets
        ids = {topic.name: topic.topic_id}
        change = GroupChange(self._group_id, {topic.name: positions}, ids, self._owner, is_new)
        if not writes.journal_change(change):
            return None
        results = _encoded([value for index in indexes for value in (index, error_codes.NONE)], self._result)
        partitions = EncodedElements(len(indexes), [results])
        message = {"throttle_time_ms": 0, "topics": [{self.field: key, "partitions": partitions}]}
        return self._request.answer(message)

    def check(self) -> Generator[None, None, None]:
        """Check every partition. If a partition has several positions, the last is stored."""
        refused = self._problem()
        for part in self._body["topics"]:
            key = part[self.field]
            topic, missing = self._find(key)
            self._room = self._offsets.bound.room(self._owner)
            if topic is None:
                # Kafka answers a topic that is not there though no partition of it is asked for
                results = self._results_of_missing(key)
                for some in batched(_messages(part["partitions"]), _CHECKED_AT_ONCE):
                    for wanted in some:
                        results += wanted["partition_index"], missing
                    yield
            elif len(part["partitions"]) and (
                refused or not self._accept_rows(key, topic, part["partitions"])
            ):
                yield from self._check_partitions(key, topic, _messages(part["partitions"]), refused)
            yield

    def _read_rows(
        self, topic: Topic, rows: PlainRows | list[Message]
    ) -> tuple[Collection[int], Partitions, int] | None:
        """Return indexes and positions of all partitions of one topic, and the additional memory of new ones in bytes.

        Return None if they must be checked one by one: some have metadata or do not exist, or there may be no room.
        """
        if not isinstance(rows, PlainRows) or not rows.count:
            return None
        of_topic = self._offsets.growth_of_new(self._group_id, topic.name)
        if of_topic + rows.count * POSITION_BYTES > self._room:
            return None
        is_short = self._request.header.api_version < _LEADER_EPOCH_SINCE
        rest = _NO_EPOCH + self._times if is_short else self._times
        read = _ROW_WITHOUT_EPOCH if is_short else _ROW
        positions = {index: value + rest for index, value in read.iter_unpack(rows.data)}
        if min(positions) < 0 or max(positions) >= len(topic.logs):
            return None
        before = self._offsets.partitions(self._group_id, topic.name)
        added = 0 if positions.keys() <= before.keys() else len(positions.keys() - before.keys())
        indexes: Collection[int] = positions
        if len(positions) < rows.count:
            indexes = [index for index, _ in read.iter_unpack(rows.data)]
        return indexes, positions, of_topic + added * POSITION_BYTES

    def _accept_rows(self, key: str, topic: Topic, rows: PlainRows | list[Message]) -> bool:
        """Accept all partitions of one topic together. Return False if they must be checked one by one."""
        read = self._read_rows(topic, rows)
        if read is None:
            return False
        indexes, positions, size = read
        self._reserve(size)
        self._found.append(
            (key, topic.name, list(chain.from_iterable(zip(indexes, repeat(error_codes.NONE)))))
        )
        self._accepted.setdefault(topic.name, {}).update(positions)
        return True

    def _check_partitions(
        self, key: str, topic: Topic, wanted: list[Message], refused: int
    ) -> Generator[None, None, None]:
        """Check the partitions of one topic. refused: the error for all of them, if any."""
        results: list[int] = []
        found: Partitions = {}
        missing: list[int] = []
        count, most_metadata, packed_times = len(topic.logs), self._most_metadata, self._times
        before = self._offsets.partitions(self._group_id, topic.name)
        of_topic = self._offsets.growth_of_new(self._group_id, topic.name)
        for some in batched(wanted, _CHECKED_AT_ONCE):
            positions: Partitions = {}
            grown = of_topic
            has_room = self._room >= of_topic + len(some) * (POSITION_BYTES + _CHAR_BYTES * most_metadata)
            for part in some:
                index, metadata = part["partition_index"], part["committed_metadata"]
                if not 0 <= index < count:
                    missing += index, error_codes.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                code = refused
                if not code and metadata and _java_length(metadata) > most_metadata:
                    code = error_codes.OFFSET_METADATA_TOO_LARGE
                if not code:
                    packed = pack_position(
                        part["committed_offset"],
                        part.get("committed_leader_epoch", -1),
                        metadata,
                        packed_times,
                    )
                    size = 0 if has_room else max(growth(before, {index: packed}), 0)
                    if has_room or not size or grown + size <= self._room:
                        positions[index] = packed
                        grown += size
                    else:
                        code = error_codes.INVALID_COMMIT_OFFSET_SIZE
                results += index, code
            if positions:
                self._reserve(max(of_topic + growth(before, positions), 0))
                of_topic = 0
                found.update(positions)
            yield
            # Other requests may have used some of the room during the yield.
            self._room = self._offsets.bound.room(self._owner)
        if missing:
            self._results_of_missing(key).extend(missing)
        if results:
            self._found.append((key, topic.name, results))
        if found:
            self._accepted.setdefault(topic.name, {}).update(found)

    def _reserve(self, size: int) -> None:
        """Reserve memory for accepted positions, because other requests may commit before the next slice."""
        self._offsets.bound.count_use(self._owner, size)
        self._reserved += size

    def store(self) -> Generator[None, None, bool]:
        """Store the accepted positions, some in each transaction; return whether there were any.

        Positions are not stored if the group's generation has changed, or their topic was deleted, since the check.
        """
        is_new = self._group_id not in self._offsets
        left = len(self._accepted)
        for topic, positions in self._accepted.items():
            left -= 1
            parts = list(batched_partitions(positions))
            for some in parts:
                problem = self._problem()
                if problem:
                    self._refuse(topic, some, problem)
                elif (found := self._topics_there.by_name.get(topic)) is not None:
                    is_last = not left and some is parts[-1]
                    reserved = self._reserved if is_last else 0  # given back when all are counted
                    self._reserved -= reserved
                    ids = {topic: found.topic_id}
                    change = GroupChange(self._group_id, {topic: some}, ids, self._owner, is_new, reserved)
                    self.writes.add_change(change)
                    is_new = False
                yield
        if self._reserved:
            self._offsets.bound.remove(self._owner, self._reserved)
        return bool(self._accepted)

    def _results_of_missing(self, key: str) -> list[int]:
        """Return the list of results of a missing topic; a new list if the topic was not named before."""
        if not self._missing_tables:
            self._missing_tables = [{} for _ in range(_TABLES)]
        table = self._missing_tables[hash(key) % _TABLES]
        results = table.get(key)
        if results is None:
            results = table[key] = []
            self._missing.append((key, results))
        return results

    def _refuse(self, topic: str, positions: Partitions, code: int) -> None:
        """Record the error for positions that were accepted but could not be stored."""
        self._refused.update(dict.fromkeys([(topic, index) for index in positions], code))

    def _answer_refused(self) -> Generator[None, None, None]:
        """Set the errors of accepted positions that could not be stored."""
        for _, topic, results in self._found if self._refused else ():
            for at in range(0, len(results), 2):
                if not results[at + 1]:
                    results[at + 1] = self._refused.get((topic, results[at]), error_codes.NONE)
                if at % _ENCODED_AT_ONCE == 0:
                    yield

    def answer_in_slices(self, failed: Iterable[GroupChange]) -> Work:
        """Return the answer when all is kept but the changes that failed."""
        for change in failed:
            for topic, positions in change.positions.items():
                self._refuse(topic, positions, error_codes.COORDINATOR_NOT_AVAILABLE)
                yield
        yield from self._answer_refused()
        topics: list[Message] = []
        if self._missing:
            for key, _, results in self._found:
                self._results_of_missing(key).extend(results)
                yield
            answered: Iterable[tuple[str, list[int]]] = self._missing
        else:
            answered = ((key, results) for key, _, results in self._found)
        for key, results in answered:
            chunks: list[bytes] = []
            for at in range(0, len(results), 2 * _ENCODED_AT_ONCE):
                chunks.append(_encoded(results[at : at + 2 * _ENCODED_AT_ONCE], self._result))
                yield
            topics.append({self.field: key, "partitions": EncodedElements(len(results) // 2, chunks)})
            yield
        yield from release(self._found, self._missing, *self._missing_tables, *self._accepted.values())
        message = {"throttle_time_ms": 0, "topics": topics}
        return (yield from answer_partitions(self._request, message, topics, "partitions", Charge.REQUEST))

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


def _encoded(results: Sequence[int], layout: str) -> bytes:
    """Return results, partition and error code in turn, as they are on the wire."""
    return struct.pack(">" + layout * (len(results) // 2), *results)


def _java_length(text: str) -> int:
    """Return the length of a text as Java counts it, which is what Kafka bounds."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
