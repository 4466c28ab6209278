"""DeleteGroups (key 42), versions 0-2. KIP-229.

Forgets groups without members, and their offsets; the answer leaves when the database has that. A group that is named
several times is answered once, as by Kafka. Needs DELETE on each, else error 30. A group that another broker
coordinates is error 16.
Many offsets are forgotten in several transactions: where the process ends in between, and the client has no answer,
the group may be there with some of them.
Memory: at most 420 bytes for each byte of the request (a name of one byte becomes a dict), and the answer.
"""

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release
from tidegate.broker.node_groups import NodeGroups, Writes
from tidegate.in_slices import batched, release
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.storage.groups.group_rows import GroupChange

__all__ = ["handle_delete_groups"]


def handle_delete_groups(groups: NodeGroups, request: Request) -> Work:
    """Delete groups that have no members, and their offsets."""
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
