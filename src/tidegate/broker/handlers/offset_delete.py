"""OffsetDelete (key 47), version 0. KIP-496.

Forgets positions of a group in topics that none of its members subscribes to; the answer leaves when that is on the
disk. A group of another protocol type than `consumer` must have no members (error 68). Positions that there are not are
answered without an error, partitions that there are not with error 3. Needs DELETE on the group, else error 30, and
READ on each topic, else error 29. A group that another broker coordinates is error 16; an empty group id is error 24.
Memory: at most 200 bytes for each byte of the request (a partition of 4 bytes becomes two dicts and an object), and the
answer.
"""

from collections.abc import Generator
from itertools import chain

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import release
from tidegate.broker.node_groups import NodeGroups, Writes
from tidegate.groups import GroupState
from tidegate.groups.subscription import CONSUMER, Subscription
from tidegate.in_slices import release_messages
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.storage.groups.committed_offsets import CommittedOffset
from tidegate.storage.groups.group_rows import GroupChange, batched_positions

__all__ = ["handle_offset_delete"]

_RELEASED_AT_ONCE = 1000  # results


def handle_offset_delete(groups: NodeGroups, request: Request) -> Work:
    """Delete committed offsets of a group."""
    body = yield from request.body_in_slices()
    deletion = _Deletion(groups, request, body)
    yield from deletion.check()
    yield from request.release_body(body)
    message = {"throttle_time_ms": 0, "error_code": deletion.problem, "topics": deletion.topics}

    def make(failed: list[GroupChange]) -> Work:
        if failed:
            message["error_code"], message["topics"] = error_codes.COORDINATOR_NOT_AVAILABLE, []
        yield from release(deletion.forgotten)
        answer = yield from request.answer_in_slices(message)
        yield from release_messages(deletion.topics)
        return answer

    if deletion.forgotten and not deletion.problem:
        for some in batched_positions(deletion.forgotten):
            deletion.writes.add_change(GroupChange(forgotten=some))
            yield
        return deletion.writes.answer(make, groups.late)
    return (yield from make([]))


class _Deletion:
    """One request: what is answered and forgotten.

    `topics` are answered as often as they are named; once, and what is not there first, where there is anything that is
    not. As in Kafka.
    """

    def __init__(self, groups: NodeGroups, request: Request, body: Message) -> None:
        self.problem = error_codes.NONE
        self.topics: list[Message] = []
        self.forgotten: list[CommittedOffset] = []
        self.writes = Writes(groups.storage)
        self._groups = groups
        self._request = request
        self._group_id: str = body["group_id"]
        self._wanted: list[Message] = body["topics"]

    def check(self) -> Generator[None, None, None]:
        """Look every partition up."""
        missing: dict[str, list[Message]] = {}
        found: list[tuple[str, list[Message]]] = []
        group = self._groups.coordinator.groups.get(self._group_id)
        subscription: Subscription | None = None
        for part in self._wanted:
            subscription = yield from self._groups.subscription_in_slices(group, subscription)
            name = part["name"]
            topic = self._groups.storage.topics.by_name.get(name)
            code, absent = error_codes.NONE, error_codes.UNKNOWN_TOPIC_OR_PARTITION
            if not self._request.authorized(acl.READ, acl.TOPIC, name):
                topic, absent = None, error_codes.TOPIC_AUTHORIZATION_FAILED
            if subscription is not None and subscription.has(name):
                code = error_codes.GROUP_SUBSCRIBED_TO_TOPIC
            there: list[Message] = []
            if topic is None:
                missing.setdefault(name, [])
            for wanted in part["partitions"]:
                index = wanted["partition_index"]
                if topic is None or topic.log(index) is None:
                    missing.setdefault(name, []).append(_result(index, absent))
                else:
                    there.append(_result(index, code))
                    at = self._groups.storage.offsets.position(self._group_id, name, index)
                    if at is not None and code == error_codes.NONE:
                        self.forgotten.append(at)
                yield
            if there:
                found.append((name, there))
            yield
        self.problem = _problem(self._groups, self._request, self._group_id)
        if self.problem:
            for number, results in enumerate(chain(missing.values(), (there for _, there in found))):
                if len(results) > _RELEASED_AT_ONCE:
                    yield from release_messages(results)
                if number % _RELEASED_AT_ONCE == 0:
                    yield
            yield from release(missing, found)
            return
        for name, there in found:
            if missing:
                missing.setdefault(name, []).extend(there)
            else:
                self.topics.append({"name": name, "partitions": there})
            yield
        for name, results in missing.items():
            self.topics.append({"name": name, "partitions": results})
            yield
        yield from release(missing, found)


def _problem(groups: NodeGroups, request: Request, group_id: str) -> int:
    if not request.authorized(acl.DELETE, acl.GROUP, group_id):
        return error_codes.GROUP_AUTHORIZATION_FAILED
    if not group_id:
        return error_codes.INVALID_GROUP_ID
    if not groups.coordinates(group_id):
        return error_codes.NOT_COORDINATOR
    if not groups.is_known(group_id):
        return error_codes.GROUP_ID_NOT_FOUND
    group = groups.coordinator.groups.get(group_id)
    if group is None or group.state is GroupState.EMPTY or group.protocol_type == CONSUMER:
        return error_codes.NONE
    return error_codes.NON_EMPTY_GROUP


def _result(index: int, error_code: int) -> Message:
    return {"partition_index": index, "error_code": error_code}
