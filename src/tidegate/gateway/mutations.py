"""CreateTopics, DeleteTopics and CreatePartitions through the gateway: its quota of controller mutations (B§5).

The gateway asks the broker which topics there are, charges the permits of each topic that the request would change, and
forwards the topics that are admitted; for the others it answers error 89 itself (strict), or forwards all of them and
throttles (older versions). A topic that fails at the broker for another reason has cost its permits, too.

Only of topics that the client may describe is the number of partitions known; deleting any other costs one permit.
"""

from collections.abc import Callable, Generator, Sequence

from tidegate import error_codes
from tidegate.api_keys import METADATA
from tidegate.gateway.asking import UpstreamLostError, ask_broker, forward_message
from tidegate.server.requests.handler import Answer, Charge, Message, Request, Wait, Work

__all__ = ["handle_create_partitions", "handle_create_topics", "handle_delete_topics"]

_BY_NAME, _BY_ID = 9, 12
"""Versions of Metadata that name topics, and that take their ids. Kafka 2.8 knows the first, 3.1 both."""
_NO_ID = "00000000-0000-0000-0000-000000000000"
_REFUSED = error_codes.THROTTLING_QUOTA_EXCEEDED


def handle_create_topics(default_partitions: Callable[[], int], request: Request) -> Work:
    """Forward a CreateTopics. default_partitions: returns `num.partitions` of the brokers."""
    body = yield from request.body_in_slices()
    refused: list[Message] = []
    if not body.get("validate_only", False):
        try:
            existing = yield from _partitions(request, [topic["name"] for topic in body["topics"]])
        except UpstreamLostError:
            return Answer(None, Charge.MUTATION, close=True)
        admitted = []
        for topic in body["topics"]:
            permits = _created(topic, default_partitions())
            if topic["name"] in existing or request.quotas.record_mutations(permits):
                admitted.append(topic)
            else:
                refused.append(_refused_topic(topic["name"]))
            yield
        body["topics"] = admitted
    return (yield from _answer(request, body, "topics", "topics", refused))


def handle_create_partitions(request: Request) -> Work:
    """Forward a CreatePartitions."""
    body = yield from request.body_in_slices()
    refused: list[Message] = []
    if not body["validate_only"]:
        try:
            existing = yield from _partitions(request, [topic["name"] for topic in body["topics"]])
        except UpstreamLostError:
            return Answer(None, Charge.MUTATION, close=True)
        admitted = []
        for topic in body["topics"]:
            added = topic["count"] - existing.get(topic["name"], topic["count"])
            if added <= 0 or request.quotas.record_mutations(added):
                admitted.append(topic)
            else:
                refused.append({"name": topic["name"], "error_code": _REFUSED, "error_message": None})
            yield
        body["topics"] = admitted
    return (yield from _answer(request, body, "topics", "results", refused))


def handle_delete_topics(request: Request) -> Work:
    """Forward a DeleteTopics, of topics by name or, from version 6 on, by id."""
    body = yield from request.body_in_slices()
    by_name = "topic_names" in body
    wanted = body["topic_names"] if by_name else body["topics"]
    names = wanted if by_name else [topic["name"] for topic in wanted if topic["name"] is not None]
    ids = [] if by_name else [topic["topic_id"] for topic in wanted if topic["name"] is None]
    try:
        existing = yield from _partitions(request, names)
        existing.update((yield from _partitions(request, ids, are_ids=True)))
    except UpstreamLostError:
        return Answer(None, Charge.MUTATION, close=True)
    admitted: list[object] = []
    refused: list[Message] = []
    for topic in wanted:
        name = topic if by_name else topic["name"]
        topic_id = _NO_ID if by_name else topic["topic_id"]
        partitions = existing.get(topic_id if name is None else name, 0)
        if not partitions or request.quotas.record_mutations(partitions):
            admitted.append(topic)
        else:
            refused.append(
                {"name": name, "topic_id": topic_id, "error_code": _REFUSED, "error_message": None}
            )
        yield
    key = "topic_names" if by_name else "topics"
    body[key] = admitted
    return (yield from _answer(request, body, key, "responses", refused))


def _answer(
    request: Request, body: Message, wanted_key: str, results_key: str, refused: Sequence[Message]
) -> Generator[Wait | None, None, Answer]:
    """Forward what was admitted, if anything, and answer with the broker's results and the refusals."""
    message: Message = {"throttle_time_ms": 0, results_key: []}
    if body[wanted_key] or not refused:
        try:
            message = yield from forward_message(request, body)
        except UpstreamLostError:
            return Answer(None, Charge.MUTATION, close=True)
    message[results_key] = [*message[results_key], *refused]
    return (yield from request.answer_in_slices(message, Charge.MUTATION))


def _partitions(
    request: Request, names: Sequence[str], *, are_ids: bool = False
) -> Generator[Wait | None, None, dict[str, int]]:
    """Return the number of partitions of each topic that exists and that the client may describe."""
    if not names:
        return {}
    topics = [
        {"name": None if are_ids else name, "topic_id": name if are_ids else _NO_ID}
        for name in dict.fromkeys(names)
    ]
    asked = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    answer = yield from ask_broker(request, METADATA, _BY_ID if are_ids else _BY_NAME, asked)
    return {
        topic["topic_id" if are_ids else "name"]: len(topic["partitions"])
        for topic in answer["topics"]
        if topic["error_code"] == error_codes.NONE
    }


def _created(topic: Message, default_partitions: int) -> int:
    """Return the number of partitions that a new topic would have."""
    if topic["assignments"]:
        return len(topic["assignments"])
    partitions: int = topic["num_partitions"]
    return partitions if partitions > 0 else default_partitions


def _refused_topic(name: str) -> Message:
    return {
        "name": name,
        "topic_id": _NO_ID,
        "error_code": _REFUSED,
        "error_message": None,
        "topic_config_error_code": error_codes.NONE,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }
