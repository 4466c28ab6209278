"""The APIs by which members join a group, stay in it and leave it.

Heartbeat, JoinGroup, SyncGroup and LeaveGroup are the classic protocol. They need READ on the group, else error 30. A
group that another broker coordinates is error 16. Memory: what is kept is bounded (`tidegate.groups.settings`).
"""

from collections.abc import Generator, Sequence

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import JOIN_GROUP, SYNC_GROUP
from tidegate.broker.answering import answer_and_release
from tidegate.broker.node_groups import NodeGroups
from tidegate.groups import JoinRequest, SyncRequest
from tidegate.groups.requests import join_refusal, sync_refusal
from tidegate.groups.settings import MAX_GROUP_BYTES, MAX_PROTOCOLS
from tidegate.server.requests.handler import Answer, Message, Request, Work
from tidegate.wire import copies_in_slices, field_since

__all__ = [
    "FEW_MEMBERS_BYTES",
    "handle_consumer_group_heartbeat",
    "handle_heartbeat",
    "handle_join_group",
    "handle_leave_group",
    "handle_sync_group",
]

_NULL_NAME_SINCE = field_since(JOIN_GROUP, "response", "protocol_name", nullable=True)
_KNOWN_ID_SINCE = 4
_SKIPS_ASSIGNMENT_SINCE = field_since(JOIN_GROUP, "response", "skip_assignment")
_PROTOCOL_SINCE = field_since(SYNC_GROUP, "request", "protocol_name")
_SEVERAL_SINCE = 3
FEW_MEMBERS_BYTES = 200  # of a request that is served without a break: each member takes some 10 us


def handle_join_group(groups: NodeGroups, request: Request) -> Work:
    """Add a member, and answer when the rebalance is over.

    JoinGroup (key 11), versions 0-9. KIP-62 (rebalance timeout, from 1), KIP-394 (an id is given first, from 4),
    KIP-345 (static members, from 5), KIP-559 (protocol type, from 7), KIP-800 (reasons, from 8), KIP-814 (a leader
    that need not assign again, from 9). The answer comes when the generation begins that the member is in, or that
    it cannot be in one. It waits without the request's memory; if the client leaves meanwhile, its member stays for
    as long as its session lasts. Memory: at most 200 bytes for each byte of the request (a protocol of three bytes
    becomes a dict).
    """
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


def handle_sync_group(groups: NodeGroups, request: Request) -> Work:
    """Store the assignments, and answer with that of the member.

    SyncGroup (key 14), versions 0-5. KIP-345 (static members, from 3), KIP-559 (protocol type and name, from 5).
    The leader of a generation sends the assignments of all members. Each member gets its own when the leader's
    request has come and what it contains outlives the process. It waits as JoinGroup does. From version 5 on a
    request without protocol is error 23. Memory: at most 100 bytes for each byte of the request (an assignment of 8
    bytes becomes a dict and an entry).
    """
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


def handle_heartbeat(groups: NodeGroups, request: Request) -> Answer:
    """Keep a session.

    Heartbeat (key 12), versions 0-4. KIP-345 (static members, from 3). Keeps a member's session; error 27 tells it
    to join again. The request has no arrays: it is read and answered at once.
    """
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


def handle_leave_group(groups: NodeGroups, request: Request) -> Work:
    """Remove members.

    LeaveGroup (key 13), versions 0-5. KIP-345 (several members, from 3), KIP-800 (reasons, from 5). Removes
    members, a static one also by its instance id alone, as administrators do; the others are told to join again.
    Memory: at most 200 bytes for each byte of the request (a member of 4 bytes becomes two dicts), and the answer.
    """
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


def handle_consumer_group_heartbeat(request: Request) -> Work:
    """Refuse to let a member join by the protocol of KIP-848.

    ConsumerGroupHeartbeat (key 68), versions 0-1. KIP-848. The protocol of KIP-848 is not served. Error 35
    (UNSUPPORTED_VERSION) says so, in every version and to every client, as by a Kafka whose
    `group.coordinator.rebalance.protocols` is `classic`: clients give it to the application at once. If the API
    were not there, librdkafka's consumer would wait for ever without a word. Memory: at most 60 bytes for each byte
    of the request (a name of one byte is a text in a list).

    Follows: Kafka `KafkaApis.handleConsumerGroupHeartbeat`, `ConsumerGroupHeartbeatRequest.getErrorResponse`.
    """
    body = yield from request.body_in_slices()
    yield from request.release_body(body)
    message: Message = {
        "throttle_time_ms": 0,
        "error_code": error_codes.UNSUPPORTED_VERSION,
        "error_message": None,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval_ms": 0,
        "assignment": None,
    }
    return request.answer(message)
