"""LeaveGroup (key 13), versions 0-5. KIP-345 (several members, from 3), KIP-800 (reasons, from 5).

Lets members go, a static one also by its instance id alone, as administrators do; the others are told to join again.
Needs READ on the group, else error 30. A group that another broker coordinates is error 16.
Memory: at most 200 bytes for each byte of the request (a member of 4 bytes becomes two dicts), and the answer.
"""

from collections.abc import Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release
from tidegate.broker.node_groups import NodeGroups
from tidegate.server.requests.handler import Message, Request, Work

__all__ = ["FEW_MEMBERS_BYTES", "handle_leave_group"]

_SEVERAL_SINCE = 3
FEW_MEMBERS_BYTES = 200  # of a request that is served without a break: each member takes some 10 us


def handle_leave_group(groups: NodeGroups, request: Request) -> Work:
    """Remove members."""
    body = yield from request.body_in_slices()
    group_id, is_single = body["group_id"], request.header.api_version < _SEVERAL_SINCE
    leaving: list[Message] = [{"member_id": body["member_id"]}] if is_single else body["members"]
    members: list[Message] = []
    error_code = error_codes.NONE
    if not request.authorized(acl.READ, acl.GROUP, group_id):
        error_code = error_codes.GROUP_AUTHORIZATION_FAILED
    elif not group_id:
        error_code = error_codes.INVALID_GROUP_ID
    elif not groups.coordinates(group_id):
        error_code = error_codes.NOT_COORDINATOR
    else:
        members = yield from _leave(groups, group_id, leaving)
    if is_single and members:
        error_code = members[0]["error_code"]
    message = {"throttle_time_ms": 0, "error_code": error_code, "members": members}
    return (yield from answer_and_release(request, message, members, leaving))


def _leave(groups: NodeGroups, group_id: str, leaving: list[Message]) -> Generator[None, None, list[Message]]:
    members: list[Message] = []
    has_left, reason = False, None
    for member in leaving:
        member_id, instance_id = member["member_id"], member.get("group_instance_id")
        code = groups.coordinator.leave(group_id, member_id, instance_id)
        if code == error_codes.NONE and not has_left:
            has_left, reason = True, member.get("reason")
        members.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": code})
        yield
    if has_left:
        groups.coordinator.rebalance_without(group_id, reason, groups.now_ms())
        groups.wake()
    return members
