"""Metadata (key 3), versions 0-13. KIP-4, KIP-430 (authorised operations), KIP-516 (topic ids), KIP-526.

Version 0 asks for all topics with an empty list; from 1 on null is all and empty is none. A topic that does not exist
is created when the client allows it (always before version 4) and answered with error 3 all the same: the client
finds it when it asks again, as on Apache Kafka. Creating charges `controller_mutation_rate` (B§5.5).
Names of internal topics are left alone (row L41).
Encoded answers about existing topics are cached until a topic changes. A topic that is named more than once is answered
once. Ids before version 12 are refused (error 42), as in Kafka.
Needs DESCRIBE on each topic. An answer with all topics leaves out topics without it; named topics without it get error
29, whether or not they exist. Creating needs CREATE on the cluster or on the topic, and room for the principal's
partitions (docs/fair-bounds.md); if there is none, the log gives the reason, because the answer has no text.
Memory: at most 200 bytes for each byte of the request (a topic of three bytes becomes two dicts and an entry of a
third), and what is answered; partitions of one number share one description.
"""

import logging
from collections.abc import Generator, Iterable
from typing import Any

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release, release
from tidegate.broker.cluster import NO_OPERATIONS, ClusterView, cluster_operations
from tidegate.broker.kept_answers import KeptAnswers, Key
from tidegate.broker.topic_names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, name_problem
from tidegate.in_slices import map_in_slices
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Answer, Handler, Message, Request, Work
from tidegate.storage.errors import StorageError
from tidegate.storage.log.partition_log import LEADER_EPOCH
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic
from tidegate.wire import ZERO_ID

__all__ = ["PartitionMessages", "absent_topic_message", "metadata_handler", "topic_message"]

_logger = logging.getLogger(__name__)
_BY_ID_SINCE = 12  # versions 10 and 11 have the field, and refuse an id in it


def metadata_handler(storage: Storage, cluster: ClusterView) -> Handler:
    """Return the handler that answers from the topics of `storage`."""
    kept = KeptAnswers()
    kept_version: Any = -1
    partitions = PartitionMessages(cluster)

    def handle(request: Request) -> Answer | Work:
        nonlocal kept_version
        connection = request.connection
        authorizer = connection.authorizer
        version: Any = storage.topics.version
        more = cluster.way_in(connection)
        if authorizer is not None:
            version = version, authorizer.version
            more = *more, connection.user, connection.client_host
        if kept_version != version:
            kept.clear()
            kept_version = version
        header = request.header
        key = kept.key(request, more)
        known = kept.get(key)
        if known is not None:
            return Answer(known.with_correlation_id(header.correlation_id))
        return answer(request, key, version)

    def answer(request: Request, key: Key | None, version: Any) -> Work:
        topics_version = storage.topics.version
        body = yield from request.body_in_slices()
        mistake = yield from _mistake(body["topics"] or (), request.header.api_version)
        if mistake:
            return (yield from _refuse(request, body["topics"], mistake))
        topics, lasting = yield from _topics(storage, request, body, partitions)
        message = _message(storage, cluster, request, body, topics)
        answer = yield from answer_and_release(request, message, topics)
        unchanged = storage.topics.version == topics_version and version == kept_version
        if lasting and unchanged and answer.response is not None:
            kept.store_answer(key, answer.response)
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
        "cluster_authorized_operations": cluster_operations(request)
        if body.get("include_cluster_authorized_operations")
        else NO_OPERATIONS,
        "error_code": error_codes.NONE,
    }


def _topics(
    storage: Storage, request: Request, body: Message, partitions: PartitionMessages
) -> Generator[None, None, tuple[list[Message], bool]]:
    """Return the topics of the answer, each once, and whether it holds until a topic changes."""
    with_operations = body.get("include_topic_authorized_operations")
    of_all = _is_of_all(request, body)
    found, unknown_ids, missing, by_id = yield from _find(storage, request, body)
    if body["topics"]:  # here rather than at the end with all that is built from it: each takes its time
        yield from release(body["topics"])
        yield
    topics = yield from map_in_slices(
        lambda topic_id: absent_topic_message(None, topic_id, error_codes.UNKNOWN_TOPIC_ID), unknown_ids
    )
    refused: list[Message] = []
    for topic in found:
        if request.authorized(acl.DESCRIBE, acl.TOPIC, topic.name):
            described = yield from partitions.of(topic)
            operations = (
                request.authorized_operations(acl.TOPIC, topic.name) if with_operations else NO_OPERATIONS
            )
            topics.append(topic_message(topic, described, operations))
        elif by_id:
            refused.append(_refused(None, topic.topic_id))
        elif not of_all:
            refused.append(_refused(topic.name, ZERO_ID))
        yield
    may_create = storage.config.auto_create_topics_enable and body.get("allow_auto_topic_creation", True)
    created: set[str] = set()
    with Audit(request.connection) as audit:
        for name in missing:
            if not _may_learn(request, name or "", may_create=may_create):
                refused.append(_refused(name, ZERO_ID))
            else:
                error_code = yield from _missing(
                    storage, request, name, created, audit, may_create=may_create
                )
                operations = (
                    request.authorized_operations(acl.TOPIC, name or "") if with_operations else NO_OPERATIONS
                )
                topics.append(absent_topic_message(name, ZERO_ID, error_code, operations))
            yield
    topics += refused
    return topics, not unknown_ids and not missing


