"""A producer for partitions that the caller chooses, which waits as long as a broker asks it to.

    async with Producer(load_client_settings("localhost:9092"), gzip=True) as producer:
        offset = await producer.send("orders", 0, [Record(value=b"one"), Record(value=b"two")])

It is a reference for the client half of KIP-219, and Tidegate's own tools probe with it. It neither chooses partitions
nor collects records, and it sends nothing twice: after a lost connection the caller decides. Applications should use
confluent-kafka or aiokafka.
Follows: Kafka `Sender`, B§7.1, B§7.2.
"""

import time
from collections.abc import Sequence

from tidegate import error_codes
from tidegate.api_keys import PRODUCE
from tidegate.client.cluster import Cluster
from tidegate.client.errors import BrokerError, ClientError, raise_for
from tidegate.client.metrics import ThrottleTimes
from tidegate.client.partitions import MOVED, Leaders, TopicPartition
from tidegate.client.settings import ClientSettings
from tidegate.wire import Message
from tidegate.wire.records import Record, encode_batch

__all__ = ["Producer"]

_NEWEST_WITH_NAMES = 12  # later versions of Produce have topic ids in the place of names


class Producer:
    """A producer. Use it as an asynchronous context manager.

    acks: 1, or -1 for all replicas in sync. gzip: compress the batches.
    """

    def __init__(self, settings: ClientSettings, *, acks: int = -1, gzip: bool = False) -> None:
        if acks not in (-1, 1):
            raise ValueError(f"acks must be -1 or 1, got {acks!r}")
        self._settings, self._acks, self._gzip = settings, acks, gzip
        self._throttle_times = ThrottleTimes(
            "produce", samples=settings.metrics_samples, window_ms=settings.metrics_window_ms
        )
        self._cluster = Cluster(settings, self._throttle_times.record)
        self._leaders = Leaders(self._cluster)

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._cluster.__aexit__(*error)

    async def send(self, topic: str, partition: int, records: Sequence[Record]) -> int:
        """Store records as one batch; return the offset of the first. Waits for the deadline of a throttle first.

        Raises `ClientError`; after a `ConnectionLostError` or a `RequestTimeoutError` the records may be stored.
        """
        if not records:
            raise ValueError("records must be one or more, got none")
        batch = encode_batch(records, now_ms=time.time_ns() // 1_000_000, gzip=self._gzip)
        message = self._message(topic, partition, batch)
        place = TopicPartition(topic, partition)
        async with self._cluster.time_limit():
            while True:
                node = await self._leaders.find(place)
                reply = await node.ask(PRODUCE, message, most_version=_NEWEST_WITH_NAMES)
                answer = _answer(reply.message, place)
                if answer["error_code"] not in MOVED:
                    break
                self._leaders.forget(place)
        code = answer["error_code"]
        if code != error_codes.NONE:
            text = answer.get("error_message") or BrokerError(code).text
            raise_for(code, f"partition {place}: {text}")
        return int(answer["base_offset"])

    def metrics(self) -> dict[str, float]:
        """Return `produce-throttle-time-avg` and `-max`, in ms; NaN before the first response."""
        return self._throttle_times.values()

    def _message(self, topic: str, partition: int, batch: bytes) -> Message:
        return {
            "transactional_id": None,
            "acks": self._acks,
            "timeout_ms": int(1000 * self._settings.request_timeout_s),
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        }


def _answer(message: Message, place: TopicPartition) -> Message:
    """Return what a response says of a partition. Raises `ClientError` where it says nothing of it."""
    for topic in message["responses"]:
        for answer in topic["partition_responses"]:
            if (topic["name"], answer["index"]) == place:
                found: Message = answer
                return found
    raise ClientError(f"the broker gave no result of partition {place}")
