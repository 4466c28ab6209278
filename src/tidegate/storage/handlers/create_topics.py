"""CreateTopics (key 19), versions 2-7. KIP-4, KIP-525 (answers the settings, from 5), KIP-599 (quota), KIP-516 (ids).

Topic by topic in the request's order; each costs as many permits as it has partitions, charged when everything else
about it is right, and is refused with error 89 without them (B§5.3). Duplicates within a request fail once. With
validate_only nothing is created, and nothing is charged unless `tidegate.kafka.exact` is set (KIP-599 promises it
free, Kafka 4.3 charges it).
Not implemented: more than one replica, topic policies.
"""

import uuid
from collections import Counter
from collections.abc import Mapping

from tidegate.server.handler import Answer, Charge, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.config import MAX_PARTITIONS
from tidegate.storage.errors import StorageError
from tidegate.storage.handlers.addresses import ZERO_ID
from tidegate.storage.handlers.assignments import assignment_problem
from tidegate.storage.storage import Storage
from tidegate.storage.topic_configs import config_problem, described_configs
from tidegate.storage.topic_names import name_problem

__all__ = ["CREATE_TOPICS", "MAX_PARTITIONS_PER_REQUEST", "create_topics_handler"]

CREATE_TOPICS = 19
MAX_PARTITIONS_PER_REQUEST = 10_000  # Kafka `ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`
_DEFAULT = -1

_Problem = tuple[int, str | None]


def create_topics_handler(storage: Storage) -> Handler:
    """Return the handler that creates topics in `storage`."""

    def handle(request: Request) -> Answer:
        body = request.body()
        wanted = body["topics"]
        total = sum(_partitions(storage, topic) for topic in wanted)
        if total > MAX_PARTITIONS_PER_REQUEST:
            problem = (error_codes.POLICY_VIOLATION, "Excessively large number of partitions per request.")
            answers = [_refused(topic["name"], problem) for topic in wanted]
        else:
            times = Counter(topic["name"] for topic in wanted)
            answers = [
                _refused(name, (error_codes.INVALID_REQUEST, "Duplicate topic name."))
                for name, count in times.items()
                if count > 1
            ]
            answers += [
                _create(storage, request, topic, validate_only=body["validate_only"])
                for topic in wanted
                if times[topic["name"]] == 1
            ]
        return request.answer({"throttle_time_ms": 0, "topics": answers}, Charge.MUTATION)

    return handle


def _create(storage: Storage, request: Request, wanted: Message, *, validate_only: bool) -> Message:
    """Check, charge and create one topic."""
    name = wanted["name"]
    configs = {config["name"]: config["value"] for config in wanted["configs"]}
    problem = _name_problem(storage, name) or _config_problem(configs) or _placement_problem(storage, wanted)
    if problem is not None:
        return _refused(name, problem)
    partitions = _partitions(storage, wanted)
    if partitions > storage.topics.room():
        text = (
            f"This node holds at most {MAX_PARTITIONS} partitions and has {storage.topics.partition_count}."
        )
        return _refused(name, (error_codes.POLICY_VIOLATION, text))
    if (not validate_only or storage.config.kafka_exact) and not request.quotas.record_mutations(partitions):
        return _refused(name, (error_codes.THROTTLING_QUOTA_EXCEEDED, None))
    topic_id = str(uuid.uuid4())
    if not validate_only:
        try:
            topic_id = storage.topics.create(name, partitions, configs).topic_id
        except StorageError as error:
            return _refused(name, (error_codes.KAFKA_STORAGE_ERROR, str(error)))
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": error_codes.NONE,
        "error_message": None,
        "topic_config_error_code": error_codes.NONE,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [
            {
                "name": config.name,
                "value": config.value,
                "read_only": False,
                "config_source": config.source,
                "is_sensitive": False,
            }
            for config in described_configs(configs, storage.config)
        ],
    }


def _partitions(storage: Storage, wanted: Message) -> int:
    if wanted["assignments"]:
        return len(wanted["assignments"])
    count: int = wanted["num_partitions"]
    return storage.config.num_partitions if count == _DEFAULT else max(count, 0)


def _name_problem(storage: Storage, name: str) -> _Problem | None:
    if name in storage.topics.by_name:
        return error_codes.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
    problem = name_problem(name)
    if problem is not None:
        return error_codes.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}"
    if "." in name or "_" in name:
        plain = name.replace(".", "_")
        for other in storage.topics:
            if other.name.replace(".", "_") == plain:
                text = f"Topic '{name}' collides with existing topic: {other.name}"
                return error_codes.INVALID_TOPIC_EXCEPTION, text
    return None


def _config_problem(configs: Mapping[str, str | None]) -> _Problem | None:
    for name, value in configs.items():
        problem = config_problem(name, value)
        if problem is not None:
            return error_codes.INVALID_CONFIG, problem
    return None


def _placement_problem(storage: Storage, wanted: Message) -> _Problem | None:
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
        return _assignment_problem(storage, assignments)
    if replicas < _DEFAULT or replicas == 0:
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        return error_codes.INVALID_REPLICATION_FACTOR, text
    if partitions < _DEFAULT or partitions == 0:
        return (
            error_codes.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if replicas > 1:
        return (
            error_codes.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replicas} time(s): The target replication factor of {replicas} cannot"
            " be reached because only 1 broker(s) are registered or some brokers have all their log directories"
            " cordoned.",
        )
    return None


def _assignment_problem(storage: Storage, assignments: list[Message]) -> _Problem | None:
    seen = Counter(assignment["partition_index"] for assignment in assignments)
    for partition, times in seen.items():
        if times > 1:
            text = f"Found multiple manual partition assignments for partition {partition}"
            return error_codes.INVALID_REPLICA_ASSIGNMENT, text
    problem = assignment_problem(
        (assignment["broker_ids"] for assignment in assignments), storage.config.node_id
    )
    if problem is None and any(partition not in seen for partition in range(len(assignments))):
        problem = "partitions should be a consecutive 0-based integer sequence"
    return None if problem is None else (error_codes.INVALID_REPLICA_ASSIGNMENT, problem)


def _refused(name: str, problem: _Problem) -> Message:
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
