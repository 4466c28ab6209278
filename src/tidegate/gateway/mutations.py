"""CreateTopics, DeleteTopics and CreatePartitions through the gateway: its quota of controller mutations (B§5).

The gateway asks the broker which topics exist, and charges the permits of each topic that the request would change. If
the quota is strict, it forwards only admitted topics, and answers error 89 for the others itself. For older
versions it forwards all topics, and throttles. A topic that the broker then refuses has still cost its permits.

As in Kafka (B§5.3), a topic that the broker is certain to refuse costs nothing: one that is named twice, or by its name
and by its id; one to create that exists; and one to change or delete that does not exist, or that the client may not
describe. validate_only is free unless `tidegate.kafka.exact` is set.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from tidegate import error_codes
from tidegate.api_keys import METADATA
from tidegate.gateway.asking import UpstreamLostError, ask_broker
from tidegate.in_slices import counts_in_slices
from tidegate.server.requests.handler import Answer, Charge, Message, Request, Wait, Work
from tidegate.wire import ZERO_ID

__all__ = ["handle_create_partitions", "handle_create_topics", "handle_delete_topics"]

_BY_NAME, _BY_ID = 10, 12
"""Versions of Metadata that take names of topics, and that take ids. Kafka 2.8 knows the first, 3.1 both."""
_REFUSED = error_codes.THROTTLING_QUOTA_EXCEEDED
_Place = tuple[str | None, str]
"""The name of a topic, and its id: a request has one of them, and `ZERO_ID` or None as the other."""


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
    """Forward the topics of a request that the quota admits. The topics are given by name.

    permits: returns the permits of a topic, given the number of partitions of those that exist. refusal: returns the
    result of a topic that is refused. results_key: the field of the results in the response.
    """
    body = yield from request.body_in_slices()
    refused: list[Message] = []
    order: list[_Place] = []
    if not body.get("validate_only", False) or charges_validation():
        times = yield from counts_in_slices(topic["name"] for topic in body["topics"])
        order = [(name, ZERO_ID) for name in times]
        try:
            found = yield from _found(request, order)
        except UpstreamLostError:
            return Answer(None, Charge.MUTATION, close=True)
        existing = {topic["name"]: len(topic["partitions"]) for topic in found}
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

    def place(topic: Any) -> _Place:
        return (topic, ZERO_ID) if key == "topic_names" else (topic["name"], topic["topic_id"])

    times = yield from counts_in_slices(place(topic) for topic in body[key])
    by_name = [(name, topic_id) for name, topic_id in times if name is not None]
    by_id = [(name, topic_id) for name, topic_id in times if name is None and topic_id != ZERO_ID]
    try:
        named = yield from _found(request, by_name)
        identified = yield from _found(request, by_id)
    except UpstreamLostError:
        return Answer(None, Charge.MUTATION, close=True)
    permits = {(topic["name"], ZERO_ID): len(topic["partitions"]) for topic in named}
    permits |= {(None, topic["topic_id"]): len(topic["partitions"]) for topic in identified}
    for topic in named:
        if (None, topic["topic_id"]) in permits:
            permits[topic["name"], ZERO_ID] = permits[None, topic["topic_id"]] = 0

    def refusal(topic: Any) -> Message:
        name, topic_id = place(topic)
        return {"name": name, "topic_id": topic_id, "error_code": _REFUSED, "error_message": None}

    body[key], refused = yield from _admitted(
        request,
        body[key],
        lambda topic: permits.get(place(topic), 0) if times[place(topic)] == 1 else 0,
        refusal,
    )
    return (yield from _answer(request, body, key, "responses", list(times), refused))


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
    order: Sequence[_Place],
    refused: Sequence[Message],
) -> Generator[Wait | None, None, Answer]:
    """Forward the admitted topics, if any, and answer with the broker's results and the refusals.

    order: the request's topics, by which the results are ordered if some were refused.
    """
    message: Message = {"throttle_time_ms": 0, results_key: []}
    if body[wanted_key] or not refused:
        try:
            message = yield from ask_broker(request, *request.header.api, body)
        except UpstreamLostError:
            return Answer(None, Charge.MUTATION, close=True)
    if refused:
        message[results_key] = yield from _in_order(order, [*message[results_key], *refused])
    return (yield from request.answer_in_slices(message, Charge.MUTATION))


def _in_order(order: Sequence[_Place], results: Sequence[Message]) -> Generator[None, None, list[Message]]:
    """Return the results in the order of `order`. Results whose topic is not in `order` come last."""
    by_topic: dict[_Place, list[Message]] = {
        (name, ZERO_ID) if topic_id == ZERO_ID else (None, topic_id): [] for name, topic_id in order
    }
    left: list[Message] = []
    for result in results:
        own = by_topic.get((result["name"], ZERO_ID))
        if own is None:
            own = by_topic.get((None, result.get("topic_id", ZERO_ID)), left)
        own.append(result)
        yield
    ordered: list[Message] = []
    for own in by_topic.values():
        ordered += own
        yield
    return ordered + left


def _found(request: Request, topics: Sequence[_Place]) -> Generator[Wait | None, None, list[Message]]:
    """Return Metadata of the topics that exist and that the client may describe; all have a name, or all have an id."""
    if not topics:
        return []
    version = _BY_ID if topics[0][0] is None else _BY_NAME
    places = dict.fromkeys(each if each[0] is None else (each[0], ZERO_ID) for each in topics)
    asked = {
        "topics": [{"name": name, "topic_id": topic_id} for name, topic_id in places],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    answer = yield from ask_broker(request, METADATA, version, asked)
    return [topic for topic in answer["topics"] if topic["error_code"] == error_codes.NONE]


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
