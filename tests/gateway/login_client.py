"""A client on a plain socket that logs in at a gateway, token by token, and says what it was answered."""

import base64
import json
import socket
import ssl
import time
from typing import Any

from tests.batches import build_batch
from tests.e2e.plain_client import receive_frame
from tests.wire.messages import response_body_at

from tidegate.api_keys import METADATA, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidegate.scram import SCRAM_MECHANISMS, ScramClient
from tidegate.wire import encode_request, read_response

__all__ = ["LoginClient", "unsecured_token"]

TIMEOUT_S = 20.0


class LoginClient:
    """One connection; `ask` sends one request and returns the decoded response. Raises `ConnectionError` at its end.

    server: the server name that the client sends in its TLS handshake.
    """

    def __init__(
        self,
        port: int,
        tls: ssl.SSLContext | None = None,
        client_id: str = "client",
        server: str | None = "localhost",
    ) -> None:
        self.client_id = client_id
        sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket = sock if tls is None else tls.wrap_socket(sock, server_hostname=server)

    def __enter__(self) -> "LoginClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its response."""
        self.socket.sendall(encode_request(api_key, version, 7, self.client_id, message))
        frame = receive_frame(self.socket)
        answer: dict[str, Any] = read_response(api_key, version, frame, response_body_at(api_key, version))
        return answer

    def handshake(self, mechanism: str, version: int = 1) -> dict[str, Any]:
        """Choose a mechanism."""
        return self.ask(SASL_HANDSHAKE, version, {"mechanism": mechanism})

    def token(self, token: bytes) -> dict[str, Any]:
        """Send a token."""
        return self.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token})

    def log_in(self, mechanism: str, user: str, password: str = "") -> dict[str, Any]:
        """Log in; return the last response."""
        answer = self.handshake(mechanism)
        assert answer["error_code"] == 0, answer
        if mechanism == "PLAIN":
            return self.token(f"\0{user}\0{password}".encode())
        if mechanism == "OAUTHBEARER":
            return self.token(unsecured_token({"sub": user}))
        scram = ScramClient(SCRAM_MECHANISMS[mechanism], user, password)
        answer = self.token(scram.first_message())
        if answer["error_code"]:
            return answer
        answer = self.token(scram.final_message(bytes(answer["auth_bytes"])))
        if not answer["error_code"]:
            scram.check_final(bytes(answer["auth_bytes"]))
        return answer

    def metadata(self) -> dict[str, Any]:
        """Ask for all topics and brokers."""
        message = {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        return self.ask(METADATA, 9, message)

    def produce(self, topic: str, size: int = 3000, partition: int = 0) -> dict[str, Any]:
        """Produce one record; return the response, which has the throttle time."""
        records = {"index": partition, "records": build_batch([(None, bytes(size))])}
        message = {
            "transactional_id": None,
            "acks": 1,
            "timeout_ms": 10_000,
            "topic_data": [{"name": topic, "partition_data": [records]}],
        }
        answer = self.ask(PRODUCE, 9, message)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0, answer
        return answer


def unsecured_token(claims: dict[str, Any]) -> bytes:
    """Return the first message of OAUTHBEARER with an unsecured token of these claims, which is valid for a minute."""
    now_s = time.time()
    parts = ({"alg": "none"}, {"iat": now_s - 1, "exp": now_s + 60, **claims})
    token = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return b"n,,\x01auth=Bearer " + token + b".\x01\x01"
