"""A whole node with small handlers of its own, and a client on a plain socket."""

import asyncio
import contextlib
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tidegate.clock import Clock, SystemClock
from tidegate.quota import QuotaRecord
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.listening.network import SocketNetwork
from tidegate.server.node import Node
from tidegate.server.requests.handler import Answer, Charge, Deferred, FetchAnswer, Handler, Request, Turn
from tidegate.server.requests.recorder import Recorder
from tidegate.server.settings.config import ServerConfig
from tidegate.usage.readers import read_segment
from tidegate.wire import encode_request, read_response

PRODUCE, FETCH, METADATA, CREATE_TOPICS = 0, 1, 3, 19
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION, CREATE_TOPICS_VERSION = 9, 12, 9, 7
CLIENT = [("client-id", "c1")]


class MemoryStore:
    """Keeps quota records in a list."""

    def __init__(self) -> None:
        self.records: list[QuotaRecord] = []

    def load_quotas(self) -> Iterable[QuotaRecord]:
        """Return what was kept."""
        return self.records

    def apply_quota_records_in_slices(self, records: Sequence[QuotaRecord]) -> Generator[None, None, None]:
        """Keep them."""
        yield
        self.records += records


def produce_handler(request: Request) -> Answer:
    """Accept anything."""
    body = request.body()
    if body["acks"] == 0:
        return Answer(None, Charge.PRODUCE, close=body["timeout_ms"] == 13)
    return request.answer({"responses": [], "throttle_time_ms": 0}, Charge.PRODUCE)


