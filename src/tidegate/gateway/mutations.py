"""CreateTopics, DeleteTopics and CreatePartitions through the gateway: its quota of controller mutations (B§5).

The gateway asks the broker which topics there are, charges the permits of each topic that the request would change, and
forwards the topics that are admitted; for the others it answers error 89 itself (strict), or forwards all of them and
throttles (older versions). A topic that fails at the broker for another reason has cost its permits, too.

A topic that the broker is sure to refuse costs none, as in Kafka (B§5.3): one that is named twice, one to create that
exists, and one to change or delete that does not exist, or that the client may not describe. validate_only is free
unless `tidegate.kafka.exact` is set.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from tidegate import error_codes
from tidegate.api_keys import METADATA
from tidegate.gateway.asking import UpstreamLostError, ask_broker, forward_message
from tidegate.in_slices import counts_in_slices
from tidegate.server.requests.handler import Answer, Charge, Message, Request, Wait, Work
from tidegate.wire import ZERO_ID

__all__ = ["handle_create_partitions", "handle_create_topics", "handle_delete_topics"]

_BY_NAME, _BY_ID = 9, 12
"""Versions of Metadata that name topics, and that take their ids. Kafka 2.8 knows the first, 3.1 both."""
_REFUSED = error_codes.THROTTLING_QUOTA_EXCEEDED


def handle_create_topics(
    default_partitions: Callable[[], int], charges_validation: Callable[[], bool], request: Request
) -> Work:
    """Forward a CreateTopics.

    default_partitions: returns `num.partitions` of the brokers. charges_validation: returns whether validate_only is
    charged.
    """

    def permits(topic: Message, existing: dict[str, int]) -> int:
        return 0 if topic["name"] in existing else _created(topic, default_partitions())

    return _forward_changes(request, permits, charges_validation, "topics", _refused_topic)


def handle_create_partitions(charges_validation: Callable[[], bool], request: Request) -> Work:
    """Forward a CreatePartitions. charges_validation: returns whether validate_only is charged."""

    def permits(topic: Message, existing: dict[str, int]) -> int:
        count: int = topic["count"]
        return max(count - existing.get(topic["name"], count), 0)

    return _forward_changes(request, permits, charges_validation, "results", _refused_result)


def _forward_changes(
    request: Request,
    permits: Callable[[Message, dict[str, int]], int],
    charges_validation: Callable[[], bool],
    results_key: str,
    refusal: Callable[[str], Message],
) -> Work:
    """Forward a request with topics by name, as far as it is admitted.

    permits: returns the permits of a topic, given the number of partitions of those that exist. refusal: returns the
    result of a topic that is refused. results_key: the field of the results in the response.
    """
    body = yield from request.body_in_slices()
    refused: list[Message] = []
    order: list[str] = []
    if not body.get("validate_only", False) or charges_validation():
        times = yield from counts_in_slices(topic["name"] for topic in body["topics"])
        order = list(times)
        try:
            existing = yield from _partitions(request, order)
        except UpstreamLostError:
            return Answer(None, Charge.MUTATION, close=True)
        body["topics"], refused = yield from _admitted(
            request,
            body["topics"],
            lambda topic: permits(topic, existing) if times[topic["name"]] == 1 else 0,
            lambda topic: refusal(topic["name"]),
        )
    return (yield from _answer(request, body, "topics", results_key, order, refused))


def handle_delete_topics(request: Request) -> Work:
    """Forward a DeleteTopics, of topics by name or, from version 6 on, by id."""
    body = yield from request.body_in_slices()
    key = "topic_names" if "topic_names" in body else "topics"

    def place(topic: Any) -> tuple[str | None, str]:
        return (topic, ZERO_ID) if key == "topic_names" else (topic["name"], topic["topic_id"])

    times = yield from counts_in_slices(place(topic) for topic in body[key])
    try:
        existing = yield from _partitions(request, [name for name, _ in times if name is not None])
        ids = [topic_id for name, topic_id in times if name is None and topic_id != ZERO_ID]
        existing.update((yield from _partitions(request, ids, are_ids=True)))
    except UpstreamLostError:
        return Answer(None, Charge.MUTATION, close=True)

    def permits(topic: Any) -> int:
        name, topic_id = place(topic)
        is_wrong = times[name, topic_id] > 1 or (name is not None and topic_id != ZERO_ID)
        return 0 if is_wrong else existing.get(topic_id if name is None else name, 0)

    def refusal(topic: Any) -> Message:
        name, topic_id = place(topic)
        return {"name": name, "topic_id": topic_id, "error_code": _REFUSED, "error_message": None}

    order = [topic_id if name is None else name for name, topic_id in times]
    body[key], refused = yield from _admitted(request, body[key], permits, refusal)
    return (yield from _answer(request, body, key, "responses", order, refused))


def _admitted(
    request: Request, topics: Sequence[Any], permits: Callable[[Any], int], refusal: Callable[[Any], Message]
) -> Generator[None, None, tuple[list[Any], list[Message]]]:
    """Charge the permits of each topic; return the topics that are admitted, and the results of those that are not."""
    admitted: list[Any] = []
    refused: list[Message] = []
    for topic in topics:
        needed = permits(topic)
        if not needed or request.quotas.record_mutations(needed):
            admitted.append(topic)
        else:
            refused.append(refusal(topic))
        yield
    return admitted, refused


def _answer(
    request: Request,
    body: Message,
    wanted_key: str,
    results_key: str,
    order: Sequence[str],
    refused: Sequence[Message],
) -> Generator[Wait | None, None, Answer]:
    """Forward what was admitted, if anything, and answer with the broker's results and the refusals.

    order: the names or ids of the request's topics, in which the results are told if some were refused.
    """
    message: Message = {"throttle_time_ms": 0, results_key: []}
    if body[wanted_key] or not refused:
        try:
            message = yield from forward_message(request, body)
        except UpstreamLostError:
            return Answer(None, Charge.MUTATION, close=True)
    if refused:
        message[results_key] = yield from _in_order(order, [*message[results_key], *refused])
    return (yield from request.answer_in_slices(message, Charge.MUTATION))


def _in_order(order: Sequence[str], results: Sequence[Message]) -> Generator[None, None, list[Message]]:
    """Return the results in the order of their topics. Those of no topic in `order` come last."""
    by_topic: dict[str, list[Message]] = {topic: [] for topic in order}
    left: list[Message] = []
    for result in results:
        own = by_topic.get(result["name"])
        if own is None:
            own = by_topic.get(result.get("topic_id", ""), left)
        own.append(result)
        yield
    ordered: list[Message] = []
    for own in by_topic.values():
        ordered += own
        yield
    return ordered + left


def _partitions(
    request: Request, names: Sequence[str], *, are_ids: bool = False
) -> Generator[Wait | None, None, dict[str, int]]:
    """Return the number of partitions of each topic that exists and that the client may describe."""
    if not names:
        return {}
    topics = [
        {"name": None if are_ids else name, "topic_id": name if are_ids else ZERO_ID}
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


def _refused_result(name: str) -> Message:
    return {"name": name, "error_code": _REFUSED, "error_message": None}


def _refused_topic(name: str) -> Message:
    return {
        "name": name,
        "topic_id": ZERO_ID,
        "error_code": _REFUSED,
        "error_message": None,
        "topic_config_error_code": error_codes.NONE,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }
