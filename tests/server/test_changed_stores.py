"""Key stores and trust stores that change while a node runs, by a real admin client (KIP-226)."""

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from tests.server.test_dynamic_settings import alter as alter_resource
from tests.server.whole_node import WholeNode, whole_node
from tests.unit.tls.certificates import DER, Identity, identity

from tidegate.server.settings.setting_changes import SET

AUTHORITY = identity("authority", authority=True)
FIRST = identity("broker", AUTHORITY)
SAME = identity("broker", AUTHORITY, hosts=("localhost", "other"))
PREFIX = "listener.name.tls."
LOCATION = f"{PREFIX}ssl.keystore.location"
PASSWORD = f"{PREFIX}ssl.keystore.password"
SECRET = "hunter2-hunter2"


def store(path: Path, of: Identity, password: str = SECRET) -> str:
    """Write a key store as keytool would; return its path."""
    encrypted = pkcs12.serialize_key_and_certificates(
        b"broker",
        of.key,
        of.certificate,
        [AUTHORITY.certificate],
        BestAvailableEncryption(password.encode()),  # type: ignore[arg-type]
    )
    path.write_bytes(encrypted)
    return str(path)


async def alter(node: WholeNode, changes: dict[str, str | None]) -> str | None:
    """Change settings of the node by confluent-kafka's admin client; return its refusal, None where there is none."""
    operations = {True: AlterConfigOpType.DELETE, False: AlterConfigOpType.SET}
    entries = [
        ConfigEntry(key, value or "", incremental_operation=operations[value is None])
        for key, value in changes.items()
    ]
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=entries)

    def ask() -> str | None:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.client.port}"})
        try:
            admin.incremental_alter_configs([resource])[resource].result(timeout=20)
        except KafkaException as error:
            refusal = error.args[0]
            return f"{refusal.name()} {refusal.str()}"
        return None

    return await asyncio.to_thread(ask)


async def described(node: WholeNode) -> dict[str, Any]:
    """Return the node's settings as an admin client sees them."""
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")

    def ask() -> dict[str, Any]:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.client.port}"})
        found: dict[str, Any] = admin.describe_configs([resource])[resource].result(timeout=20)
        return found

    return await asyncio.to_thread(ask)


async def connect(node: WholeNode) -> tuple[bytes | None, asyncio.StreamWriter]:
    """Connect to the encrypted listener; return the broker's certificate and the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", node.node.listeners["TLS"].port, ssl=context)
    certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return certificate, writer


async def shown(node: WholeNode) -> bytes | None:
    """Return the certificate that a new connection is shown."""
    certificate, writer = await connect(node)
    writer.close()
    return certificate


def der(of: Identity) -> bytes:
    """Return its certificate."""
    return of.certificate.public_bytes(DER)


def run(directory: Path, scenario: Callable[[WholeNode], Awaitable[None]], **more: str) -> None:
    """Run a scenario against a node with a plain listener and an encrypted one."""
    path = directory / "first.p12"
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,TLS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL",
        LOCATION: str(path) if path.exists() else store(path, FIRST),
        PASSWORD: SECRET,
        **more,
    }

    async def main() -> None:
        async with whole_node(directory / "data", **settings) as node:
            await scenario(node)

    asyncio.run(main())


def test_a_new_store_is_for_new_handshakes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Connections that are there stay; the change is kept over a restart, and no password is described or logged."""
    caplog.set_level(logging.INFO, "tidegate.audit")

    async def change(node: WholeNode) -> None:
        certificate, writer = await connect(node)
        assert certificate == der(FIRST)
        second = store(tmp_path / "second.p12", SAME, "another-password")
        assert await alter(node, {LOCATION: second, PASSWORD: "another-password"}) is None
        assert await shown(node) == der(SAME)
        assert not writer.is_closing()
        settings = await described(node)
        assert settings[LOCATION].value == second
        assert (settings[PASSWORD].value, settings[PASSWORD].is_sensitive) == (None, True)
        assert "another-password" not in str({key: vars(entry) for key, entry in settings.items()})
        writer.close()
        assert f"altered setting of node 1: {LOCATION} none -> '{second}'" in caplog.text
        assert f"altered setting of node 1: {PASSWORD} none -> [hidden]" in caplog.text
        assert "another-password" not in caplog.text

    async def again(node: WholeNode) -> None:
        assert await shown(node) == der(SAME)
        assert await alter(node, {LOCATION: None, PASSWORD: None}) is not None, "the hosts would be fewer"

    run(tmp_path, change)
    run(tmp_path, again)


