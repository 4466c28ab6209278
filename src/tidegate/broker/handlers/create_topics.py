"""CreateTopics (key 19), versions 2-7. KIP-4, KIP-525 (answers the settings, from 5), KIP-599 (quota), KIP-516 (ids).

Creates topics in the request's order. Each costs as many permits as it has partitions. The permits are charged after
all other checks; without them the topic gets error 89 (B§5.3). A name that occurs several times gets one error. With
validate_only nothing is created, and nothing is charged unless `tidegate.kafka.exact` is set (KIP-599 promises that it
is free, Kafka 4.3 charges it). The name is reserved first; the topic exists when all of its partitions do.
A timeout of 0 or less fails the whole request, unless nothing is left to create.
A principal without rights to the cluster may have a share of the node's partitions; above it, it gets error 44 with the
reason (docs/fair-bounds.md).
Needs CREATE on the cluster or on the topic, else error 29; clients that may describe the settings get them.
Memory: at most 200 bytes for each byte of the request (a topic of three bytes becomes three dicts), and the answer.
Not implemented: more than one replica, topic policies.
"""

import uuid
from collections.abc import Generator, Iterator, Mapping

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release, has_timed_out, release
from tidegate.broker.cluster import ClusterView
from tidegate.broker.config_alterations import TOPIC_SETTING
from tidegate.broker.new_configs import checked_configs_in_slices
from tidegate.broker.topic_names import CLUSTER_METADATA_TOPIC, name_problem
from tidegate.config.values import cut
from tidegate.error_codes import Problem
from tidegate.in_slices import counts_in_slices, map_in_slices
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.storage.config import StorageConfig
from tidegate.storage.errors import StorageError
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic_configs import TOPIC_CONFIGS, described_configs
from tidegate.wire import ZERO_ID

__all__ = ["MAX_PARTITIONS_PER_REQUEST", "handle_create_topics"]

MAX_PARTITIONS_PER_REQUEST = 10_000  # Kafka `ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`
_DEFAULT = -1
_NO_METADATA_TOPIC = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."


