"""The audit log of `tidegate serve`: changes by unmodified clients, refused ones, and no secret in any line."""

import json
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.e2e.broker import Broker
from tests.vectors.wire_brokers import ask

from tidegate.api_keys import ALTER_CLIENT_QUOTAS

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETTINGS = {
    "listeners": "CLIENTS://127.0.0.1:0,OPEN://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,OPEN:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": (
        f'{PLAIN} required user_admin="admin-secret" user_bob="bob-secret";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
SECRETS = ("admin-secret", "bob-secret", "new-secret", "the-salt")


@pytest.fixture(params=["text", "json"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Return a broker with logins and ACLs, for each format of the log."""
    own = Broker(tmp_path, SETTINGS, options=["--log-format", request.param]).start()
    yield own
    own.close()


def admin_of(broker: Broker, user: str) -> AdminClient:
    """Return an admin client of a user."""
    return AdminClient(
        {
            "bootstrap.servers": broker.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": user, "sasl.password": f"{user}-secret",
        }
    )  # fmt: skip


def set_quota(broker: Broker, user: str, value: float | None) -> int:
    """Alter a quota as a user; return the error code."""
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": "loader"}],
        "ops": [{"key": "producer_byte_rate", "value": value or 0.0, "remove": value is None}],
    }
    message = {"entries": [entry], "validate_only": False}
    login = (user, f"{user}-secret")
    answer = ask(("127.0.0.1", broker.port), ALTER_CLIENT_QUOTAS, 1, message, login=login)
    error_code: int = answer["entries"][0]["error_code"]
    return error_code


def results(futures: dict[Any, Any]) -> None:
    """Wait for all results."""
    for future in futures.values():
        future.result(timeout=10)


def alter_config(admin: AdminClient, kind: ConfigResource.Type, name: str, key: str, value: str) -> None:
    """Set one setting of a topic or of a broker."""
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    results(admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]))


def change_everything(broker: Broker) -> None:
    """Change a quota, a topic and its settings, a setting of the broker, an ACL and a SCRAM credential."""
    admin = admin_of(broker, "admin")
    for value in (50_000.0, 1_000_000.0, None):
        assert set_quota(broker, "admin", value) == 0
    results(admin.create_topics([NewTopic("orders", 2, 1, config={"retention.ms": "1000"})]))
    results(admin.create_partitions([NewPartitions("orders", 3)]))
    alter_config(admin, ConfigResource.Type.TOPIC, "orders", "retention.ms", "2000")
    results(admin.delete_topics(["orders"]))
    alter_config(admin, ConfigResource.Type.BROKER, "1", "max.connections", "500")
    principal = ("User:bob", "*", AclOperation.READ, AclPermissionType.ALLOW)
    pattern = (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL)
    results(admin.create_acls([AclBinding(*pattern, *principal)]))
    results(admin.delete_acls([AclBindingFilter(*pattern, *principal)]))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    results(
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("sam", info, b"new-secret", b"the-salt")]
        )
    )
    deletion = UserScramCredentialDeletion("sam", ScramMechanism.SCRAM_SHA_256)
    results(admin.alter_user_scram_credentials([deletion]))


ADMIN = "'User:admin' from 127.0.0.1 (listener CLIENTS)"
BOB = "'User:bob' from 127.0.0.1 (listener CLIENTS) is not authorized to"
ACL = "ACL ALLOW 'User:bob' READ from host '*' on TOPIC LITERAL 't'"
EXPECTED = [
    f"{ADMIN} altered quota of client-id='loader': producer_byte_rate none -> 50000.0",
    f"{ADMIN} altered quota of client-id='loader': producer_byte_rate 50000.0 -> 1000000.0",
    f"{ADMIN} altered quota of client-id='loader': producer_byte_rate 1000000.0 -> none",
    f"{ADMIN} created topic 'orders': partitions none -> 2",
    f"{ADMIN} created topic setting of 'orders': retention.ms none -> '1000'",
    f"{ADMIN} extended topic 'orders': partitions 2 -> 3",
    f"{ADMIN} altered topic setting of 'orders': retention.ms '1000' -> '2000'",
    f"{ADMIN} deleted topic 'orders': partitions 3 -> none",
    f"{ADMIN} altered setting of node 1: max.connections none -> '500'",
    f"{ADMIN} created {ACL}",
    f"{ADMIN} deleted {ACL}",
    f"{ADMIN} altered SCRAM credential of 'sam': SCRAM-SHA-256 none -> '4096 iterations, password [hidden]'",
    f"{ADMIN} deleted SCRAM credential of 'sam': SCRAM-SHA-256 '4096 iterations' -> none",
]
REFUSED = [
    f"{BOB} alter quota",
    f"{BOB} create topic 'a' (and 1 more in this request)",
    f"{BOB} alter setting of node 1",
    f"{BOB} alter SCRAM credential",
]


def messages(broker: Broker) -> list[str]:
    """Return the audit lines without time and level; each line of a JSON log is one object."""
    lines = broker.log.splitlines()
    if "json" in broker.options:
        found = [json.loads(line) for line in lines]
        return [line["message"] for line in found if line["logger"] == "tidegate.audit"]
    return [match[1] for line in lines if (match := re.match(r"\S+ \S+ (?:INFO|WARNING) ('User:.*)", line))]


def test_changes_are_logged_and_refused_ones_too(broker: Broker) -> None:
    """Each line has the client and both values; a change that failed has none, and no secret is in the log."""
    change_everything(broker)
    bob = admin_of(broker, "bob")
    assert set_quota(broker, "bob", 1.0) == 31
    for topic in bob.create_topics([NewTopic("a", 1, 1), NewTopic("b", 1, 1)]).values():
        with pytest.raises(KafkaException):
            topic.result(timeout=10)
    with pytest.raises(KafkaException):
        alter_config(bob, ConfigResource.Type.BROKER, "1", "max.connections", "1")
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    refused = bob.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("x", info, b"new-secret", b"the-salt")]
    )
    with pytest.raises(KafkaException):
        refused["x"].result(timeout=10)
    admin = admin_of(broker, "admin")
    with pytest.raises(KafkaException):
        alter_config(admin, ConfigResource.Type.BROKER, "1", "max.connections", "-5")
    assert messages(broker) == [*EXPECTED, *REFUSED]
    assert [secret for secret in SECRETS if secret in broker.log] == []


@pytest.mark.parametrize("broker", ["json"], indirect=True)
def test_fields_of_a_json_line(broker: Broker) -> None:
    """A program finds the values without parsing the message."""
    assert set_quota(broker, "admin", 2_000_000.0) == 0
    line = json.loads(broker.log.splitlines()[-1])
    del line["ts"], line["message"]
    assert line == {
        "level": "INFO", "logger": "tidegate.audit", "outcome": "changed", "principal": "User:admin",
        "client_host": "127.0.0.1", "listener": "CLIENTS", "action": "alter", "resource": "quota",
        "name": "client-id='loader'", "key": "producer_byte_rate", "old": None, "new": 2_000_000.0,
    }  # fmt: skip


@pytest.mark.parametrize("broker", ["text"], indirect=True)
def test_a_low_quota_is_warned_of(broker: Broker) -> None:
    """The warning names the quota, the consequence, and the least value."""
    assert set_quota(broker, "admin", 1000.0) == 0
    assert (
        "producer_byte_rate 1000.0 of client-id='loader' is low: one batch of message.max.bytes (1048588) can "
        "throttle the client for 1039 s, longer than clients wait (30 s); hint: set at least 26215"
    ) in broker.log


@pytest.mark.parametrize("broker", ["text"], indirect=True)
def test_clients_with_another_protocol_are_named(broker: Broker) -> None:
    """A login at a listener without SASL, and TLS at one without TLS, each get one line with a hint."""
    open_port = int(re.findall(r"127\.0\.0\.1:(\d+) \(OPEN\)", broker.log)[0])
    client = AdminClient(
        {
            "bootstrap.servers": f"127.0.0.1:{open_port}", "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "new-secret",
        }
    )  # fmt: skip
    broker.wait_log(
        re.compile(
            r"refused SASL handshake \('PLAIN'\) of connection \d+ from 127\.0\.0\.1: listener OPEN does not use SASL"
        )
    )
    del client
    context = ssl.create_default_context()
    address = ("127.0.0.1", open_port)
    with (
        socket.create_connection(address, timeout=10) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(sock, server_hostname="localhost")
    broker.wait_log(
        re.compile(r"looks like a TLS handshake, but the listener does not use TLS; hint: change")
    )
