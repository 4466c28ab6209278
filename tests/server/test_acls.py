"""A whole node with ACLs: creating, describing and deleting them, and what each API answers to whom."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.whole_node import ANSWER_TIMEOUT_S, RawClient, WholeNode, whole_node
from tests.unit.storage.logs import batch

from tidegate.acl import Acl, codes
from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TOPIC_PARTITIONS,
    ELECT_LEADERS,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    LIST_CONFIG_RESOURCES,
    LIST_OFFSETS,
    LIST_PARTITION_REASSIGNMENTS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.broker.cluster import NO_OPERATIONS
from tidegate.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    INVALID_REQUEST,
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    POLICY_VIOLATION,
    SECURITY_DISABLED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tidegate.storage.errors import StorageError
from tidegate.wire import API_BY_KEY, ZERO_ID, encode_request, read_response

AUTHORIZER = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:admin",
}
Message = dict[str, Any]


class Users:
    """Clients of a node, each with a connection that is its user's. within_s: how long they wait for an answer."""

    def __init__(self, node: WholeNode) -> None:
        self.node = node
        self.within_s = ANSWER_TIMEOUT_S
        self._clients: dict[tuple[str, int], RawClient] = {}

    async def ask(
        self, user: str, api_key: int, message: Message, version: int | None = None, node_id: int = 1
    ) -> Message:
        """Return a user's answer, in the newest version by default."""
        answer = await self.answer(user, api_key, message, version, node_id)
        assert answer is not None, "the connection was closed"
        return answer

    async def answer(
        self, user: str, api_key: int, message: Message, version: int | None = None, node_id: int = 1
    ) -> Message | None:
        """Return a user's answer, None where the connection was closed."""
        api = API_BY_KEY[api_key]
        version = api.max_version if version is None else version
        client = self._clients.get((user, node_id))
        if client is None:
            client = self._clients[user, node_id] = RawClient(self.node.clients[node_id - 1].port)
            await client.ask(encode_request(18, 0, 1, "c", {})[4:])
            front = self.node.nodes[node_id - 1]._front
            assert front is not None
            next(reversed(front.channels)).connection.set_user(user)
        frame = await client.ask(encode_request(api_key, version, 1, "c", message)[4:], self.within_s)
        if frame is None:
            del self._clients[user, node_id]
            return None
        return read_response(api_key, version, frame, 5 if api.has_tagged_response_header(version) else 4)

    async def allow(self, user: str, operation: int, resource_type: int, name: str, **other: Any) -> None:
        """Have the administrator create an ACL."""
        await self.create(acl(user, operation, resource_type, name, **other))

    async def create(self, *acls: Acl) -> list[Message]:
        """Have the administrator create ACLs; return the results."""
        answer = await self.ask("admin", CREATE_ACLS, creations(*acls))
        return list(answer["results"])

    async def create_topics(self, *names: str) -> None:
        """Have the administrator create topics of two partitions."""
        answer = await self.ask("admin", CREATE_TOPICS, new_topics(*names))
        assert [topic["error_code"] for topic in answer["topics"]] == [NONE] * len(names)

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()


def acl(user: str, operation: int, resource_type: int, name: str, **other: Any) -> Acl:
    """Return an ACL that allows a user something."""
    fields = {"pattern_type": codes.LITERAL, "host": "*", "permission": codes.ALLOW, **other}
    return Acl(
        resource_type=resource_type,
        resource_name=name,
        principal=f"User:{user}",
        operation=operation,
        **fields,
    )


def creations(*acls: Acl) -> Message:
    """Return what creates ACLs."""
    parts = []
    for each in acls:
        fields = each._asdict()
        fields["resource_pattern_type"] = fields.pop("pattern_type")
        parts.append({**fields, "permission_type": fields.pop("permission")})
    return {"creations": parts}


def acl_filter(**fields: Any) -> Message:
    """Return a filter, which finds everything but for `fields`."""
    return {
        "resource_type_filter": codes.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": codes.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": codes.ANY,
        "permission_type": codes.ANY,
        **fields,
    }


