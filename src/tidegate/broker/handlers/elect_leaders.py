"""ElectLeaders (key 43), versions 0-2. KIP-183, KIP-460 (unclean elections, from 1).

A partition has one replica, which leads it: an election is never needed (error 84). Without topics each topic is
answered without partitions, as by Kafka where nothing has changed. An election of an unknown type fails as a whole,
unless it is of nothing, and
so does one whose timeout is 0 or less. Needs ALTER on the cluster, else everything gets error 31.
Memory: at most 130 bytes for each byte of the request (a partition of 4 bytes becomes a dict, and one that is not there
an error with its text).
"""

from collections.abc import Callable

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_partitions, answers_by_topic, has_timed_out
from tidegate.error_codes import Problem
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic

__all__ = ["handle_elect_leaders"]

PREFERRED, UNCLEAN = 0, 1
_NOT_NEEDED = "Leader election not needed for topic partition."  # Kafka's text of error 84


def handle_elect_leaders(storage: Storage, request: Request) -> Work:
    """Answer the election of partitions' leaders: none is needed."""
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
        return lambda index: _result(index, refused or _problem(name, topic, index))

    answers += yield from answers_by_topic(
        body["topic_partitions"] or (), answers_of, name="topic", results="partition_result"
    )
    yield from request.release_body(body)
    error_code = error_codes.NONE if refused is None else refused[0]
    message = {"throttle_time_ms": 0, "error_code": error_code, "replica_election_results": answers}
    return (yield from answer_partitions(request, message, answers, "partition_result", Charge.REQUEST))


def _result(index: int, problem: Problem) -> Message:
    return {"partition_id": index, "error_code": problem[0], "error_message": problem[1]}


def _problem(name: str, topic: Topic | None, index: int) -> Problem:
    """Return why no leader is elected. Follows: Kafka `ReplicationControlManager.electLeader` and its texts."""
    if topic is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    if topic.log(index) is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    return error_codes.ELECTION_NOT_NEEDED, _NOT_NEEDED
