"""Single requests that are large, deep or repetitive in a way of their own."""

import time

import pytest
from tests.batches import build_batch
from tests.limits.bounds import ACL_BYTES, DEFINITION_BYTES, PARTITION_BYTES, judge
from tests.limits.frames import (
    ALTER_QUOTAS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUOTAS,
    EMPTY_BATCH,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    alter,
    commit,
    create_topics,
    fetch,
    list_offsets,
    metadata,
    new_topic,
    produce,
    raw_frame,
    request,
    size,
    uvarint,
)
from tests.limits.watched import Connection

from tidegate.api_keys import INCREMENTAL_ALTER_CONFIGS

pytestmark = pytest.mark.alone

PARTITIONS = size(500, 1000)


def setup(broker, *frames):
    """Send requests whose cost is of no interest."""
    with Connection(broker.port) as client:
        client.ask_all(frames)


# --- the frame


def test_many_tagged_fields_of_a_header(broker):
    """Tagged fields of a header are skipped or refused, however many."""
    count = size(500_000, 5_000_000)
    long = raw_frame(METADATA, 9, b"\1\0\0\0\0", tags=uvarint(count) + b"\0\0" * count)
    judge(broker, "Frame", [long], ends=True)


def test_many_tagged_fields_of_a_body(broker):
    """The same behind the last field of a body."""
    count = size(500_000, 5_000_000)
    long = raw_frame(METADATA, 9, b"\1\0\0\0" + uvarint(count) + b"\0\0" * count)
    judge(broker, "Frame", [long], ends=True)


def test_bytes_behind_a_request(broker):
    """What follows a whole message is not looked at."""
    judge(broker, "Frame", [raw_frame(METADATA, 9, b"\1\0\0\0\0" + bytes(size(10_000_000, 100_000_000)))])


def test_a_text_as_long_as_the_frame(broker):
    """A compact text may be longer on the wire than any name."""
    count = size(5_000_000, 100_000_000)
    judge(
        broker,
        "Frame",
        [raw_frame(FIND_COORDINATOR, 3, uvarint(count + 1) + b"x" * count + b"\0\0")],
        ends=True,
    )


def test_a_tagged_field_as_long_as_the_frame(broker):
    """A field that nobody knows is not kept with what is remembered of a Fetch."""
    tag = {77: bytes(size(2_000_000, 20_000_000))}
    message = {**fetch("limits"), "_unknown_tags": tag}
    message["topics"][0]["partitions"][0]["last_fetched_epoch"] = -1
    judge(broker, "Frame", [request(FETCH, 12, {**message, "min_bytes": least}) for least in range(20)])


# --- topics


def test_metadata_of_one_topic_again_and_again(broker):
    """A topic of many partitions that is named often is described once."""
    with Connection(broker.port) as client:
        client.create("often", PARTITIONS)
    judge(broker, "Metadata", [request(METADATA, 7, metadata(["often"] * size(3000, 99_000)))])


def test_metadata_creates_many_topics(broker):
    """Auto-creation makes directories and files in slices."""
    wanted = [[f"auto-{attempt}-{i}" for i in range(200)] for attempt in range(3)]
    frames = [[request(METADATA, 7, metadata(names, create=True))] for names in wanted]
    judge(broker, "Metadata", *frames, may_keep_bytes=200 * PARTITION_BYTES)


