"""Real clients that go on whatever becomes of the broker: producers, consumers that keep positions, group members."""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from tests.kills.ledger import Delivery, Partition, ViolationError

__all__ = ["SESSION_MS", "Group", "Load", "Member", "Reader", "consumer"]

_RECONNECT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}
_UNDER_WAY = 400  # records that a producer sends before some are acknowledged
_AT_ONCE = 25
_PAUSE_S = 0.01
_NO_LIMIT_MS = 0
_RETRIES = 2**31 - 1
_DELIVERIES: dict[Delivery, dict[str, str | int | bool]] = {
    Delivery.EXACTLY_ONCE: {"enable.idempotence": True, "message.timeout.ms": _NO_LIMIT_MS},
    Delivery.AT_MOST_ONCE: {"acks": 1, "retries": 0, "max.in.flight": 5},
    Delivery.AT_LEAST_ONCE: {
        "acks": "all", "retries": _RETRIES, "max.in.flight": 1, "message.timeout.ms": _NO_LIMIT_MS,
    },
}  # fmt: skip
_COMMIT_EACH = 5  # times that something was read
_SAMPLED = 20  # one record of so many is compared with what an auditor reads later
FLUSH_S = 150.0
SESSION_MS = 6_000
"""How long a member of a group may be silent."""


class Load(threading.Thread):
    """A producer to all partitions, in turn."""

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        producer: int,
        delivery: Delivery,
        partitions: Sequence[Partition],
    ) -> None:
        super().__init__(name=client_id, daemon=True)
        self.stopping = threading.Event()
        self.problem: str | None = None
        self.flush_s = FLUSH_S
        self._delivery = delivery
        self._partitions = partitions
        self._streams = [partition.stream(producer, delivery) for partition in partitions]
        self._under_way = 0
        common = {"bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 2}
        self._producer = Producer(common | _RECONNECT | _DELIVERIES[delivery], error_cb=self._on_error)

    def run(self) -> None:
        """Produce until told to stop, and wait for what is under way."""
        try:
            self._produce()
        except KafkaException as error:  # the producer has failed for good
            self.problem = f"{self.name}: {error}"

    def _produce(self) -> None:
        turn = 0
        while not self.stopping.is_set() and self.problem is None:
            place = turn % len(self._partitions)
            turn += 1
            for _ in range(_AT_ONCE):
                self._send(place)
            self._producer.poll(_PAUSE_S)
            while self._under_way > _UNDER_WAY and not self.stopping.is_set():
                self._producer.poll(_PAUSE_S)
        left = self._producer.flush(self.flush_s)
        if left and self.problem is None:
            self.problem = (
                f"{self.name}: {left} records are neither acknowledged nor failed after {self.flush_s:.0f} s"
            )

    def _send(self, place: int) -> None:
        partition, stream = self._partitions[place], self._streams[place]
        count, value = stream.send()
        self._under_way += 1

        def note(error, message) -> None:
            self._under_way -= 1
            if error is None:
                stream.acknowledge(count, message.offset())
            elif self._delivery is not Delivery.AT_MOST_ONCE:
                self.problem = f"{self.name}: record {count} of {partition.topic}-{partition.number}: {error}"

        self._producer.produce(partition.topic, value, partition=partition.number, on_delivery=note)

    def _on_error(self, error) -> None:
        if error.fatal():
            self.problem = f"{self.name}: {error}"


def consumer(bootstrap: str, client_id: str) -> Consumer:
    """Return a consumer that checks what it gets and starts nowhere but where it is told to."""
    settings = {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "group.id": client_id,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.wait.max.ms": 50,
        "topic.metadata.refresh.interval.ms": 1000,
    }
    return Consumer(settings | _RECONNECT)


class Reader(threading.Thread):
    """A consumer that assigns itself all partitions and commits where it is.

    acknowledged, attempted: offsets that were committed, and that it has asked for, by topic and partition.
    samples: partition, offset and value of some records that it was given.
    """

    def __init__(self, bootstrap: str, client_id: str, partitions: Sequence[Partition]) -> None:
        super().__init__(name=client_id, daemon=True)
        self.stopping = threading.Event()
        self.problem: str | None = None
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.attempted: dict[tuple[str, int], int] = {}
        self.samples: deque[tuple[Partition, int, bytes]] = deque()
        self.records = self.commits = 0
        self._address = bootstrap
        self._partitions = {(partition.topic, partition.number): partition for partition in partitions}
        self._next: Counter[tuple[str, int]] = Counter()

    def run(self) -> None:
        """Read and commit until told to stop."""
        with closing(consumer(self._address, self.name)) as reading:
            reading.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in self._partitions])
            turns = 0
            while not self.stopping.is_set() and self.problem is None:
                for message in reading.consume(1000, timeout=0.1):
                    self._take(message)
                turns += 1
                if self._next and turns % _COMMIT_EACH == 0:
                    self._commit(reading)

    def _take(self, message) -> None:
        if message.error() is not None:
            self.problem = f"{self.name}: {message.error()}"
            return
        place, offset = (message.topic(), message.partition()), message.offset()
        if place in self._next and offset != self._next[place]:
            self.problem = f"{self.name} was given offset {offset} of {place} after {self._next[place] - 1}"
        self._next[place] = offset + 1
        self.records += 1
        if self.records % _SAMPLED == 0:
            self.samples.append((self._partitions[place], offset, message.value()))

    def _commit(self, reading: Consumer) -> None:
        wanted = dict(self._next)
        self.attempted = wanted
        offsets = [TopicPartition(*place, offset) for place, offset in wanted.items()]
        try:
            answered = reading.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return
        if all(each.error is None for each in answered):
            self.acknowledged = wanted
            self.commits += 1

    def check_samples(self) -> None:
        """Compare with what an auditor has read of the same offsets. Raises `ViolationError`."""
        later = []
        for _ in range(len(self.samples)):
            partition, offset, value = self.samples.popleft()
            if offset < partition.end:
                partition.check_read(offset, value)
            else:
                later.append((partition, offset, value))
        self.samples.extendleft(reversed(later))

    def check_positions(
        self, acknowledged: dict[tuple[str, int], int], found: dict[tuple[str, int], int]
    ) -> None:
        """Compare positions with what was acknowledged before they were asked for. Raises `ViolationError`."""
        attempted = self.attempted
        for place, offset in acknowledged.items():
            if not offset <= found[place] <= attempted[place]:
                raise ViolationError(
                    f"{self.name} is at {found[place]} of {place[0]}-{place[1]}, where it committed {offset} and "
                    f"asked for {attempted[place]} since"
                )


