"""The brokers of a cluster as a client knows them, and when it may send to each of them.

A throttled client sends nothing more to a broker for `throttle_time_ms`, where the version of the response says that
the broker did not delay it (KIP-219). The deadline belongs to the broker's address: it survives a reconnect. Other
brokers are unaffected, and where any broker will do, one that does not throttle is asked.

    cluster = Cluster(settings)
    reply = await cluster.ask_any(DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})

Follows: Kafka `ClusterConnectionStates`, `NetworkClient.leastLoadedNode`, B§7.1.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tidegate.api_keys import METADATA
from tidegate.client.connection import Connection, Reply
from tidegate.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    RequestTimeoutError,
    UnreachableError,
)
from tidegate.client.settings import Address, ClientSettings
from tidegate.wire import Message

__all__ = ["MAX_BROKERS", "NO_ID", "Cluster", "Node", "TopicPartitions"]

MAX_BROKERS = 10_000
"""Most brokers of a cluster. A longer list is an error."""
NO_ID = "00000000-0000-0000-0000-000000000000"
_NO_TOPICS: Message = {
    "topics": [],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """The partitions of one topic: the leader's node id of each, -1 where it has none."""

    name: str
    topic_id: str
    leaders: Mapping[int, int]


class Node:
    """One broker: its address, its connection, and the deadline before which nothing is sent to it.

    on_response: called with the throttle time of each response, in ms.
    """

    def __init__(
        self, address: Address, settings: ClientSettings, on_response: Callable[[int], None] = lambda ms: None
    ) -> None:
        self.address = address
        self._settings = settings
        self._on_response = on_response
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._not_before_s = 0.0
        self._failures = 0
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None

    @property
    def throttled_s(self) -> float:
        """Return for how long, in seconds, nothing may be sent to the broker."""
        return max(self._deadline_s - self._loop.time(), 0.0)

    @property
    def rank(self) -> tuple[float, int, int]:
        """Return what to compare with other brokers: the smallest is asked where any will do."""
        connection = self._connection
        in_flight = connection.in_flight if connection is not None and connection.usable else 0
        return self.throttled_s, self._failures, in_flight

    async def ask(
        self,
        api_key: int,
        message: Message,
        *,
        timeout_s: float | None = None,
        most_version: int | None = None,
    ) -> Reply:
        """Send a request as soon as the broker may be asked, and return the response. Raises `ClientError`.

        timeout_s: how long the response may take once the request is sent. The wait for the deadline comes before.
        """
        while True:
            await self._wait_until(lambda: self._deadline_s)
            connection = await self._connected()
            if self._deadline_s <= self._loop.time():  # the responses of a login carry throttle times, too
                break
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        return await connection.request(api_key, message, timeout_s=timeout_s, most_version=most_version)

    async def version(self, api_key: int) -> int:
        """Return the newest version of an API that both sides speak. Raises `ClientError`."""
        return (await self._connected()).version(api_key)

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()

    async def _wait_until(self, time_s: Callable[[], float]) -> None:
        while (left_s := time_s() - self._loop.time()) > 0:
            await asyncio.sleep(left_s)

    async def _connected(self) -> Connection:
        """Return a usable connection, a new one if necessary; after a failure not before a pause is over."""
        async with self._connecting:
            connection = self._connection
            if connection is not None and connection.usable:
                return connection
            if connection is not None:
                await connection.close()
            await self._wait_until(lambda: self._not_before_s)
            try:
                self._connection = connection = await Connection.open(
                    self.address, self._settings, on_throttle=self._on_throttle
                )
            except ClientError:
                pause_s = self._settings.reconnect_backoff_s * 2.0 ** min(self._failures, 30)
                self._failures += 1
                self._not_before_s = self._loop.time() + min(pause_s, self._settings.reconnect_backoff_max_s)
                raise
            self._failures = 0
            return connection

    def _on_throttle(self, throttle_time_ms: int, holds_back: bool) -> None:
        self._on_response(throttle_time_ms)
        if throttle_time_ms > 0 and holds_back:
            if self._connection is not None:
                self._connection.extend(throttle_time_ms)
            self._deadline_s = max(self._deadline_s, self._loop.time() + throttle_time_ms / 1000)


