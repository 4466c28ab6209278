"""A node with its storage and all of its handlers, in this process, and a client that sends any bytes."""

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from tests.server.nodes import NoWriter

from tidegate.broker.handlers import handler_table
from tidegate.cli.serving import cluster_of, settings_of, storage_config
from tidegate.clock import SystemClock
from tidegate.server.config import ServerConfig
from tidegate.server.network import SocketNetwork
from tidegate.server.node import Node
from tidegate.server.quota_administration import QuotaAdministration
from tidegate.server.usage_log import RecordedUsageLog
from tidegate.storage import Storage
from tidegate.storage.housekeeping import start_housekeeping
from tidegate.usage.spool import Recorder

__all__ = ["RawClient", "WholeNode", "whole_node"]

ANSWER_TIMEOUT_S = 5.0


class RawClient:
    """A client that sends frames as they are, each on the connection of the last unless that was closed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, frame: bytes) -> bytes | None:
        """Send a frame; return the answer without its length, or None where the node closed the connection.

        Raises `TimeoutError` where it does neither.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        try:
            writer.write(struct.pack(">i", len(frame)) + frame)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
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
    """What `tidegate serve` puts together, on a free port."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        texts = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), **settings}
        clock, config = SystemClock(), ServerConfig.load(texts)
        self.spool = directory / "spool"
        self.usage = RecordedUsageLog(Recorder(self.spool, node_id=1, clock=clock), NoWriter)
        loop = asyncio.get_running_loop()
        self.node = Node(config, clock=clock, loop=loop, network=SocketNetwork(loop), usage=self.usage)
        self.storage = Storage.open(directory, storage_config(config), clock)
        self.quotas = QuotaAdministration(self.storage.store, loop)
        self.quotas.load()
        cluster = cluster_of(self.node, self.storage)
        self.settings = settings_of(config, self.storage)
        start_housekeeping(self.storage, loop)
        handlers = handler_table(self.storage, cluster, self.settings)
        self.node.serve(handlers, self.quotas, self.storage.turn, cluster.metadata, self.settings)
        self.storage.topics.on_change = self.node.callback.on_cluster_change
        self.client = RawClient(self.node.listeners["PLAINTEXT"].port)

    async def close(self) -> None:
        """Close everything."""
        await self.client.close()
        self.node.close()
        self.quotas.close()
        self.storage.close()
        self.usage.close()


@contextlib.asynccontextmanager
async def whole_node(directory: Path, **settings: str) -> AsyncIterator[WholeNode]:
    """Run a node as long as the block lasts. Setting names have `_` for `.`."""
    node = WholeNode(directory, {name.replace("_", "."): value for name, value in settings.items()})
    try:
        yield node
    finally:
        await node.close()


def tracebacks(records: list[logging.LogRecord]) -> list[str]:
    """Return what was logged with a traceback."""
    return [record.getMessage() for record in records if record.exc_info]