class Group:
    """What the members of a group have committed together, by topic and partition, whoever owned it then.

    acknowledged, attempted: the largest offsets that were committed, and that were asked for.
    """

    def __init__(self, name: str, topics: Sequence[str]) -> None:
        self.name = name
        self.topics = list(topics)
        self.acknowledged: Counter[tuple[str, int]] = Counter()
        self.attempted: Counter[tuple[str, int]] = Counter()
        self.commits = 0
        self._lock = threading.Lock()

    def attempt(self, offsets: dict[tuple[str, int], int]) -> None:
        """Note what is asked for."""
        with self._lock:
            self.attempted |= Counter(offsets)

    def acknowledge(self, offsets: dict[tuple[str, int], int]) -> None:
        """Note what was acknowledged."""
        with self._lock:
            self.acknowledged |= Counter(offsets)
            self.commits += 1

    def check_positions(
        self, acknowledged: Counter[tuple[str, int]], found: dict[tuple[str, int], int]
    ) -> None:
        """Compare positions with what was acknowledged before they were asked for. Raises `ViolationError`.

        They never go back: who owns a partition next begins where it was committed, and nobody else commits there.
        """
        for place, offset in acknowledged.items():
            if not offset <= found[place] <= self.attempted[place]:
                raise ViolationError(
                    f"group {self.name} is at {found[place]} of {place[0]}-{place[1]}, where it committed {offset} and "
                    f"asked for {self.attempted[place]}"
                )


class Member(threading.Thread):
    """A consumer that subscribes, and commits what it has read. owned: its partitions."""

    def __init__(self, bootstrap: str, client_id: str, group: Group) -> None:
        super().__init__(name=client_id, daemon=True)
        self.stopping = threading.Event()
        self.problem: str | None = None
        self.owned: frozenset[tuple[str, int]] = frozenset()
        self._group = group
        self._next: dict[tuple[str, int], int] = {}
        settings = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": group.name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 50,
            # Of a subscription that was asked for while the broker died, it asks again after five minutes otherwise.
            "topic.metadata.refresh.interval.ms": 1000,
        }
        self._consumer = Consumer(settings | _RECONNECT)

    def run(self) -> None:
        """Read and commit until told to stop."""
        with closing(self._consumer) as reading:
            reading.subscribe(self._group.topics, on_revoke=self._on_lost, on_lost=self._on_lost)
            turns = 0
            while not self.stopping.is_set():
                for message in reading.consume(1000, timeout=0.1):
                    if message.error() is None:
                        self._next[message.topic(), message.partition()] = message.offset() + 1
                self.owned = frozenset((part.topic, part.partition) for part in reading.assignment())
                turns += 1
                if self._next and turns % _COMMIT_EACH == 0:
                    self._commit(reading)

    def _on_lost(self, *_: object) -> None:
        self._next.clear()

    def _commit(self, reading: Consumer) -> None:
        wanted = dict(self._next)
        self._group.attempt(wanted)
        offsets = [TopicPartition(*place, offset) for place, offset in wanted.items()]
        try:
            answered = reading.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return
        if all(each.error is None for each in answered):
            self._group.acknowledge(wanted)