class Cluster:
    """All brokers of a cluster, found through the bootstrap addresses. Use it as an asynchronous context manager."""

    def __init__(
        self, settings: ClientSettings, on_response: Callable[[int], None] = lambda ms: None
    ) -> None:
        self.settings = settings
        self.cluster_id: str | None = None
        self._on_response = on_response
        self._nodes: dict[Address, Node] = {}
        self._addresses: dict[int, Address] = {}  # by node id
        self._controller_id = -1

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    @property
    def node_ids(self) -> list[int]:
        """Return the ids of the brokers that were found last."""
        return sorted(self._addresses)

    async def node(self, node_id: int) -> Node:
        """Return a broker by its id. Raises `UnreachableError` if the cluster has none of that id."""
        if node_id not in self._addresses:
            await self.refresh()
        if node_id not in self._addresses:
            raise UnreachableError(f"the cluster has no broker {node_id}, it has {self.node_ids}")
        return self._at(self._addresses[node_id])

    async def refresh(self, topics: list[str] | None = None) -> list[TopicPartitions]:
        """Learn the brokers, and the partitions of `topics`. Raises `ClientError`."""
        message = _NO_TOPICS
        if topics is not None:
            message = {**_NO_TOPICS, "topics": [{"name": name, "topic_id": NO_ID} for name in topics]}
        answer = (await self._ask_some(METADATA, message)).message
        if len(answer["brokers"]) > MAX_BROKERS:
            raise ClientError(
                f"the cluster has {len(answer['brokers'])} brokers, expected at most {MAX_BROKERS}"
            )
        self._addresses = {each["node_id"]: Address(each["host"], each["port"]) for each in answer["brokers"]}
        self._controller_id = answer.get("controller_id", -1)
        self.cluster_id = answer.get("cluster_id")
        return [_topic(each) for each in answer["topics"]]

    async def topic_names(self) -> list[str]:
        """Return the names of all topics. Raises `ClientError`."""
        answer = (await self._ask_some(METADATA, {**_NO_TOPICS, "topics": None})).message
        return [each["name"] for each in answer["topics"]]

    async def ask_any(self, api_key: int, message: Message) -> Reply:
        """Ask the broker that is least loaded, and after a failure others, until `default.api.timeout.ms` is over.

        Raises the last `ClientError`.
        """
        if not self._addresses:
            await self.refresh()
        return await self._ask_some(api_key, message)

    async def ask_controller(self, api_key: int, message: Message, *, timeout_s: float) -> Reply:
        """Ask the controller, or the broker that Metadata names as such. Raises `ClientError`."""
        if self._controller_id not in self._addresses:
            await self.refresh()
        node = (
            self._at(self._addresses[self._controller_id]) if self._controller_id in self._addresses else None
        )
        if node is None:
            return await self._ask_some(api_key, message)
        return await node.ask(api_key, message, timeout_s=timeout_s)

    def forget_controller(self) -> None:
        """Find the controller anew at the next request to it."""
        self._controller_id = -1

    async def _ask_some(self, api_key: int, message: Message) -> Reply:
        async def ask(node: Node) -> Reply:
            return await node.ask(api_key, message)

        return await self._retried(ask)

    async def _retried(self, ask: Callable[[Node], Awaitable[Reply]]) -> Reply:
        """Call `ask` with one broker after another. Once each was tried and none is reachable, that is the error."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.settings.api_timeout_s
        tried: set[Address] = set()
        while True:
            nodes = self._candidates()
            node = min(
                (node for node in nodes if node.address not in tried),
                key=lambda node: node.rank,
                default=None,
            )
            if node is None:
                node = min(nodes, key=lambda node: node.rank)
            tried.add(node.address)
            try:
                async with asyncio.timeout_at(until_s):
                    return await ask(node)
            except TimeoutError as error:
                if isinstance(error, RequestTimeoutError) and loop.time() < until_s:
                    continue
                if isinstance(error, RequestTimeoutError):
                    raise
                raise RequestTimeoutError(
                    f"no broker answered within {self.settings.api_timeout_s:g} s",
                    hint="raise default.api.timeout.ms",
                ) from error
            except (UnreachableError, ConnectionLostError) as error:
                all_tried = tried.issuperset(node.address for node in nodes)
                if loop.time() >= until_s or (all_tried and isinstance(error, UnreachableError)):
                    raise
                await asyncio.sleep(self.settings.retry_backoff_s)

    def _candidates(self) -> list[Node]:
        """Return the brokers that were found; before, or if none is left, the bootstrap addresses."""
        addresses = list(self._addresses.values()) or list(self.settings.addresses)
        return [self._at(address) for address in addresses]

    def _at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(address, self.settings, self._on_response)
        return node


def _topic(answer: Message) -> TopicPartitions:
    if answer["error_code"]:
        error = BrokerError(answer["error_code"])
        raise BrokerError(answer["error_code"], f"topic {answer['name']!r}: {error.text}")
    leaders = {each["partition_index"]: each["leader_id"] for each in answer["partitions"]}
    return TopicPartitions(name=answer["name"], topic_id=answer.get("topic_id", ""), leaders=leaders)