def _is_of_all(request: Request, body: Message) -> bool:
    """Return whether all topics are asked for."""
    return body["topics"] is None or (request.header.api_version == 0 and not body["topics"])


def _may_learn(request: Request, name: str, *, may_create: bool) -> bool:
    """Return whether the client may learn that a topic does not exist, and create it if topics are auto-created."""
    return request.authorized(acl.DESCRIBE, acl.TOPIC, name) and (
        not may_create
        or request.authorized(acl.CREATE, acl.CLUSTER)
        or request.authorized(acl.CREATE, acl.TOPIC, name)
    )


def _find(
    storage: Storage, request: Request, body: Message
) -> Generator[None, None, tuple[list[Topic], list[str], list[str | None], bool]]:
    """Return the topics that are asked for, ids and names of which there is no topic, and whether ids count.

    Where there are ids, what has none is not answered, as in Kafka.
    """
    if _is_of_all(request, body):
        return list(storage.topics), [], [], False
    ids: dict[str, Topic | None] = {}
    names: dict[str | None, Topic | None] = {}
    for part in body["topics"]:
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
    by_id = bool(ids)
    yield from release(ids, names)
    return (found, unknown, [], True) if by_id else (found, [], unknown, False)


def _missing(
    storage: Storage,
    request: Request,
    name: str | None,
    created: set[str],
    audit: Audit,
    *,
    may_create: bool,
) -> Generator[None, None, int]:
    """Create a topic that is not there, where that is wanted and allowed; return the error for this time.

    Its name is added to those that the request has created, which may collide with each other, as in Kafka.
    """
    if name is None or name_problem(name) is not None:
        return error_codes.INVALID_TOPIC_EXCEPTION
    topics, partitions = storage.topics, storage.config.num_partitions
    if (
        not may_create
        or name in INTERNAL_TOPICS
        or name == CLUSTER_METADATA_TOPIC
        or topics.is_taken(name)
        or topics.colliding(name, but=created) is not None
    ):
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    owner = request.divided_owner()
    text = topics.bound.problem(owner, partitions)
    if text is not None:
        _logger.warning(
            "rejected automatic creation of topic %r: %s", name, text, extra={"repeats": f"no room {owner}"}
        )
    elif request.quotas.record_mutations(partitions):
        try:
            yield from topics.create_in_slices(name, partitions, {}, owner)
            created.add(name)
            audit.changed("create", "topic", repr(name), key="partitions", new=partitions)
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

    def topic(part: Message) -> Message:
        return absent_topic_message(part["name"] or "", part.get("topic_id", ZERO_ID), error_code)

    topics = yield from map_in_slices(topic, wanted)
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


def _refused(name: str | None, topic_id: str) -> Message:
    """Return the answer for a topic that the client may not describe: its id is not secret, but its name is."""
    return {**absent_topic_message(name, topic_id, error_codes.TOPIC_AUTHORIZATION_FAILED), "name": name}


def absent_topic_message(
    name: str | None, topic_id: str, error_code: int, operations: int = NO_OPERATIONS
) -> Message:
    """Return the message of a topic that is not described, with the reason."""
    return {
        "error_code": error_code,
        "name": name if name is not None or error_code == error_codes.UNKNOWN_TOPIC_ID else "",
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": (),
        "topic_authorized_operations": operations,
    }


def topic_message(topic: Topic, partitions: list[Message], operations: int) -> Message:
    """Return the message of a topic with the descriptions of its partitions."""
    return {
        "error_code": error_codes.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": partitions,
        "topic_authorized_operations": operations,
    }
