"""Metadata (key 3), versions 0-13. KIP-4, KIP-430 (authorised operations), KIP-516 (topic ids), KIP-526.

Version 0 asks for all topics with an empty list; from 1 on null is all and empty is none. A topic that does not exist
is created when the client allows it (always before version 4) and answered with error 3 all the same: the client
finds it when it asks again, as on Apache Kafka. Creating charges `controller_mutation_rate` (B§5.5).
Answers about existing topics are kept encoded until a topic changes. A topic that is named more than once is answered
once. Ids before version 12 are refused (error 42), as in Kafka.
Memory: at most 200 bytes for each byte of the request (a topic of three bytes becomes two dicts and an entry of a
third), and what is answered; partitions of one number share one description.
Not implemented: authorisation.
"""

from collections.abc import Generator, Iterable
from typing import Any

from tidegate import error_codes
from tidegate.broker.cluster import (
    CLUSTER_OPERATIONS,
    NO_OPERATIONS,
    TOPIC_OPERATIONS,
    ZERO_ID,
    ClusterView,
)
from tidegate.broker.kept_answers import KeptAnswers, Key
from tidegate.broker.releasing import answer_and_release, release
from tidegate.broker.topic_names import name_problem
from tidegate.server.handler import Answer, Handler, Message, Request, Work
from tidegate.storage.errors import StorageError
from tidegate.storage.log.partition_log import LEADER_EPOCH
from tidegate.storage.storage import Storage
from tidegate.storage.topics import Topic

__all__ = ["PartitionMessages", "metadata_handler"]

_BY_ID_SINCE = 12  # versions 10 and 11 have the field, and refuse an id in it


def metadata_handler(storage: Storage, cluster: ClusterView) -> Handler:
    """Return the handler that answers from the topics of `storage`."""
    kept = KeptAnswers()
    kept_version = -1
    partitions = PartitionMessages(cluster)

    def handle(request: Request) -> Answer | Work:
        nonlocal kept_version
        if kept_version != storage.topics.version:
            kept.clear()
            kept_version = storage.topics.version
        header = request.header
        key = kept.key(request, cluster.way_in(request.connection))
        known = kept.get(key)
        if known is not None:
            return Answer(known.with_correlation_id(header.correlation_id))
        return answer(request, key)

    def answer(request: Request, key: Key | None) -> Work:
        version = storage.topics.version
        body = yield from request.body_in_slices()
        mistake = yield from _mistake(body["topics"] or (), request.header.api_version)
        if mistake:
            return (yield from _refuse(request, body["topics"], mistake))
        topics, lasting = yield from _topics(storage, request, body, partitions)
        message = _message(storage, cluster, request, body, topics)
        answer = yield from answer_and_release(request, message, topics)
        if lasting and answer.response is not None and storage.topics.version == version == kept_version:
            kept.keep(key, answer.response)
        return answer

    return handle


class PartitionMessages:
    """Descriptions of partitions by number and first leader: shared by all topics whose leaders are the same."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._made: list[list[Message]] = [[] for _ in cluster.ids]

    def of(self, topic: Topic) -> Generator[None, None, list[Message]]:
        """Return the descriptions of a topic's partitions; at most as many are kept as there are partitions."""
        first_leader, count = self._cluster.first_leader(topic), len(topic.logs)
        made = self._made[first_leader]
        while len(made) < count:
            leader_id = self._cluster.leader_at(first_leader, len(made))
            replicas = [leader_id]
            made.append(
                {
                    "error_code": error_codes.NONE,
                    "partition_index": len(made),
                    "leader_id": leader_id,
                    "leader_epoch": LEADER_EPOCH,
                    "replica_nodes": replicas,
                    "isr_nodes": replicas,
                    "offline_replicas": [],
                    "eligible_leader_replicas": [],
                    "last_known_elr": [],
                }
            )
            yield
        return made[:count]


def _message(
    storage: Storage, cluster: ClusterView, request: Request, body: Message, topics: list[Message]
) -> Message:
    return {
        "throttle_time_ms": 0,
        "brokers": [
            {"node_id": broker.id, "host": broker.host, "port": broker.port, "rack": None}
            for broker in cluster.brokers(request.connection)
        ],
        "cluster_id": storage.cluster_id,
        "controller_id": cluster.controller_id,
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if body.get("include_cluster_authorized_operations")
        else NO_OPERATIONS,
        "error_code": error_codes.NONE,
    }


