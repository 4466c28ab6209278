"""The brokers of the cluster behind the gateway, and where each of them can be reached now.

Names of hosts are looked up here, ahead of the connections that need them: a connection never waits for a name server.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping

from tidegate.client.cluster import Cluster
from tidegate.client.errors import ClientError
from tidegate.client.settings import Address, ClientSettings
from tidegate.gateway.upstream import SocketAddress

__all__ = ["REFRESH_S", "Broker", "Brokers"]

_log = logging.getLogger("tidegate.gateway")

REFRESH_S = 5.0
"""How often the gateway asks the cluster for its brokers."""
_BROKER_RESOURCE = 4
_DEFAULT_PARTITIONS = 1  # Kafka `num.partitions`


class Broker:
    """One broker: its id, its name for messages, and the address to connect to (None: not known)."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.told: Address | None = None
        self.address: SocketAddress | None = None

    @property
    def name(self) -> str:
        """The broker, for messages."""
        return f"{self.id} ({self.told or 'unknown address'})"

    @property
    def host(self) -> str:
        """The host as the cluster names it."""
        return "" if self.told is None else self.told.host


class Brokers:
    """The brokers of a cluster. `refresh` asks for them."""

    def __init__(self, settings: ClientSettings) -> None:
        self.cluster = Cluster(settings)
        self.by_id: dict[int, Broker] = {}
        self.default_partitions = _DEFAULT_PARTITIONS
        self._is_warned = False

    async def refresh(self) -> None:
        """Ask for the brokers and look up their addresses. Raises `ClientError` where no broker answers."""
        await self.cluster.refresh()
        await self._follow(self.cluster.addresses)

    async def keep_fresh(self) -> bool:
        """Refresh; return whether that succeeded. Where it did not, all stays as it was, and the log says so once."""
        try:
            await self.refresh()
        except ClientError as error:
            if not self._is_warned:
                self._is_warned = True
                _log.warning("cannot ask the cluster for its brokers: %s; the known ones are used", error)
            return False
        if self._is_warned:
            self._is_warned = False
            _log.warning("the cluster answers again; brokers: %s", sorted(self.by_id))
        return True

    async def close(self) -> None:
        """Close the connections of the gateway's own."""
        await self.cluster.__aexit__()

    async def _follow(self, addresses: Mapping[int, Address]) -> None:
        for broker_id, told in addresses.items():
            broker = self.by_id.get(broker_id)
            if broker is None:
                broker = self.by_id[broker_id] = Broker(broker_id)
            if broker.told != told or broker.address is None:
                broker.told = told
                broker.address = await _resolved(told)
        for broker_id in self.by_id.keys() - addresses.keys():
            # It may come back at another address; until then connections to it are refused at once.
            self.by_id[broker_id].told = self.by_id[broker_id].address = None


async def _resolved(address: Address) -> SocketAddress | None:
    """Return the first address of a host, None where its name has none."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        _log.warning("cannot look up the host of broker %s: %s", address, error)
        return None
    family, _, _, _, sockaddr = found[0]
    return int(family), sockaddr  # type: ignore[return-value]
