"""A client that logs in at a node in memory, and the settings of such a node."""

import base64
import functools
import hashlib
import hmac
import struct
from typing import Any

from tests.server.memory_network import MemoryNode, MemoryTransport
from tests.wire.messages import response_body_at

from tidegate.api_keys import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidegate.scram import SCRAM_MECHANISMS, ScramMechanism
from tidegate.server.audit import Audit
from tidegate.server.authentication.scram_credentials import Upsertion
from tidegate.server.requests.handler import Connection
from tidegate.wire import encode_request, read_response

__all__ = ["CLIENTS", "SETTINGS", "LoginClient", "add_user", "plain_token", "scram_final"]

CLIENTS = "SASL_PLAINTEXT"
SETTINGS = {
    "listeners": f"{CLIENTS}://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f"listener.name.{CLIENTS.lower()}.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="admin" password="a" user_alice="alice-secret" user_bob="bob-secret";'
    ),
}


AUDIT = Audit(Connection(1, CLIENTS, "127.0.0.1", "127.0.0.1", 9092))


def plain_token(user: str, password: str, authorization_id: str = "") -> bytes:
    """Return what a client of PLAIN sends."""
    return "\0".join((authorization_id, user, password)).encode()


def scram_final(mechanism: ScramMechanism, client_first: bytes, server_first: bytes, password: str) -> bytes:
    """Return a client's last token of SCRAM."""
    fields = dict(part.split(b"=", 1) for part in server_first.split(b","))
    salt, iterations = base64.b64decode(fields[b"s"]), int(fields[b"i"])
    salted = _salted(mechanism.hash_name, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    without_proof = b"c=biws,r=" + fields[b"r"]
    message = b",".join((client_first.split(b",", 2)[2], server_first, without_proof))
    signature = hmac.digest(stored_key, message, mechanism.hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return without_proof + b",p=" + base64.b64encode(proof)


def add_user(node: MemoryNode, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> None:
    """Have a SCRAM credential set, as AlterUserScramCredentials does."""
    kind = SCRAM_MECHANISMS[mechanism]
    salted = _salted(kind.hash_name, password, b"salt", 4096)
    upsertion = Upsertion(
        user=user, mechanism=kind.type, iterations=4096, salt=b"salt", salted_password=salted
    )
    assert node.credentials is not None
    for _ in node.credentials.alter_in_slices([], [upsertion], AUDIT):
        pass


@functools.cache
def _salted(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


class LoginClient:
    """A connection to a listener with logins; every call lets the node do all that it can at once."""

    def __init__(self, node: MemoryNode, listener: str = CLIENTS, client_id: str = "c1") -> None:
        self.node = node
        self.client_id = client_id
        self.transport: MemoryTransport = node.connect(listener)
        self._received = b""

    @property
    def closed(self) -> bool:
        """Whether the node has closed the connection."""
        return self.transport.closed

    def send_frame(self, frame: bytes) -> None:
        """Send any bytes as a frame."""
        self.transport.client_send(struct.pack(">i", len(frame)) + frame)
        self.node.loop.turn()

    def send(self, api_key: int, version: int, message: dict[str, Any]) -> None:
        """Send a request."""
        self.transport.client_send(encode_request(api_key, version, 1, self.client_id, message))
        self.node.loop.turn()

    def receive(self) -> bytes | None:
        """Return the next frame without its length, None where there is none."""
        self._received += self.transport.client_take()
        if len(self._received) < 4:
            return None
        (size,) = struct.unpack_from(">i", self._received)
        frame, self._received = self._received[4 : 4 + size], self._received[4 + size :]
        assert len(frame) == size
        return frame

    def ask(self, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a request, None where there is none."""
        self.send(api_key, version, message)
        return self.answer(api_key, version)

    def answer(self, api_key: int, version: int) -> dict[str, Any] | None:
        """Return the next answer, None where there is none."""
        frame = self.receive()
        return (
            None
            if frame is None
            else read_response(api_key, version, frame, response_body_at(api_key, version))
        )

    def versions(self) -> dict[str, Any] | None:
        """Ask for the versions of APIs."""
        message = {"client_software_name": "test", "client_software_version": "1"}
        return self.ask(API_VERSIONS, 3, message)

    def handshake(self, mechanism: str, version: int = 1) -> dict[str, Any] | None:
        """Choose a mechanism."""
        return self.ask(SASL_HANDSHAKE, version, {"mechanism": mechanism})

    def authenticate(self, token: bytes, version: int = 2) -> dict[str, Any] | None:
        """Send a token."""
        return self.ask(SASL_AUTHENTICATE, version, {"auth_bytes": token})

    def log_in(self, user: str, password: str, mechanism: str = "PLAIN") -> dict[str, Any] | None:
        """Choose a mechanism and send all its tokens; return the answer to the last."""
        self.handshake(mechanism)
        if mechanism == "PLAIN":
            return self.authenticate(plain_token(user, password))
        first = f"n,,n={user},r=client".encode()
        answer = self.authenticate(first)
        if answer is None or answer["error_code"]:
            return answer
        kind = SCRAM_MECHANISMS[mechanism]
        return self.authenticate(scram_final(kind, first, answer["auth_bytes"], password))
