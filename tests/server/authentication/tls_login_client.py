"""A client that logs in over TLS at a node in memory, and the settings of a node with encrypted listeners."""

import ssl

from tests.server.authentication.login_client import LoginClient
from tests.server.connection.tls_client import AUTHORITY, SERVER, TlsClient
from tests.server.memory_network import MemoryNode, MemoryTransport

__all__ = ["TLS_SETTINGS", "EncryptedEnd", "TlsLoginClient"]

TLS_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093,MTLS://127.0.0.1:9094,SASL_SSL://127.0.0.1:9095",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MTLS:SSL,SASL_SSL:SASL_SSL",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.key": SERVER.key_pem(),
    "ssl.keystore.certificate.chain": SERVER.certificate_pem,
    "ssl.truststore.type": "PEM",
    "ssl.truststore.certificates": AUTHORITY.certificate_pem,
    "listener.name.mtls.ssl.client.auth": "required",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'
    ),
}


class EncryptedEnd:
    """The client's end of a connection in memory: what goes over it is encrypted."""

    def __init__(
        self,
        node: MemoryNode,
        below: MemoryTransport,
        context: ssl.SSLContext | None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        self.below = below
        self.tls = TlsClient(context, session)
        self._node = node

    def shake_hands(self) -> bool:
        """Do the handshake; return whether both have come to its end."""
        self.tls.receive()
        for _ in range(6):
            self._exchange()
        return self.tls.established and not self.closed

    def _exchange(self) -> None:
        out = self.tls.out
        if out:
            self.below.client_send(out)
        self._node.loop.turn()
        self.tls.receive(self.below.client_take())

    @property
    def closed(self) -> bool:
        """Whether the node has closed the connection."""
        return self.below.closed

    def client_send(self, data: bytes) -> None:
        """Encrypt and send."""
        self.below.client_send(self.tls.encrypt(data))

    def client_take(self) -> bytes:
        """Return what has come, decrypted."""
        self.tls.receive(self.below.client_take())
        received, self.tls.received = self.tls.received, b""
        return received


class TlsLoginClient(LoginClient):
    """A client at an encrypted listener; it has shaken hands where that went well."""

    def __init__(
        self,
        node: MemoryNode,
        listener: str = "SSL",
        context: ssl.SSLContext | None = None,
        client_id: str = "c1",
        session: ssl.SSLSession | None = None,
    ) -> None:
        super().__init__(node, listener, client_id)
        self.end = EncryptedEnd(node, self.transport, context, session)
        self.transport = self.end  # type: ignore[assignment]
        self.is_connected = self.end.shake_hands()
