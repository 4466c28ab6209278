"""JoinGroup (key 11), versions 0-9, and ConsumerGroupHeartbeat (key 68), versions 0-1: refused for good.

Groups with members are not served yet. Consumers that subscribe find a coordinator, since those that assign partitions
themselves need one to commit, and would then wait for a group for ever. Error 35 (UNSUPPORTED_VERSION) ends that at
once: librdkafka, Apache Kafka's own consumer, kafka-python and aiokafka all give it to the application, in the classic
protocol and in that of KIP-848.
Memory: at most 200 bytes for each byte of the request (a protocol of three bytes becomes a dict).
"""

from tidegate import error_codes
from tidegate.api_keys import JOIN_GROUP
from tidegate.server.handler import Handler, Message, Request, Work
from tidegate.wire import field_since

__all__ = ["consumer_group_heartbeat_handler", "join_group_handler"]

_NULL_NAME_SINCE = field_since(JOIN_GROUP, "response", "protocol_name", nullable=True)
_NO_GROUPS_TEXT = "This server does not serve groups with members: assign partitions instead of subscribing."


def join_group_handler() -> Handler:
    """Return the handler that lets nobody join a group."""

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        yield from request.release_body(body)
        return request.answer(
            {
                "throttle_time_ms": 0,
                "error_code": error_codes.UNSUPPORTED_VERSION,
                "generation_id": -1,
                "protocol_type": None,
                "protocol_name": None if request.header.api_version >= _NULL_NAME_SINCE else "",
                "leader": "",
                "skip_assignment": False,
                "member_id": body["member_id"],
                "members": [],
            }
        )

    return handle


def consumer_group_heartbeat_handler() -> Handler:
    """Return the handler that knows no member of a group."""

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        yield from request.release_body(body)
        message: Message = {
            "throttle_time_ms": 0,
            "error_code": error_codes.UNSUPPORTED_VERSION,
            "error_message": _NO_GROUPS_TEXT,
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval_ms": 0,
            "assignment": None,
        }
        return request.answer(message)

    return handle
