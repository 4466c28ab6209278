"""The client's end of TLS, as a gateway uses it, with the server's end, both without sockets."""

import ssl

import pytest
from tests.server.connection.tls_client import client_context, server_context

from tidegate.server.connection.tls_session import TlsBuffers, TlsError, TlsSession

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def ends(host: str = "localhost", **options: object) -> tuple[TlsSession, TlsSession]:
    """Return client and server; all sessions of a node share buffers."""
    buffers = TlsBuffers()
    client = TlsSession(client_context(**options), buffers, server_name=host)
    return client, TlsSession(server_context(), buffers)


def shake_hands(client: TlsSession, server: TlsSession) -> None:
    """Carry what each end has to send to the other one until both are ready."""
    assert not client.handshake()
    for _ in range(4):
        for sender, receiver in ((client, server), (server, client)):
            data = sender.take_out()
            if data:
                receiver.receive(memoryview(data))
            if receiver.has_more and not receiver.established:
                receiver.handshake()
    assert client.established
    assert server.established


@pytest.mark.parametrize("version", VERSIONS)
def test_both_ends_exchange_data(version: ssl.TLSVersion) -> None:
    """Data passes in both directions after the handshake, and the client knows the server's certificate."""
    client, server = ends(maximum_version=version)
    shake_hands(client, server)
    assert client.certificate is not None
    target = memoryview(bytearray(100_000))
    for sender, receiver in ((client, server), (server, client)):
        data = bytes(range(256)) * 200
        receiver.receive(memoryview(sender.encrypt(data)))
        found = b""
        while receiver.has_more:
            found += target[: receiver.read_into(target)]
        assert found == data


@pytest.mark.parametrize(
    ("host", "authority", "reason"),
    [
        (
            "kafka1",
            True,
            "server's certificate rejected: Hostname mismatch, certificate is not valid for 'kafka1'.",
        ),
        ("localhost", False, "server's certificate rejected: self-signed certificate in certificate chain"),
    ],
)
def test_certificate_of_another_server_is_rejected(host: str, authority: bool, reason: str) -> None:
    """The client ends the handshake where the name or the authority is another one."""
    buffers = TlsBuffers()
    context = client_context() if authority else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = TlsSession(context, buffers, server_name=host)
    with pytest.raises(TlsError) as raised:
        shake_hands(client, TlsSession(server_context(), buffers))
    assert raised.value.reason == reason


@pytest.mark.parametrize("first", [b"HTTP/1.1 400 Bad Request\r\n", b"\0\0\0\x0a" + bytes(10), b"\xff" * 100])
def test_answer_without_tls_is_an_error(first: bytes) -> None:
    """A server that does not use TLS is no reason to blame the client."""
    client, _ = ends()
    client.handshake()
    client.take_out()
    client.receive(memoryview(first))
    with pytest.raises(TlsError) as raised:
        client.handshake()
    assert "client" not in raised.value.reason