def test_a_topic_of_many_partitions_is_created_and_deleted(broker):
    """Hundreds of directories and files at once; the first deletion fills the metadata store's cache of pages."""
    topics = [f"many-{attempt}" for attempt in range(4)]
    made = [request(CREATE_TOPICS, 5, create_topics([new_topic(topic, PARTITIONS // 2)])) for topic in topics]
    judge(broker, "CreateTopics", *([frame] for frame in made), may_keep_bytes=PARTITIONS * PARTITION_BYTES)
    setup(broker, *made)
    gone = [request(DELETE_TOPICS, 4, {"topic_names": [topic], "timeout_ms": 60_000}) for topic in topics]
    setup(broker, gone.pop())
    judge(broker, "DeleteTopics", *([frame] for frame in gone))


def test_many_topics_are_created_and_deleted(broker):
    """As many topics as one request may have."""
    names = [[f"topic-{attempt}-{i}" for i in range(size(200, 600))] for attempt in range(3)]
    made = [request(CREATE_TOPICS, 5, create_topics([new_topic(name) for name in part])) for part in names]
    judge(
        broker, "CreateTopics", *([frame] for frame in made), may_keep_bytes=len(names[0]) * PARTITION_BYTES
    )
    setup(broker, *made)
    gone = [[request(DELETE_TOPICS, 4, {"topic_names": part, "timeout_ms": 60_000})] for part in names]
    judge(broker, "DeleteTopics", *gone)


def test_names_that_clash_are_compared_quickly(broker):
    """Names with dots clash with those with underscores: looked up, not compared with each."""
    topics = [new_topic(f"r.{i}") for i in range(size(5000, 30_000))]
    judge(broker, "CreateTopics", [request(CREATE_TOPICS, 5, create_topics(topics, validate_only=True))])


def test_partitions_are_added(broker):
    """A topic grows by hundreds of partitions."""
    topics = [f"grows-{attempt}" for attempt in range(3)]
    setup(broker, request(CREATE_TOPICS, 5, create_topics([new_topic(topic) for topic in topics])))
    wanted = [{"name": topic, "count": PARTITIONS // 2, "assignments": None} for topic in topics]
    frames = [
        [request(CREATE_PARTITIONS, 1, {"topics": [part], "timeout_ms": 60_000, "validate_only": False})]
        for part in wanted
    ]
    judge(broker, "CreatePartitions", *frames, may_keep_bytes=PARTITIONS * PARTITION_BYTES)
    setup(broker, request(DELETE_TOPICS, 4, {"topic_names": topics, "timeout_ms": 60_000}))


def test_many_acls(new_broker):
    """Created, described and deleted by one request each."""
    broker = new_broker(
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
    )
    count = size(10_000, 20_000)
    acl = {
        "resource_type": 2, "resource_pattern_type": 4, "principal": "User:a", "host": "*", "operation": 3,
        "permission_type": 3,
    }  # fmt: skip
    made = [[{**acl, "resource_name": f"{part}-{i}"} for i in range(count)] for part in range(3)]
    frames = [[request(CREATE_ACLS, 3, {"creations": part})] for part in made]
    judge(broker, "CreateAcls", *frames, may_keep_bytes=count * ACL_BYTES)
    found = {
        "resource_type_filter": 2, "resource_name_filter": None, "pattern_type_filter": 4, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    setup(broker, *(frame for (frame,) in frames))
    judge(broker, "DescribeAcls", [request(DESCRIBE_ACLS, 3, found)])
    judge(broker, "DeleteAcls", [request(DELETE_ACLS, 3, {"filters": [found]})])
    nothing = {**found, "resource_name_filter": "n", "principal_filter": "User:a", "host_filter": "*"} | {
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    judge(broker, "DeleteAcls", [request(DELETE_ACLS, 3, {"filters": [nothing] * size(20_000, 99_000)})])


def test_configs_of_one_topic_again_and_again(broker):
    """A resource that is named often is described once."""
    resource = {"resource_type": 2, "resource_name": "limits", "configuration_keys": None}
    message = {"resources": [resource] * size(5000, 99_000), "include_synonyms": True}
    judge(broker, "DescribeConfigs", [request(DESCRIBE_CONFIGS, 2, message)])


# --- records


@pytest.mark.parametrize("topics", [False, True], ids=["as one topic", "as many topics"])
def test_one_partition_again_and_again_in_a_produce(broker, topics):
    """A partition that is named often gets one batch at most, as Kafka does."""
    part = {"index": 0, "records": EMPTY_BATCH}
    count = size(5000, 49_000)
    named = [{"name": "limits", "partition_data": [part]}] * count
    if not topics:
        named = [{"name": "limits", "partition_data": [part] * count}]
    message = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": named}
    judge(broker, "Produce", [request(PRODUCE, 8, message)])


def test_a_batch_of_many_records(broker):
    """As many records as a batch may hold."""
    batch = build_batch([(None, b"")] * 100_000)
    judge(broker, "Produce", [request(PRODUCE, 8, produce("limits", [batch]))])


def test_batches_one_after_the_other_for_one_partition(broker):
    """Kafka takes one batch; a megabyte of small ones is refused quickly."""
    batches = EMPTY_BATCH * (size(1_000_000, 90_000_000) // len(EMPTY_BATCH))
    judge(broker, "Produce", [request(PRODUCE, 8, produce("limits", [batches]))])


def test_one_partition_again_and_again_in_a_fetch(broker):
    """The records of a partition are read once."""
    setup(broker, request(PRODUCE, 8, produce("limits", [build_batch([(None, b"y" * 100)])])))
    message = fetch("limits", [0] * size(20_000, 99_000))
    judge(broker, "Fetch", [request(FETCH, 11, {**message, "min_bytes": 0})])


def test_fetch_of_many_partitions(new_broker):
    """Every partition of a wide topic, each with records. A broker of its own: others' topics leave too little room."""
    broker = new_broker()
    with Connection(broker.port) as client:
        client.create("fetched", PARTITIONS)
        batch = build_batch([(None, bytes(1000))])
        client.ask_all(
            request(PRODUCE, 8, produce("fetched", [batch], partition=at)) for at in range(PARTITIONS)
        )
    judge(broker, "Fetch", [request(FETCH, 11, fetch("fetched", range(PARTITIONS)))] * 3)


def test_times_that_no_index_helps_to_find(broker):
    """The first batch has a large time, the others a small one: a lookup has to walk all of them."""
    now_ms = int(time.time() * 1000)
    with Connection(broker.port) as client:
        client.create("walk")
        first, others, last = (
            request(PRODUCE, 8, produce("walk", [build_batch([(None, b"")], timestamp_ms=stamp)]))
            for stamp in (now_ms - 10_000_000, now_ms - 20_000_000, now_ms)
        )
        client.ask_all([first, *[others] * size(40_000, 300_000), last], together=500)
    asked = [request(LIST_OFFSETS, 5, list_offsets("walk", [now_ms - 1]))] * 2
    judge(broker, "ListOffsets", asked)
    judge(broker, "ListOffsets", [request(LIST_OFFSETS, 7, list_offsets("walk", [-3]))])


def test_times_within_one_large_batch(broker):
    """The record of a time is found among 100,000 of one batch."""
    now_ms = int(time.time() * 1000)
    with Connection(broker.port) as client:
        client.create("large")
        batch = build_batch([(None, b"")] * 100_000, timestamp_ms=now_ms)
        client.ask_all([request(PRODUCE, 8, produce("large", [batch]))] * 3)
    judge(broker, "ListOffsets", [request(LIST_OFFSETS, 5, list_offsets("large", [now_ms]))])


# --- groups


def test_positions_of_one_partition_again_and_again(broker):
    """A commit that names a partition often."""
    frame = request(OFFSET_COMMIT, 5, commit({"limits": size(60_000, 99_000)}, metadata="m" * 10))
    judge(broker, "OffsetCommit", [frame])


def test_a_group_of_many_topics_again_and_again(broker):
    """A group's positions are read once however often it is named."""
    topics = [f"group-{i}" for i in range(size(300, 1000))]
    setup(broker, request(CREATE_TOPICS, 5, create_topics([new_topic(name) for name in topics])))
    judge(broker, "OffsetCommit", [request(OFFSET_COMMIT, 5, commit(dict.fromkeys(topics, 1)))])
    group = {"group_id": "limits", "member_id": None, "member_epoch": -1, "topics": None}
    message = {"groups": [group] * size(50, 1000), "require_stable": False}
    judge(broker, "OffsetFetch", [request(OFFSET_FETCH, 8, message)])
    setup(broker, request(DELETE_TOPICS, 4, {"topic_names": topics, "timeout_ms": 60_000}))


# --- quotas


def test_many_definitions(broker):
    """Thousands of definitions in one request, described whole and by filter."""
    count = size(5000, 10_000)
    entities = [{"client-id": f"defined-{i}"} for i in range(count)]
    judge(
        broker,
        "AlterClientQuotas",
        [
            request(ALTER_QUOTAS, 0, alter(entities, {"producer_byte_rate": 1e9 + attempt}))
            for attempt in (0,)
        ],
        may_keep_bytes=count * DEFINITION_BYTES,
    )
    judge(broker, "DescribeClientQuotas", [request(DESCRIBE_QUOTAS, 0, {"components": [], "strict": False})])
    exact = {"entity_type": "client-id", "match_type": 0, "match": "defined-7"}
    judge(
        broker, "DescribeClientQuotas", [request(DESCRIBE_QUOTAS, 0, {"components": [exact], "strict": True})]
    )


def test_an_entity_of_many_types(broker):
    """Whatever is no type is refused with all that came with it."""
    entity = {f"type-{i}": "limits" for i in range(size(60_000, 99_000))}
    frame = request(ALTER_QUOTAS, 0, alter([entity], {"producer_byte_rate": 1e9}))
    judge(broker, "AlterClientQuotas", [frame])


def test_definitions_change_while_many_clients_are_known(new_broker):
    """A changed definition is put in force for thousands of clients in slices."""
    broker = new_broker()
    rates = {"producer_byte_rate": 1e9, "consumer_byte_rate": 1e9, "request_percentage": 1e6}
    one = produce("limits", [EMPTY_BATCH])
    clients = size(5000, 20_000)
    setup(
        broker,
        request(ALTER_QUOTAS, 0, alter([{"client-id": None}], rates)),
        request(ALTER_QUOTAS, 0, alter([{"user": "ANONYMOUS", "client-id": None}], rates)),
        *(request(PRODUCE, 8, one, client_id=f"c{i}") for i in range(clients)),
    )
    single = [
        [request(ALTER_QUOTAS, 0, alter([{"client-id": "e"}], {"producer_byte_rate": 1e6 + attempt}))]
        for attempt in range(3)
    ]
    judge(broker, "AlterClientQuotas", *single)
    default = [
        [request(ALTER_QUOTAS, 0, alter([{"client-id": None}], {"producer_byte_rate": 1e6 + attempt}))]
        for attempt in range(3)
    ]
    judge(broker, "AlterClientQuotas", *default)
    entities = [{"client-id": f"e{i}"} for i in range(size(500, 10_000))]
    frame = request(ALTER_QUOTAS, 0, alter(entities, {"producer_byte_rate": 1e9}))
    judge(broker, "AlterClientQuotas", [frame], may_keep_bytes=len(entities) * DEFINITION_BYTES)


def test_settings_that_name_many(broker):
    """Lists of a thousand clients, and of as many addresses as a value can hold, change in slices."""

    def change(name: str, value: str) -> bytes:
        configs = [{"name": name, "config_operation": 0, "value": value}]
        resource = {"resource_type": 4, "resource_name": "", "configs": configs}
        return request(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})

    def lists(number: int) -> list[bytes]:
        clients = ";".join(f"client-id=c{number}-{at}" for at in range(1000))
        addresses = ",".join(f"10.{number}.{at // 250}.{at % 250}:9" for at in range(2300))
        return [
            change("tidegate.quota.observe", clients),
            change("max.connections.per.ip.overrides", addresses),
        ]

    judge(broker, "IncrementalAlterConfigs", *map(lists, range(3)), may_keep_bytes=2000 * DEFINITION_BYTES)
    with Connection(broker.port) as client:
        client.ask_all(
            [change("tidegate.quota.observe", "none"), change("max.connections.per.ip.overrides", "")]
        )
