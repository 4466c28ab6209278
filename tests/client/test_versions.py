"""Every request of the client in every version of its API: what older brokers are asked, and what they answer."""

from typing import Any

import pytest
from tests.client.scripted_broker import ScriptedBroker, run, settings_for, versions

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
)
from tidegate.client import (
    EARLIEST,
    Admin,
    ConfigChange,
    Consumer,
    NewTopic,
    Producer,
    Record,
    ScramChange,
    TopicPartition,
)
from tidegate.quota.admin.definitions import Alteration, FilterComponent
from tidegate.wire import API_BY_KEY, ZERO_ID
from tidegate.wire.definitions import layout

PLACE = TopicPartition("a", 0)
SCRAM = ScramChange(user="a", mechanism="SCRAM-SHA-256", password="b")
ENTITY = (("client-id", "a"),)
CALLS = {
    DESCRIBE_CLIENT_QUOTAS: lambda admin: admin.describe_client_quotas([FilterComponent("user", 0, "a")]),
    ALTER_CLIENT_QUOTAS: lambda admin: admin.alter_client_quotas(
        [Alteration(entity=ENTITY, ops=(("consumer_byte_rate", 1.0), ("producer_byte_rate", None)))]
    ),
    DESCRIBE_USER_SCRAM_CREDENTIALS: lambda admin: admin.describe_scram_users(["a"]),
    ALTER_USER_SCRAM_CREDENTIALS: lambda admin: admin.alter_scram_users([SCRAM]),
    DESCRIBE_CONFIGS: lambda admin: admin.describe_configs(4, "0", node_id=0),
    INCREMENTAL_ALTER_CONFIGS: lambda admin: admin.alter_configs(2, "a", [ConfigChange(name="a", value="b")]),
    CREATE_TOPICS: lambda admin: admin.create_topics([NewTopic(name="a", configs={"b": "c"})]),
    CREATE_PARTITIONS: lambda admin: admin.create_partitions({"a": 2}),
    DELETE_TOPICS: lambda admin: admin.delete_topics(["a"]),
    DESCRIBE_ACLS: lambda admin: admin.describe_acls(),
    LIST_GROUPS: lambda admin: admin.list_groups(),
    FIND_COORDINATOR: lambda admin: admin.describe_group("a"),
    DESCRIBE_GROUPS: lambda admin: admin.describe_group("a"),
    METADATA: lambda admin: admin.cluster.refresh(["a"]),
}
RECORDS = (PRODUCE, FETCH, LIST_OFFSETS)
NEWEST = {PRODUCE: 12, FETCH: 12}  # with names of topics
CASES = [
    (key, version)
    for key in (*CALLS, *RECORDS)
    for version in range(API_BY_KEY[key].min_version, NEWEST.get(key, API_BY_KEY[key].max_version) + 1)
]


def least(fields: Any) -> dict[str, Any]:
    """Return a message with one element in each list, "a" as every text, and 0 as every number."""
    return {field.name: _value(field) for field in fields}


def _value(field: Any) -> Any:
    if field.type == "struct":
        value: Any = least(field.fields)
    elif field.type == "string":
        value = "a"
    elif field.type == "uuid":
        value = ZERO_ID
    elif field.type in ("bytes", "records"):
        value = b""
    else:
        value = (field.type == "bool" and False) or 0
    return [value] if field.array else value


def script(broker, api_key, version):
    """Return the script of a broker that speaks an API in one version only."""
    api = API_BY_KEY[api_key]

    def answer(request):
        if request.api_key == API_VERSIONS:
            return versions(**{api.name: (version, version)})
        message = least(layout(request.api_key, request.api_version, "response").fields)
        if request.api_key == METADATA:
            message["brokers"] = [
                {"node_id": 0, "host": broker.address.host, "port": broker.address.port, "rack": None}
            ]
        return message

    return answer


@pytest.mark.parametrize(
    ("api_key", "version"), CASES, ids=[f"{API_BY_KEY[key].name}-{version}" for key, version in CASES]
)
def test_each_version_is_written_and_understood(api_key, version):
    """A broker that has one version of the API is asked in it, and its answer is read to the end."""

    async def work():
        async with ScriptedBroker() as broker:
            broker.script = script(broker, api_key, version)
            settings = settings_for(broker)
            if api_key == PRODUCE:
                async with Producer(settings) as producer:
                    assert await producer.send("a", 0, [Record(value=b"v")]) == 0
            elif api_key in RECORDS:
                async with Consumer(settings) as consumer:
                    consumer.assign({PLACE: EARLIEST})
                    while not broker.asked(FETCH):
                        await consumer.poll(timeout_s=0.01)
                    assert consumer.position(PLACE) == 0
            else:
                async with Admin(settings) as admin:
                    await CALLS[api_key](admin)
            assert {request.api_version for request in broker.asked(api_key)} == {version}

    run(work)
