"""What `wire_recorder` asks a real Apache Kafka: the scenarios of the recordings that this project makes itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.batches import build_batch
from tests.unit.storage.logs import timed_batch

__all__ = ["BROKER_CONFIG", "FILES", "Ask", "Scenario"]

BROKER_CONFIG: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.retention.ms": "-1",
}
"""The settings of the older recordings."""

_VARIABLE = {
    "Metadata": ("brokers.*.host", "brokers.*.port", "cluster_id", "controller_id", "topics.*.topic_id"),
    "DescribeTopicPartitions": ("topics.*.topic_id",),
    "CreateTopics": ("topics.*.topic_id",),
    "DeleteTopics": ("responses.*.topic_id",),
}
_UNORDERED = {
    "CreateTopics": ("topics", "topics.*.configs"),
    "CreatePartitions": ("results",),
    "DeleteRecords": ("topics", "topics.*.partitions"),
    "DeleteTopics": ("responses",),
    "DescribeConfigs": ("results", "results.*.configs", "results.*.configs.*.synonyms"),
    "ElectLeaders": ("replica_election_results", "replica_election_results.*.partition_result"),
    "Metadata": ("topics", "topics.*.partitions"),
}
NOW_MS = 1_760_000_000_000
ZERO_ID = "00000000-0000-0000-0000-000000000000"
UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"
TOPIC, NODE = 2, 4
SET, DELETE, APPEND = 0, 1, 2
SETTLE_MS = 300
"""How long a change takes at most to reach the broker of a single node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: what to send, after how long, and what of the answer may differ. bind: as in a recording."""

    api: str
    version: int
    message: Mapping[str, Any]
    client_id: str = "main"
    before_ms: int = 0
    note: str = ""
    bind: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def variable(self) -> Sequence[str]:
        """Return the paths whose values are another broker's own."""
        return _VARIABLE.get(self.api, ())

    @property
    def unordered(self) -> Sequence[str]:
        """Return the arrays whose order means nothing."""
        return _UNORDERED.get(self.api, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Requests in their order, with names of topics that no other scenario uses."""

    name: str
    steps: Sequence[Ask]
    note: str = ""


def _new(name: str, partitions: int = 1, **configs: str) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def _create(*topics: dict[str, Any], timeout_ms: int = 5000, version: int = 7, **more: Any) -> Ask:
    message = {"topics": topics, "timeout_ms": timeout_ms, "validate_only": False}
    known = {key: more.pop(key) for key in list(more) if key in message}
    return Ask(api="CreateTopics", version=version, message={**message, **known}, **more)


def _delete(*topics: tuple[str | None, str], timeout_ms: int = 5000, **more: Any) -> Ask:
    named = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    message = {"topics": named, "timeout_ms": timeout_ms}
    return Ask(api="DeleteTopics", version=6, message=message, **more)


def _grow(*counts: tuple[str, int], timeout_ms: int = 5000, **more: Any) -> Ask:
    topics = [{"name": name, "count": count, "assignments": None} for name, count in counts]
    message = {"topics": topics, "timeout_ms": timeout_ms, "validate_only": more.pop("validate_only", False)}
    return Ask(api="CreatePartitions", version=3, message=message, **more)


def _elect(topics: Any, *, timeout_ms: int, election_type: int = 0, version: int = 2) -> Ask:
    message = {"election_type": election_type, "topic_partitions": topics, "timeout_ms": timeout_ms}
    return Ask(api="ElectLeaders", version=version, message=message)


def _reassign(*topics: dict[str, Any], timeout_ms: int) -> Ask:
    message = {"timeout_ms": timeout_ms, "allow_replication_factor_change": False, "topics": topics}
    return Ask(api="AlterPartitionReassignments", version=1, message=message)


def _metadata(*names: str, create: bool = False, **more: Any) -> Ask:
    topics = [{"topic_id": ZERO_ID, "name": name} for name in names]
    message = {
        "topics": topics,
        "allow_auto_topic_creation": create,
        "include_topic_authorized_operations": False,
    }
    return Ask(api="Metadata", version=12, message=message, **more)


def _produce(
    topic: str, records: bytes, *, index: int = 0, acks: int = 1, version: int = 9, **more: Any
) -> Ask:
    part = {"index": index, "records": records}
    message = {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 5000,
        "topic_data": [{"name": topic, "partition_data": [part]}],
    }
    return Ask(api="Produce", version=version, message=message, **more)


def _batch(key: bytes | None = b"k") -> bytes:
    return build_batch([(key, b"v")], timestamp_ms=NOW_MS)


def _fetch(topic: str) -> Ask:
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "partition_max_bytes": 1000,
    }
    message = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [part]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return Ask(api="Fetch", version=11, message=message)


def _list_offsets(topic: str, *times: int, version: int = 8) -> list[Ask]:
    return [
        Ask(
            api="ListOffsets",
            version=version,
            message={
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {"partition_index": 0, "current_leader_epoch": -1, "timestamp": time_ms}
                        ],
                    }
                ],
            },
        )
        for time_ms in times
    ]


def _set(kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any) -> Ask:
    configs = [
        {"name": key, "config_operation": operation, "value": value} for key, operation, value in changes
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    message = {"resources": [resource], "validate_only": more.pop("validate_only", False)}
    return Ask(api="IncrementalAlterConfigs", version=1, message=message, **more)


def _delete_records(topic: str, *offsets: tuple[int, int], **more: Any) -> Ask:
    parts = [{"partition_index": index, "offset": offset} for index, offset in offsets]
    message = {"topics": [{"name": topic, "partitions": parts}], "timeout_ms": 5000}
    return Ask(api="DeleteRecords", version=2, message=message, **more)


def _timeouts(timeout_ms: int) -> Scenario:
    own = f"timeout-{timeout_ms}"
    one, two = f"{own}-one", f"{own}-two"
    parts = [{"topic": one, "partitions": [0, 7]}, {"topic": "missing", "partitions": [0]}]
    moved = {"name": one, "partitions": [{"partition_index": 0, "replicas": [1]}]}
    dup = (_new("dup"), _new("dup"))
    late = {"timeout_ms": timeout_ms}
    return Scenario(
        name=own,
        note="a request whose timeout is over fails as a whole, unless nothing is left of it to decide",
        steps=[
            _create(_new(one), _new(two)),
            _create(
                _new(f"{own}-new"),
                _new(one),
                *dup,
                _new("bad name"),
                _new("x", -5),
                **late,
                before_ms=SETTLE_MS,
            ),
            _create(_new(f"{own}-new"), **late, version=2),
            _create(_new(f"{own}-new"), *dup, **late, validate_only=True),
            _create(*dup, **late),
            _create(**late),
            _create(_new("__cluster_metadata"), **late),
            _grow((one, 4), ("missing", 2), (one, 0), (two, 3), **late),
            _grow((one, 4), **late, validate_only=True),
            _grow((one, 4), (one, 4), **late),
            _grow(**late),
            _elect(parts, **late),
            _elect(parts, **late, election_type=9),
            _elect(parts, **late, version=0),
            _elect(None, **late),
            _elect([], **late),
            _reassign(moved, **late),
            _reassign(**late),
            Ask(
                api="ListPartitionReassignments",
                version=0,
                message={**late, "topics": [{"name": one, "partition_indexes": [0]}]},
            ),
            _delete((one, ZERO_ID), ("missing", ZERO_ID), (None, ZERO_ID), (two, UNKNOWN_ID), **late),
            _delete((None, UNKNOWN_ID), **late),
            _delete((one, ZERO_ID), (one, ZERO_ID), (None, ZERO_ID), **late),
            _delete(**late),
            Ask(api="DeleteTopics", version=5, message={"topic_names": [one, "missing"], **late}),
            _metadata(one, two, f"{own}-new"),
        ],
    )


def _free_timeouts() -> Scenario:
    """Return requests of a client with 11 permits: what timed out has cost it none."""
    entity = [{"entity_type": "client-id", "entity_name": "timeout-quota"}]
    ops = [{"key": "controller_mutation_rate", "value": 1.0, "remove": False}]
    mine = {"client_id": "timeout-quota"}
    return Scenario(
        name="timeout-costs-no-permits",
        steps=[
            Ask(
                api="AlterClientQuotas",
                version=1,
                message={"entries": [{"entity": entity, "ops": ops}], "validate_only": False},
            ),
            _create(_new("timeout-quota-a", 50), timeout_ms=0, **mine, before_ms=700),
            _create(_new("timeout-quota-b", 5), **mine),
            _create(_new("timeout-quota-c", 50), **mine),
            _create(_new("timeout-quota-d"), timeout_ms=0, **mine),
            Ask(
                api="AlterClientQuotas",
                version=1,
                message={
                    "entries": [{"entity": entity, "ops": [{**ops[0], "remove": True}]}],
                    "validate_only": False,
                },
            ),
        ],
    )


def _internal(name: str) -> Scenario:
    admin = {"client_id": "__admin_client"}
    return Scenario(
        name=f"internal{name}",
        steps=[
            _metadata(name),
            Ask(
                api="DescribeTopicPartitions",
                version=0,
                message={"topics": [{"name": name}], "response_partition_limit": 10, "cursor": None},
            ),
            _produce(name, _batch()),
            _delete_records(name, (0, 0)),
            _create(_new(name, 2)),
            _metadata(name, before_ms=SETTLE_MS),
            Ask(
                api="DescribeTopicPartitions",
                version=0,
                message={"topics": [{"name": name}], "response_partition_limit": 10, "cursor": None},
            ),
            _produce(name, _batch()),
            _produce(name, _batch(), version=8, acks=-1),
            _produce(name, _batch(), acks=5),
            _produce(name, _batch(), index=7),
            _produce(name, b""),
            _produce(name, _batch(), **admin),
            _produce(name, _batch(None), **admin),
            _produce(name, _batch(), **admin),
            _produce(name, _batch()),
            _fetch(name),
            *_list_offsets(name, -1, -2, -3, NOW_MS),
            _delete_records(name, (0, 1), (7, 1)),
            _delete_records(name, (0, 1), **admin),
            _set(TOPIC, name, ("retention.ms", 0, "1000000")),
            _grow((name, 3)),
            _elect([{"topic": name, "partitions": [0]}], timeout_ms=5000),
            Ask(
                api="DescribeProducers",
                version=0,
                message={"topics": [{"name": name, "partition_indexes": [0]}]},
                before_ms=SETTLE_MS,
            ),
            _metadata(name),
            _delete((name, ZERO_ID)),
            _metadata(name, before_ms=SETTLE_MS),
        ],
    )


def _cluster_metadata() -> Scenario:
    name = "__cluster_metadata"
    return Scenario(
        name="cluster-metadata-is-no-topic",
        steps=[
            _metadata(name, create=True),
            _create(_new(name), _new("beside-metadata")),
            _create(_new(name), _new(name)),
            _create(_new(name), validate_only=True),
            _produce(name, _batch(), client_id="__admin_client"),
            _delete((name, ZERO_ID)),
            _metadata(name, before_ms=SETTLE_MS),
        ],
    )


def _times(codec: int) -> Scenario:
    """Return lookups in two batches: the first record that is not older, in the log's order, from its start on."""
    name = f"times-{('plain', 'gzip', 'snappy', 'lz4', 'zstd')[codec]}"
    first, second = (
        [NOW_MS + delta for delta in (10, 30, 20, 30, 5)],
        [NOW_MS + delta for delta in (40, 35, 60)],
    )
    lookups = (0, *range(NOW_MS + 5, NOW_MS + 66, 5), NOW_MS + 11, NOW_MS + 31, -3, -1, -2)
    few = (NOW_MS + 15, NOW_MS + 25, NOW_MS + 31, -3)
    return Scenario(
        name=name,
        steps=[
            _create(_new(name)),
            *(
                _produce(
                    name,
                    timed_batch(times, codec=codec, base_ms=times[0], value=bytes(50)),
                    before_ms=wait_ms,
                )
                for times, wait_ms in ((first, SETTLE_MS), (second, 0))
            ),
            *_list_offsets(name, *lookups),
            _delete_records(name, (0, 2)),
            *_list_offsets(name, *few),
            _delete_records(name, (0, 4)),
            *_list_offsets(name, *few),
            _delete_records(name, (0, -1)),
            *_list_offsets(name, *few),
        ],
    )


def _compacted() -> Scenario:
    name = "compacted-topic"
    return Scenario(
        name=name,
        steps=[
            _create(
                _new(
                    name, cleanup_policy="compact", delete_retention_ms="0", min_cleanable_dirty_ratio="0.01"
                )
            ),
            _produce(name, _batch(), before_ms=SETTLE_MS),
            _produce(name, _batch(None), note="a record without a key"),
            _delete_records(name, (0, 1)),
            _set(TOPIC, name, ("cleanup.policy", APPEND, "delete")),
            _produce(name, _batch(None), before_ms=SETTLE_MS),
            _delete_records(name, (0, 1)),
            _set(TOPIC, name, ("cleanup.policy", SET, "delete")),
            _produce(name, _batch(None), before_ms=SETTLE_MS),
        ],
    )


def _describe(kind: int, name: str, *keys: str, **more: Any) -> Ask:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)}
    message = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
    return Ask(api="DescribeConfigs", version=4, message=message, **more)


