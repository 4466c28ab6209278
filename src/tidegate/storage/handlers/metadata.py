"""Metadata (key 3), versions 0-13. KIP-4, KIP-430 (authorised operations), KIP-516 (topic ids), KIP-526.

Version 0 asks for all topics with an empty list; from 1 on null is all and empty is none. A topic that does not exist
is created when the client allows it (always before version 4) and answered with error 3 all the same: the client
finds it when it asks again, as on Apache Kafka. Creating charges `controller_mutation_rate` (B§5.5).
Answers about existing topics are kept encoded until a topic changes.
Not implemented: authorisation; several nodes (this one leads every partition).
"""

from collections.abc import Iterable

from tidegate.server.handler import Answer, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.errors import StorageError
from tidegate.storage.handlers.addresses import (
    CLUSTER_OPERATIONS,
    NO_OPERATIONS,
    TOPIC_OPERATIONS,
    ZERO_ID,
    address_of_node,
)
from tidegate.storage.handlers.kept_answers import KeptAnswers
from tidegate.storage.log import LEADER_EPOCH
from tidegate.storage.storage import Storage
from tidegate.storage.topic_names import name_problem
from tidegate.storage.topics import Topic

__all__ = ["METADATA", "metadata_handler", "partition_message"]

METADATA = 3
_BY_ID_SINCE = 12  # versions 10 and 11 have the field, and refuse an id in it


def metadata_handler(storage: Storage) -> Handler:
    """Return the handler that answers from the topics of `storage`."""
    kept = KeptAnswers()
    kept_version = -1

    def handle(request: Request) -> Answer:
        nonlocal kept_version
        if kept_version != storage.topics.version:
            kept.clear()
            kept_version = storage.topics.version
        header = request.header
        key = kept.key(request, *address_of_node(storage, request))
        known = kept.get(key)
        if known is not None:
            return Answer(known.with_correlation_id(header.correlation_id))
        message, lasting = _metadata(storage, request)
        answer = request.answer(message)
        if lasting and answer.response is not None:
            kept.keep(key, answer.response)
        return answer

    return handle


def _metadata(storage: Storage, request: Request) -> tuple[Message, bool]:
    """Return the answer, and whether it holds until a topic changes."""
    body = request.body()
    version = request.header.api_version
    wanted = body["topics"]
    if wanted and version >= _BY_ID_SINCE:  # names beside ids say nothing
        wanted = [part for part in wanted if part["topic_id"] != ZERO_ID] or wanted
    error_code = _mistake(wanted or (), version)
    if error_code:
        return _refused(wanted, error_code), False
    operations = TOPIC_OPERATIONS if body.get("include_topic_authorized_operations") else NO_OPERATIONS
    if wanted is None or (version == 0 and not wanted):
        topics = [_topic_message(storage, topic, operations) for topic in storage.topics]
        lasting = True
    else:
        may_create = storage.config.auto_create_topics_enable and body.get("allow_auto_topic_creation", True)
        topics = [_wanted(storage, request, part, operations, may_create=may_create) for part in wanted]
        lasting = all(topic["error_code"] == error_codes.NONE for topic in topics)
    host, port = address_of_node(storage, request)
    return {
        "throttle_time_ms": 0,
        "brokers": [{"node_id": storage.config.node_id, "host": host, "port": port, "rack": None}],
        "cluster_id": storage.cluster_id,
        "controller_id": storage.config.node_id,
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if body.get("include_cluster_authorized_operations")
        else NO_OPERATIONS,
        "error_code": error_codes.NONE,
    }, lasting


def _mistake(wanted: Iterable[Message], version: int) -> int:
    """Return the error of a request whose topics have neither name nor id, or an id before ids were served."""
    for part in wanted:
        name, topic_id = part["name"], part.get("topic_id", ZERO_ID)
        if version < _BY_ID_SINCE and (name is None or topic_id != ZERO_ID):
            return error_codes.INVALID_REQUEST
        if name is None and topic_id == ZERO_ID:
            return error_codes.UNKNOWN_SERVER_ERROR
    return error_codes.NONE


def _refused(wanted: Iterable[Message], error_code: int) -> Message:
    """Return what is answered when nothing is: an error for each topic, and no broker."""
    topics = [
        _no_topic(part["name"] or "", part.get("topic_id", ZERO_ID), error_code, NO_OPERATIONS)
        for part in wanted
    ]
    return {
        "throttle_time_ms": 0,
        "brokers": [],
        "cluster_id": None,
        "controller_id": -1,
        "topics": topics,
        "cluster_authorized_operations": NO_OPERATIONS,
        "error_code": error_code,
    }


def _wanted(
    storage: Storage, request: Request, part: Message, operations: int, *, may_create: bool
) -> Message:
    """Return what is answered for one topic that was asked for by name or by id."""
    name, topic_id = part["name"], part.get("topic_id", ZERO_ID)
    if topic_id != ZERO_ID:
        topic = storage.topics.by_id.get(topic_id)
        if topic is None:
            return _no_topic(None, topic_id, error_codes.UNKNOWN_TOPIC_ID, operations)
    else:
        topic = storage.topics.by_name.get(name)
        if topic is None:
            return _no_topic(
                name, ZERO_ID, _missing(storage, request, name, may_create=may_create), operations
            )
    return _topic_message(storage, topic, operations)


def _missing(storage: Storage, request: Request, name: str | None, *, may_create: bool) -> int:
    """Create a topic that is not there, where that is wanted and allowed; return the error for this time."""
    if name is None or name_problem(name) is not None:
        return error_codes.INVALID_TOPIC_EXCEPTION
    partitions = storage.config.num_partitions
    if may_create and partitions <= storage.topics.room() and request.quotas.record_mutations(partitions):
        try:
            storage.topics.create(name, partitions, {})
        except StorageError:
            return error_codes.KAFKA_STORAGE_ERROR
    return error_codes.UNKNOWN_TOPIC_OR_PARTITION


def _no_topic(name: str | None, topic_id: str, error_code: int, operations: int) -> Message:
    return {
        "error_code": error_code,
        "name": name if name is not None or error_code == error_codes.UNKNOWN_TOPIC_ID else "",
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": operations,
    }


def _topic_message(storage: Storage, topic: Topic, operations: int) -> Message:
    return {
        "error_code": error_codes.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": False,
        "partitions": [partition_message(storage, partition) for partition in range(len(topic.logs))],
        "topic_authorized_operations": operations,
    }


def partition_message(storage: Storage, partition: int) -> Message:
    """Return the description of a partition: this node is its leader and only replica."""
    node = [storage.config.node_id]
    return {
        "error_code": error_codes.NONE,
        "partition_index": partition,
        "leader_id": storage.config.node_id,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": node,
        "isr_nodes": node,
        "offline_replicas": [],
    }
