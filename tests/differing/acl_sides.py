"""Apache Kafka with StandardAuthorizer and `tidegate serve` with ACLs, asked the same by users who have logged in."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.ladder.brokers import SHORT_LIVED, KafkaBench, TidegateBench
from tests.differing.comparable import Given, comparable
from tests.differing.requests import UNKNOWN_ID, Session
from tests.e2e.plain_client import receive_frame

from tidegate.wire import API_BY_KEY, encode_request, read_response

__all__ = ["ADMIN", "AclSide", "acl_sides"]

ADMIN = "admin"
USERS = (ADMIN, "alice", "bob")
TIMEOUT_S = 15.0
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_PASSWORDS = " ".join(f'user_{user}="{user}"' for user in USERS)
LOGIN = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{_MODULE} required username="{ADMIN}" password="{ADMIN}" {_PASSWORDS};'
    ),
}
KAFKA = {
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "controller.quorum.append.linger.ms": "0",
    "group.coordinator.rebalance.protocols": "classic",  # row S7
}
TIDEGATE = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "tidegate.kafka.exact": "true",
    "group.initial.rebalance.delay.ms": "0",
}
CLOSED = "closed"
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_INSIDE = re.compile(r"Request Request\(.*\) needs")


class AclSide:
    """One broker, with a connection for each user."""

    def __init__(self, port: int) -> None:
        self.given = Given()
        self._port = port
        self._socks: dict[str, socket.socket] = {}

    def ask(self, user: str, api_key: int, version: int, message: dict[str, Any]) -> Any:
        """Return the answer as it can be compared; `CLOSED` where the connection was closed."""
        if user not in self._socks:
            sock = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT_S)
            _log_in(sock, user)
            self._socks[user] = sock
        try:
            answer = exchanged(self._socks[user], api_key, version, self._sent(message))
        except OSError:
            self._socks.pop(user).close()
            return CLOSED
        self._learn(answer)
        return _without_insides(comparable(answer, self.given))

    def close(self) -> None:
        """Close all connections."""
        for sock in self._socks.values():
            sock.close()

    def _sent(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._sent(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._sent(item) for item in value]
        if isinstance(value, Session):
            return self.given.sessions[-1] if self.given.sessions else 1
        if isinstance(value, str) and value.startswith("id:"):
            return self.given.ids.get(value[3:], UNKNOWN_ID)
        if isinstance(value, str) and value.startswith("member:-"):
            members, number = self.given.members, int(value[8:])
            return members[-number] if number <= len(members) else "nobody"
        return value

    def _learn(self, value: Any) -> None:
        """Keep the topic ids, member ids and fetch sessions of an answer."""
        for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
            self._learn(item)
        if not isinstance(value, dict):
            return
        if value.get("generation_id") is not None and value["member_id"] not in ("", *self.given.members):
            self.given.members.append(value["member_id"])
        if value.get("session_id") and value["session_id"] not in self.given.sessions:
            self.given.sessions.append(value["session_id"])
        if value.get("name") and value.get("topic_id", "").strip("0-"):
            self.given.ids[value["name"]] = value["topic_id"]
            self.given.names[value["topic_id"]] = value["name"]


def exchanged(sock: socket.socket, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
    """Send a request and return its answer. Raises `OSError`."""
    sock.sendall(encode_request(api_key, version, 1, "acls", message))
    at = 5 if API_BY_KEY[api_key].has_tagged_response_header(version) else 4
    return read_response(api_key, version, receive_frame(sock), at)


@contextmanager
def acl_sides(folder: Path, **settings: str) -> Iterator[tuple[AclSide, AclSide]]:
    """Start both, with settings whose names have `_` for `.`."""
    texts = {**AUTHORIZER, **LOGIN, **{name.replace("_", "."): value for name, value in settings.items()}}
    brokers = (
        KafkaBench(
            "kafka",
            folder / "kafka",
            overrides=_lines(texts | KAFKA),
            listener="SASL_PLAINTEXT",
            java_options=SHORT_LIVED,
        ),
        TidegateBench("tidegate", folder / "tidegate", overrides=_lines(texts | TIDEGATE)),
    )
    try:
        sides = AclSide(brokers[0].start().port), AclSide(brokers[1].start().port)
        _await_coordinator(sides[0])
        yield sides
        for side in sides:
            side.close()
    finally:
        for broker in brokers:
            broker.stop()


def _lines(texts: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in texts.items())


def _log_in(sock: socket.socket, user: str) -> None:
    assert not exchanged(sock, _SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})["error_code"]
    token = f"\0{user}\0{user}".encode()
    assert not exchanged(sock, _SASL_AUTHENTICATE, 2, {"auth_bytes": token})["error_code"]


def _await_coordinator(kafka: AclSide) -> None:
    """Wait until Kafka has its topic for groups' positions, and producer ids."""
    asked = [
        (10, 3, {"key": "g", "key_type": 0}),
        (10, 3, {"key": "t", "key_type": 1}),
        (9, 7, {"group_id": "g", "topics": [], "require_stable": False}),
        (22, 1, {"transactional_id": None, "transaction_timeout_ms": 60_000}),
    ]
    for api_key, version, message in asked:
        while kafka.ask(ADMIN, api_key, version, message)["error_code"] in (14, 15, 16):
            time.sleep(0.05)


def _without_insides(value: Any) -> Any:
    """Leave out what Kafka's refusals tell of its insides, and what no order is promised of."""
    if isinstance(value, dict):
        return {key: _without_insides(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_insides(item) for item in value]
    return _INSIDE.sub("Request needs", value) if isinstance(value, str) else value