def fetch_body(records: bytes | None) -> dict[str, Any]:
    """Return a fetch answer with one partition, or none."""
    partition = {
        "partition_index": 0, "error_code": 0, "high_watermark": 1, "last_stable_offset": 1, "log_start_offset": 0,
        "aborted_transactions": None, "preferred_read_replica": -1, "records": records,
    }  # fmt: skip
    responses = [] if records is None else [{"topic": "t", "partitions": [partition]}]
    return {"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "responses": responses}


def fetch_handler(request: Request) -> Answer | Deferred:
    """Answer with `max_bytes` zero bytes, at once or after `max_wait_ms` where that is set."""
    body = request.body()
    size = min(body["max_bytes"], request.quotas.fetch_limit_bytes())
    answer = FetchAnswer(request.encode(fetch_body(bytes(size))), lambda: request.encode(fetch_body(None)))
    if not body["max_wait_ms"]:
        return answer
    deferred = Deferred()
    timer = asyncio.get_running_loop().call_later(body["max_wait_ms"] / 1000, deferred.complete, answer)
    deferred.on_cancel = timer.cancel
    return deferred


def metadata_handler(request: Request) -> Answer:
    """Fail for a topic called `fail`."""
    if any(topic["name"] == "fail" for topic in request.body()["topics"]):
        raise RuntimeError("as asked")
    body = {"throttle_time_ms": 0, "brokers": [], "cluster_id": None, "controller_id": 1, "topics": []}
    return request.answer({**body, "cluster_authorized_operations": -1})


def create_topics_handler(request: Request) -> Answer:
    """Ask for as many permits as partitions, topic by topic."""
    topics = [
        {
            "name": topic["name"], "topic_id": "00000000-0000-0000-0000-000000000000",
            "error_code": 0 if request.quotas.record_mutations(topic["num_partitions"]) else 89,
            "error_message": None, "topic_config_error_code": 0, "num_partitions": -1, "replication_factor": -1,
            "configs": None,
        }
        for topic in request.body()["topics"]
    ]  # fmt: skip
    return request.answer({"throttle_time_ms": 0, "topics": topics}, Charge.MUTATION)


HANDLERS = {
    PRODUCE: produce_handler,
    FETCH: fetch_handler,
    METADATA: metadata_handler,
    CREATE_TOPICS: create_topics_handler,
}


class NodeClient:
    """A connection that sends messages and knows how large they were."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self.reader, self.writer, self.client_id = reader, writer, client_id
        self._sent: list[tuple[int, int]] = []

    def send(self, api_key: int, version: int, message: dict[str, Any]) -> int:
        """Send a request; return its size without the length."""
        frame = encode_request(api_key, version, len(self._sent), self.client_id, message)
        self._sent.append((api_key, version))
        self.writer.write(frame)
        return len(frame) - 4

    async def receive(self) -> tuple[int, dict[str, Any], int]:
        """Return correlation id, body and size of the next answer."""
        size = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), 10))[0]
        frame = await asyncio.wait_for(self.reader.readexactly(size), 10)
        correlation_id = struct.unpack_from(">i", frame)[0]
        api_key, version = self._sent[correlation_id]
        header = 4 if api_key == 18 or (api_key, version) in ((48, 0), (49, 0)) else 5
        return correlation_id, read_response(api_key, version, frame, header), size

    async def ask(self, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
        """Send and return the body of the answer."""
        self.send(api_key, version, message)
        return (await self.receive())[1]

    def send_produce(self, *, padding: int, acks: int = 1, timeout_ms: int = 1000) -> int:
        """Send a Produce whose transactional id makes it longer."""
        message = {
            "transactional_id": "x" * padding,
            "acks": acks,
            "timeout_ms": timeout_ms,
            "topic_data": [],
        }
        return self.send(PRODUCE, PRODUCE_VERSION, message)

    def send_fetch(self, *, max_bytes: int, max_wait_ms: int = 0) -> int:
        """Send a Fetch for so many bytes."""
        return self.send(
            FETCH,
            FETCH_VERSION,
            {
                "replica_id": -1, "max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": max_bytes,
                "isolation_level": 0, "session_id": 0, "session_epoch": -1, "topics": [],
                "forgotten_topics_data": [], "rack_id": "",
            },
        )  # fmt: skip

    async def metadata(self, topic: str = "t") -> dict[str, Any]:
        """Ask for Metadata."""
        topics = [{"topic_id": "00000000-0000-0000-0000-000000000000", "name": topic}]
        message = {
            "topics": topics, "allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }  # fmt: skip
        return await self.ask(METADATA, METADATA_VERSION, message)

    async def alter(
        self, entity: list[tuple[str, str | None]], key: str, value: float | None
    ) -> dict[str, Any]:
        """Set or remove one quota."""
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
        op = {"key": key, "value": value or 0.0, "remove": value is None}
        return await self.ask(49, 1, {"entries": [{"entity": parts, "ops": [op]}], "validate_only": False})

    async def closed(self) -> bool:
        """Return whether the node has closed the connection."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(1), 5) == b""
        return True


class RunningNode:
    """A node that serves on a free port."""

    def __init__(
        self,
        directory: Path,
        store: MemoryStore,
        settings: dict[str, str],
        turn: Turn | None = None,
        handlers: dict[int, Handler] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.directory = directory
        texts = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **settings}
        clock = clock or SystemClock()
        self.spool = directory / "spool"
        self.recorder = Recorder(self.spool, node_id=1, clock=clock)
        loop = asyncio.get_running_loop()
        self.node = Node(
            ServerConfig.load(texts),
            clock=clock,
            loop=loop,
            network=SocketNetwork(loop, clock.monotonic_ns),
            recorder=self.recorder,
        )
        self.quotas = QuotaAdministration(store, loop)
        self.quotas.load()
        self.node.serve({**HANDLERS, **(handlers or {})}, self.quotas, turn)
        self.clients: list[NodeClient] = []

    async def connect(
        self, client_id: str = "c1", context: ssl.SSLContext | None = None, source: str = "127.0.0.1"
    ) -> NodeClient:
        """Return a new connection from a source address, encrypted where a context is given."""
        port, host = self.node.listeners["PLAINTEXT"].port, "localhost" if context else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=host, local_addr=(source, 0)
        )
        self.clients.append(NodeClient(reader, writer, client_id))
        return self.clients[-1]

    async def close(self) -> None:
        """Close the node, then the clients."""
        self.node.close()
        self.quotas.close()
        for client in self.clients:
            client.writer.close()
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()


@contextlib.asynccontextmanager
async def running_node(
    directory: Path,
    store: MemoryStore,
    settings: dict[str, str],
    turn: Turn | None = None,
    handlers: dict[int, Handler] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[RunningNode]:
    """Run a node as long as the block lasts."""
    running = RunningNode(directory, store, settings, turn, handlers, clock)
    try:
        yield running
    finally:
        await running.close()


class _Recording(Protocol):
    recorder: Recorder
    spool: Path


def spool_events(node: _Recording) -> list[dict[str, Any]]:
    """Return everything recorded so far, in order."""
    node.recorder._close_segment()
    events = [event for path in sorted(node.spool.glob("*.closed")) for event in read_segment(path)]
    return sorted(events, key=lambda event: event["seq"])


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


Scenario = Callable[[RunningNode], Awaitable[None]]
