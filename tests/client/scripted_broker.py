"""A broker on loopback whose every answer a test chooses, in the event loop of the client that is tested."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.api_keys import API_VERSIONS
from tidegate.client import Address, ClientSettings
from tidegate.wire import API_BY_KEY, ZERO_ID, decode_request_header, encode_response, read_request

__all__ = ["CLOSE", "SILENCE", "Received", "ScriptedBroker", "brokers_of", "run", "settings_for", "versions"]

CLOSE, SILENCE = object(), object()
"""Answers of a script: end the connection; say nothing."""
LIMIT_S = 20.0

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Received:
    """A request: from which connection, when it came by the time of the loop, and its message."""

    api_key: int
    api_version: int
    correlation_id: int
    connection: int
    at_s: float
    message: dict[str, Any]

    def response(self, message: dict[str, Any], version: int | None = None) -> bytes:
        """Return the frame of a response to it, with its length."""
        version = self.api_version if version is None else version
        return b"".join(encode_response(self.api_key, version, self.correlation_id, message).buffers)


Script = Callable[[Received], Any]
"""Returns the answer: a message, bytes as they are, None for that of any broker, CLOSE or SILENCE."""


class ScriptedBroker:
    """A listener; use it as an asynchronous context manager."""

    def __init__(self, script: Script = lambda request: None, *, node_id: int = 0) -> None:
        self.script, self.node_id = script, node_id
        self.received: list[Received] = []
        self.answered_s: list[float] = []
        self.brokers = [self]
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._errors: list[Exception] = []

    @property
    def address(self) -> Address:
        """Return where it listens."""
        return Address(*self._server.sockets[0].getsockname())

    @property
    def open_connections(self) -> int:
        """Return how many connections are open."""
        return len(self._writers)

    def asked(self, api_key: int) -> list[Received]:
        """Return the requests of one API."""
        return [request for request in self.received if request.api_key == api_key]

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in list(self._writers):
            writer.close()

    async def __aenter__(self) -> "ScriptedBroker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.hang_up()
        while self._writers:
            await asyncio.sleep(0)
        for error in self._errors:
            raise error

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                writer.write(self._answer(await reader.readexactly(size), number, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:  # a mistake of the test
            self._errors.append(error)
        finally:
            writer.close()
            self._writers.discard(writer)

    def _answer(self, frame: bytes, number: int, writer: asyncio.StreamWriter) -> bytes:
        header = decode_request_header(frame)
        message = read_request(header.api_key, header.api_version, frame, header.body_at)
        now_s = asyncio.get_running_loop().time()
        request = Received(header.api_key, header.api_version, header.correlation_id, number, now_s, message)
        self.received.append(request)
        answer = self.script(request)
        self.answered_s.append(now_s)
        if answer is CLOSE:
            writer.close()
            return b""
        if answer is SILENCE:
            return b""
        if answer is None:
            answer = self._usual(request)
        return answer if isinstance(answer, bytes) else request.response(answer)

    def _usual(self, request: Received) -> dict[str, Any]:
        return versions() if request.api_key == API_VERSIONS else brokers_of(*self.brokers)


def versions(**ranges: tuple[int, int]) -> dict[str, Any]:
    """Return an answer to ApiVersions: all versions that Kafka 4.3 supports, except for the named APIs."""
    supported = {api.name: (api.key, (api.min_version, api.max_version)) for api in API_BY_KEY.values()}
    supported |= {name: (supported[name][0], span) for name, span in ranges.items()}
    keys = [
        {"api_key": key, "min_version": least, "max_version": most}
        for key, (least, most) in supported.values()
    ]
    return {"error_code": 0, "throttle_time_ms": 0, "api_keys": keys}


def brokers_of(*brokers: ScriptedBroker, throttle_time_ms: int = 0, **leaders: int) -> dict[str, Any]:
    """Return an answer to Metadata; leaders: of partition 0 of each topic."""
    partition = {
        "error_code": 0, "partition_index": 0, "leader_epoch": 0,
        "replica_nodes": [], "isr_nodes": [], "offline_replicas": [],
    }  # fmt: skip
    return {
        "throttle_time_ms": throttle_time_ms,
        "brokers": [
            {"node_id": each.node_id, "host": each.address.host, "port": each.address.port, "rack": None}
            for each in brokers
        ],
        "cluster_id": "scripted",
        "controller_id": brokers[0].node_id if brokers else -1,
        "topics": [
            {
                "error_code": 0, "name": name, "topic_id": ZERO_ID, "is_internal": False,
                "partitions": [{**partition, "leader_id": leader}],
            }
            for name, leader in leaders.items()
        ],
        "error_code": 0,
    }  # fmt: skip


def settings_for(*brokers: ScriptedBroker, **changed: Any) -> ClientSettings:
    """Return settings of a client of the brokers, with short pauses and timeouts."""
    short = {
        "request_timeout_s": 5.0, "api_timeout_s": 10.0, "connect_timeout_s": 5.0,
        "reconnect_backoff_s": 0.001, "reconnect_backoff_max_s": 0.01, "retry_backoff_s": 0.001,
    }  # fmt: skip
    return ClientSettings(addresses=tuple(each.address for each in brokers), **{**short, **changed})


def run(work: Callable[[], Awaitable[_Result]]) -> _Result:
    """Run a test's coroutine in a loop of its own; no task may be left."""

    async def main() -> _Result:
        before = asyncio.all_tasks()
        async with asyncio.timeout(LIMIT_S):
            result = await work()
        for _ in range(10):  # what the server's side still does when a connection has ended
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        assert not left, f"left behind: {left}"
        return result

    return asyncio.run(main())
