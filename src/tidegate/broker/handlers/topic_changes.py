"""The APIs that change existing topics: more partitions, and their deletion."""

from collections.abc import Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release, has_timed_out, release
from tidegate.broker.cluster import ClusterView
from tidegate.config.values import cut
from tidegate.error_codes import Problem
from tidegate.in_slices import counts_in_slices, map_in_slices
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.storage.errors import StorageError
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic
from tidegate.wire import ZERO_ID

__all__ = ["handle_create_partitions", "handle_delete_topics"]

_FREED_AT_ONCE = 100  # logs, some 5 us each
_NOT_NAMED = "Neither topic name nor id were specified."
_NAMED_IN_TWO_WAYS = "You may not specify both topic name and topic id."
_NAMED_BY_ID_TOO = "The provided topic name maps to an ID that was already supplied."


def handle_delete_topics(storage: Storage, request: Request) -> Work:
    """Delete topics of `storage`.

    DeleteTopics (key 20), versions 1-6. KIP-4, KIP-516 (by id, from 6), KIP-599 (quota).

    Each topic costs as many permits as it has partitions, charged just before it is deleted (B§5.3); Apache Kafka's
    order among the topics of one request is unspecified, here it is the request's. The records are gone for all
    clients at once; answers on their way still send them.

    A timeout of 0 or less fails the request as a whole, unless no topic is named once. Needs DELETE on the cluster
    or on each topic, else error 29; the name behind an id needs DESCRIBE. Memory: at most 310 bytes for each byte
    of the request (a topic of one byte becomes two dicts and an entry of a third), and the answer.
    """
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
        while topics:
            logs = list(topics[-1].logs)
            answers.append((yield from _delete(storage, request, topics.pop(), audit)))
            while logs:  # freeing the logs of thousands of partitions at once takes some ms
                del logs[-_FREED_AT_ONCE:]
                yield
        yield from release(wanted)
        yield from request.release_body(body)
        message = {"throttle_time_ms": 0, "responses": answers}
        return (yield from answer_and_release(request, message, answers, charge=Charge.MUTATION))


def _timed_out(part: Message) -> Message:
    return _deleted(part["name"], part["topic_id"], error_codes.REQUEST_TIMED_OUT)


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
            answers.append(_deleted(None, ZERO_ID, error_codes.INVALID_REQUEST, _NOT_NAMED))
        elif name is not None and topic_id != ZERO_ID:
            answers.append(_deleted(name, topic_id, error_codes.INVALID_REQUEST, _NAMED_IN_TWO_WAYS))
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
            answers.append(_deleted(None, topic_id, error_codes.INVALID_REQUEST, "Duplicate topic id."))
        elif topic is None:
            answers.append(_deleted(None, topic_id, error_codes.UNKNOWN_TOPIC_ID))
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
            answers.append(_deleted(name, ZERO_ID, error_codes.INVALID_REQUEST, "Duplicate topic name."))
        elif not (of_all or request.authorized(acl.DESCRIBE, acl.TOPIC, name)):
            audit.refused("delete", "topic", repr(cut(name)))
            answers.append(_refused(name, ZERO_ID))
        elif topic is None:
            answers.append(_deleted(name, ZERO_ID, error_codes.UNKNOWN_TOPIC_OR_PARTITION))
        elif not (of_all or request.authorized(acl.DELETE, acl.TOPIC, name)):
            audit.refused("delete", "topic", repr(name))
            answers.append(_refused(name, ZERO_ID))
        elif topic.topic_id in ids:
            topics.pop(topic.topic_id, None)
            answers.append(_deleted(name, topic.topic_id, error_codes.INVALID_REQUEST, _NAMED_BY_ID_TOO))
        else:
            topics[topic.topic_id] = topic
        yield
    return list(topics.values())


def _delete(storage: Storage, request: Request, topic: Topic, audit: Audit) -> Generator[None, None, Message]:
    """Charge and delete one topic, after what else is under way with it."""
    while storage.topics.is_changing(topic):
        yield
    if storage.topics.by_id.get(topic.topic_id) is not topic:
        return _deleted(topic.name, topic.topic_id, error_codes.UNKNOWN_TOPIC_ID)
    if not request.quotas.record_mutations(len(topic.logs)):
        return _deleted(topic.name, topic.topic_id, error_codes.THROTTLING_QUOTA_EXCEEDED)
    partitions = len(topic.logs)
    try:
        yield from storage.topics.delete_in_slices(topic)
    except StorageError as error:
        return _deleted(topic.name, topic.topic_id, error_codes.KAFKA_STORAGE_ERROR, str(error))
    audit.changed("delete", "topic", repr(topic.name), key="partitions", old=partitions)
    return _deleted(topic.name, topic.topic_id, error_codes.NONE)


def _refused(name: str | None, topic_id: str) -> Message:
    return _deleted(name, topic_id, error_codes.TOPIC_AUTHORIZATION_FAILED)


def _deleted(name: str | None, topic_id: str, error_code: int, text: str | None = None) -> Message:
    text = text or error_codes.TEXTS.get(error_code)
    return {"name": name, "topic_id": topic_id, "error_code": error_code, "error_message": text}


