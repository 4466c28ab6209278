"""A broker that cannot be reached: the gateway refuses connections to it, as the broker's own port would.

Clients then behave as if the broker were down: they use other brokers, and retry after their own back-off. The gateway
tries to connect to the broker twice a second, and accepts connections again as soon as that succeeds.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Set

from tidegate.gateway.brokers import Broker
from tidegate.gateway.upstream import Upstream
from tidegate.gateway.upstream_connection import SocketAddress
from tidegate.server.node import Node

__all__ = ["CHECK_AFTER_S", "TRY_AGAIN_S", "Reachability"]

_log = logging.getLogger("tidegate.gateway")

TRY_AGAIN_S = 0.5
CHECK_AFTER_S = (0.0, 0.2, 1.0)
"""Delays before the checks of a broker that has closed a connection."""
_CONNECT_S = 2.0
_CLOSED_AT_A_TIME = 100


class Reachability:
    """Opens and closes the port of one broker at the gateway."""

    def __init__(self, broker: Broker, node: Node) -> None:
        self._broker = broker
        self._node = node
        self._refuses = False
        self._trying: asyncio.Task[None] | None = None
        broker.on_unreachable = self._on_unreachable
        broker.on_lost = self._on_lost
        broker.on_moved = self._on_moved
        self._leaving: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Stop trying to connect."""
        self._broker.on_unreachable = self._broker.on_lost = lambda: None
        self._broker.on_moved = lambda addresses: None
        for task in (self._trying, self._leaving):
            if task is not None:
                task.cancel()

    def _on_unreachable(self) -> None:
        """Refuse connections until one to the broker can be made."""
        if self._trying is not None:
            self._trying.cancel()
        if not self._refuses:
            self._refuse()
        self._trying = asyncio.get_running_loop().create_task(self._try())

    def _on_lost(self) -> None:
        """Find out whether the broker that has closed a connection still accepts others."""
        if self._trying is None:
            self._trying = asyncio.get_running_loop().create_task(self._check())

    def _on_moved(self, addresses: Set[SocketAddress]) -> None:
        """Close connections whose address belongs to another broker now."""
        if self._leaving is not None:
            self._leaving.cancel()
        others = addresses - set(self._broker.addresses)
        self._leaving = asyncio.get_running_loop().create_task(self._leave(others))

    async def _leave(self, addresses: Set[SocketAddress]) -> None:
        for number, channel in enumerate(self._node.channels):
            upstream: Upstream = channel.connection.upstream
            upstream.leave(addresses)
            if number % _CLOSED_AT_A_TIME == 0:
                await asyncio.sleep(0)

    def _refuse(self) -> None:
        self._refuses = True
        _log.warning("broker %s cannot be reached; the gateway refuses connections to it", self._broker.name)
        self._node.refuse_connections()

    async def _check(self) -> None:
        """Try to connect several times: a broker that stops closes its connections before its port."""
        for pause_s in CHECK_AFTER_S:
            await asyncio.sleep(pause_s)
            if not await self._can_connect():
                self._refuse()
                await self._try()
                return
        self._trying = None

    async def _try(self) -> None:
        since_s = time.monotonic()
        while not await self._can_connect():
            await asyncio.sleep(TRY_AGAIN_S)
        self._trying = None
        self._refuses = False
        self._node.accept_connections()
        _log.warning(
            "broker %s can be reached again, after %.1f s", self._broker.name, time.monotonic() - since_s
        )

    async def _can_connect(self) -> bool:
        """Try to connect, to the other addresses of the broker's host, too; use the first one that accepts."""
        first = self._broker.address
        if first is None:
            return False
        for found in (first, *(each for each in self._broker.addresses if each != first)):
            # By now the broker may have other addresses, and another broker may have this one.
            if await _accepts(found) and found in (self._broker.address, *self._broker.addresses):
                self._broker.address = found
                return True
        return False


async def _accepts(found: SocketAddress) -> bool:
    """Return whether a connection to an address can be made."""
    family, address = found
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().sock_connect(sock, address)
    except OSError:  # TimeoutError is one
        return False
    return True
