"""Rights to the gateway's own quotas: the client needs the same rights on the cluster.

The gateway first sends the broker a request of the same API that changes nothing, on the client's own connection. If
the broker refuses it, the gateway refuses the client's request: as on a broker, describing quotas needs
DESCRIBE_CONFIGS on the cluster, and altering them ALTER_CONFIGS. A cluster without an authorizer allows everything.
"""

from typing import Any

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from tidegate.gateway.asking import UpstreamLostError, ask_broker
from tidegate.server.requests.handler import Answer, Deferred, Handler, Message, Request, Work

__all__ = ["QuotaRights", "with_quota_rights"]

_DEFAULT_USER = {"entity_type": "user", "entity_name": None}
_REMOVAL = {"key": "producer_byte_rate", "value": 0.0, "remove": True}
_QUESTIONS: dict[int, tuple[int, Message]] = {
    ALTER_CLIENT_QUOTAS: (
        acl.ALTER_CONFIGS,
        {"entries": [{"entity": [_DEFAULT_USER], "ops": [_REMOVAL]}], "validate_only": True},
    ),
    DESCRIBE_CLIENT_QUOTAS: (
        acl.DESCRIBE_CONFIGS,
        {"components": [{"entity_type": "user", "match_type": 1, "match": None}], "strict": True},
    ),
}
"""The operation that each API needs, and a request of it that changes nothing."""
_VERSION = 0


class QuotaRights:
    """The rights of one client to quotas. It replaces an authorizer."""

    def __init__(self, operations: int) -> None:
        self._operations = operations

    def permitted(self, user: str, host: str, resource_type: int, name: str) -> int:
        """Return the operations on a resource, as a bit set; none on anything but the cluster."""
        return self._operations if resource_type == acl.CLUSTER else 0


def with_quota_rights(handler: Handler, request: Request) -> Work:
    """Call `handler` for a request, with the rights of the client on the cluster.

    Raises `ProtocolError` for a malformed request, before asking the broker.
    """
    yield from request.release_body((yield from request.body_in_slices()))
    connection: Any = request.connection
    api_key = request.header.api_key
    operation, question = _QUESTIONS[api_key]
    try:
        answer = yield from ask_broker(request, api_key, _VERSION, question)
    except UpstreamLostError:
        return Answer(None, close=True)
    if api_key == ALTER_CLIENT_QUOTAS:
        answer = (
            answer["entries"][0] if answer["entries"] else {"error_code": error_codes.UNKNOWN_SERVER_ERROR}
        )
    is_allowed = answer["error_code"] == error_codes.NONE
    connection.authorizer = QuotaRights(1 << operation if is_allowed else 0)
    result = handler(request)
    if isinstance(result, (Answer, Deferred)):
        return result
    return (yield from result)
