"""ListGroups (key 16), versions 0-5. KIP-518 (states, from 4), KIP-848 (types, from 5).

Lists the groups that this node coordinates: those that have members, had some, or have offsets. States and types are
compared without regard to case; every group is of the classic type. Needs DESCRIBE on the cluster or on each group.
Memory: at most 100 bytes for each byte of the request, and 1 KB for each group: with more than `MAX_LISTED` error 42.
"""

from collections.abc import Callable, Collection, Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release
from tidegate.broker.node_groups import NodeGroups
from tidegate.groups import GroupState
from tidegate.server.requests.handler import Message, Request, Work

__all__ = ["MAX_LISTED", "handle_list_groups"]

MAX_LISTED = 100_000
"""Groups in one answer. Source: as many as there may be positions in one (row L18)."""
_CLASSIC = "classic"
_STATES = frozenset(state.value.lower() for state in GroupState)


def handle_list_groups(groups: NodeGroups, request: Request) -> Work:
    """List groups."""
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