def test_the_same_path_is_read_again(tmp_path: Path) -> None:
    """Altering the location to what it is reads the file, if that changed; any other change of the node does, too."""

    async def scenario(node: WholeNode) -> None:
        path = tmp_path / "first.p12"
        before = node.node.tls.of("TLS")
        assert await alter(node, {LOCATION: str(path)}) is None
        os.utime(path, ns=(1, 1))
        assert await alter(node, {LOCATION: str(path)}) is None
        assert await shown(node) == der(FIRST)
        assert node.node.tls.of("TLS") is not before
        store(path, SAME)
        assert await shown(node) == der(FIRST)
        assert await alter(node, {LOCATION: str(path)}) is None
        assert await shown(node) == der(SAME)
        third = identity("broker", AUTHORITY, hosts=("localhost", "other", "third"))
        store(path, third)
        assert await alter(node, {"max.connections": "1000"}) is None
        assert await shown(node) == der(third)

    run(tmp_path, scenario)


def test_what_kafka_refuses_of_a_new_store(tmp_path: Path) -> None:
    """Another name, fewer hosts, a wrong file or password, no listener, all nodes: with Kafka's code and frame."""
    other = store(tmp_path / "other.p12", identity("other", AUTHORITY))
    fewer = store(tmp_path / "fewer.p12", identity("broker", AUTHORITY, hosts=("elsewhere",)))
    trust = tmp_path / "trust.pem"
    trust.write_text(AUTHORITY.certificate_pem)

    async def scenario(node: WholeNode) -> None:
        for changes, message in (
            (
                {LOCATION: other},
                "Keystore DistinguishedName does not match: existing='CN=broker', new='CN=other'",
            ),
            ({LOCATION: fewer}, "Keystore SubjectAltNames do not match: existing=['DNSName:localhost']"),
            ({LOCATION: str(tmp_path / "none.p12")}, "which cannot be read: No such file"),
            ({PASSWORD: "another-password"}, "cannot be opened with ssl.keystore.password"),
            (
                {f"{PREFIX}ssl.truststore.type": "PEM", f"{PREFIX}ssl.truststore.location": str(trust)},
                "Cannot add SSL truststore to an existing listener",
            ),
        ):
            refusal = await alter(node, changes)
            assert refusal is not None
            assert message in refusal
            assert refusal.startswith(
                "INVALID_REQUEST Invalid value org.apache.kafka.common.config.ConfigException: Validation of"
            )
            assert "password-" not in refusal
            assert SECRET not in refusal
        for name, message in (
            ("ssl.keystore.location", "only per-listener using the listener prefix: [ssl.keystore.location]"),
            ("listener.name.plaintext.ssl.keystore.location", "This server has no such settings"),
            (f"{PREFIX}ssl.client.auth", "This server reads these settings only when it starts"),
        ):
            refusal = await alter(node, {name: other})
            assert refusal is not None
            assert message in refusal
        of_all = await alter_resource(node.client, (LOCATION, SET, other), name="")
        assert of_all == (42, f"Cannot update these configs at default cluster level: [{LOCATION}]")
        assert await shown(node) == der(FIRST)

    run(tmp_path, scenario)


@pytest.mark.parametrize("name", ["dn", "san"])
def test_names_may_change_where_that_is_allowed(tmp_path: Path, name: str) -> None:
    """`ssl.allow.dn.changes` and `ssl.allow.san.changes`."""
    new = (
        identity("other", AUTHORITY) if name == "dn" else identity("broker", AUTHORITY, hosts=("elsewhere",))
    )

    async def scenario(node: WholeNode) -> None:
        assert await alter(node, {LOCATION: store(tmp_path / "new.p12", new)}) is None
        assert await shown(node) == der(new)

    run(tmp_path, scenario, **{f"ssl.allow.{name}.changes": "true"})