def handle_create_partitions(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Add partitions to topics of `storage`.

    CreatePartitions (key 37), versions 0-3. KIP-195, KIP-599 (quota). Not implemented: more than one replica.

    Topic by topic in the request's order; each costs as many permits as it gains partitions, charged after the
    count has been checked but before the assignment is: a topic that then fails has cost them (B§5.3).
    validate_only is free unless `tidegate.kafka.exact` is set. The partitions of a topic are there all at once.

    A timeout of 0 or less fails the request as a whole, unless no topic is left to grow. Needs ALTER on each topic;
    others get error 29. The partitions count for the principal that adds them, not for the creator of the topic;
    past its share of the node's partitions it gets error 44 with a text that says why (docs/fair-bounds.md).
    Memory: at most 200 bytes for each byte of the request (a topic of eight bytes becomes three dicts), and the
    answer.
    """
    with Audit(request.connection) as audit:
        body = yield from request.body_in_slices()
        times = yield from counts_in_slices(wanted["name"] for wanted in body["topics"])
        results: list[Message] = []
        for name, count in times.items():
            if count > 1:
                results.append(_grown(name, (error_codes.INVALID_REQUEST, "Duplicate topic name.")))
            yield
        timed_out = has_timed_out(body) and (yield from _are_due(request, times))
        if timed_out:
            results.clear()
        for wanted in body["topics"]:
            if timed_out:
                results.append(_grown(wanted["name"], (error_codes.REQUEST_TIMED_OUT, None)))
            elif times[wanted["name"]] == 1:
                problem = yield from _create(
                    storage, cluster, request, wanted, audit, validate_only=body["validate_only"]
                )
                results.append(_grown(wanted["name"], problem))
            yield
        yield from release(times)
        yield from request.release_body(body)
        message = {"throttle_time_ms": 0, "results": results}
        return (yield from answer_and_release(request, message, results, charge=Charge.MUTATION))


def _are_due(request: Request, times: dict[str, int]) -> Generator[None, None, bool]:
    """Return whether any topic is named once and may be altered: else the controller has nothing to decide."""
    for name, count in times.items():
        if count == 1 and request.authorized(acl.ALTER, acl.TOPIC, name):
            return True
        yield
    return False


def _create(
    storage: Storage,
    cluster: ClusterView,
    request: Request,
    wanted: Message,
    audit: Audit,
    *,
    validate_only: bool,
) -> Generator[None, None, Problem]:
    """Check, charge and grow one topic, after what else is under way with it."""
    if not request.authorized(acl.ALTER, acl.TOPIC, wanted["name"]):
        audit.refused("extend", "topic", repr(cut(wanted["name"])))
        return error_codes.TOPIC_AUTHORIZATION_FAILED, None
    owner = request.divided_owner()
    found = yield from _growable(storage, owner, wanted)
    if not isinstance(found, Topic):
        return found
    added = wanted["count"] - len(found.logs)
    if (not validate_only or storage.config.kafka_exact) and not request.quotas.record_mutations(added):
        return error_codes.THROTTLING_QUOTA_EXCEEDED, None
    for assignment in wanted["assignments"] or ():
        text = yield from cluster.assignment_problem_in_slices(assignment["broker_ids"])
        if text is not None:
            return error_codes.INVALID_REPLICA_ASSIGNMENT, text
        yield
    if not validate_only:
        found = yield from _growable(storage, owner, wanted)  # others may have changed it, or taken the room
        if not isinstance(found, Topic):
            return found
        before = len(found.logs)
        try:
            yield from storage.topics.add_partitions_in_slices(found, wanted["count"], owner)
        except StorageError as error:
            return error_codes.KAFKA_STORAGE_ERROR, str(error)
        audit.changed("extend", "topic", repr(found.name), key="partitions", old=before, new=wanted["count"])
    return error_codes.NONE, None


def _growable(storage: Storage, owner: str, wanted: Message) -> Generator[None, None, Topic | Problem]:
    """Return the topic, once nothing else is under way with it, or why it cannot get so many partitions."""
    topic = yield from storage.topics.settled_in_slices(wanted["name"])
    if topic is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, None
    problem = _count_problem(storage, owner, topic, wanted)
    return topic if problem is None else problem


def _count_problem(storage: Storage, owner: str, topic: Topic, wanted: Message) -> Problem | None:
    count, current, assignments = wanted["count"], len(topic.logs), wanted["assignments"]
    if count == current:
        return error_codes.INVALID_PARTITIONS, f"Topic already has {current} partition(s)."
    if count < current:
        text = (
            f"The topic {topic.name} currently has {current} partition(s); {count} would not be an increase."
        )
        return error_codes.INVALID_PARTITIONS, text
    added = count - current
    if assignments is not None and len(assignments) != added:
        text = f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) were "
        return error_codes.INVALID_REPLICA_ASSIGNMENT, text + "specified."
    room_problem = storage.topics.bound.problem(owner, added)
    return None if room_problem is None else (error_codes.POLICY_VIOLATION, room_problem)


def _grown(name: str, problem: Problem) -> Message:
    return {"name": name, "error_code": problem[0], "error_message": problem[1]}
