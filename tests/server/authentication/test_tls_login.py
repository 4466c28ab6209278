"""Handshakes at a whole node: who the client is, what is counted, the deadline, mutes, and what the log says."""

import logging
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.batches import build_batch
from tests.server.authentication.login_client import LoginClient
from tests.server.authentication.tls_login_client import TLS_SETTINGS, TlsLoginClient
from tests.server.connection.tls_client import AUTHORITY, client_context
from tests.server.memory_network import MemoryCluster, MemoryNode, MemoryTransport
from tests.unit.tls.certificates import identity

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, METADATA, PRODUCE
from tidegate.wire import encode_request

CAROL = client_context(identity("carol", AUTHORITY))
MALLORY = client_context(identity("mallory"))
ANYBODY = client_context()
BATCH = build_batch([(b"k", bytes(9000))], timestamp_ms=0)


@pytest.fixture
def node_with(tmp_path: Path) -> Iterator[Callable[..., MemoryNode]]:
    """Return a function that makes a node with encrypted listeners, in memory."""
    made: list[MemoryNode] = []

    def make(**more: str) -> MemoryNode:
        texts = TLS_SETTINGS | {name.replace("_", "."): text for name, text in more.items()}
        made.append(MemoryNode(tmp_path / f"data-{len(made)}", texts=texts))
        return made[-1]

    yield make
    for node in made:
        node.close()


def users(node: MemoryNode) -> list[str]:
    """Return the users of all connections."""
    assert node.node._front is not None
    return [channel.connection.user for channel in node.node._front.channels]


def counts(node: MemoryNode, listener: str) -> tuple[int, int, int]:
    """Return logins, logins without another, failed logins."""
    assert node.node._front is not None
    of = node.node._front.requests.listeners[listener]
    return of.logins, of.logins_without_relogin, of.failed_logins


def test_who_a_client_is(node_with: Callable[..., MemoryNode]) -> None:
    """Nobody, whom its certificate names, or who has logged in, whatever certificate it has."""
    node = node_with()
    for listener, context in (("SSL", ANYBODY), ("SSL", CAROL), ("MTLS", CAROL), ("SASL_SSL", CAROL)):
        client = TlsLoginClient(node, listener, context)
        assert client.is_connected
        if listener == "SASL_SSL":
            client.log_in("alice", "alice-secret")
        assert client.versions() is not None
    assert users(node) == ["ANONYMOUS", "ANONYMOUS", "CN=carol", "alice"]