def new_topics(*names: str, validate_only: bool = False) -> Message:
    """Return what creates topics."""
    topics = [
        {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    return {"topics": topics, "timeout_ms": 1000, "validate_only": validate_only}


def run(
    directory: Path, scenario: Callable[[Users], Awaitable[None]], count: int = 1, **settings: str
) -> None:
    """Run a scenario against a node with ACLs, or several."""

    @asynccontextmanager
    async def users() -> AsyncIterator[Users]:
        async with whole_node(directory, count, **{**AUTHORIZER, **settings}) as node:
            clients = Users(node)
            try:
                yield clients
            finally:
                await clients.close()

    async def main() -> None:
        async with users() as clients:
            await scenario(clients)

    asyncio.run(main())


async def described(users: Users, **fields: Any) -> list[Acl]:
    """Return the ACLs that the administrator finds."""
    answer = await users.ask("admin", DESCRIBE_ACLS, acl_filter(**fields))
    assert answer["error_code"] == NONE
    return sorted(
        Acl(
            resource["resource_type"], resource["resource_name"], resource["pattern_type"], entry["principal"],
            entry["host"], entry["operation"], entry["permission_type"],
        )
        for resource in answer["resources"]
        for entry in resource["acls"]
    )  # fmt: skip


READ_T = acl("alice", codes.READ, codes.TOPIC, "t")
WRITE_T = acl("alice", codes.WRITE, codes.TOPIC, "t-", pattern_type=codes.PREFIXED)


@pytest.mark.parametrize("version", range(1, 4))
def test_acls_live(tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture) -> None:
    """They are created, found, kept over a restart, and deleted; the log says who did it and what it was."""
    caplog.set_level(logging.INFO, "tidegate.audit")

    async def create(users: Users) -> None:
        answer = await users.ask("admin", CREATE_ACLS, creations(READ_T, WRITE_T, READ_T), version)
        assert [result["error_code"] for result in answer["results"]] == [NONE] * 3
        assert await described(users) == sorted((READ_T, WRITE_T))

    async def delete(users: Users) -> None:
        assert await described(users, resource_name_filter="t-1", pattern_type_filter=codes.MATCH) == [
            WRITE_T
        ]
        wanted = [acl_filter(principal_filter="User:alice"), acl_filter(resource_name_filter="t")]
        answer = await users.ask("admin", DELETE_ACLS, {"filters": wanted}, version)
        found = [
            [(part["error_code"], part["resource_name"]) for part in result["matching_acls"]]
            for result in answer["filter_results"]
        ]
        assert [sorted(parts) for parts in found] == [[(NONE, "t"), (NONE, "t-")], [(NONE, "t")]]
        assert await described(users) == []

    run(tmp_path, create)
    run(tmp_path, delete)
    run(tmp_path, lambda users: none_left(users))
    lines = [record.getMessage() for record in caplog.records if record.name == "tidegate.audit"]
    assert sorted(lines) == sorted(
        f"'User:admin' from 127.0.0.1 (listener PLAINTEXT) {done} ACL {each}"
        for done in ("created", "deleted")
        for each in (READ_T, WRITE_T)
    )


async def none_left(users: Users) -> None:
    """Find no ACL."""
    assert await described(users) == []


def test_wrong_acls_are_refused_one_by_one(tmp_path: Path) -> None:
    """Each has its own error, and the others are created."""

    async def scenario(users: Users) -> None:
        wrong = READ_T._replace(principal="alice")
        long = READ_T._replace(host="h" * 1025)
        results = await users.create(wrong, READ_T, long)
        assert [result["error_code"] for result in results] == [INVALID_REQUEST, NONE, POLICY_VIOLATION]
        assert await described(users) == [READ_T]
        for number in (0, 1, 2, 3):
            broken = [READ_T.resource_type, READ_T.pattern_type, READ_T.operation, READ_T.permission]
            broken[number] = 0
            fields = dict(
                zip(("resource_type", "pattern_type", "operation", "permission"), broken, strict=True)
            )
            assert await users.answer("admin", CREATE_ACLS, creations(READ_T._replace(**fields))) is None
        assert await users.answer("admin", DESCRIBE_ACLS, acl_filter(operation=0)) is None
        unknown = {"filters": [acl_filter(operation=99), acl_filter(resource_type_filter=99)]}
        answer = await users.ask("admin", DELETE_ACLS, unknown)
        assert [(result["error_code"], result["error_message"]) for result in answer["filter_results"]] == [
            (INVALID_REQUEST, "Unknown entryFilter."),
            (INVALID_REQUEST, "Unknown patternFilter."),
        ]

    run(tmp_path, scenario)


def test_changing_acls_takes_rights(tmp_path: Path) -> None:
    """ALTER on the cluster, and DESCRIBE to see them; who has neither is told so in every part."""

    async def scenario(users: Users) -> None:
        asked = {
            CREATE_ACLS: (creations(READ_T, WRITE_T), "results"),
            DELETE_ACLS: ({"filters": [acl_filter()]}, "filter_results"),
        }
        for api_key, (message, field) in asked.items():
            answer = await users.ask("alice", api_key, message)
            for part in answer[field]:
                assert part["error_code"] == CLUSTER_AUTHORIZATION_FAILED
                assert part["error_message"].endswith("needs ALTER permission.")
        answer = await users.ask("alice", DESCRIBE_ACLS, acl_filter())
        assert answer["error_code"] == CLUSTER_AUTHORIZATION_FAILED
        assert answer["error_message"].endswith("needs DESCRIBE permission.")
        await users.allow("alice", codes.ALTER, codes.CLUSTER, codes.CLUSTER_NAME)
        answer = await users.ask("alice", CREATE_ACLS, creations(READ_T))
        assert answer["results"] == [{"error_code": NONE, "error_message": ""}]
        assert (await users.ask("alice", DESCRIBE_ACLS, acl_filter()))["error_code"] == NONE

    run(tmp_path, scenario)


def test_without_an_authorizer_there_are_no_acls(tmp_path: Path) -> None:
    """Error 54 in Kafka's words, and everybody may do everything."""

    async def scenario(users: Users) -> None:
        answer = await users.ask("alice", DESCRIBE_ACLS, acl_filter())
        expected = (SECURITY_DISABLED, "No Authorizer is configured on the broker")
        assert (answer["error_code"], answer["error_message"]) == expected
        problem = {"error_code": SECURITY_DISABLED, "error_message": "No Authorizer is configured."}
        answer = await users.ask("alice", CREATE_ACLS, creations(READ_T))
        assert answer["results"] == [problem]
        answer = await users.ask("alice", DELETE_ACLS, {"filters": [acl_filter()]})
        assert answer["filter_results"] == [{**problem, "matching_acls": []}]
        answer = await users.ask("alice", METADATA, metadata(None, operations=True))
        assert answer["topics"] == []

    run(tmp_path, scenario, authorizer_class_name="", super_users="")


def test_filters_that_find_too_much_are_refused(tmp_path: Path) -> None:
    """Past what an answer may have a filter gets error 44, and deletes nothing; those before it do."""

    async def scenario(users: Users) -> None:
        await users.create(*(READ_T._replace(resource_name=f"t{number}") for number in range(500)))
        users.within_s = 30.0  # 200,000 ACLs take the node 2 s of the processor, which other tests use, too
        answer = await users.ask("admin", DELETE_ACLS, {"filters": [acl_filter()] * 401})
        found = [(len(result["matching_acls"]), result["error_code"]) for result in answer["filter_results"]]
        assert found == [(500, NONE)] * 400 + [(0, POLICY_VIOLATION)]
        assert await described(users) == []

    run(tmp_path, scenario)


def test_what_cannot_be_stored_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Error 56 for each ACL, and nothing has changed."""

    async def scenario(users: Users) -> None:
        await users.create(READ_T)

        def fail(*_: object) -> None:
            raise StorageError("the disk is full")

        store = users.node.storage.store
        monkeypatch.setattr(store, "_transaction", fail)
        assert [result["error_code"] for result in await users.create(WRITE_T, READ_T)] == [
            KAFKA_STORAGE_ERROR,
            NONE,
        ]
        answer = await users.ask("admin", DELETE_ACLS, {"filters": [acl_filter()]})
        (result,) = answer["filter_results"]
        assert [part["error_code"] for part in result["matching_acls"]] == [KAFKA_STORAGE_ERROR]
        assert await described(users) == [READ_T]

    run(tmp_path, scenario)


def test_three_nodes_have_one_set_of_acls(tmp_path: Path) -> None:
    """What is created by one node holds at all of them, at once."""

    async def scenario(users: Users) -> None:
        await users.create_topics("t")
        for node_id in (1, 2, 3):
            answer = await users.ask("alice", METADATA, metadata(["t"]), node_id=node_id)
            assert [topic["error_code"] for topic in answer["topics"]] == [TOPIC_AUTHORIZATION_FAILED]
        await users.ask("admin", CREATE_ACLS, creations(READ_T), node_id=3)
        for node_id in (1, 2, 3):
            answer = await users.ask("alice", METADATA, metadata(["t"]), node_id=node_id)
            assert [topic["error_code"] for topic in answer["topics"]] == [NONE]

    run(tmp_path, scenario, count=3)


# --- what each API asks ---------------------------------------------------------------------------------------------


def metadata(
    names: list[str] | None, *, ids: tuple[str, ...] = (), create: bool = False, operations: bool = False
) -> Message:
    """Return a Metadata request."""
    topics = None if names is None else [{"name": name, "topic_id": ZERO_ID} for name in names]
    if ids:
        topics = [{"name": None, "topic_id": topic_id} for topic_id in ids]
    return {
        "topics": topics,
        "allow_auto_topic_creation": create,
        "include_topic_authorized_operations": operations,
        "include_cluster_authorized_operations": operations,
    }


def by_name(answer: Message, field: str = "topics", value: str = "error_code") -> dict[str | None, Any]:
    """Return a value of each topic."""
    return {topic["name"]: topic[value] for topic in answer[field]}


def test_metadata(tmp_path: Path) -> None:
    """All topics are those that may be described; of others it is not told whether they are there."""

    async def scenario(users: Users) -> None:
        await users.create_topics("mine", "hidden")
        ids = by_name(await users.ask("admin", METADATA, metadata(None)), value="topic_id")
        await users.allow("alice", codes.READ, codes.TOPIC, "mine")
        await users.allow("alice", codes.DESCRIBE, codes.TOPIC, "new")
        for _ in range(2):  # the second answer is one that was kept
            assert by_name(await users.ask("alice", METADATA, metadata(None))) == {"mine": NONE}
            assert set(by_name(await users.ask("admin", METADATA, metadata(None)))) == {"mine", "hidden"}
            assert by_name(await users.ask("bob", METADATA, metadata(None))) == {}
        named = await users.ask("alice", METADATA, metadata(["mine", "hidden", "none"]))
        refused = TOPIC_AUTHORIZATION_FAILED
        assert by_name(named) == {"mine": NONE, "hidden": refused, "none": refused}
        assert by_name(named, value="topic_id")["hidden"] == ZERO_ID
        answer = await users.ask("alice", METADATA, metadata(None, ids=(ids["mine"], ids["hidden"])))
        assert [(topic["name"], topic["error_code"], topic["topic_id"]) for topic in answer["topics"]] == [
            ("mine", NONE, ids["mine"]),
            (None, refused, ids["hidden"]),
        ]
        assert by_name(await users.ask("alice", METADATA, metadata(["new"]))) == {
            "new": UNKNOWN_TOPIC_OR_PARTITION
        }
        assert by_name(await users.ask("alice", METADATA, metadata(["new"], create=True))) == {"new": refused}
        await users.allow("alice", codes.CREATE, codes.TOPIC, "new")
        await users.ask("alice", METADATA, metadata(["new"], create=True))
        assert by_name(await users.ask("alice", METADATA, metadata(["new"]))) == {"new": NONE}

    run(tmp_path, scenario)


def test_authorized_operations(tmp_path: Path) -> None:
    """They are told as bit fields of what is allowed, and of the cluster only to who may describe it."""

    async def scenario(users: Users) -> None:
        await users.create_topics("t")
        await users.allow("alice", codes.READ, codes.TOPIC, "t")
        expected = 1 << codes.READ | 1 << codes.DESCRIBE
        asked = metadata(["t"], operations=True)
        for user, bits in (("alice", expected), ("admin", 3576)):
            answer = await users.ask(user, METADATA, asked, 10)
            assert by_name(answer, value="topic_authorized_operations") == {"t": bits}
            page = {"topics": [], "response_partition_limit": 9, "cursor": None}
            answer = await users.ask(user, DESCRIBE_TOPIC_PARTITIONS, page)
            assert by_name(answer, value="topic_authorized_operations") == {"t": bits}
        describe = {
            "include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": False,
        }  # fmt: skip

        async def of_cluster(user: str) -> set[int]:
            one = await users.ask(user, DESCRIBE_CLUSTER, describe)
            other = await users.ask(user, METADATA, asked, 10)
            return {one["cluster_authorized_operations"], other["cluster_authorized_operations"]}

        assert await of_cluster("alice") == {0}
        assert await of_cluster("admin") == {8096}
        await users.allow("alice", codes.CREATE, codes.CLUSTER, codes.CLUSTER_NAME)
        assert await of_cluster("alice") == {0}
        await users.allow("alice", codes.ALTER, codes.CLUSTER, codes.CLUSTER_NAME)
        assert await of_cluster("alice") == {1 << codes.ALTER | 1 << codes.CREATE | 1 << codes.DESCRIBE}

    run(tmp_path, scenario)


def test_describe_topic_partitions(tmp_path: Path) -> None:
    """Topics that may not be described are left out of all, and come last where they are named."""

    async def scenario(users: Users) -> None:
        await users.create_topics("a", "b")
        await users.allow("alice", codes.DESCRIBE, codes.TOPIC, "b")
        page = {"topics": [], "response_partition_limit": 9, "cursor": None}
        assert by_name(await users.ask("alice", DESCRIBE_TOPIC_PARTITIONS, page)) == {"b": NONE}
        page["topics"] = [{"name": name} for name in ("a", "b", "c")]
        answer = await users.ask("alice", DESCRIBE_TOPIC_PARTITIONS, page)
        refused = TOPIC_AUTHORIZATION_FAILED
        assert list(by_name(answer).items()) == [("b", NONE), ("a", refused), ("c", refused)]
        assert by_name(answer, value="topic_authorized_operations")["a"] == NO_OPERATIONS
        assert by_name(answer, value="topic_id")["a"] == ZERO_ID

    run(tmp_path, scenario)


def produce(topic: str, *, acks: int = 1) -> Message:
    """Return a Produce request of one record."""
    data = [{"index": 0, "records": bytes(batch())}]
    return {
        "transactional_id": None, "acks": acks, "timeout_ms": 1000,
        "topic_data": [{"name": topic, "topic_id": topic, "partition_data": data}],
    }  # fmt: skip


def fetch(topic: str, *, replica_id: int = -1) -> Message:
    """Return a Fetch request of the beginning of a partition."""
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1000,
    }  # fmt: skip
    return {
        "replica_id": replica_id, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1000, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
        "topics": [{"topic": topic, "topic_id": topic, "partitions": [partition]}],
    }  # fmt: skip


@pytest.mark.parametrize("with_ids", [False, True])
def test_known_requests_are_asked_about_each_time(tmp_path: Path, with_ids: bool) -> None:
    """A Produce or Fetch that somebody else may send is refused to who may not, and at once when a right has gone."""

    async def scenario(users: Users) -> None:
        await users.create_topics("t")
        ids = by_name(await users.ask("admin", METADATA, metadata(None)), value="topic_id")
        topic = ids["t"] if with_ids else "t"
        rights = acl("alice", codes.WRITE, codes.TOPIC, "t"), READ_T
        await users.create(*rights)

        async def tried(user: str) -> tuple[int, int]:
            sent = await users.ask(user, PRODUCE, produce(topic), 13 if with_ids else 9)
            read = await users.ask(user, FETCH, fetch(topic), 13 if with_ids else 12)
            (response,), (part,) = sent["responses"], read["responses"]
            return response["partition_responses"][0]["error_code"], part["partitions"][0]["error_code"]

        refused = (TOPIC_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED)
        for _ in range(3):
            assert await tried("alice") == (NONE, NONE)
            assert await tried("bob") == refused
        await users.ask("admin", DELETE_ACLS, {"filters": [acl_filter(operation=codes.READ)]})
        assert await tried("alice") == (NONE, TOPIC_AUTHORIZATION_FAILED)
        await users.ask("admin", DELETE_ACLS, {"filters": [acl_filter()]})
        assert await tried("alice") == refused
        await users.create(*rights)
        assert await tried("alice") == (NONE, NONE)

    run(tmp_path, scenario)


def test_topics_that_are_not_there_are_refused_alike(tmp_path: Path) -> None:
    """By name nobody learns what is there; an id that is not there is said to be unknown."""

    async def scenario(users: Users) -> None:
        for topic, version, expected in (
            ("none", 9, TOPIC_AUTHORIZATION_FAILED),
            ("11111111-0000-0000-0000-000000000000", 13, UNKNOWN_TOPIC_ID),
        ):
            sent = await users.ask("bob", PRODUCE, produce(topic), version)
            read = await users.ask("bob", FETCH, fetch(topic), 13 if version == 13 else 12)
            assert sent["responses"][0]["partition_responses"][0]["error_code"] == expected
            assert read["responses"][0]["partitions"][0]["error_code"] == expected
        assert await users.answer("bob", PRODUCE, produce("none", acks=0), 9) is None

    run(tmp_path, scenario)


def test_cluster_action_lets_replicate(tmp_path: Path) -> None:
    """A Fetch of a follower with CLUSTER_ACTION is as there; without it every partition is refused."""

    async def scenario(users: Users) -> None:
        await users.create_topics("t")
        message = fetch("t", replica_id=2)

        async def tried(user: str) -> int:
            answer = await users.ask(user, FETCH, message, 12)
            code: int = answer["responses"][0]["partitions"][0]["error_code"]
            return code

        assert await tried("broker") == TOPIC_AUTHORIZATION_FAILED
        await users.allow("broker", codes.CLUSTER_ACTION, codes.CLUSTER, codes.CLUSTER_NAME)
        assert await tried("broker") == NOT_LEADER_OR_FOLLOWER
        assert await tried("bob") == TOPIC_AUTHORIZATION_FAILED

    run(tmp_path, scenario)


def test_cluster_action_is_exempt(tmp_path: Path) -> None:
    """Who has it pays for nothing; who says that it is a follower and has it not, is charged and throttled."""

    async def scenario(users: Users) -> None:
        await users.allow("broker", codes.CLUSTER_ACTION, codes.CLUSTER, codes.CLUSTER_NAME)
        entity = [{"entity_type": "client-id", "entity_name": "c"}]
        ops = [{"key": "request_percentage", "value": 1e-6, "remove": False}]
        asked = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
        await users.ask("admin", ALTER_CLIENT_QUOTAS, asked)
        # Each pays with its request for what logging in took: of the broker's connection that is not exempt.
        told = [
            (await users.ask("broker", FETCH, fetch("t", replica_id=2), 12))["throttle_time_ms"]
            for _ in range(3)
        ]
        assert told[1:] == [0, 0]
        told_bob = (await users.ask("bob", FETCH, fetch("t", replica_id=2), 12))["throttle_time_ms"]
        assert told_bob > 0

    run(tmp_path, scenario)


def test_who_has_logged_in_with_cluster_action_is_exempt(tmp_path: Path) -> None:
    """With quotas of users: the broker's pays for nothing, the other's fetch as a follower is charged and refused."""
    users = "".join(f' user_{user}="{user}"' for user in ("admin", "broker", "bob"))
    settings = {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener_security_protocol_map": "CLIENTS:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN",
        "listener_name_clients_plain_sasl_jaas_config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required{users};"
        ),
    }

    async def main() -> None:
        async with whole_node(tmp_path, **AUTHORIZER, **settings) as node:
            clients = {user: RawClient(node.clients[0].port) for user in ("admin", "broker", "bob")}

            async def ask(user: str, api_key: int, version: int, message: Message) -> Message:
                frame = await clients[user].ask(encode_request(api_key, version, 1, "c", message)[4:])
                assert frame is not None
                at = 5 if API_BY_KEY[api_key].has_tagged_response_header(version) else 4
                return read_response(api_key, version, frame, at)

            for user in clients:
                await ask(user, SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
                login = {"auth_bytes": f"\0{user}\0{user}".encode()}
                assert (await ask(user, SASL_AUTHENTICATE, 2, login))["error_code"] == NONE
            right = acl("broker", codes.CLUSTER_ACTION, codes.CLUSTER, codes.CLUSTER_NAME)
            assert (await ask("admin", CREATE_ACLS, 3, creations(right)))["results"][0]["error_code"] == NONE
            ops = [{"key": "request_percentage", "value": 1e-6, "remove": False}]
            entries = [
                {"entity": [{"entity_type": "user", "entity_name": user}], "ops": ops}
                for user in ("broker", "bob")
            ]
            await ask("admin", ALTER_CLIENT_QUOTAS, 1, {"entries": entries, "validate_only": False})
            as_follower = fetch("t", replica_id=2)
            for _ in range(3):
                assert (await ask("broker", FETCH, 12, as_follower))["throttle_time_ms"] == 0
            answer = await ask("bob", FETCH, 12, as_follower)
            assert answer["throttle_time_ms"] > 0
            assert answer["responses"][0]["partitions"][0]["error_code"] == TOPIC_AUTHORIZATION_FAILED
            for client in clients.values():
                await client.close()

    asyncio.run(main())


def test_list_offsets(tmp_path: Path) -> None:
    """DESCRIBE on each topic; the others come last."""

    async def scenario(users: Users) -> None:
        await users.create_topics("mine", "hidden")
        await users.allow("alice", codes.DESCRIBE, codes.TOPIC, "mine")
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
        names = ("hidden", "none", "mine")
        topics = [{"name": name, "partitions": [partition]} for name in names]
        asked = {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout_ms": 0}
        answer = await users.ask("alice", LIST_OFFSETS, asked)
        refused = TOPIC_AUTHORIZATION_FAILED
        found = [(topic["name"], topic["partitions"][0]["error_code"]) for topic in answer["topics"]]
        assert found == [("mine", NONE), ("hidden", refused), ("none", refused)]
        answer = await users.ask("bob", LIST_OFFSETS, {**asked, "isolation_level": 9})
        assert [topic["partitions"][0]["error_code"] for topic in answer["topics"]] == [refused] * 3

    run(tmp_path, scenario)


def test_create_topics(tmp_path: Path) -> None:
    """CREATE on the cluster or on the topic; the settings are told to who may describe them."""

    async def scenario(users: Users) -> None:
        await users.allow("alice", codes.CREATE, codes.TOPIC, "mine")
        answer = await users.ask("alice", CREATE_TOPICS, new_topics("mine", "other"))
        found = {
            topic["name"]: (topic["error_code"], topic["error_message"], topic["topic_config_error_code"])
            for topic in answer["topics"]
        }
        refused = TOPIC_AUTHORIZATION_FAILED
        assert found == {"mine": (NONE, None, refused), "other": (refused, "Authorization failed.", NONE)}
        assert {topic["name"]: topic["num_partitions"] for topic in answer["topics"]} == {
            "mine": -1,
            "other": -1,
        }
        await users.allow("alice", codes.CREATE, codes.CLUSTER, codes.CLUSTER_NAME)
        await users.allow("alice", codes.DESCRIBE_CONFIGS, codes.TOPIC, "other")
        answer = await users.ask("alice", CREATE_TOPICS, new_topics("other"))
        (topic,) = answer["topics"]
        assert (topic["error_code"], topic["num_partitions"], bool(topic["configs"])) == (NONE, 2, True)

    run(tmp_path, scenario)


def test_create_partitions(tmp_path: Path) -> None:
    """ALTER on each topic, whether or not it is there."""

    async def scenario(users: Users) -> None:
        await users.create_topics("mine", "hidden")
        await users.allow("alice", codes.ALTER, codes.TOPIC, "mine")
        topics = [{"name": name, "count": 3, "assignments": None} for name in ("mine", "hidden", "none")]
        asked = {"topics": topics, "timeout_ms": 1000, "validate_only": False}
        answer = await users.ask("alice", CREATE_PARTITIONS, asked)
        refused = TOPIC_AUTHORIZATION_FAILED
        assert by_name(answer, "results") == {"mine": NONE, "hidden": refused, "none": refused}

    run(tmp_path, scenario)


def test_delete_topics(tmp_path: Path) -> None:
    """DELETE on the topic or on the cluster; of an id the name is told to who may describe it."""

    async def scenario(users: Users) -> None:
        await users.create_topics("mine", "seen", "hidden", "one", "two")
        ids = by_name(await users.ask("admin", METADATA, metadata(None)), value="topic_id")
        await users.allow("alice", codes.DELETE, codes.TOPIC, "mine")
        await users.allow("alice", codes.DESCRIBE, codes.TOPIC, "seen")

        async def deleted(user: str, names: list[str], of: tuple[str, ...]) -> list[tuple[Any, Any, int]]:
            topics = [{"name": name, "topic_id": ZERO_ID} for name in names]
            topics += [{"name": None, "topic_id": ids[name]} for name in of]
            answer = await users.ask(user, DELETE_TOPICS, {"topics": topics, "timeout_ms": 1000})
            return [(part["name"], part["topic_id"], part["error_code"]) for part in answer["responses"]]

        refused = TOPIC_AUTHORIZATION_FAILED
        assert await deleted("alice", [], ("seen", "hidden")) == [
            ("seen", ids["seen"], refused),
            (None, ids["hidden"], refused),
        ]
        assert await deleted("alice", ["seen", "hidden", "none", "mine"], ()) == [
            ("seen", ZERO_ID, refused),
            ("hidden", ZERO_ID, refused),
            ("none", ZERO_ID, refused),
            ("mine", ids["mine"], NONE),
        ]
        await users.allow("bob", codes.DELETE, codes.CLUSTER, codes.CLUSTER_NAME)
        assert [code for *_, code in await deleted("bob", ["one"], ("two",))] == [NONE, NONE]

    run(tmp_path, scenario)


CONFIGS = [(2, "t"), (4, "1"), (8, "1"), (16, "s"), (32, "g")]
REFUSED_CONFIGS = {
    2: (TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    32: (GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
}
REFUSED_BY_CLUSTER = (CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def test_configs(tmp_path: Path) -> None:
    """A topic's and a group's need rights to them, all others to the cluster."""

    async def scenario(users: Users) -> None:
        await users.create_topics("t")
        resources = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            for kind, name in CONFIGS
        ]
        asked = {"resources": resources, "include_synonyms": False, "include_documentation": False}

        async def answered(user: str) -> dict[int, tuple[int, str]]:
            results = (await users.ask(user, DESCRIBE_CONFIGS, asked))["results"]
            return {part["resource_type"]: (part["error_code"], part["error_message"]) for part in results}

        refused = {kind: REFUSED_CONFIGS.get(kind, REFUSED_BY_CLUSTER) for kind, _ in CONFIGS}
        assert await answered("alice") == refused
        await users.allow("alice", codes.DESCRIBE_CONFIGS, codes.TOPIC, "t")
        assert next(iter((await answered("alice")).items())) == (2, (NONE, ""))
        await users.allow("alice", codes.ALTER_CONFIGS, codes.CLUSTER, codes.CLUSTER_NAME)
        await users.allow("alice", codes.ALTER_CONFIGS, codes.GROUP, "g")
        assert await answered("alice") == {kind: (NONE, "") for kind, _ in CONFIGS}
        change = {"name": "max.connections", "config_operation": 0, "value": "50"}
        changed = [
            {"resource_type": kind, "resource_name": name, "configs": [change]} for kind, name in CONFIGS
        ]
        alter = {"resources": changed, "validate_only": True}
        responses = (await users.ask("bob", INCREMENTAL_ALTER_CONFIGS, alter))["responses"]
        found = {part["resource_type"]: (part["error_code"], part["error_message"]) for part in responses}
        assert found == {**refused, 8: (31, None)}  # its loggers, which Kafka's broker changes
        change["value"] = "wrong"  # of which they are told nothing
        responses = (await users.ask("bob", INCREMENTAL_ALTER_CONFIGS, alter))["responses"]
        assert {part["resource_type"]: part["error_code"] for part in responses}[
            4
        ] == CLUSTER_AUTHORIZATION_FAILED
        change["value"] = "50"
        responses = (await users.ask("alice", INCREMENTAL_ALTER_CONFIGS, alter))["responses"]
        assert {part["resource_type"]: part["error_code"] for part in responses}[4] == NONE

    run(tmp_path, scenario)


def test_quotas(tmp_path: Path) -> None:
    """Describing them takes DESCRIBE_CONFIGS on the cluster, altering ALTER_CONFIGS, as was recorded of Kafka."""

    async def scenario(users: Users) -> None:
        component = {"entity_type": "user", "match_type": 2, "match": None}
        describe = {"components": [component], "strict": False}
        refused = {
            "throttle_time_ms": 0, "error_code": CLUSTER_AUTHORIZATION_FAILED, "error_message": None, "entries": None,
        }  # fmt: skip
        assert await users.ask("alice", DESCRIBE_CLIENT_QUOTAS, describe) == refused
        entity = [{"entity_type": "user", "entity_name": "x"}]
        entries = [
            {"entity": entity, "ops": [{"key": key, "value": 1.0, "remove": False}]}
            for key in ("producer_byte_rate", "bogus")
        ]
        alter = {"entries": entries, "validate_only": False}
        code, text = REFUSED_BY_CLUSTER
        answer = await users.ask("alice", ALTER_CLIENT_QUOTAS, alter)
        assert answer["entries"] == [{"error_code": code, "error_message": text, "entity": entity}] * 2
        await users.allow("alice", codes.DESCRIBE_CONFIGS, codes.CLUSTER, codes.CLUSTER_NAME)
        answer = await users.ask("alice", DESCRIBE_CLIENT_QUOTAS, describe)
        assert (answer["error_code"], answer["entries"]) == (NONE, [])
        assert (await users.ask("alice", ALTER_CLIENT_QUOTAS, alter))["entries"][0]["error_code"] == code
        await users.allow("alice", codes.ALTER_CONFIGS, codes.CLUSTER, codes.CLUSTER_NAME)
        answer = await users.ask("alice", ALTER_CLIENT_QUOTAS, {**alter, "entries": entries[:1]})
        assert answer["entries"][0]["error_code"] == NONE

    run(tmp_path, scenario)


def test_init_producer_id(tmp_path: Path) -> None:
    """IDEMPOTENT_WRITE on the cluster or WRITE on any topic; a transactional id needs WRITE on it."""

    async def scenario(users: Users) -> None:
        async def tried(user: str, transactional_id: str | None = None) -> int:
            asked = {
                "transactional_id": transactional_id, "transaction_timeout_ms": 1000, "producer_id": -1,
                "producer_epoch": -1,
            }  # fmt: skip
            code: int = (await users.ask(user, INIT_PRODUCER_ID, asked, 4))["error_code"]
            return code

        assert await tried("alice") == CLUSTER_AUTHORIZATION_FAILED
        assert await tried("alice", "") == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        await users.allow("alice", codes.WRITE, codes.TOPIC, "anything")
        await users.allow("bob", codes.IDEMPOTENT_WRITE, codes.CLUSTER, codes.CLUSTER_NAME)
        await users.allow("bob", codes.WRITE, codes.TRANSACTIONAL_ID, "*")
        assert (await tried("alice"), await tried("bob"), await tried("admin")) == (NONE, NONE, NONE)
        assert await tried("bob", "") == INVALID_REQUEST

    run(tmp_path, scenario)


def test_groups(tmp_path: Path) -> None:
    """Finding a coordinator takes DESCRIBE on the group; committing READ on it, and on each topic."""

    async def scenario(users: Users) -> None:
        await users.create_topics("t", "hidden")
        keys = {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}
        position = {
            "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "",
        }  # fmt: skip
        commit = {
            "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": name, "partitions": [position]} for name in ("t", "hidden", "none")],
        }  # fmt: skip

        async def codes_of(user: str) -> tuple[int, int, list[int], Any]:
            old = await users.ask(user, FIND_COORDINATOR, keys, 3)
            (new,) = (await users.ask(user, FIND_COORDINATOR, keys, 4))["coordinators"]
            assert old["error_message"] == (
                "NONE" if not old["error_code"] else "Group authorization failed."
            )
            committed = (await users.ask(user, OFFSET_COMMIT, commit, 9))["topics"]
            asked = {"group_id": "g", "require_stable": False, "topics": [
                {"name": name, "partition_indexes": [0]} for name in ("t", "hidden", "none")]}  # fmt: skip
            fetched = await users.ask(user, OFFSET_FETCH, asked, 7)
            everything = await users.ask(user, OFFSET_FETCH, {**asked, "topics": None}, 7)
            return (
                old["error_code"],
                new["error_code"],
                [
                    topic["partitions"][0]["error_code"]
                    for topic in sorted(committed, key=lambda part: part["name"])
                ],
                (
                    fetched["error_code"],
                    {topic["name"]: topic["partitions"][0]["error_code"] for topic in fetched["topics"]},
                    everything["error_code"],
                    [topic["name"] for topic in everything["topics"]],
                ),
            )

        refused, of_topic = GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED
        nothing = (refused, {}, refused, [])
        assert await codes_of("alice") == (refused, refused, [refused] * 3, nothing)
        await users.allow("alice", codes.DESCRIBE, codes.GROUP, "g")
        found = {"t": of_topic, "hidden": of_topic, "none": of_topic}
        assert await codes_of("alice") == (NONE, NONE, [refused] * 3, (NONE, found, NONE, []))
        await users.allow("alice", codes.READ, codes.GROUP, "g")
        await users.allow("alice", codes.READ, codes.TOPIC, "t")
        assert (await codes_of("admin"))[2] == [NONE, UNKNOWN_TOPIC_OR_PARTITION, NONE]
        allowed = (NONE, {**found, "t": NONE}, NONE, ["t"])
        assert await codes_of("alice") == (NONE, NONE, [of_topic, of_topic, NONE], allowed)

    run(tmp_path, scenario)


def test_logs_leaders_and_directories(tmp_path: Path) -> None:
    """Topics by DELETE, DESCRIBE and READ, the rest by what is granted on the cluster; each as Kafka answers."""

    async def scenario(users: Users) -> None:
        await users.create_topics("t", "hidden")
        names = ("t", "hidden", "none")
        partition = {"partition_index": 0, "offset": 0}
        deletion = {"topics": [{"name": name, "partitions": [partition]} for name in names], "timeout_ms": 0}
        epoch = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        epochs = {"replica_id": -1, "topics": [{"topic": name, "partitions": [epoch]} for name in names]}
        producers = {"topics": [{"name": name, "partition_indexes": [0]} for name in names]}
        refused, missing = TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION

        async def of_topics(user: str, api_key: int, message: Message) -> list[int]:
            found = (await users.ask(user, api_key, message))["topics"]
            return [topic["partitions"][0]["error_code"] for topic in found]

        by_right = (
            (DELETE_RECORDS, deletion, codes.DELETE),
            (OFFSET_FOR_LEADER_EPOCH, epochs, codes.DESCRIBE),
            (DESCRIBE_PRODUCERS, producers, codes.READ),
        )
        for number, (api_key, message, operation) in enumerate(by_right):
            user = f"reader-{number}"
            assert await of_topics(user, api_key, message) == [refused] * 3
            await users.allow(user, operation, codes.TOPIC, "t")
            assert await of_topics(user, api_key, message) == [NONE, refused, refused]
            assert await of_topics("admin", api_key, message) == [NONE, NONE, missing]
        await users.allow("bob", codes.CLUSTER_ACTION, codes.CLUSTER, codes.CLUSTER_NAME)
        assert await of_topics("bob", OFFSET_FOR_LEADER_EPOCH, epochs) == [NONE, NONE, missing]

        failed = CLUSTER_AUTHORIZATION_FAILED
        elections = {"election_type": 0, "topic_partitions": None, "timeout_ms": 1000}
        some = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": None}]}]
        moves = {"timeout_ms": 1000, "allow_replication_factor_change": True, "topics": some}
        of_cluster = (
            (DESCRIBE_LOG_DIRS, {"topics": None}, codes.DESCRIBE),
            (LIST_CONFIG_RESOURCES, {"resource_types": []}, codes.DESCRIBE_CONFIGS),
            (ELECT_LEADERS, elections, codes.ALTER),
            (ALTER_PARTITION_REASSIGNMENTS, moves, codes.ALTER),
            (LIST_PARTITION_REASSIGNMENTS, {"timeout_ms": 0, "topics": None}, codes.DESCRIBE),
        )
        for number, (api_key, message, operation) in enumerate(of_cluster):
            user = f"user-{number}"
            answer = await users.ask(user, api_key, message)
            assert answer["error_code"] == failed
            listed = ("results", "config_resources", "replica_election_results", "topics")
            assert not any(answer.get(name) for name in listed)
            for topic in answer.get("responses", ()):
                assert topic["partitions"][0]["error_code"] == failed
            await users.allow(user, operation, codes.CLUSTER, codes.CLUSTER_NAME)
            assert (await users.ask(user, api_key, message))["error_code"] == NONE

        listing = {"timeout_ms": 0, "topics": [{"name": "t", "partition_indexes": [3, 3]}]}
        (topic,) = (await users.ask("nobody", LIST_PARTITION_REASSIGNMENTS, listing))["topics"]
        none = {"partition_index": 3, "replicas": [], "adding_replicas": [], "removing_replicas": []}
        assert topic == {"name": "t", "partitions": [none, none]}

        config = [{"name": "retention.ms", "value": "5"}]
        resource = {"resource_type": 2, "resource_name": "t", "configs": config}
        change = {"resources": [resource], "validate_only": False}
        (answer,) = (await users.ask("alice", ALTER_CONFIGS, change))["responses"]
        assert (answer["error_code"], answer["error_message"]) == (refused, "Topic authorization failed.")
        await users.allow("alice", codes.ALTER_CONFIGS, codes.TOPIC, "t")
        (answer,) = (await users.ask("alice", ALTER_CONFIGS, change))["responses"]
        assert answer["error_code"] == NONE

    run(tmp_path, scenario)
