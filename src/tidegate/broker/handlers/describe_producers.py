"""DescribeProducers (key 61), version 0. KIP-664.

Of each partition the idempotent producers that it remembers. A partition that is named more than once is answered as
often. A partition that another broker leads is error 6. Nothing is transactional.
Needs READ on each topic; others get error 29.
Memory: at most 120 bytes for each byte of the request (a partition of 4 bytes becomes a dict and an error with its
text), and the answer, whose producers are made while it is written: at most `MAX_PRODUCERS_ANSWERED`.
"""

from collections.abc import Callable, Sequence

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answers_by_topic
from tidegate.broker.cluster import ClusterView
from tidegate.broker.topic_names import name_problem
from tidegate.in_slices import release_messages
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.server.requests.late_messages import LateMessages
from tidegate.storage.log.producers import NO_TRANSACTION, ProducerState
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic

__all__ = ["MAX_PRODUCERS_ANSWERED", "handle_describe_producers"]

MAX_PRODUCERS_ANSWERED = 100_000
"""In one answer, past which partitions get error 42: twice what a node remembers, 4 MB."""

_TOO_MANY = f"the response would exceed {MAX_PRODUCERS_ANSWERED} producers, expected fewer partitions"
_NOBODY: Sequence[ProducerState] = ()

_Found = tuple[int, str | None, Sequence[ProducerState]]


def handle_describe_producers(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Describe the producers of partitions."""
    body = yield from request.body_in_slices()
    left = MAX_PRODUCERS_ANSWERED

    def answers_of(name: str) -> Callable[[int], Message]:
        topic = storage.topics.by_name.get(name)
        problem = _problem_of(request, storage, name)

        def answer(index: int) -> Message:
            nonlocal left
            error_code, text, states = problem or _states(cluster, topic, index, left)
            left -= len(states)
            return {
                "partition_index": index,
                "error_code": error_code,
                "error_message": text,
                "active_producers": LateMessages(states, _producer),
            }

        return answer

    answers = yield from answers_by_topic(body["topics"], answers_of, partitions="partition_indexes")
    yield from request.release_body(body)
    answer = yield from request.answer_in_slices({"throttle_time_ms": 0, "topics": answers})
    yield from release_messages(answers)
    return answer


def _problem_of(request: Request, storage: Storage, name: str) -> _Found | None:
    """Return why a topic is not described, None where it is."""
    problem = name_problem(name)
    if problem is not None:
        return error_codes.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}", _NOBODY
    if not request.authorized(acl.READ, acl.TOPIC, name):
        return _refused(error_codes.TOPIC_AUTHORIZATION_FAILED)
    if name not in storage.topics.by_name:
        return _refused(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    return None


def _refused(error_code: int) -> _Found:
    return error_code, error_codes.TEXTS[error_code], _NOBODY


def _states(cluster: ClusterView, topic: Topic | None, index: int, left: int) -> _Found:
    """Return the producers of a partition, at most `left`, or the error and text that stand for them."""
    log = None if topic is None else topic.log(index)
    if topic is None or log is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, None, _NOBODY
    if not cluster.leads(topic, index):
        return error_codes.NOT_LEADER_OR_FOLLOWER, None, _NOBODY
    if len(log.producers) > left:
        return error_codes.INVALID_REQUEST, _TOO_MANY, _NOBODY
    return error_codes.NONE, None, log.producers.states()


def _producer(state: ProducerState) -> Message:
    _, epoch, last_sequence, _, _, time_ms, _, _ = state.batches[-1]
    return {
        "producer_id": state.producer_id,
        "producer_epoch": epoch,
        "last_sequence": last_sequence,
        "last_timestamp": time_ms,
        "coordinator_epoch": NO_TRANSACTION,
        "current_txn_start_offset": NO_TRANSACTION,
    }
