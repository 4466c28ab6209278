"""The APIs that describe, list and delete groups.

They see the groups that this node coordinates: a group that another broker coordinates is error 16.
"""

from collections.abc import Callable, Collection, Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release
from tidegate.broker.cluster import NO_OPERATIONS
from tidegate.broker.node_groups import NodeGroups, Writes
from tidegate.groups import GroupState
from tidegate.in_slices import batched, release, release_messages
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.storage.groups.group_rows import GroupChange

__all__ = [
    "MAX_ANSWER_BYTES",
    "MAX_LISTED",
    "handle_delete_groups",
    "handle_describe_groups",
    "handle_list_groups",
]

MAX_ANSWER_BYTES = 32 << 20
"""Bytes of one answer: two of the largest groups."""
_NOT_FOUND_SINCE = 6
_MEMBER_BYTES = 100  # about, besides its texts
MAX_LISTED = 100_000
"""Groups in one answer. Source: as many as there may be positions in one (row L18)."""
_CLASSIC = "classic"
_STATES = frozenset(state.value.lower() for state in GroupState)


def handle_describe_groups(groups: NodeGroups, request: Request) -> Work:
    """Describe groups.

    DescribeGroups (key 15), versions 0-6. KIP-430 (operations, from 3), KIP-345 (instance ids, from 4), KIP-1043
    (error 69 for a group that is not known, from 6; before it is answered as dead).

    Of a stable group the members' metadata and the protocol are answered, otherwise not. A group is answered as
    often as it is named. Needs DESCRIBE on it, else error 30. Memory: at most 750 bytes for each byte of the
    request (a name of one byte becomes a dict), and the answer: past `MAX_ANSWER_BYTES` of it groups are error 42.
    """
    body = yield from request.body_in_slices()
    described: list[Message] = []
    left = MAX_ANSWER_BYTES
    is_asked = body.get("include_authorized_operations", False)
    for group_id in body["groups"]:
        group = _Described(groups, group_id, request.header.api_version)
        if request.authorized(acl.DESCRIBE, acl.GROUP, group_id):
            left -= yield from group.describe(left)
        else:
            left -= group.refuse(error_codes.GROUP_AUTHORIZATION_FAILED)
        if is_asked and group.message["error_code"] == error_codes.NONE:
            operations = request.authorized_operations(acl.GROUP, group_id)
            group.message["authorized_operations"] = operations
        described.append(group.message)
        yield
    yield from request.release_body(body)
    answer = yield from request.answer_in_slices({"throttle_time_ms": 0, "groups": described})
    yield from release_messages(described)
    return answer


class _Described:
    """One group as it is answered: `message`."""

    def __init__(self, groups: NodeGroups, group_id: str, version: int) -> None:
        self._groups = groups
        self._group_id = group_id
        self._version = version
        self.message: Message = {
            "error_code": error_codes.NONE,
            "error_message": None,
            "group_id": group_id,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
            "authorized_operations": NO_OPERATIONS,
        }

    def describe(self, left: int) -> Generator[None, None, int]:
        """Describe the group, if that takes no more bytes than are left; return how many it does."""
        if not self._groups.coordinates(self._group_id):
            return self.refuse(error_codes.NOT_COORDINATOR)
        group = self._groups.coordinator.groups.get(self._group_id)
        if group is None:
            return self._describe_simple()
        if len(group.members) * _MEMBER_BYTES + group.held_bytes > left:
            return self.refuse(error_codes.INVALID_REQUEST)
        is_stable = group.state is GroupState.STABLE
        self.message |= {
            "group_state": group.state.value,
            "protocol_type": group.protocol_type or "",
            "protocol_data": (group.protocol or "") if is_stable else "",
        }
        size = len(self._group_id)
        for member in self._groups.coordinator.members(self._group_id):
            self.message["members"].append(member)
            size += _MEMBER_BYTES + len(member["member_metadata"]) + len(member["member_assignment"])
            yield
        return size

    def _describe_simple(self) -> int:
        """Describe a group that never had members, or is not known."""
        if self._groups.is_known(self._group_id):
            self.message["group_state"] = GroupState.EMPTY.value
            return len(self._group_id)
        self.message["group_state"] = GroupState.DEAD.value
        if self._version >= _NOT_FOUND_SINCE:
            self.message["error_message"] = f"Group {self._group_id} not found."
            self.message["error_code"] = error_codes.GROUP_ID_NOT_FOUND
        return 2 * len(self._group_id)

    def refuse(self, error_code: int) -> int:
        """Answer an error for the group; return how many bytes it takes."""
        self.message["error_code"] = error_code
        return len(self._group_id)