def _defaults(name: str, topic_name: str, *, node: str, of_all: str) -> Scenario:
    """Return changes of one setting behind those of topics: for all nodes and for one, and back."""
    topic, own, later = (f"{name}-{end}" for end in ("topic", "own", "later"))
    shown = [
        _describe(TOPIC, topic, topic_name),
        _describe(TOPIC, own, topic_name),
        _describe(NODE, "1", name),
    ]

    def change(scope: str, operation: int, value: str | None) -> list[Ask]:
        looked = Ask(api=shown[0].api, version=4, message=shown[0].message, before_ms=SETTLE_MS)
        return [_set(NODE, scope, (name, operation, value)), looked, *shown[1:], _describe(NODE, "", name)]

    return Scenario(
        name=f"default-{name}",
        steps=[
            _create(_new(topic), _new(own, **{topic_name: node})),
            *change("", SET, of_all),
            *change("1", SET, node),
            _create(_new(later)),
            *change("1", DELETE, None),
            _create(_new(f"{later}-2")),
            *change("", DELETE, None),
        ],
    )


def _default_mistakes() -> Scenario:
    texts = ("abc", "-5", "0", "", "1.5", " 5 ", "99999999999999999999", "delete,nonsense")
    names = (
        "log.retention.bytes", "message.max.bytes", "log.segment.bytes", "log.roll.ms", "log.flush.interval.messages",
        "log.index.interval.bytes", "log.message.timestamp.type", "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms", "log.cleanup.policy", "producer.id.expiration.ms", "compression.type",
        "log.preallocate", "log.cleaner.min.cleanable.ratio", "log.cleaner.delete.retention.ms", "log.roll.jitter.ms",
        "log.cleaner.max.compaction.lag.ms", "log.index.size.max.bytes", "log.segment.delete.delay.ms",
        "log.local.retention.ms", "compression.gzip.level", "compression.zstd.level", "unclean.leader.election.enable",
    )  # fmt: skip
    return Scenario(
        name="default-mistakes",
        steps=[
            *(_set(NODE, "1", (name, SET, text), validate_only=True) for name in names for text in texts),
            *(
                _set(NODE, "", ("log.retention.ms", SET, text), validate_only=True)
                for text in texts
                if text != "-5"
            ),
            _set(NODE, "1", ("log.retention.ms", APPEND, "5")),
            _set(NODE, "1", ("num.partitions", SET, "5"), ("log.retention.ms", SET, "5")),
        ],
    )


