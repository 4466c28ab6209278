"""DescribeGroups (key 15), versions 0-6. KIP-430 (operations, from 3), KIP-345 (instance ids, from 4), KIP-1043 (error
69 for a group that is not known, from 6; before it is answered as dead).

Of a stable group the members' metadata and the protocol are answered, otherwise not. A group is answered as often as it
is named. Needs DESCRIBE on it, else error 30. A group that another broker coordinates is error 16.
Memory: at most 750 bytes for each byte of the request (a name of one byte becomes a dict), and the answer: past
`MAX_ANSWER_BYTES` of it groups are error 42.
"""

from collections.abc import Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.cluster import NO_OPERATIONS
from tidegate.broker.node_groups import NodeGroups
from tidegate.groups import GroupState
from tidegate.in_slices import release_messages
from tidegate.server.requests.handler import Message, Request, Work

__all__ = ["MAX_ANSWER_BYTES", "handle_describe_groups"]

MAX_ANSWER_BYTES = 32 << 20
"""Bytes of one answer: two of the largest groups."""
_NOT_FOUND_SINCE = 6
_MEMBER_BYTES = 100  # about, besides its texts


def handle_describe_groups(groups: NodeGroups, request: Request) -> Work:
    """Describe groups."""
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
