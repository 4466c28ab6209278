"""A node with its storage and all of its handlers, in this process, and a client that sends any bytes."""

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from tests.open_stores import closed_after_test

from tidegate.cli.serving import serve_nodes, storage_config
from tidegate.clock import SystemClock
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.listening.network import SocketNetwork
from tidegate.server.node import Node
from tidegate.server.requests.recorder import Recorder
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.node_configs import node_configs
from tidegate.storage import Storage
from tidegate.storage.housekeeping import start_housekeeping

__all__ = ["ANSWER_TIMEOUT_S", "RawClient", "WholeNode", "spool_of", "tracebacks", "whole_node"]

ANSWER_TIMEOUT_S = 5.0


class RawClient:
    """A client that sends frames as they are, each on the connection of the last unless that was closed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, frame: bytes, within_s: float = ANSWER_TIMEOUT_S) -> bytes | None:
        """Send a frame; return the answer without its length, or None where the node closed the connection.

        Raises `TimeoutError` where it does neither.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        try:
            writer.write(struct.pack(">i", len(frame)) + frame)
            async with asyncio.timeout(within_s):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                return await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            return None

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


class WholeNode:
    """What `tidegate serve` puts together, on free ports: one node, or several, of which the first is `node`.

    clients: one for each node, of the first of its listeners.
    """

    def __init__(self, directory: Path, settings: dict[str, str], count: int = 1) -> None:
        texts = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **settings}
        clock, loop = SystemClock(), asyncio.get_running_loop()
        self.configs = node_configs(ServerConfig.load(texts), count)
        self.recorders: list[Recorder] = []
        self.nodes: list[Node] = []
        for config in self.configs:
            spool = spool_of(directory, config["node.id"])
            self.recorders.append(Recorder(spool, node_id=config["node.id"], clock=clock))
            self.nodes.append(
                Node(
                    config,
                    clock=clock,
                    loop=loop,
                    network=SocketNetwork(loop, clock.monotonic_ns),
                    recorder=self.recorders[-1],
                    controller=self.nodes[0] if self.nodes else None,
                )
            )
        self.node, self.recorder, self.spool = self.nodes[0], self.recorders[0], spool_of(directory, 1)
        self.storage = Storage.open(directory, storage_config(self.configs[0]), clock)
        closed_after_test(self.storage.store)
        self.quotas = QuotaAdministration(self.storage.store, loop)
        self.quotas.load()
        start_housekeeping(self.storage, loop)
        self.settings = serve_nodes(self.nodes, self.storage, self.quotas)
        self.clients = [RawClient(next(iter(node.listeners.values())).port) for node in self.nodes]
        self.client = self.clients[0]

    async def close(self) -> None:
        """Close everything."""
        for client in self.clients:
            await client.close()
        for node in reversed(self.nodes):
            node.close()
        self.quotas.close()
        self.storage.close()
        for recorder in self.recorders:
            recorder.close()


def spool_of(directory: Path, node_id: int) -> Path:
    """Return where a node's usage record begins."""
    return directory / ("spool" if node_id == 1 else f"spool-{node_id}")


@contextlib.asynccontextmanager
async def whole_node(directory: Path, count: int = 1, **settings: str) -> AsyncIterator[WholeNode]:
    """Run a node, or several, as long as the block lasts. Setting names have `_` for `.`."""
    node = WholeNode(directory, {name.replace("_", "."): value for name, value in settings.items()}, count)
    try:
        yield node
    finally:
        await node.close()


def tracebacks(records: list[logging.LogRecord]) -> list[str]:
    """Return what was logged with a traceback."""
    return [record.getMessage() for record in records if record.exc_info]