def _topics(
    storage: Storage, request: Request, body: Message, partitions: PartitionMessages
) -> Generator[None, None, tuple[list[Message], bool]]:
    """Return the topics of the answer, each once, and whether it holds until a topic changes."""
    operations = TOPIC_OPERATIONS if body.get("include_topic_authorized_operations") else NO_OPERATIONS
    found, unknown_ids, missing = yield from _find(storage, request, body)
    if body["topics"]:  # here rather than at the end with all that is built from it: each takes its time
        yield from release(body["topics"])
        yield
    topics = []
    for topic_id in unknown_ids:
        topics.append(_no_topic(None, topic_id, error_codes.UNKNOWN_TOPIC_ID, NO_OPERATIONS))
        yield
    for topic in found:
        described = yield from partitions.of(topic)
        topics.append(_topic_message(topic, described, operations))
        yield
    may_create = storage.config.auto_create_topics_enable and body.get("allow_auto_topic_creation", True)
    created: set[str] = set()
    for name in missing:
        error_code = yield from _missing(storage, request, name, created, may_create=may_create)
        topics.append(_no_topic(name, ZERO_ID, error_code, operations))
        yield
    return topics, not unknown_ids and not missing


def _find(
    storage: Storage, request: Request, body: Message
) -> Generator[None, None, tuple[list[Topic], list[str], list[str | None]]]:
    """Return the topics that are asked for, and ids and names of which there is no topic.

    Where there are ids, what has none is not answered, as in Kafka.
    """
    wanted = body["topics"]
    if wanted is None or (request.header.api_version == 0 and not wanted):
        return list(storage.topics), [], []
    ids: dict[str, Topic | None] = {}
    names: dict[str | None, Topic | None] = {}
    for part in wanted:
        topic_id, name = part.get("topic_id", ZERO_ID), part["name"]
        if topic_id != ZERO_ID:
            ids[topic_id] = storage.topics.by_id.get(topic_id)
        else:
            names[name] = storage.topics.by_name.get(name)
        yield
    found: list[Topic] = []
    unknown: list[Any] = []
    for key, topic in (ids or names).items():
        if topic is None:
            unknown.append(key)
        else:
            found.append(topic)
        yield
    yield from release(ids, names)
    return (found, unknown, []) if ids else (found, [], unknown)


def _missing(
    storage: Storage, request: Request, name: str | None, created: set[str], *, may_create: bool
) -> Generator[None, None, int]:
    """Create a topic that is not there, where that is wanted and allowed; return the error for this time.

    Its name is added to those that the request has created, which may collide with each other, as in Kafka.
    """
    if name is None or name_problem(name) is not None:
        return error_codes.INVALID_TOPIC_EXCEPTION
    topics, partitions = storage.topics, storage.config.num_partitions
    if (
        may_create
        and partitions <= topics.room()
        and not topics.is_taken(name)
        and topics.colliding(name, but=created) is None
        and request.quotas.record_mutations(partitions)
    ):
        try:
            yield from topics.create_in_slices(name, partitions, {})
            created.add(name)
        except StorageError:
            return error_codes.KAFKA_STORAGE_ERROR
    return error_codes.UNKNOWN_TOPIC_OR_PARTITION


def _mistake(wanted: Iterable[Message], version: int) -> Generator[None, None, int]:
    """Return the error of a request whose topics have neither name nor id, or an id before ids were served."""
    ids = nameless = False
    for part in wanted:
        has_id = part.get("topic_id", ZERO_ID) != ZERO_ID
        ids = ids or has_id
        nameless = nameless or (part["name"] is None and not has_id)
        yield
    if version < _BY_ID_SINCE:
        return error_codes.INVALID_REQUEST if ids or nameless else error_codes.NONE
    return error_codes.UNKNOWN_SERVER_ERROR if nameless and not ids else error_codes.NONE


def _refuse(request: Request, wanted: list[Message], error_code: int) -> Work:
    """Answer an error for every topic, and no broker, as Kafka does."""
    topics = []
    for part in wanted:
        name, topic_id = part["name"] or "", part.get("topic_id", ZERO_ID)
        topics.append(_no_topic(name, topic_id, error_code, NO_OPERATIONS))
        yield
    message = {
        "throttle_time_ms": 0,
        "brokers": [],
        "cluster_id": None,
        "controller_id": -1,
        "topics": topics,
        "cluster_authorized_operations": NO_OPERATIONS,
        "error_code": error_code,
    }
    return (yield from answer_and_release(request, message, topics, wanted))


def _no_topic(name: str | None, topic_id: str, error_code: int, operations: int) -> Message:
    return {
        "error_code": error_code,
        "name": name if name is not None or error_code == error_codes.UNKNOWN_TOPIC_ID else "",
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": (),
        "topic_authorized_operations": operations,
    }


def _topic_message(topic: Topic, partitions: list[Message], operations: int) -> Message:
    return {
        "error_code": error_codes.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": False,
        "partitions": partitions,
        "topic_authorized_operations": operations,
    }
