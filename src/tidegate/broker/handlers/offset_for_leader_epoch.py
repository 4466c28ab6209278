"""OffsetForLeaderEpoch (key 23), versions 2-4. KIP-101, KIP-320 (consumers ask, too).

A partition has one leader for ever, so there is one epoch: its end is the end of the log. Any later one, and -1, has
none (-1); any earlier one ended where the log begins. A partition that is named more than once is answered as often.
A partition that another broker leads is error 6.
Needs CLUSTER_ACTION on the cluster or DESCRIBE on each topic; others get error 29.
Memory: at most 60 bytes for each byte of the request (a partition of 12 bytes becomes two dicts).
"""

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.cluster import ClusterView
from tidegate.broker.releasing import answer_partitions, release
from tidegate.server.requests.handler import Charge, Handler, Message, Request, Work
from tidegate.storage.log.partition_log import LEADER_EPOCH
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topics import Topic

__all__ = ["offset_for_leader_epoch_handler"]

_UNKNOWN = -1


def offset_for_leader_epoch_handler(storage: Storage, cluster: ClusterView) -> Handler:
    """Return the handler that says where epochs of leaders ended in the logs of `storage`."""

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        answers: list[Message] = []
        may_ask_all = request.authorized(acl.CLUSTER_ACTION, acl.CLUSTER)
        for part in body["topics"]:
            name = part["topic"]
            topic, missing = storage.topics.by_name.get(name), error_codes.UNKNOWN_TOPIC_OR_PARTITION
            if not (may_ask_all or request.authorized(acl.DESCRIBE, acl.TOPIC, name)):
                topic, missing = None, error_codes.TOPIC_AUTHORIZATION_FAILED
            ends: list[Message] = []
            for wanted in part["partitions"]:
                error_code, epoch, end_offset = _end(cluster, topic, wanted, missing)
                ends.append(
                    {
                        "error_code": error_code,
                        "partition": wanted["partition"],
                        "leader_epoch": epoch,
                        "end_offset": end_offset,
                    }
                )
                yield
            answers.append({"topic": name, "partitions": ends})
            yield from release(part["partitions"])
            yield
        yield from request.release_body(body)
        message = {"throttle_time_ms": 0, "topics": answers}
        return (yield from answer_partitions(request, message, answers, "partitions", Charge.REQUEST))

    return handle


def _end(cluster: ClusterView, topic: Topic | None, wanted: Message, missing: int) -> tuple[int, int, int]:
    """Return the error, `missing` without a topic, the epoch and where it ended.

    Follows: Kafka `LeaderEpochFileCache.endOffsetFor`.
    """
    index, current, epoch = wanted["partition"], wanted["current_leader_epoch"], wanted["leader_epoch"]
    log = None if topic is None else topic.log(index)
    error_code = error_codes.NONE
    if topic is None or log is None:
        error_code = missing
    elif not cluster.leads(topic, index):
        error_code = error_codes.NOT_LEADER_OR_FOLLOWER
    elif log.damaged:
        error_code = error_codes.KAFKA_STORAGE_ERROR
    elif current > LEADER_EPOCH:
        error_code = error_codes.UNKNOWN_LEADER_EPOCH
    elif current < LEADER_EPOCH and current != _UNKNOWN:
        error_code = error_codes.FENCED_LEADER_EPOCH
    elif epoch == LEADER_EPOCH:
        return error_code, epoch, log.end_offset
    elif epoch < _UNKNOWN:
        return error_code, epoch, log.start_offset
    return error_code, _UNKNOWN, _UNKNOWN
