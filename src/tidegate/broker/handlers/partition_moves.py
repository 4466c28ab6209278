"""The APIs that move partitions between brokers. A partition has one replica, on the broker that leads it.

So an election is never needed, and no reassignment is ever under way. A request fails as a whole if its timeout is 0 or
less, unless it is about nothing.
"""

from collections.abc import Callable, Generator, Sequence

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_partitions, answers_by_topic, has_timed_out, release
from tidegate.broker.cluster import ClusterView
from tidegate.error_codes import Problem
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic

__all__ = [
    "handle_alter_partition_reassignments",
    "handle_elect_leaders",
    "handle_list_partition_reassignments",
]

PREFERRED, UNCLEAN = 0, 1
_NOT_NEEDED = "Leader election not needed for topic partition."  # Kafka's text of error 84
_NOBODY: Message = {"replicas": (), "adding_replicas": (), "removing_replicas": ()}


def handle_elect_leaders(storage: Storage, request: Request) -> Work:
    """Answer the election of partitions' leaders: none is needed.

    ElectLeaders (key 43), versions 0-2. KIP-183, KIP-460 (unclean elections, from 1).

    An election is never needed (error 84). Without topics each topic is answered without partitions, as by Kafka
    where nothing has changed. An election of an unknown type fails as a whole, unless it is of nothing. Needs ALTER
    on the cluster, else everything gets error 31. Memory: at most 130 bytes for each byte of the request (a
    partition of 4 bytes becomes a dict, and one that is not there an error with its text).
    """
    body = yield from request.body_in_slices()
    election = body.get("election_type", PREFERRED)
    refused: Problem | None = None
    if election not in (PREFERRED, UNCLEAN) and body["topic_partitions"] != []:
        refused = error_codes.INVALID_REQUEST, f"Unknown election type {election}"
    if has_timed_out(body) and body["topic_partitions"] != []:
        refused = error_codes.REQUEST_TIMED_OUT, None
    if not request.authorized(acl.ALTER, acl.CLUSTER):
        refused = error_codes.CLUSTER_AUTHORIZATION_FAILED, request.refusal(acl.ALTER)
    answers: list[Message] = []
    if body["topic_partitions"] is None and refused is None:
        answers = [{"topic": topic.name, "partition_result": []} for topic in storage.topics]

    def answers_of(name: str) -> Callable[[int], Message]:
        topic = storage.topics.by_name.get(name)
        return lambda index: _result(index, refused or _election_problem(name, topic, index))

    answers += yield from answers_by_topic(
        body["topic_partitions"] or (), answers_of, name="topic", results="partition_result"
    )
    yield from request.release_body(body)
    error_code = error_codes.NONE if refused is None else refused[0]
    message = {"throttle_time_ms": 0, "error_code": error_code, "replica_election_results": answers}
    return (yield from answer_partitions(request, message, answers, "partition_result", Charge.REQUEST))


def _result(index: int, problem: Problem) -> Message:
    return {"partition_id": index, "error_code": problem[0], "error_message": problem[1]}


def _election_problem(name: str, topic: Topic | None, index: int) -> Problem:
    """Return why no leader is elected. Follows: Kafka `ReplicationControlManager.electLeader` and its texts."""
    if topic is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    if topic.log(index) is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    return error_codes.ELECTION_NOT_NEEDED, _NOT_NEEDED


def handle_alter_partition_reassignments(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Answer reassignments.

    AlterPartitionReassignments (key 45), versions 0-1. KIP-455.

    To assign a partition to the broker that leads it is done at once, anything else is refused. What is wrong with
    an assignment is said in Kafka's words. Where none is asked for, or the request fails as a whole, the answer has
    its defaults, as Kafka's. Needs ALTER on the cluster, else error 31. Memory: at most 130 bytes for each byte of
    the request (a partition of 5 bytes becomes two dicts, and one that is not there an error with its text).
    """
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
            error_code, text = refused or (
                yield from _assignment_problem(cluster, name, topic, index, replicas)
            )
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
    """List reassignments under way: there are none.

    ListPartitionReassignments (key 46), version 0. KIP-455.

    Needs DESCRIBE on the cluster, else error 31. Memory: at most 40 bytes for each byte of the request, or 70
    without the right (a partition of 4 bytes becomes a dict).
    """
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


def _assignment_problem(
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
