"""Heartbeat (key 12), versions 0-4. KIP-345 (static members, from 3).

Keeps a member's session; error 27 tells it to join again. Needs READ on the group, else error 30. A group that another
broker coordinates is error 16.
The request has no arrays: it is read and answered at once.
"""

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.node_groups import NodeGroups
from tidegate.server.requests.handler import Answer, Request

__all__ = ["handle_heartbeat"]


def handle_heartbeat(groups: NodeGroups, request: Request) -> Answer:
    """Keep a session."""
    body = request.body()
    if not request.authorized(acl.READ, acl.GROUP, body["group_id"]):
        error_code = error_codes.GROUP_AUTHORIZATION_FAILED
    elif groups.coordinates(body["group_id"]):
        error_code = groups.coordinator.heartbeat(
            body["group_id"],
            body["member_id"],
            body.get("group_instance_id"),
            body["generation_id"],
            groups.now_ms(),
            request.connection,
        )
        groups.wake()
    else:
        error_code = error_codes.NOT_COORDINATOR
    return request.answer({"throttle_time_ms": 0, "error_code": error_code})
