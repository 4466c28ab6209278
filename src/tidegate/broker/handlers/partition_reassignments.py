"""AlterPartitionReassignments (key 45), versions 0-1, and ListPartitionReassignments (key 46), version 0. KIP-455.

A partition has one replica, on the broker that leads it: to assign it there again is done at once, anything else is
refused, and none is ever under way. What is wrong with an assignment is said in Kafka's words. Where none is asked for,
or the request fails as a whole (as with a timeout of 0 or less), the answer has its defaults, as Kafka's.
Needs ALTER on the cluster, to list them DESCRIBE, else error 31.
Memory: at most 130 bytes for each byte of the request (a partition of 5 bytes becomes two dicts, and one that is not
there an error with its text), to list them 40, or 70 without the right (a partition of 4 bytes becomes a dict).
"""

from collections.abc import Generator, Sequence

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_partitions, answers_by_topic, has_timed_out, release
from tidegate.broker.cluster import ClusterView
from tidegate.error_codes import Problem
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic

__all__ = ["handle_alter_partition_reassignments", "handle_list_partition_reassignments"]

_NOBODY: Message = {"replicas": (), "adding_replicas": (), "removing_replicas": ()}


def handle_alter_partition_reassignments(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Answer reassignments."""
    body = yield from request.body_in_slices()
    answers: list[Message] = []
    refused: Problem | None = None
    if has_timed_out(body) and body["topics"]:
        refused = error_codes.REQUEST_TIMED_OUT, None
    if not request.authorized(acl.ALTER, acl.CLUSTER):
        refused = error_codes.CLUSTER_AUTHORIZATION_FAILED, request.refusal(acl.ALTER)
    for part in body["topics"]:
        name = part["name"]
        topic = storage.topics.by_name.get(name)
        results: list[Message] = []
        for wanted in part["partitions"]:
            index, replicas = wanted["partition_index"], wanted["replicas"]
            error_code, text = refused or (yield from _problem(cluster, name, topic, index, replicas))
            results.append({"partition_index": index, "error_code": error_code, "error_message": text})
            yield from release(replicas or [])
            yield
        answers.append({"name": name, "partitions": results})
        yield from release(part["partitions"])
        yield
    yield from request.release_body(body)
    message = {
        "throttle_time_ms": 0,
        "allow_replication_factor_change": refused is not None
        or not answers
        or body.get("allow_replication_factor_change", True),
        "error_code": error_codes.NONE if refused is None else refused[0],
        "error_message": refused[1] if refused is not None else None if answers else "",
        "responses": answers,
    }
    return (yield from answer_partitions(request, message, answers, "partitions", Charge.REQUEST))


def handle_list_partition_reassignments(request: Request) -> Work:
    """List reassignments under way: there are none."""
    body = yield from request.body_in_slices()
    error_code, text = error_codes.NONE, None
    topics: list[Message] = []
    if not request.authorized(acl.DESCRIBE, acl.CLUSTER):
        error_code, text = error_codes.CLUSTER_AUTHORIZATION_FAILED, request.refusal(acl.DESCRIBE)
        # Kafka's `ListPartitionReassignmentsRequest.getErrorResponse` answers the named partitions without replicas.
        topics = yield from answers_by_topic(
            body["topics"] or (), lambda _: _no_replicas, partitions="partition_indexes"
        )
    yield from request.release_body(body)
    message: Message = {
        "throttle_time_ms": 0,
        "error_code": error_code,
        "error_message": text,
        "topics": topics,
    }
    return (yield from answer_partitions(request, message, topics, "partitions", Charge.REQUEST))


def _no_replicas(index: int) -> Message:
    return {"partition_index": index, **_NOBODY}


def _problem(
    cluster: ClusterView, name: str, topic: Topic | None, index: int, replicas: Sequence[int] | None
) -> Generator[None, None, Problem]:
    """Return why a partition is not assigned. Follows: Kafka `ReplicationControlManager` and its texts."""
    if topic is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}."
    if topic.log(index) is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}."
    if replicas is None:
        return error_codes.NO_REASSIGNMENT_IN_PROGRESS, None
    if len(replicas) == 1 and replicas[0] == cluster.leader(topic, index):
        return error_codes.NONE, None
    text = yield from cluster.assignment_problem_in_slices(replicas)
    return error_codes.INVALID_REPLICA_ASSIGNMENT, text
