"""The brokers of a cluster as a client knows them, and when it may send to each of them.

A throttled client sends nothing more to a broker for `throttle_time_ms`, if the version of the response says that
the broker did not delay it (KIP-219). The deadline belongs to the broker's address: it survives a reconnect. Other
brokers are unaffected. A request that any broker can answer goes to one that does not throttle, if there is one.

    cluster = Cluster(settings)
    reply = await cluster.ask_any(DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})

Follows: Kafka `ClusterConnectionStates`, `NetworkClient.leastLoadedNode`, B§7.1.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.api_keys import FIND_COORDINATOR, METADATA
from tidegate.client.connection import Connection, Reply
from tidegate.client.errors import (
    ClientError,
    ConnectionLostError,
    RequestTimeoutError,
    UnreachableError,
    only_entry,
    raise_for,
)
from tidegate.client.settings import Address, ClientSettings
from tidegate.wire import ZERO_ID, Message

__all__ = ["MAX_BROKERS", "MAX_IN_FLIGHT", "NO_TOPICS", "Cluster", "Node", "TopicPartitions"]

MAX_BROKERS = 10_000
"""Most brokers of a cluster. A longer list is an error."""
MAX_IN_FLIGHT = 5
"""Requests in flight to one broker. Follows: Kafka `max.in.flight.requests.per.connection`."""
NO_TOPICS: Message = {
    "topics": [],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
"""A Metadata request for the brokers alone."""
_MOST_DOUBLINGS = 30
_MOST_REFUSALS = 5
"""Number of new connections, closed by brokers, after which a call gives up if no broker has answered."""
_LOGIN_HINT = (
    "check that security.protocol matches the listener at this port: "
    "one with SASL closes connections without a login"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """The partitions of one topic: the leader's node id of each, -1 where it has none.

    error_code: Kafka's number, 0 without an error.
    """

    name: str
    leaders: Mapping[int, int]
    error_code: int = 0


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
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._closed = False

    @property
    def throttled_s(self) -> float:
        """Return for how long, in seconds, nothing may be sent to the broker."""
        return max(self._deadline_s - self._loop.time(), 0.0)

    @property
    def rank(self) -> tuple[float, int, int]:
        """Return a sort key: of several brokers that could answer, the one with the smallest key is asked."""
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

        timeout_s: how long the response may take once the request is sent, `request.timeout.ms` by default. The wait
        for the deadline comes before. A request that is cancelled stays in flight until its response or its timeout.
        """
        await self._slots.acquire()
        try:
            connection = await self._free_connection()
            reply = connection.send(api_key, message, timeout_s=timeout_s, most_version=most_version)
        except BaseException:
            self._slots.release()
            raise
        reply.add_done_callback(lambda _: self._slots.release())
        await asyncio.wait((reply,))
        return reply.result()

    async def close(self) -> None:
        """Close the connection. Requests in flight fail, and later ones."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    async def _free_connection(self) -> Connection:
        """Return a connection on which a request may be sent now."""
        while True:
            await self._until_free()
            connection = await self._connected()
            if not self.throttled_s and connection.usable:
                return connection

    async def _until_free(self) -> None:
        """Wait until the deadline is over, which responses may extend meanwhile."""
        while left_s := self.throttled_s:
            await asyncio.sleep(left_s)

    async def _connected(self) -> Connection:
        """Return a usable connection, a new one if necessary; after a failure not before a pause is over."""
        async with self._connecting:
            connection = self._connection
            if connection is not None and connection.usable:
                return connection
            if connection is not None:
                await connection.finish()
            await asyncio.sleep(self._not_before_s - self._loop.time())
            if self._closed:
                raise ClientError("the client is closed")
            try:
                connection = await Connection.open(
                    self.address,
                    self._settings,
                    on_throttle=self._on_throttle,
                    until_free=self._until_free,
                )
            except ClientError:
                pause_s = self._settings.reconnect_backoff_s * 2.0 ** min(self._failures, _MOST_DOUBLINGS)
                self._failures += 1
                self._not_before_s = self._loop.time() + min(pause_s, self._settings.reconnect_backoff_max_s)
                raise
            self._connection = connection
            self._failures = 0
            if self._closed:
                await connection.close()
            return connection

    def _on_throttle(self, throttle_time_ms: int, holds_back: bool) -> None:
        self._on_response(throttle_time_ms)
        if holds_back:
            self._deadline_s = max(self._deadline_s, self._loop.time() + throttle_time_ms / 1000)


class Cluster:
    """All brokers of a cluster, found through the bootstrap addresses. Use it as an asynchronous context manager.

    addresses: those of the brokers that were found last, by node id.
    """

    def __init__(
        self, settings: ClientSettings, on_response: Callable[[int], None] = lambda ms: None
    ) -> None:
        self.settings = settings
        self.cluster_id: str | None = None
        self._on_response = on_response
        self._nodes: dict[Address, Node] = {}
        self.addresses: dict[int, Address] = {}
        self._controller_id = -1

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    @property
    def node_ids(self) -> list[int]:
        """Return the ids of the brokers that were found last."""
        return sorted(self.addresses)

    async def node(self, node_id: int) -> Node:
        """Return a broker by its id. Raises `UnreachableError` if the cluster has none of that id."""
        if node_id not in self.addresses:
            await self.refresh()
        if node_id not in self.addresses:
            raise UnreachableError(f"the cluster has no broker {node_id}, it has {self.node_ids}")
        return self._at(self.addresses[node_id])

    async def refresh(self, topics: Sequence[str] = ()) -> list[TopicPartitions]:
        """Ask for the brokers, and for the partitions of `topics`. Raises `ClientError`."""
        message = {**NO_TOPICS, "topics": [{"name": name, "topic_id": ZERO_ID} for name in topics]}
        answer = (await self._ask_some(METADATA, message)).message
        if len(answer["brokers"]) > MAX_BROKERS:
            raise ClientError(
                f"the cluster has {len(answer['brokers'])} brokers, expected at most {MAX_BROKERS}"
            )
        # A broker that starts may name none. Follows: Kafka `NetworkClient`, which keeps those that it knows.
        if answer["brokers"] or not self.addresses:
            self.addresses = {
                each["node_id"]: Address(each["host"], each["port"]) for each in answer["brokers"]
            }
        self._controller_id = answer.get("controller_id", -1)
        self.cluster_id = answer.get("cluster_id")
        await self._drop_unknown_nodes()
        return [_topic(each) for each in answer["topics"]]

    async def topic_names(self) -> list[str]:
        """Return the names of all topics. Raises `ClientError`."""
        answer = (await self._ask_some(METADATA, {**NO_TOPICS, "topics": None})).message
        return [each["name"] for each in answer["topics"]]

    async def ask_any(self, api_key: int, message: Message) -> Reply:
        """Ask the broker that is least loaded, and after a failure others, until `default.api.timeout.ms` is over.

        Raises the last `ClientError`.
        """
        if not self.addresses:
            await self.refresh()
        return await self._ask_some(api_key, message)

    async def ask_node(self, node_id: int, api_key: int, message: Message) -> Reply:
        """Ask one broker, until `default.api.timeout.ms` is over. Raises `ClientError`."""
        async with self.time_limit():
            return await (await self.node(node_id)).ask(api_key, message)

    async def ask_controller(self, api_key: int, message: Message) -> Reply:
        """Ask the broker that Metadata names as the controller, once; another where that cannot be reached.

        Raises `ClientError`.
        """
        if self._controller_id not in self.addresses:
            await self.refresh()
        if self._controller_id in self.addresses:
            with contextlib.suppress(UnreachableError):
                return await self._at(self.addresses[self._controller_id]).ask(api_key, message)
            self.forget_controller()
        return await self._ask_some(api_key, message)

    async def coordinator_id(self, group_id: str) -> int:
        """Return the node id of a group's coordinator. Raises `ClientError`."""
        message = {"key": group_id, "key_type": 0, "coordinator_keys": [group_id]}
        answer = (await self.ask_any(FIND_COORDINATOR, message)).message
        found = only_entry(answer.get("coordinators") or [answer])
        raise_for(found["error_code"], found.get("error_message"))
        return int(found["node_id"])

    def forget_controller(self) -> None:
        """Find the controller anew at the next request to it."""
        self._controller_id = -1

    @contextlib.asynccontextmanager
    async def time_limit(
        self, until_s: float | None = None, failures: Sequence[ClientError] = ()
    ) -> AsyncIterator[None]:
        """Limit the block to `default.api.timeout.ms`, or to a time of the loop. Raises `ClientError`.

        failures: errors inside the block after which a request was tried again, in order; the error names the last one.
        """
        if until_s is None:
            until_s = asyncio.get_running_loop().time() + self.settings.api_timeout_s
        limit = asyncio.timeout_at(until_s)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise  # a request that timed out before
            waits_s = max((node.throttled_s for node in self._nodes.values()), default=0.0)
            throttled = f"; a broker throttles this client for another {waits_s:.1f} s" if waits_s else ""
            tried = f"; last error: {failures[-1]}" if failures else ""
            hint = failures[-1].hint if failures else None
            raise RequestTimeoutError(
                f"no answer within {self.settings.api_timeout_s:g} s{throttled}{tried}",
                hint=hint or "raise default.api.timeout.ms",
            ) from error

    async def _ask_some(self, api_key: int, message: Message) -> Reply:
        failures: deque[ClientError] = deque(maxlen=1)
        async with self.time_limit(failures=failures):
            return await self._retried(lambda node: node.ask(api_key, message), failures)

    async def _retried(self, ask: Callable[[Node], Awaitable[Reply]], failures: deque[ClientError]) -> Reply:
        """Call `ask` with one broker after another. Once each was tried and none is reachable, that is the error.

        Add to `failures` the errors after which a request is tried again. Give up when brokers have closed
        `_MOST_REFUSALS` new connections.
        """
        tried: set[Address] = set()
        refusals = 0
        while True:
            nodes = self._candidates()
            node = min(nodes, key=lambda node: (node.address in tried, node.rank))
            tried.add(node.address)
            try:
                return await ask(node)
            except UnreachableError:
                if tried.issuperset(node.address for node in nodes):
                    raise
            except (ConnectionLostError, RequestTimeoutError) as error:
                failures.append(error)
                refusals += isinstance(error, ConnectionLostError) and error.is_first and not self.addresses
                if refusals == _MOST_REFUSALS:
                    raise ConnectionLostError(str(error), hint=_LOGIN_HINT) from error
                await asyncio.sleep(self.settings.retry_backoff_s)

    def _candidates(self) -> list[Node]:
        """Return the brokers that were found, or the bootstrap addresses as long as none was found."""
        addresses = list(self.addresses.values()) or list(self.settings.addresses)
        return [self._at(address) for address in addresses]

    def _at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(address, self.settings, self._on_response)
        return node

    async def _drop_unknown_nodes(self) -> None:
        """Close the connections to addresses that the cluster no longer has. A deadline that is not over stays."""
        known = {*self.addresses.values(), *self.settings.addresses}
        gone = [node for node in self._nodes.values() if node.address not in known and not node.throttled_s]
        for node in gone:
            del self._nodes[node.address]
            await node.close()


def _topic(answer: Message) -> TopicPartitions:
    leaders = {each["partition_index"]: each["leader_id"] for each in answer["partitions"]}
    return TopicPartitions(name=answer["name"], leaders=leaders, error_code=answer["error_code"])
