"""DeleteTopics (key 20), versions 1-6. KIP-4, KIP-516 (by id, from 6), KIP-599 (quota).

Each topic costs as many permits as it has partitions, charged just before it goes (B§5.3); Apache Kafka's order among
the topics of one request is unspecified, here it is the request's. The records are gone for everybody at once; answers
on their way still send them.
A timeout of 0 or less fails the request as a whole, unless no topic is named once.
Needs DELETE on the cluster or on each topic, else error 29; the name behind an id needs DESCRIBE.
Memory: at most 310 bytes for each byte of the request (a topic of one byte becomes two dicts and an entry of a third),
and the answer.
"""

from collections.abc import Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release, has_timed_out, release
from tidegate.config.values import cut
from tidegate.in_slices import map_in_slices
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.storage.errors import StorageError
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic
from tidegate.wire import ZERO_ID

__all__ = ["handle_delete_topics"]

_NOT_NAMED = "Neither topic name nor id were specified."
_NAMED_IN_TWO_WAYS = "You may not specify both topic name and topic id."
_NAMED_BY_ID_TOO = "The provided topic name maps to an ID that was already supplied."


def handle_delete_topics(storage: Storage, request: Request) -> Work:
    """Delete topics of `storage`."""
    with Audit(request.connection) as audit:
        body = yield from request.body_in_slices()
        wanted: list[Message] = body.get("topics") or []
        for name in body.get("topic_names") or ():
            wanted.append({"name": name, "topic_id": ZERO_ID})
            yield
        answers, names, ids = yield from _counted(wanted)
        topics: list[Topic] = []
        if has_timed_out(body) and (1 in ids.values() or 1 in names.values()):
            answers = yield from map_in_slices(_timed_out, wanted)
        else:
            topics = yield from _find(storage, request, names, ids, answers, audit)
        yield from release(names, ids)
        topics.reverse()
        while topics:  # each is let go when it is deleted: thousands at once take some ms
            answers.append((yield from _delete(storage, request, topics.pop(), audit)))
            yield
        yield from release(wanted)
        yield from request.release_body(body)
        message = {"throttle_time_ms": 0, "responses": answers}
        return (yield from answer_and_release(request, message, answers, charge=Charge.MUTATION))


def _timed_out(part: Message) -> Message:
    return _result(part["name"], part["topic_id"], error_codes.REQUEST_TIMED_OUT)


def _counted(
    wanted: list[Message],
) -> Generator[None, None, tuple[list[Message], dict[str, int], dict[str, int]]]:
    """Return answers for topics that are named in a wrong way, and how often each other name and id is named."""
    answers: list[Message] = []
    names: dict[str, int] = {}
    ids: dict[str, int] = {}
    for part in wanted:
        name, topic_id = part["name"], part["topic_id"]
        if name is None and topic_id == ZERO_ID:
            answers.append(_result(None, ZERO_ID, error_codes.INVALID_REQUEST, _NOT_NAMED))
        elif name is not None and topic_id != ZERO_ID:
            answers.append(_result(name, topic_id, error_codes.INVALID_REQUEST, _NAMED_IN_TWO_WAYS))
        elif name is not None:
            names[name] = names.get(name, 0) + 1
        else:
            ids[topic_id] = ids.get(topic_id, 0) + 1
        yield
    return answers, names, ids


def _find(
    storage: Storage,
    request: Request,
    names: dict[str, int],
    ids: dict[str, int],
    answers: list[Message],
    audit: Audit,
) -> Generator[None, None, list[Topic]]:
    """Return the topics to delete, each once; add an answer for each that cannot be deleted.

    Follows: Kafka `ControllerApis.deleteTopics`.
    """
    of_all = request.authorized(acl.DELETE, acl.CLUSTER)
    topics: dict[str, Topic] = {}
    for topic_id, times in ids.items():
        topic = storage.topics.by_id.get(topic_id)
        if times > 1:
            answers.append(_result(None, topic_id, error_codes.INVALID_REQUEST, "Duplicate topic id."))
        elif topic is None:
            answers.append(_result(None, topic_id, error_codes.UNKNOWN_TOPIC_ID))
        elif not (of_all or request.authorized(acl.DELETE, acl.TOPIC, topic.name)):
            audit.refused("delete", "topic", repr(topic.name))
            may_describe = request.authorized(acl.DESCRIBE, acl.TOPIC, topic.name)
            answers.append(_refused(topic.name if may_describe else None, topic_id))
        else:
            topics[topic_id] = topic
        yield
    for name, times in names.items():
        topic = storage.topics.by_name.get(name)
        if times > 1:
            answers.append(_result(name, ZERO_ID, error_codes.INVALID_REQUEST, "Duplicate topic name."))
        elif not (of_all or request.authorized(acl.DESCRIBE, acl.TOPIC, name)):
            audit.refused("delete", "topic", repr(cut(name)))
            answers.append(_refused(name, ZERO_ID))
        elif topic is None:
            answers.append(_result(name, ZERO_ID, error_codes.UNKNOWN_TOPIC_OR_PARTITION))
        elif not (of_all or request.authorized(acl.DELETE, acl.TOPIC, name)):
            audit.refused("delete", "topic", repr(name))
            answers.append(_refused(name, ZERO_ID))
        elif topic.topic_id in ids:
            topics.pop(topic.topic_id, None)
            answers.append(_result(name, topic.topic_id, error_codes.INVALID_REQUEST, _NAMED_BY_ID_TOO))
        else:
            topics[topic.topic_id] = topic
        yield
    return list(topics.values())


def _delete(storage: Storage, request: Request, topic: Topic, audit: Audit) -> Generator[None, None, Message]:
    """Charge and delete one topic, after what else is under way with it."""
    while storage.topics.is_changing(topic):
        yield
    if storage.topics.by_id.get(topic.topic_id) is not topic:
        return _result(topic.name, topic.topic_id, error_codes.UNKNOWN_TOPIC_ID)
    if not request.quotas.record_mutations(len(topic.logs)):
        return _result(topic.name, topic.topic_id, error_codes.THROTTLING_QUOTA_EXCEEDED)
    partitions = len(topic.logs)
    try:
        yield from storage.topics.delete_in_slices(topic)
    except StorageError as error:
        return _result(topic.name, topic.topic_id, error_codes.KAFKA_STORAGE_ERROR, str(error))
    audit.changed("delete", "topic", repr(topic.name), key="partitions", old=partitions)
    return _result(topic.name, topic.topic_id, error_codes.NONE)


def _refused(name: str | None, topic_id: str) -> Message:
    return _result(name, topic_id, error_codes.TOPIC_AUTHORIZATION_FAILED)


def _result(name: str | None, topic_id: str, error_code: int, text: str | None = None) -> Message:
    text = text or error_codes.TEXTS.get(error_code)
    return {"name": name, "topic_id": topic_id, "error_code": error_code, "error_message": text}
