"""What a login takes is network time of the connection's first request (B§4.2)."""

import asyncio
import struct
from pathlib import Path

import pytest
from tests.server.authentication.tls_login_client import TLS_SETTINGS
from tests.server.connection.tls_client import client_context
from tests.server.nodes import MemoryStore, NodeClient, running_node, spool_events

from tidegate.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidegate.wire import encode_request

SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
    ),
}


async def log_in(client: NodeClient, token: bytes) -> None:
    """Log in by PLAIN."""
    for api_key, version, message in (
        (SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}),
        (SASL_AUTHENTICATE, 2, {"auth_bytes": token}),
    ):
        client.writer.write(encode_request(api_key, version, 1, "c1", message))
        (size,) = struct.unpack(">i", await client.reader.readexactly(4))
        await client.reader.readexactly(size)


def test_a_login_is_paid_with_the_first_request(tmp_path: Path) -> None:
    """The time is the connection's until then, and is charged to the user; a failed login is nobody's."""

    async def main() -> None:
        async with running_node(tmp_path, MemoryStore(), SETTINGS) as node:
            await log_in(await node.connect(), b"\0alice\0secret")
            (channel,) = node.node._front.channels
            spent_ns = channel.network_ns
            assert spent_ns > 20_000
            await node.clients[0].metadata()
            assert channel.network_ns < spent_ns
            await log_in(await node.connect(), b"\0alice\0guess")
            rows = [event for event in spool_events(node) if event["kind"] == "request"]
            assert [row["user"] for row in rows] == ["alice"]
            assert rows[0]["network_ns"] >= spent_ns

    asyncio.run(main())


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_a_handshake_is_paid_with_the_first_request(tmp_path: Path, protocol: str) -> None:
    """What it took is the connection's until then; decrypting and encrypting belong to the request."""
    protocols = {"listener.security.protocol.map": f"PLAINTEXT:{protocol}"}
    key = {name: text for name, text in TLS_SETTINGS.items() if name.startswith("ssl.")}

    async def main() -> None:
        async with running_node(tmp_path, MemoryStore(), {**SETTINGS, **key, **protocols}) as node:
            client = await node.connect(context=client_context())
            (channel,) = node.node._front.channels
            handshake_ns = channel.network_ns
            assert handshake_ns > 100_000
            if protocol == "SASL_SSL":
                await log_in(client, b"\0alice\0secret")
                assert channel.network_ns > handshake_ns
            spent_ns = channel.network_ns
            await client.metadata()
            assert channel.network_ns < spent_ns
            rows = [event for event in spool_events(node) if event["kind"] == "request"]
            assert [row["user"] for row in rows] == ["alice" if protocol == "SASL_SSL" else "ANONYMOUS"]
            assert rows[0]["network_ns"] >= spent_ns

    asyncio.run(main())