def handle_list_groups(groups: NodeGroups, request: Request) -> Work:
    """List groups.

    ListGroups (key 16), versions 0-5. KIP-518 (states, from 4), KIP-848 (types, from 5).

    Lists the groups that have members, had some, or have offsets. States and types are compared without regard to
    case; every group is of the classic type. Needs DESCRIBE on the cluster or on each group. Memory: at most 100
    bytes for each byte of the request, and 1 KB for each group: with more than `MAX_LISTED` error 42.
    """
    body = yield from request.body_in_slices()
    states = yield from _wanted(body.get("states_filter", []), _STATES)
    types = yield from _wanted(body.get("types_filter", []), (_CLASSIC,))
    yield from request.release_body(body)
    listed: list[Message] = []
    if _CLASSIC in types:
        may_see_all = request.authorized(acl.DESCRIBE, acl.CLUSTER)

        def may_see(group_id: str) -> bool:
            return may_see_all or request.authorized(acl.DESCRIBE, acl.GROUP, group_id)

        yield from _list(groups, states, may_see, listed)
    error_code = error_codes.NONE
    if len(listed) > MAX_LISTED:
        error_code, listed = error_codes.INVALID_REQUEST, []
    message = {"throttle_time_ms": 0, "error_code": error_code, "groups": listed}
    return (yield from answer_and_release(request, message, listed))


def _wanted(texts: list[str], known: Collection[str]) -> Generator[None, None, set[str]]:
    """Return which of those that there are a filter names, all where it names none."""
    wanted = set() if texts else set(known)
    for text in texts:
        if text.lower() in known:
            wanted.add(text.lower())
        yield
    return wanted


def _list(
    groups: NodeGroups, states: set[str], may_see: Callable[[str], bool], listed: list[Message]
) -> Generator[None, None, None]:
    """List the groups in some states, until there are too many."""
    for group in list(groups.coordinator.groups.values()):
        if group.state.value.lower() in states and may_see(group.group_id):
            listed.append(_listed(group.group_id, group.protocol_type or "", group.state))
        yield
    if GroupState.EMPTY.value.lower() in states:
        for group_id in groups.simple_groups():
            if may_see(group_id):
                listed.append(_listed(group_id, "", GroupState.EMPTY))
            if len(listed) > MAX_LISTED:
                return
            yield


def _listed(group_id: str, protocol_type: str, state: GroupState) -> Message:
    return {
        "group_id": group_id,
        "protocol_type": protocol_type,
        "group_state": state.value,
        "group_type": _CLASSIC,
    }


def handle_delete_groups(groups: NodeGroups, request: Request) -> Work:
    """Delete groups that have no members, and their offsets.

    DeleteGroups (key 42), versions 0-2. KIP-229.

    The answer leaves when the database has the change. A group that is named several times is answered once, as by
    Kafka. Needs DELETE on each, else error 30. Many offsets are deleted in several transactions: where the process
    ends in between, and the client has no answer, the group may be there with some of them. Memory: at most 420
    bytes for each byte of the request (a name of one byte becomes a dict), and the answer.
    """
    body = yield from request.body_in_slices()
    writes = Writes(groups.storage)
    results: dict[str, Message] = {}
    for group_id in body["groups_names"]:
        if group_id not in results:
            results[group_id] = {"group_id": group_id, "error_code": error_codes.NOT_COORDINATOR}
            if not request.authorized(acl.DELETE, acl.GROUP, group_id):
                results[group_id]["error_code"] = error_codes.GROUP_AUTHORIZATION_FAILED
            elif groups.coordinates(group_id):
                results[group_id]["error_code"] = yield from groups.delete_in_slices(group_id, writes)
        yield
    yield from request.release_body(body)
    message: Message = {"throttle_time_ms": 0, "results": list(results.values())}
    deleted: list[Message] = []
    for some in batched(message["results"]):
        deleted += [result for result in some if result["error_code"] == error_codes.NONE]
        yield
    yield from release(results)
    if not deleted:
        return (yield from answer_and_release(request, message, message["results"]))

    def make(failed: list[GroupChange]) -> Work:
        for result in deleted if failed else ():
            result["error_code"] = error_codes.COORDINATOR_NOT_AVAILABLE
            yield
        return (yield from answer_and_release(request, message, message["results"], deleted))

    return writes.answer(make, groups.late)
