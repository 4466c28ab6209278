"""OffsetForLeaderEpoch (key 23), versions 2-4. KIP-101, KIP-320 (consumers ask, too).

A partition has one leader for ever, so there is one epoch: its end is the end of the log. Any later one, and -1, has
none (-1); any earlier one ended where the log begins. A partition that is named more than once is answered as often.
A partition that another broker leads is error 6.
Needs CLUSTER_ACTION on the cluster or DESCRIBE on each topic; others get error 29.
Memory: at most 60 bytes for each byte of the request (a partition of 12 bytes becomes two dicts).
"""

from collections.abc import Callable

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_partitions, answers_by_topic
from tidegate.broker.cluster import ClusterView
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.storage.log.partition_log import LEADER_EPOCH
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic
from tidegate.wire import UNKNOWN

__all__ = ["handle_offset_for_leader_epoch"]


def handle_offset_for_leader_epoch(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Answer where epochs of leaders end in the logs of `storage`."""
    body = yield from request.body_in_slices()
    may_ask_all = request.authorized(acl.CLUSTER_ACTION, acl.CLUSTER)

    def answers_of(name: str) -> Callable[[Message], Message]:
        topic, missing = storage.topics.by_name.get(name), error_codes.UNKNOWN_TOPIC_OR_PARTITION
        if not (may_ask_all or request.authorized(acl.DESCRIBE, acl.TOPIC, name)):
            topic, missing = None, error_codes.TOPIC_AUTHORIZATION_FAILED
        return lambda wanted: _end(cluster, topic, wanted, missing)

    answers = yield from answers_by_topic(body["topics"], answers_of, name="topic")
    yield from request.release_body(body)
    message = {"throttle_time_ms": 0, "topics": answers}
    return (yield from answer_partitions(request, message, answers, "partitions", Charge.REQUEST))


def _end(cluster: ClusterView, topic: Topic | None, wanted: Message, missing: int) -> Message:
    """Return the answer of a partition: the epoch and where it ended, or the error, `missing` without a topic.

    Follows: Kafka `LeaderEpochFileCache.endOffsetFor`.
    """
    index, current, epoch = wanted["partition"], wanted["current_leader_epoch"], wanted["leader_epoch"]
    log = None if topic is None else topic.log(index)
    error_code, end_offset = error_codes.NONE, UNKNOWN
    if topic is None or log is None:
        error_code = missing
    elif not cluster.leads(topic, index):
        error_code = error_codes.NOT_LEADER_OR_FOLLOWER
    elif log.damaged:
        error_code = error_codes.KAFKA_STORAGE_ERROR
    elif current > LEADER_EPOCH:
        error_code = error_codes.UNKNOWN_LEADER_EPOCH
    elif current < LEADER_EPOCH and current != UNKNOWN:
        error_code = error_codes.FENCED_LEADER_EPOCH
    elif epoch == LEADER_EPOCH:
        end_offset = log.end_offset
    elif epoch < UNKNOWN:
        end_offset = log.start_offset
    return {
        "error_code": error_code,
        "partition": index,
        "leader_epoch": UNKNOWN if end_offset == UNKNOWN else epoch,
        "end_offset": end_offset,
    }
