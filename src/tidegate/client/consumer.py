"""A consumer of assigned partitions, which waits as long as a broker asks it to.

    async with Consumer(load_client_settings("localhost:9092")) as consumer:
        consumer.assign({TopicPartition("orders", 0): EARLIEST})
        for partition, records in (await consumer.poll(timeout_s=1.0)).items():
            ...

It is a reference for the client half of KIP-219, and Tidegate's own tools probe with it. It has no group and commits no
offsets, reads uncompressed and gzip batches, and does not tell aborted transactions from others. Applications should
use confluent-kafka or aiokafka.

One Fetch per leader is under way, and goes on between two polls. A throttled leader does not keep the others waiting.
Bounds: a response has about `MAX_FETCH_BYTES`, a batch expands to at most `wire.records.MAX_UNPACKED_BYTES`, and is
decoded only as far as records are returned.
Follows: Kafka `Fetcher`, B§7.1, B§7.2.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice

from tidegate import error_codes
from tidegate.api_keys import FETCH, LIST_OFFSETS
from tidegate.client.cluster import Cluster, Node
from tidegate.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    RequestTimeoutError,
    UnreachableError,
    raise_for,
)
from tidegate.client.metrics import ThrottleTimes
from tidegate.client.partitions import MOVED, Leaders, TopicPartition
from tidegate.client.settings import ClientSettings
from tidegate.wire import Message, ProtocolError
from tidegate.wire.batch import Buffer, batches
from tidegate.wire.records import Record, decode_batch

__all__ = ["EARLIEST", "LATEST", "MAX_FETCH_BYTES", "Consumer"]

EARLIEST, LATEST = -2, -1
"""Offsets to begin at, as in ListOffsets: the first record, or behind the last."""
MAX_FETCH_BYTES = 16 << 20
_PARTITION_BYTES = 1 << 20  # Kafka `max.partition.fetch.bytes`
_MAX_WAIT_MS = 500  # Kafka `fetch.max.wait.ms`
_NEWEST_WITH_NAMES = 12  # later versions of Fetch have topic ids in the place of names


class Consumer:
    """A consumer. Use it as an asynchronous context manager.

    max_records: most records that `poll` returns. partition_bytes: most bytes of a partition in one response, but at
    least one batch.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        max_records: int = 500,
        partition_bytes: int = _PARTITION_BYTES,
    ) -> None:
        self._settings = settings
        self._max_records, self._partition_bytes = max_records, partition_bytes
        self._throttle_times = ThrottleTimes(
            "fetch", samples=settings.metrics_samples, window_ms=settings.metrics_window_ms
        )
        self._cluster = Cluster(settings, self._throttle_times.record)
        self._leaders = Leaders(self._cluster)
        self._positions: dict[TopicPartition, int] = {}
        self._fetched: dict[TopicPartition, Iterator[Record]] = {}
        self._fetches: dict[Node, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(self, *error: object) -> None:
        for fetch in self._fetches.values():
            fetch.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        await self._cluster.__aexit__(*error)

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Consume these partitions and no others, each from an offset, `EARLIEST` or `LATEST`.

        Deadlines of brokers stay.
        """
        self._positions = dict(offsets)
        self._fetched.clear()

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the record that is next, or what was assigned as long as that is not known."""
        return self._positions[partition]

    async def poll(self, *, timeout_s: float = 1.0) -> dict[TopicPartition, list[Record]]:
        """Return the next records by partition as soon as there are some, nothing when `timeout_s` is over.

        Raises `ClientError`.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while not (found := self._take()) and (left_s := until_s - loop.time()) > 0:
            try:
                async with asyncio.timeout(left_s) as limit:
                    await self._fetch_more()
            except TimeoutError:
                if not limit.expired():
                    raise
        return found

    def metrics(self) -> dict[str, float]:
        """Return `fetch-throttle-time-avg` and `-max`, in ms; NaN before the first response."""
        return self._throttle_times.values()

    # --- records that were fetched ----------------------------------------------------------------------------------

    def _take(self) -> dict[TopicPartition, list[Record]]:
        """Return fetched records, from one partition after the other."""
        found: dict[TopicPartition, list[Record]] = {}
        room = self._max_records
        for partition, waiting in list(self._fetched.items()):
            records: list[Record] = []
            try:
                records.extend(islice(waiting, room))
            except ClientError:
                if not records and not found:
                    raise  # otherwise the next fetch begins at the offset of the damage
            if len(records) < room:
                del self._fetched[partition]
            if records:
                found[partition] = records
                room -= len(records)
            if not room:
                break
        return found

    def _decoded(self, partition: TopicPartition, data: Buffer) -> Iterator[Record]:
        """Yield the records of a partition from its position on, and move the position."""
        begun_at = self._positions[partition]
        try:
            for batch in batches(data):
                for record in decode_batch(data, batch):
                    if record.offset >= self._positions[partition]:
                        self._positions[partition] = record.offset + 1
                        yield record
                self._positions[partition] = max(self._positions[partition], batch.last_offset + 1)
        except ProtocolError as error:
            place = f"partition {partition}, offset {self._positions[partition]}"
            raise ClientError(f"{place}: {error}", hint=error.hint) from error
        if len(data) and self._positions[partition] == begun_at:
            raise ClientError(
                f"partition {partition}, offset {begun_at}: no whole batch in {len(data)} bytes"
            )

    # --- fetches ----------------------------------------------------------------------------------------------------

    async def _fetch_more(self) -> None:
        """Ask each leader that is not being asked for its partitions, and wait for the first response."""
        wanted: dict[Node, list[TopicPartition]] = defaultdict(list)
        for partition in self._positions:
            if partition not in self._fetched:
                wanted[await self._leaders.find(partition)].append(partition)
        for node, partitions in wanted.items():
            if node not in self._fetches:
                self._fetches[node] = asyncio.create_task(self._fetch(node, partitions))
        if not self._fetches:
            await asyncio.sleep(self._settings.retry_backoff_s)  # nothing is assigned
            return
        await asyncio.wait(self._fetches.values(), return_when=asyncio.FIRST_COMPLETED)
        for node in [node for node, fetch in self._fetches.items() if fetch.done()]:
            await self._fetches.pop(node)

    async def _fetch(self, node: Node, partitions: list[TopicPartition]) -> None:
        try:
            await self._find_offsets(node, partitions)
            asked = {each: self._positions[each] for each in partitions if self._positions.get(each, -1) >= 0}
            if asked:
                reply = await node.ask(FETCH, self._question(asked), most_version=_NEWEST_WITH_NAMES)
                raise_for(reply.message.get("error_code", error_codes.NONE), None)  # since version 7
                self._keep(reply.message, asked)
        except (ConnectionLostError, RequestTimeoutError, UnreachableError):
            for partition in partitions:
                self._leaders.forget(partition)

    def _question(self, asked: Mapping[TopicPartition, int]) -> Message:
        topics: dict[str, list[Message]] = defaultdict(list)
        for (topic, partition), offset in asked.items():
            topics[topic].append(
                {
                    "partition": partition,
                    "fetch_offset": offset,
                    "partition_max_bytes": self._partition_bytes,
                }
            )
        return {
            "max_wait_ms": _MAX_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": MAX_FETCH_BYTES,
            "topics": [{"topic": name, "partitions": each} for name, each in topics.items()],
            "forgotten_topics_data": [],
        }

    def _keep(self, message: Message, asked: Mapping[TopicPartition, int]) -> None:
        """Keep the records of a response, except for partitions that were assigned anew meanwhile."""
        for topic in message["responses"]:
            for answer in topic["partitions"]:
                partition = TopicPartition(topic["topic"], answer["partition_index"])
                if partition not in asked or self._positions.get(partition) != asked[partition]:
                    continue
                if self._is_led_here(answer["error_code"], partition) and answer["records"]:
                    self._fetched[partition] = self._decoded(partition, answer["records"])

    async def _find_offsets(self, node: Node, partitions: list[TopicPartition]) -> None:
        """Replace `EARLIEST` and `LATEST` by offsets."""
        asked = {each: self._positions[each] for each in partitions if self._positions.get(each, 0) < 0}
        if not asked:
            return
        topics: dict[str, list[Message]] = defaultdict(list)
        for (topic, partition), timestamp in asked.items():
            topics[topic].append({"partition_index": partition, "timestamp": timestamp})
        message = {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout_ms": int(1000 * self._settings.request_timeout_s),
            "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
        }
        reply = await node.ask(LIST_OFFSETS, message)
        for topic in reply.message["topics"]:
            for answer in topic["partitions"]:
                place = TopicPartition(topic["name"], answer["partition_index"])
                if place not in asked or self._positions.get(place) != asked[place]:
                    continue
                if self._is_led_here(answer["error_code"], place):
                    self._positions[place] = max(answer["offset"], 0)

    def _is_led_here(self, code: int, partition: TopicPartition) -> bool:
        """Return whether the broker has answered as leader. Raises `BrokerError` for other errors."""
        if code in MOVED:
            self._leaders.forget(partition)
            return False
        if code != error_codes.NONE:
            raise BrokerError(code, f"partition {partition}: {BrokerError(code).text}")
        return True