def test_names_are_mapped(node_with: Callable[..., MemoryNode]) -> None:
    """By the rules that the settings give; whom none of them is for is nobody."""
    node = node_with(**{"ssl.principal.mapping.rules": "RULE:^CN=(c.*)$/$1/U"})
    assert TlsLoginClient(node, "MTLS", CAROL).is_connected
    assert users(node) == ["CAROL"]
    assert not TlsLoginClient(node, "MTLS", client_context(identity("dave", AUTHORITY))).is_connected
    assert users(node) == ["CAROL"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_who_resumes_a_session_is_the_same(
    node_with: Callable[..., MemoryNode], version: ssl.TLSVersion
) -> None:
    """A shorter handshake without a certificate; another listener does not know the session."""
    node = node_with()
    context = client_context(identity("carol", AUTHORITY), maximum_version=version)
    first = TlsLoginClient(node, "MTLS", context)
    assert first.versions() is not None
    for listener, resumed, user in (("MTLS", True, "CN=carol"), ("SSL", False, "ANONYMOUS")):
        again = TlsLoginClient(node, listener, context, session=first.end.tls.tls.session)
        assert again.versions() is not None
        assert again.end.tls.tls.session_reused is resumed
        assert users(node)[-1] == user


def test_logins_are_counted(node_with: Callable[..., MemoryNode]) -> None:
    """As Kafka counts them: a handshake is one at SSL, a half of one at SASL_SSL, and none on a plain listener."""
    node = node_with()
    assert TlsLoginClient(node, "SSL").versions() is not None
    assert counts(node, "SSL") == (1, 1, 0)
    client = TlsLoginClient(node, "SASL_SSL")
    assert counts(node, "SASL_SSL") == (0, 0, 0)
    client.log_in("alice", "alice-secret")
    assert counts(node, "SASL_SSL")[0] == 1
    assert LoginClient(node, "PLAINTEXT").versions() is not None
    assert counts(node, "PLAINTEXT") == (0, 0, 0)
    for context in (ANYBODY, MALLORY):
        with pytest.raises(ssl.SSLError):
            TlsLoginClient(node, "MTLS", context)
    assert counts(node, "MTLS") == (0, 0, 2)


def test_a_failed_handshake_closes_at_once_and_says_why(
    node_with: Callable[..., MemoryNode], caplog: pytest.LogCaptureFixture
) -> None:
    """One line with address and reason; its like are one kind."""
    node = node_with()
    plain = LoginClient(node, "SSL")
    plain.versions()
    assert plain.closed
    (record,) = caplog.records
    assert (
        "from 192.0.2.1 (listener SSL): TLS handshake failed: looks like a Kafka client without TLS"
        in caplog.text
    )
    assert record.repeats.endswith("192.0.2.1")  # type: ignore[attr-defined]
    caplog.clear()
    with pytest.raises(ssl.SSLError):
        TlsLoginClient(node, "MTLS", MALLORY)
    assert "client's certificate rejected: self-signed certificate" in caplog.text
    assert users(node) == []


def test_who_leaves_during_the_handshake_is_no_line(
    node_with: Callable[..., MemoryNode], caplog: pytest.LogCaptureFixture
) -> None:
    """Probes of a port come every few seconds."""
    node = node_with()
    for data in (b"", b"\x16\x03\x01"):
        transport = node.connect("SSL")
        transport.client_send(data)
        transport.client_end()
        node.loop.turn()
        assert transport.closed
    assert not caplog.records
    assert counts(node, "SSL") == (0, 0, 0)


@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL"])
def test_a_handshake_has_a_deadline(
    node_with: Callable[..., MemoryNode], caplog: pytest.LogCaptureFixture, listener: str
) -> None:
    """Login and handshake together have 30 s; who is through on SSL may be silent."""
    node = node_with()
    silent = node.connect(listener)
    through = TlsLoginClient(node, listener)
    assert node.node._logins is not None
    assert len(node.node._logins._begun) == (1 if listener == "SSL" else 2)
    node.loop.advance(29_000)
    assert not silent.closed
    node.loop.advance(3_000)
    assert silent.closed
    assert through.closed is (listener == "SASL_SSL")
    assert "login not completed within 30 s" in caplog.text
    assert len(node.node._logins._begun) == 0


def test_frames_are_short_until_the_login(node_with: Callable[..., MemoryNode]) -> None:
    """On SASL_SSL as elsewhere; on SSL whoever is through may send what others may."""
    node = node_with()
    long = struct.pack(">i", 600_000) + bytes(600_000)
    for listener, closed in (("SASL_SSL", True), ("SSL", False)):
        client = TlsLoginClient(node, listener)
        client.transport.client_send(long[:300_000])
        node.loop.turn()
        assert client.closed is closed


def produce(node: MemoryNode, client: LoginClient) -> bytes:
    """Return a Produce of 9 KB."""
    partition = {"index": 0, "records": BATCH}
    message: dict[str, Any] = {
        "transactional_id": None, "acks": 1, "timeout_ms": 1000,
        "topic_data": [{"name": "t", "partition_data": [partition]}],
    }  # fmt: skip
    return encode_request(PRODUCE, 9, 1, client.client_id, message)


def test_a_user_by_certificate_is_throttled(node_with: Callable[..., MemoryNode]) -> None:
    """By the quota of the name in it; what is decrypted already waits for the end of the throttle."""
    node = node_with()
    parts = [{"entity_type": "user", "entity_name": "CN=carol"}]
    ops = [{"key": "producer_byte_rate", "value": 100.0, "remove": False}]
    answer = LoginClient(node, "PLAINTEXT").ask(
        ALTER_CLIENT_QUOTAS, 1, {"entries": [{"entity": parts, "ops": ops}], "validate_only": False}
    )
    assert answer is not None
    client = TlsLoginClient(node, "MTLS", CAROL)
    one = produce(node, client)
    client.transport.client_send(one * 3)  # in one record or two: the later ones are decrypted with the first
    node.loop.turn()
    first = client.answer(PRODUCE, 9)
    assert first is not None
    assert first["throttle_time_ms"] > 0
    assert client.answer(PRODUCE, 9) is None
    node.loop.advance(first["throttle_time_ms"] - 1)
    assert client.answer(PRODUCE, 9) is None
    node.loop.advance(1)
    second = client.answer(PRODUCE, 9)
    assert second is not None
    assert second["throttle_time_ms"] > 0
    free = TlsLoginClient(node, "SSL", ANYBODY)
    free.transport.client_send(produce(node, free))
    node.loop.turn()
    other = free.answer(PRODUCE, 9)
    assert other is not None
    assert other["throttle_time_ms"] == 0


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_a_muted_client_that_leaves_is_noticed(
    node_with: Callable[..., MemoryNode], says_goodbye: bool
) -> None:
    """At once, though its close_notify waits unread."""
    node = node_with()
    parts = [{"entity_type": "client-id", "entity_name": "c1"}]
    ops = [{"key": "producer_byte_rate", "value": 10.0, "remove": False}]
    LoginClient(node, "PLAINTEXT").ask(
        ALTER_CLIENT_QUOTAS, 1, {"entries": [{"entity": parts, "ops": ops}], "validate_only": False}
    )
    client = TlsLoginClient(node, "SSL")
    client.transport.client_send(produce(node, client))
    node.loop.turn()
    answer = client.answer(PRODUCE, 9)
    assert answer is not None
    assert answer["throttle_time_ms"] > 0
    if says_goodbye:
        client.end.below.client_send(client.end.tls.say_goodbye())
    client.end.below.client_end()
    node.loop.turn()
    assert client.closed


def test_a_client_that_only_reads_gets_its_answers(node_with: Callable[..., MemoryNode]) -> None:
    """What it sent before its close_notify is served, and the node says goodbye then."""
    node = node_with()
    client = TlsLoginClient(node, "SSL")
    one = produce(node, client)
    client.transport.client_send(one * 5)
    client.end.below.client_send(client.end.tls.say_goodbye())
    client.end.below.client_end()
    node.loop.turn()
    assert [client.answer(PRODUCE, 9) is not None for _ in range(6)] == [True] * 5 + [False]
    assert client.end.tls.ended
    assert client.closed


def test_no_key_is_logged(node_with: Callable[..., MemoryNode], caplog: pytest.LogCaptureFixture) -> None:
    """Neither the broker's nor what a client sent."""
    caplog.set_level(logging.DEBUG)
    node = node_with()
    for data in (b"\0\0\0\x20secret-in-a-plain-frame", b"\x16\x03\x01\0\x20secret-in-a-handshake-message!!"):
        transport = node.connect("SSL")
        transport.client_send(data)
        transport.client_end()
        node.loop.turn()
        assert transport.closed
    key = TLS_SETTINGS["ssl.keystore.key"].splitlines()[1]
    assert "secret" not in caplog.text
    assert key not in caplog.text
    assert key not in repr(node.node.config)


class OfCluster:
    """One node of several, as a client meets it."""

    def __init__(self, cluster: MemoryCluster, at: int) -> None:
        self.loop = cluster.loop
        self._cluster, self._at = cluster, at

    def connect(self, listener: str) -> MemoryTransport:
        """Return a connection to this node."""
        return self._cluster.connect(listener, at=self._at)


def test_several_nodes_are_told_by_listener(tmp_path: Path) -> None:
    """Whoever comes in encrypted is told the encrypted addresses of all nodes; each shakes hands."""
    cluster = MemoryCluster(tmp_path / "data", 3, texts=TLS_SETTINGS)
    try:
        told = []
        for at in range(3):
            for kind, listener in ((TlsLoginClient, "SSL"), (LoginClient, "PLAINTEXT")):
                client = kind(OfCluster(cluster, at), listener)  # type: ignore[arg-type]
                metadata = client.ask(METADATA, 1, {"topics": []})
                assert metadata is not None
                told.append([broker["port"] for broker in metadata["brokers"]])
        assert told == [told[0], told[1]] * 3
        assert len({*told[0], *told[1]}) == 6
    finally:
        cluster.close()
