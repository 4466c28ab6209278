"""CreatePartitions (key 37), versions 0-3. KIP-195, KIP-599 (quota).

Topic by topic in the request's order; each costs as many permits as it gains partitions, charged after the count has
been checked but before the assignment is: a topic that then fails has cost them (B§5.3). validate_only is free unless
`tidegate.kafka.exact` is set.
The partitions of a topic are there all at once.
Memory: at most 200 bytes for each byte of the request (a topic of eight bytes becomes three dicts), and the answer.
A timeout of 0 or less fails the request as a whole, unless no topic is left to grow.
Needs ALTER on each topic; others get error 29. The partitions count for the principal that adds them, not for the
creator of the topic; past its share of the node's partitions it gets error 44 with a text that says why
(docs/fair-bounds.md).
Not implemented: more than one replica.
"""

from collections.abc import Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release, has_timed_out, release
from tidegate.broker.cluster import ClusterView
from tidegate.config.values import cut
from tidegate.error_codes import Problem
from tidegate.in_slices import counts_in_slices
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.storage.errors import StorageError
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic

__all__ = ["handle_create_partitions"]


def handle_create_partitions(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Add partitions to topics of `storage`."""
    with Audit(request.connection) as audit:
        body = yield from request.body_in_slices()
        times = yield from counts_in_slices(wanted["name"] for wanted in body["topics"])
        results: list[Message] = []
        for name, count in times.items():
            if count > 1:
                results.append(_result(name, (error_codes.INVALID_REQUEST, "Duplicate topic name.")))
            yield
        timed_out = has_timed_out(body) and (yield from _are_due(request, times))
        if timed_out:
            results.clear()
        for wanted in body["topics"]:
            if timed_out:
                results.append(_result(wanted["name"], (error_codes.REQUEST_TIMED_OUT, None)))
            elif times[wanted["name"]] == 1:
                problem = yield from _create(
                    storage, cluster, request, wanted, audit, validate_only=body["validate_only"]
                )
                results.append(_result(wanted["name"], problem))
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


def _result(name: str, problem: Problem) -> Message:
    return {"name": name, "error_code": problem[0], "error_message": problem[1]}
