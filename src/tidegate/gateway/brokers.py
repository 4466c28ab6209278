"""The brokers of the cluster behind the gateway, and their current addresses.

Host names are looked up in advance, so that no connection waits for a name server.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence, Set

from tidegate.api_keys import METADATA
from tidegate.client import Admin
from tidegate.client.cluster import NO_TOPICS
from tidegate.client.errors import ClientError
from tidegate.client.settings import Address, ClientSettings
from tidegate.gateway.addresses import MAX_PORT
from tidegate.gateway.upstream_connection import SocketAddress

__all__ = ["REFRESH_S", "Broker", "Brokers"]

_log = logging.getLogger("tidegate.gateway")

REFRESH_S = 5.0
"""Interval at which the gateway asks the cluster for its brokers."""
SETTINGS_EVERY_S = 60.0
"""Interval at which the gateway asks for the number of partitions of new topics."""
_BROKER_RESOURCE = 4
_NUM_PARTITIONS = "num.partitions"
_DEFAULT_PARTITIONS = 1  # Kafka's default


class Broker:
    """One broker of the cluster, by its id.

    advertised: the address that the cluster advertises; None: the cluster does not list the broker now.
    address: the address to connect to; None: not known. addresses: all addresses of the host, including `address`.
    on_moved: called with the addresses of all brokers when those of any broker have changed.
    """

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.advertised: Address | None = None
        self.address: SocketAddress | None = None
        self.addresses: Sequence[SocketAddress] = ()
        self.on_moved: Callable[[Set[SocketAddress]], None] = lambda addresses: None
        self.on_unreachable: Callable[[], None] = _ignore
        self.on_lost: Callable[[], None] = _ignore

    def follow(self, advertised: Address, addresses: Sequence[SocketAddress]) -> None:
        """Set the current advertised address and its looked-up addresses, which are empty if the lookup failed."""
        self.advertised = advertised
        if addresses:
            self.addresses = addresses
            if self.address not in addresses:
                self.address = addresses[0]

    @property
    def name(self) -> str:
        """The broker's id and address, for messages."""
        return f"{self.id} ({self.advertised or 'unknown address'})"

    @property
    def host(self) -> str:
        """The advertised host."""
        return "" if self.advertised is None else self.advertised.host


class Brokers:
    """The brokers of a cluster. `refresh` asks for them.

    default_partitions: the number of partitions of a topic that is created without one.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._admin = Admin(settings)
        self.by_id: dict[int, Broker] = {}
        self.default_partitions = _DEFAULT_PARTITIONS
        self._is_warned = False
        self._is_default_warned = False
        self._next_settings_s = 0.0

    async def refresh(self) -> None:
        """Ask for the brokers and look up their addresses. Raises `ClientError` where no broker answers."""
        await self._admin.cluster.refresh()
        await self._follow(self._admin.cluster.addresses)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_settings_s:
            self._next_settings_s = now_s + SETTINGS_EVERY_S
            await self._read_settings()

    async def keep_fresh(self) -> bool:
        """Refresh. If that fails, log it once, change nothing, and return False."""
        try:
            await self.refresh()
        except ClientError as error:
            if not self._is_warned:
                self._is_warned = True
                _log.warning(
                    "cannot read the list of brokers from the cluster: %s; using the last list", error
                )
            return False
        if self._is_warned:
            self._is_warned = False
            _log.warning("the cluster answers again; brokers: %s", sorted(self.by_id))
        return True

    async def topic_names(self, ids: Sequence[str]) -> dict[str, str]:
        """Return topic names by id, without ids that the cluster does not name. Raises `ClientError`."""
        wanted = [{"topic_id": each, "name": None} for each in ids]
        answer = (await self._admin.cluster.ask_any(METADATA, {**NO_TOPICS, "topics": wanted})).message
        return {each["topic_id"]: each["name"] for each in answer["topics"] if each["name"]}

    async def close(self) -> None:
        """Close the gateway's own connections."""
        await self._admin.__aexit__()

    async def _read_settings(self) -> None:
        """Read `num.partitions` from one broker; all have the same value. Log a refusal once."""
        present = [broker.id for broker in self.by_id.values() if broker.advertised is not None]
        if not present:
            return
        broker_id = min(present)
        try:
            configs = await self._admin.describe_configs(
                _BROKER_RESOURCE, str(broker_id), node_id=broker_id, synonyms=False
            )
            self.default_partitions = int(
                next(each.value for each in configs if each.name == _NUM_PARTITIONS and each.value)
            )
        except (ClientError, ValueError, StopIteration) as error:
            if not self._is_default_warned:
                self._is_default_warned = True
                _log.warning(
                    "cannot read %s of broker %d: %s; a topic that is created without a number of partitions is "
                    "charged with %d; hint: allow the gateway DESCRIBE_CONFIGS on the cluster",
                    _NUM_PARTITIONS,
                    broker_id,
                    error,
                    self.default_partitions,
                )

    async def _follow(self, addresses: Mapping[int, Address]) -> None:
        # Look up all names each time: a broker may move and keep its name.
        found = await asyncio.gather(*map(_resolved, addresses.values()))
        before = self._addresses()
        for (broker_id, advertised), places in zip(addresses.items(), found, strict=True):
            broker = self.by_id.get(broker_id)
            if broker is None:
                broker = self.by_id[broker_id] = Broker(broker_id)
            broker.follow(advertised, places)
        for broker_id in self.by_id.keys() - addresses.keys():
            # Refuse connections to the broker until it returns, maybe at another address.
            broker = self.by_id[broker_id]
            if broker.advertised is not None:
                broker.on_unreachable()
                broker.advertised = broker.address = None
                broker.addresses = ()
        if (now := self._addresses()) != before:
            taken = set().union(*now.values())
            for broker in self.by_id.values():
                broker.on_moved(taken)

    def _addresses(self) -> dict[int, Set[SocketAddress]]:
        return {broker.id: set(broker.addresses) for broker in self.by_id.values()}


def _ignore() -> None:
    """Ignore the event: no node serves the broker yet."""


async def _resolved(address: Address) -> Sequence[SocketAddress]:
    """Return the addresses of a host. If its name cannot be looked up, log a warning and return none."""
    loop = asyncio.get_running_loop()
    try:
        if not (address.host and 0 < address.port <= MAX_PORT):
            raise ValueError("expected a host and a port")
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        _log.warning(
            "cannot look up the host of broker %s: %s", address, error, extra={"repeats": f"host {address}"}
        )
        return ()
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]
