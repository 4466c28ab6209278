"""ConsumerGroupHeartbeat (key 68), versions 0-1. KIP-848.

The protocol of KIP-848 is not served. Error 35 (UNSUPPORTED_VERSION) says so, in every version and to every client, as
by a Kafka whose `group.coordinator.rebalance.protocols` is `classic`: clients give it to the application at once. Were
the API not there, librdkafka's consumer would wait for ever without a word.
Memory: at most 60 bytes for each byte of the request (a name of one byte is a text in a list).
"""

from tidegate import error_codes
from tidegate.server.requests.handler import Message, Request, Work

__all__ = ["handle_consumer_group_heartbeat"]


def handle_consumer_group_heartbeat(request: Request) -> Work:
    """Refuse every join by that protocol.

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
