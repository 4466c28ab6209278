"""An Apache Kafka with StandardAuthorizer and a node of ours with ACLs, asked the same by users with names.

Kafka's users log in with SASL PLAIN; a node's connections are given their users directly.
"""

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.ladder.brokers import KafkaBench
from tests.differing.comparable import Given, comparable
from tests.differing.requests import UNKNOWN_ID
from tests.e2e.plain_client import receive_frame
from tests.server.whole_node import WholeNode

from tidegate.wire import API_BY_KEY, encode_request, read_response

__all__ = ["ADMIN", "AclSide", "acl_sides"]

ADMIN = "admin"
USERS = (ADMIN, "alice", "bob")
TIMEOUT_S = 15.0
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}
CLOSED = "closed"
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_INSIDE = re.compile(r"Request Request\(.*\) needs")


class AclSide:
    """One broker, with a connection for each user. login: makes a new connection the user's."""

    def __init__(self, name: str, port: int, login: Callable[[socket.socket, str], None]) -> None:
        self.name = name
        self.given = Given()
        self._port = port
        self._login = login
        self._socks: dict[str, socket.socket] = {}

    def ask(self, user: str, api_key: int, version: int, message: dict[str, Any]) -> Any:
        """Return the answer as it can be compared; `CLOSED` where the connection was closed."""
        if user not in self._socks:
            sock = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT_S)
            self._login(sock, user)
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
        if isinstance(value, str) and value.startswith("id:"):
            return self.given.ids.get(value[3:], UNKNOWN_ID)
        return value

    def _learn(self, value: Any) -> None:
        """Keep the topic ids of an answer."""
        for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
            self._learn(item)
        if isinstance(value, dict) and value.get("name") and value.get("topic_id", "").strip("0-"):
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
    texts = {**AUTHORIZER, **{name.replace("_", "."): value for name, value in settings.items()}}
    kafka = _kafka(folder / "kafka", texts)
    node = _ThreadedNode(folder / "tidegate", {**texts, "tidegate.kafka.exact": "true"})
    try:
        with suppress(FileExistsError):
            (folder / "tidegate").mkdir()
        port = node.start()
        kafka.start()
        sides = AclSide("kafka", kafka.port, _log_in), AclSide("tidegate", port, node.set_user)
        _await_coordinator(sides[0])
        yield sides
        for side in sides:
            side.close()
    finally:
        node.stop()
        kafka.stop()


def _kafka(folder: Path, texts: dict[str, str]) -> KafkaBench:
    users = " ".join(f'user_{user}="{user}"' for user in USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    overrides = {
        **texts,
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{module} required username="{ADMIN}" password="{ADMIN}" {users};'
        ),
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "controller.quorum.append.linger.ms": "0",
    }
    lines = tuple(f"{name}={value}" for name, value in overrides.items())
    return KafkaBench("kafka", folder, overrides=lines, listener="SASL_PLAINTEXT")


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


class _ThreadedNode:
    """A whole node on an event loop of its own."""

    def __init__(self, folder: Path, texts: dict[str, str]) -> None:
        self._folder = folder
        self._texts = texts
        self._loop = asyncio.new_event_loop()
        self._ready: Future[WholeNode] = Future()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="node")

    def start(self) -> int:
        """Start it and return its port."""
        self._thread.start()
        self._node = self._ready.result(TIMEOUT_S)
        return self._node.node.listeners["PLAINTEXT"].port

    def stop(self) -> None:
        """Stop it."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(TIMEOUT_S)

    def set_user(self, sock: socket.socket, user: str) -> None:
        """Make the connection of a socket a user's."""
        exchanged(sock, 18, 0, {})  # it is accepted then
        done: Future[None] = Future()

        def on_loop() -> None:
            front = self._node.node._front
            assert front is not None
            next(reversed(front.channels)).connection.set_user(user)
            done.set_result(None)

        self._loop.call_soon_threadsafe(on_loop)
        done.result(TIMEOUT_S)

    def _run(self) -> None:
        async def main() -> None:
            try:
                node = WholeNode(self._folder, self._texts)
            except BaseException as error:
                self._ready.set_exception(error)
                raise
            self._ready.set_result(node)
            await self._stop.wait()
            await node.close()

        self._loop.run_until_complete(main())
        self._loop.close()


def _without_insides(value: Any) -> Any:
    """Leave out what Kafka's refusals tell of its insides, and what no order is promised of."""
    if isinstance(value, dict):
        return {key: _without_insides(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_insides(item) for item in value]
    return _INSIDE.sub("Request needs", value) if isinstance(value, str) else value