def handle_create_topics(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Create topics in `storage`."""
    with Audit(request.connection) as audit:
        body = yield from request.body_in_slices()
        named_once, answers = yield from _named_once(body["topics"])
        once = yield from _creatable(request, named_once, answers, audit)
        if once and has_timed_out(body):
            answers, once = (yield from map_in_slices(_timed_out, body["topics"])), []
        total = 0
        created: set[str] = set()
        for topic in once:
            total += _partitions(storage, topic)
            yield
        for topic in once:
            if total > MAX_PARTITIONS_PER_REQUEST:
                problem = (
                    error_codes.POLICY_VIOLATION,
                    "Excessively large number of partitions per request.",
                )
                answers.append(_refused(topic["name"], problem))
            else:
                answer = yield from _create(
                    storage, cluster, request, topic, created, audit, validate_only=body["validate_only"]
                )
                answers.append(answer)
            yield
        message = {"throttle_time_ms": 0, "topics": answers}
        yield from release(once)
        yield from request.release_body(body)
        return (yield from answer_and_release(request, message, answers, charge=Charge.MUTATION))


def _timed_out(topic: Message) -> Message:
    return _refused(topic["name"], (error_codes.REQUEST_TIMED_OUT, None))


def _named_once(wanted: list[Message]) -> Generator[None, None, tuple[list[Message], list[Message]]]:
    """Return the topics that are named once, and an answer for each of the others."""
    times = yield from counts_in_slices(topic["name"] for topic in wanted)
    once: list[Message] = []
    repeated: list[Message] = []
    for topic in wanted:
        name = topic["name"]
        if name == CLUSTER_METADATA_TOPIC and times[name] == 1:
            repeated.append(_refused(name, (error_codes.INVALID_REQUEST, _NO_METADATA_TOPIC)))
        elif times[name] == 1:
            once.append(topic)
        elif times[name] > 1:
            times[name] = 0  # one answer for all
            repeated.append(_refused(name, (error_codes.INVALID_REQUEST, "Duplicate topic name.")))
        yield
    yield from release(times)
    return once, repeated


def _creatable(
    request: Request, topics: list[Message], answers: list[Message], audit: Audit
) -> Generator[None, None, list[Message]]:
    """Return the topics that the client may create; add an answer for each of the others."""
    if request.authorized(acl.CREATE, acl.CLUSTER):
        return topics
    creatable = []
    for topic in topics:
        if request.authorized(acl.CREATE, acl.TOPIC, topic["name"]):
            creatable.append(topic)
        else:
            audit.refused("create", "topic", repr(cut(topic["name"])))
            problem = error_codes.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."
            answers.append(_refused(topic["name"], problem))
        yield
    return creatable


def _create(
    storage: Storage,
    cluster: ClusterView,
    request: Request,
    wanted: Message,
    created: set[str],
    audit: Audit,
    *,
    validate_only: bool,
) -> Generator[None, None, Message]:
    """Check, charge and create one topic, and add its name to those that the request has created."""
    name = wanted["name"]
    problem = _name_problem(storage, name, created)
    if problem is not None:
        return _refused(name, problem)
    configs, text = yield from checked_configs_in_slices(wanted["configs"])
    if text is not None:
        return _refused(name, (error_codes.INVALID_CONFIG, text))
    problem = yield from _placement_problem(cluster, wanted)
    if problem is not None:
        return _refused(name, problem)
    partitions = _partitions(storage, wanted)
    problem = _name_problem(storage, name, created)  # it may have been taken meanwhile
    owner = request.divided_owner()
    text = storage.topics.bound.problem(owner, partitions)
    if problem is None and text is not None:
        problem = error_codes.POLICY_VIOLATION, text
    if problem is not None:
        return _refused(name, problem)
    if (not validate_only or storage.config.kafka_exact) and not request.quotas.record_mutations(partitions):
        return _refused(name, (error_codes.THROTTLING_QUOTA_EXCEEDED, None))
    topic_id = str(uuid.uuid4())
    if not validate_only:
        try:
            topic = yield from storage.topics.create_in_slices(name, partitions, configs, owner)
            topic_id = topic.topic_id
            created.add(name)
        except StorageError as error:
            return _refused(name, (error_codes.KAFKA_STORAGE_ERROR, str(error)))
        audit.changed("create", "topic", repr(name), key="partitions", new=partitions)
        yield from audit.changed_in_slices("create", TOPIC_SETTING, repr(name), configs, {}, configs)
    if not request.authorized(acl.DESCRIBE_CONFIGS, acl.TOPIC, name):
        answer = _refused(name, (error_codes.NONE, None))
        return {
            **answer,
            "topic_id": topic_id,
            "topic_config_error_code": error_codes.TOPIC_AUTHORIZATION_FAILED,
        }
    return _created(storage, name, topic_id, partitions, configs)


class _Settings:
    """The settings of a new topic, made while the answer is written: there are many more of them than were given."""

    __slots__ = ("_config", "_own")

    def __init__(self, own: Mapping[str, str], config: StorageConfig) -> None:
        self._own = own
        self._config = config

    def __len__(self) -> int:
        return len(TOPIC_CONFIGS)

    def __iter__(self) -> Iterator[Message]:
        for config in described_configs(self._own, self._config):
            yield {
                "name": config.name,
                "value": config.value,
                "read_only": False,
                "config_source": config.source,
                "is_sensitive": False,
            }


def _created(
    storage: Storage, name: str, topic_id: str, partitions: int, configs: Mapping[str, str]
) -> Message:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": error_codes.NONE,
        "error_message": None,
        "topic_config_error_code": error_codes.NONE,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": _Settings(configs, storage.config),
    }


def _partitions(storage: Storage, wanted: Message) -> int:
    if wanted["assignments"]:
        return len(wanted["assignments"])
    count: int = wanted["num_partitions"]
    return storage.config.num_partitions if count == _DEFAULT else max(count, 0)


def _name_problem(storage: Storage, name: str, created: set[str]) -> Problem | None:
    """Return what is wrong with a name. Those that one request creates may collide, as in Kafka."""
    if storage.topics.is_taken(name):
        return error_codes.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
    problem = name_problem(name)
    if problem is not None:
        return error_codes.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}"
    other = storage.topics.colliding(name, but=created)
    if other is not None:
        text = f"Topic '{name}' collides with existing topic: {other}"
        return error_codes.INVALID_TOPIC_EXCEPTION, text
    return None


def _placement_problem(cluster: ClusterView, wanted: Message) -> Generator[None, None, Problem | None]:
    """Return what is wrong with the numbers of partitions and replicas, or with the assignment, in Kafka's order."""
    replicas, partitions, assignments = (
        wanted["replication_factor"],
        wanted["num_partitions"],
        wanted["assignments"],
    )
    if assignments:
        text = "A manual partition assignment was specified, but {} was not set to -1."
        if replicas != _DEFAULT:
            return error_codes.INVALID_REQUEST, text.format("replication factor")
        if partitions != _DEFAULT:
            return error_codes.INVALID_REQUEST, text.format("numPartitions")
        return (yield from _assignment_problem(cluster, assignments))
    if replicas < _DEFAULT or replicas == 0:
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        return error_codes.INVALID_REPLICATION_FACTOR, text
    if partitions < _DEFAULT or partitions == 0:
        return (
            error_codes.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    problem = cluster.replicas_problem(replicas)
    return None if problem is None else (error_codes.INVALID_REPLICATION_FACTOR, problem)


def _assignment_problem(
    cluster: ClusterView, assignments: list[Message]
) -> Generator[None, None, Problem | None]:
    code = error_codes.INVALID_REPLICA_ASSIGNMENT
    seen: set[int] = set()
    lowest = highest = assignments[0]["partition_index"]
    for assignment in assignments:
        partition = assignment["partition_index"]
        if partition in seen:
            return code, f"Found multiple manual partition assignments for partition {partition}"
        seen.add(partition)
        lowest, highest = min(lowest, partition), max(highest, partition)
        problem = yield from cluster.assignment_problem_in_slices(assignment["broker_ids"])
        if problem is not None:
            return code, problem
        yield
    if lowest != 0 or highest != len(seen) - 1:
        return code, "partitions should be a consecutive 0-based integer sequence"
    return None


def _refused(name: str, problem: Problem) -> Message:
    return {
        "name": name,
        "topic_id": ZERO_ID,
        "error_code": problem[0],
        "error_message": problem[1],
        "topic_config_error_code": error_codes.NONE,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }
