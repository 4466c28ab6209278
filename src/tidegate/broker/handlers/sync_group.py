"""SyncGroup (key 14), versions 0-5. KIP-345 (static members, from 3), KIP-559 (protocol type and name, from 5).

The leader of a generation brings the assignments of all, each member has its own: when the leader has come, and what it
brought outlives the process. It waits without the request's memory; where the client leaves meanwhile its member stays,
for as long as its session lasts.
Needs READ on the group, else error 30. A group that another broker coordinates is error 16. From version 5 on a request
without protocol is error 23.
Memory: at most 100 bytes for each byte of the request (an assignment of 8 bytes becomes a dict and an entry).
"""

from collections.abc import Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import SYNC_GROUP
from tidegate.broker.node_groups import NodeGroups
from tidegate.groups import SyncRequest
from tidegate.groups.requests import sync_refusal
from tidegate.groups.settings import MAX_GROUP_BYTES
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.wire import copies_in_slices, field_since

__all__ = ["handle_sync_group"]

_PROTOCOL_SINCE = field_since(SYNC_GROUP, "request", "protocol_name")


def handle_sync_group(groups: NodeGroups, request: Request) -> Work:
    """Store the assignments, and answer with that of the member."""
    body = yield from request.body_in_slices()
    assignments = yield from _assignments(groups, body)
    syncing = SyncRequest(
        group_id=body["group_id"],
        member_id=body["member_id"],
        instance_id=body.get("group_instance_id"),
        generation=body["generation_id"],
        protocol_type=body.get("protocol_type"),
        protocol=body.get("protocol_name"),
        assignments=assignments,
        source=request.connection,
    )
    yield from request.release_body(body)
    if request.header.api_version >= _PROTOCOL_SINCE and None in (
        syncing.protocol_type,
        syncing.protocol,
    ):
        return request.answer(_body(sync_refusal(error_codes.INCONSISTENT_GROUP_PROTOCOL)))
    if not request.authorized(acl.READ, acl.GROUP, syncing.group_id):
        return request.answer(_body(sync_refusal(error_codes.GROUP_AUTHORIZATION_FAILED)))
    if not groups.coordinates(syncing.group_id):
        return request.answer(_body(sync_refusal(error_codes.NOT_COORDINATOR)))
    return groups.answer_later(
        request, lambda respond: groups.coordinator.sync(syncing, respond, groups.now_ms()), _body
    )


def _assignments(groups: NodeGroups, body: Message) -> Generator[None, None, dict[str, bytes]]:
    """Return what the members are assigned; what is too large for any group is not copied."""
    group = groups.coordinator.groups.get(body["group_id"])
    members = {} if group is None else group.members
    found: dict[str, bytes | memoryview] = {}
    for part in body["assignments"]:
        if part["member_id"] in members:
            found[part["member_id"]] = part["assignment"]
        yield
    kept = yield from copies_in_slices(found.values(), MAX_GROUP_BYTES)
    return dict(zip(found, kept, strict=True))


def _body(message: Message) -> Message:
    return {"throttle_time_ms": 0, **message}
