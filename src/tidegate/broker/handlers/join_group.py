"""JoinGroup (key 11), versions 0-9. KIP-62 (rebalance timeout, from 1), KIP-394 (an id is given first, from 4), KIP-345
(static members, from 5), KIP-559 (protocol type, from 7), KIP-800 (reasons, from 8), KIP-814 (a leader that need not
assign again, from 9).

The answer comes when the generation begins that the member is in, or that it cannot be in one. It waits without the
request's memory; where the client leaves meanwhile its member stays, for as long as its session lasts.
Needs READ on the group, else error 30. A group that another broker coordinates is error 16.
Memory: at most 200 bytes for each byte of the request (a protocol of three bytes becomes a dict); what is kept is
bounded (`tidegate.groups.settings`).
"""

from collections.abc import Generator, Sequence

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import JOIN_GROUP
from tidegate.broker.node_groups import NodeGroups
from tidegate.groups import JoinRequest
from tidegate.groups.requests import join_refusal
from tidegate.groups.settings import MAX_GROUP_BYTES, MAX_PROTOCOLS
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.wire import copies_in_slices, field_since

__all__ = ["handle_join_group"]

_NULL_NAME_SINCE = field_since(JOIN_GROUP, "response", "protocol_name", nullable=True)
_KNOWN_ID_SINCE = 4
_SKIPS_ASSIGNMENT_SINCE = field_since(JOIN_GROUP, "response", "skip_assignment")


def handle_join_group(groups: NodeGroups, request: Request) -> Work:
    """Add a member, and answer when the rebalance is over."""
    body = yield from request.body_in_slices()
    version = request.header.api_version
    protocols = yield from _protocols(body)
    joining = _joining(request, body, protocols, is_known=groups.is_known(body["group_id"]))
    yield from request.release_body(body)

    def to_body(message: Message) -> Message:
        name = message["protocol_name"] or (None if version >= _NULL_NAME_SINCE else "")
        return {"throttle_time_ms": 0, **message, "protocol_name": name}

    if not request.authorized(acl.READ, acl.GROUP, joining.group_id):
        return request.answer(to_body(join_refusal(error_codes.GROUP_AUTHORIZATION_FAILED, "")))
    if not groups.coordinates(joining.group_id):
        return request.answer(to_body(join_refusal(error_codes.NOT_COORDINATOR, joining.member_id)))
    return groups.answer_later(
        request, lambda respond: groups.coordinator.join(joining, respond, groups.now_ms()), to_body
    )


def _protocols(body: Message) -> Generator[None, None, list[tuple[str, bytes]]]:
    """Return names and metadata of the protocols that are looked at; what is too large for any group is not copied."""
    parts = body["protocols"][: MAX_PROTOCOLS + 1]
    metadata = yield from copies_in_slices([part["metadata"] for part in parts], MAX_GROUP_BYTES)
    return [(part["name"], value) for part, value in zip(parts, metadata, strict=True)]


def _joining(
    request: Request, body: Message, protocols: Sequence[tuple[str, bytes]], *, is_known: bool
) -> JoinRequest:
    version = request.header.api_version
    session_timeout_ms: int = body["session_timeout_ms"]
    return JoinRequest(
        group_id=body["group_id"],
        member_id=body["member_id"],
        instance_id=body.get("group_instance_id"),
        client_id=request.header.client_id,
        client_host=f"/{request.connection.client_host}",  # as Java writes it
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=body.get("rebalance_timeout_ms", session_timeout_ms),
        protocol_type=body["protocol_type"],
        protocols=tuple(protocols),
        needs_known_id=version >= _KNOWN_ID_SINCE,
        skips_assignment=version >= _SKIPS_ASSIGNMENT_SINCE,
        is_known=is_known,
        reason=body.get("reason"),
        source=request.connection,
        owner=request.connection.owner,
    )