FILES: Mapping[str, tuple[str, Mapping[str, str], Sequence[Scenario]]] = {
    "timeouts": (
        "requests to the controller whose timeout is 0 or less",
        {},
        [_timeouts(0), _timeouts(-1), _timeouts(-(2**31)), _free_timeouts()],
    ),
    "internal_topics": (
        "topics with the names of Kafka's own: created by a client, described, written to and deleted",
        {},
        [
            *map(_internal, ("__consumer_offsets", "__transaction_state", "__share_group_state")),
            _cluster_metadata(),
        ],
    ),
    "time_lookups": ("ListOffsets by time in batches of each compression", {}, [*map(_times, range(5))]),
    "broker_settings": (
        "settings of brokers that topics follow, changed for one broker and for all",
        {},
        [
            _defaults("log.retention.ms", "retention.ms", node="200000", of_all="100000"),
            _defaults("message.max.bytes", "max.message.bytes", node=" 0200000", of_all="100000"),
            _defaults("log.cleanup.policy", "cleanup.policy", node="compact", of_all=" delete , compact"),
            _defaults("compression.type", "compression.type", node="zstd", of_all="lz4"),
            _defaults("log.preallocate", "preallocate", node=" TRUE ", of_all="false"),
            _default_mistakes(),
        ],
    ),
    "compaction": ("topics that are compacted, and are no longer", {}, [_compacted()]),
}
"""A file's name → what it is about, its settings beside `BROKER_CONFIG`, its scenarios."""
