"""Consumers that subscribe: groups of real clients, their rebalances, and what is left of them after `kill -9`."""

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Self

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer
from tests.e2e.kafka_commands import run_commands
from tests.e2e.left_sockets import MAY_LEAVE_SOCKETS

pytestmark = MAY_LEAVE_SOCKETS

PARTITIONS = 4
WAIT_S = 60.0
SESSION_MS = 6_000
MOMENT_S = 0.05
POLL_MS = 1_000


def produce(address: str, topic: str, count: int, first: int = 0) -> None:
    """Write records with numbers as values, one partition after another."""
    producer = Producer({"bootstrap.servers": address})
    for number in range(first, first + count):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Call again and again until it returns True."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"


class Member:
    """A consumer of librdkafka in a group, with what it has read and what it is assigned."""

    def __init__(self, address: str, topic: str, group: str, **settings: Any) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.read: list[int] = []
        self.consumer.subscribe([topic])

    def poll(self) -> None:
        """Take what has come within a tenth of a second."""
        for message in self.consumer.consume(100, 0.1):
            if message.error() is None:
                self.read.append(int(message.value()))

    @property
    def partitions(self) -> list[int]:
        """Return the partitions that it is assigned."""
        return sorted(part.partition for part in self.consumer.assignment())

    def commit(self) -> None:
        """Commit what it has read, once there is something."""
        self.consumer.commit(asynchronous=False)


@contextmanager
def members(*made: Member) -> Iterator[Sequence[Member]]:
    """Close consumers afterwards."""
    try:
        yield made
    finally:
        for member in made:
            member.consumer.close()


def poll_all(group: Sequence[Member]) -> bool:
    """Let each poll; return whether every partition has one owner and everybody has some."""
    for member in group:
        member.poll()
    owned = [part for member in group for part in member.partitions]
    return sorted(owned) == list(range(PARTITIONS)) and all(member.partitions for member in group)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_librdkafka(broker, create_topic, unique, assignor):
    """Two share the partitions, a third has its part of them, and what one that leaves had goes to the others."""
    topic = create_topic(broker, unique, PARTITIONS)
    produce(broker.address, topic, 100)
    settings = {"partition_assignment_strategy": assignor}
    group = [Member(broker.address, topic, unique, **settings) for _ in range(2)]
    with members(*group):
        wait_until(lambda: poll_all(group), "two members")
        wait_until(lambda: poll_all(group) and len(set(group[0].read + group[1].read)) == 100, "100 records")
        third = Member(broker.address, topic, unique, **settings)
        group.append(third)
        wait_until(lambda: poll_all(group), "three members")
        third.consumer.close()
        group.remove(third)
        wait_until(lambda: poll_all(group), "two members again")


def test_static_members_come_back_without_a_rebalance(broker, create_topic, unique):
    """Who is started anew under its instance id has the partitions that it had; the other one keeps its own."""
    topic = create_topic(broker, unique, PARTITIONS)
    group = [Member(broker.address, topic, unique, group_instance_id=name) for name in ("a", "b")]
    try:
        wait_until(lambda: poll_all(group), "two members")
        before = [member.partitions for member in group]
        group[0].consumer.close()
        group[0] = Member(broker.address, topic, unique, group_instance_id="a")
        wait_until(lambda: poll_all(group), "the first again")
        assert [member.partitions for member in group] == before
        admin = AdminClient({"bootstrap.servers": broker.address})
        described = admin.describe_consumer_groups([unique])[unique].result(timeout=10)
        assert {member.group_instance_id for member in described.members} == {"a", "b"}
    finally:
        for member in group:
            member.consumer.close()


class ThreadedMember:
    """A consumer of kafka-python in a group, with what it has read; a thread of its own drives it, as applications do.

    One thread must not poll two of them in turn. kafka-python sends a JoinGroup again where the one before it was
    answered while nobody was in its `poll`. The leader's is answered when the last of the others has joined: in the
    other's poll each time, at any broker, so that the group would rebalance for ever.
    """

    def __init__(self, address: str, topic: str, group: str) -> None:
        self.read: list[int] = []
        self.owned = 0
        self._leaving = threading.Event()
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=500,
        )
        self._running = ThreadPoolExecutor(1)
        self._done = self._running.submit(self._consume)

    def _consume(self) -> None:
        with closing(self._consumer):
            while not self._leaving.is_set():
                for records in self._consumer.poll(timeout_ms=POLL_MS).values():
                    self.read.extend(int(record.value) for record in records)
                self.owned = len(self._consumer.assignment())

    def check(self) -> None:
        """Wait a moment; raise what ended it, if something did."""
        if wait([self._done], MOMENT_S).done:
            self._done.result()

    def leave(self) -> None:
        """Commit what was read and leave the group."""
        self._leaving.set()
        self._running.shutdown(wait=False)
        self._done.result(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def test_kafka_python(broker, create_topic, unique):
    """Two consumers share the partitions; the one that stays goes on where the other one committed."""
    topic = create_topic(broker, unique, PARTITIONS)
    produce(broker.address, topic, 40)
    with ExitStack() as leaving:
        first, second = (
            leaving.enter_context(ThreadedMember(broker.address, topic, unique)) for _ in range(2)
        )

        def share() -> bool:
            first.check()
            second.check()
            return [first.owned, second.owned] == [2, 2]

        def take_all() -> bool:
            first.check()
            return len(set(first.read) - set(range(40))) == 40

        wait_until(share, "two members")
        wait_until(lambda: share() and len({*first.read, *second.read}) == 40, "40 records")
        second.leave()
        first.read.clear()
        produce(broker.address, topic, 40, first=40)
        wait_until(take_all, "all by one")
        assert first.owned == PARTITIONS
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        assert unique in {name for name, *_ in _listed(admin)}
        admin.close()


def _listed(admin: KafkaAdminClient) -> list[Any]:
    """Return the groups that kafka-python lists, whatever its version calls that."""
    found = admin.list_consumer_groups() if hasattr(admin, "list_consumer_groups") else admin.list_groups()
    return [(each["group_id"],) if isinstance(each, dict) else each for each in found]


def test_aiokafka(broker, create_topic, unique):
    """Two consumers share the partitions and read all."""
    topic = create_topic(broker, unique, PARTITIONS)
    produce(broker.address, topic, 40)

    async def consume() -> None:
        settings = {"bootstrap_servers": broker.address, "group_id": unique, "auto_offset_reset": "earliest"}
        consumers = [AIOKafkaConsumer(topic, **settings, heartbeat_interval_ms=500) for _ in range(2)]
        read: set[int] = set()
        try:
            await asyncio.gather(*[consumer.start() for consumer in consumers])
            async with asyncio.timeout(WAIT_S):
                while len(read) < 40 or [len(each.assignment()) for each in consumers] != [2, 2]:
                    for consumer in consumers:
                        for records in (await consumer.getmany(timeout_ms=100)).values():
                            read |= {int(record.value) for record in records}
        finally:
            await asyncio.gather(*[consumer.stop() for consumer in consumers])

    asyncio.run(consume())


def test_groups_go_on_after_a_kill(new_broker, create_topic, unique):
    """Members, generation and offsets are there again: nobody joins anew, and nothing is read twice."""
    broker = new_broker()
    topic = create_topic(broker, unique, PARTITIONS)
    produce(broker.address, topic, 100)
    group = [Member(broker.address, topic, unique) for _ in range(2)]
    with members(*group):
        wait_until(lambda: poll_all(group) and len(group[0].read + group[1].read) == 100, "all records")
        for member in group:
            member.commit()
        ids = _member_ids(broker.address, unique)
        broker.kill()
        broker.start()
        produce(broker.address, topic, 100, first=100)
        wait_until(lambda: poll_all(group) and len(group[0].read + group[1].read) >= 200, "what came later")
        assert sorted(group[0].read + group[1].read) == list(range(200))
        assert _member_ids(broker.address, unique) == ids
        for member in group:
            member.commit()
        broker.kill()
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.address})
        found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(unique)])[unique].result(60)
        assert {part.partition: part.offset for part in found.topic_partitions} == dict.fromkeys(range(4), 50)


def _member_ids(address: str, group: str) -> set[str]:
    """Ask with a client of its own.

    One that was connected when the broker was killed may wait for its whole timeout: librdkafka 2.16 sends no
    FindCoordinator again where the connection on which it went was let go of (its re-bootstrap, KIP-899).
    """
    admin = AdminClient({"bootstrap.servers": address})
    described = admin.describe_consumer_groups([group])[group].result(timeout=60)
    assert described.state.name == "STABLE", described.state
    return {member.member_id for member in described.members}


def test_the_newer_protocol_is_refused_at_once(broker, create_topic, unique):
    """librdkafka's consumer of KIP-848 ends with a fatal error, as at a Kafka that has the classic protocol alone."""
    topic = create_topic(broker, unique)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": unique,
            "group.protocol": "consumer",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(WAIT_S)
        assert message is not None
        error = message.error()
        assert error.name() == "_FATAL"
        assert "Broker: API version not supported" in error.str()
    finally:
        consumer.close()


def test_lost_members_are_replaced(new_broker, create_topic, unique):
    """A member that is killed loses its partitions when its session is over."""
    broker = new_broker()
    topic = create_topic(broker, unique, PARTITIONS)
    lost = subprocess.Popen(
        ["kcat", "-b", broker.address, "-G", unique, "-X", f"session.timeout.ms={SESSION_MS}", topic],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    other = Member(broker.address, topic, unique)
    with members(other):
        wait_until(lambda: other.poll() is None and len(other.partitions) == 2, "two members")
        lost.kill()
        lost.wait()
        wait_until(lambda: other.poll() is None and len(other.partitions) == PARTITIONS, "one member")


def test_groups_on_three_nodes(new_broker, create_topic, unique):
    """Each group has its members at the coordinator that every node names."""
    broker = new_broker(nodes=3)
    topic = create_topic(broker, unique, PARTITIONS)
    group = [
        Member(f"127.0.0.1:{port}", topic, f"{unique}-{number}")
        for number in range(4)
        for port in broker.ports[:2]
    ]
    with members(*group):
        pairs = list(zip(group[::2], group[1::2], strict=True))
        wait_until(lambda: sum(poll_all(pair) for pair in pairs) == len(pairs), "four groups of two members")


def test_groups_are_administrated(broker, create_topic, unique):
    """Groups are listed, described, their offsets changed and deleted, and they themselves, by an admin client."""
    topic = create_topic(broker, unique, PARTITIONS)
    produce(broker.address, topic, 8)
    admin = AdminClient({"bootstrap.servers": broker.address})
    member = Member(broker.address, topic, unique)
    with members(member):
        wait_until(lambda: poll_all([member]) and len(member.read) == 8, "8 records")
        member.commit()
        with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([unique])[unique].result(10)
        listed = {group.group_id: group for group in admin.list_consumer_groups().result(10).valid}
        assert listed[unique].state.name == "STABLE"
    described = admin.describe_consumer_groups([unique])[unique].result(10)
    assert (described.state.name, described.members) == ("EMPTY", [])
    wanted = ConsumerGroupTopicPartitions(unique, [TopicPartition(topic, 0, 1)])
    admin.alter_consumer_group_offsets([wanted])[unique].result(10)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(unique)])[unique].result(10)
    assert {part.partition: part.offset for part in found.topic_partitions} == {0: 1, 1: 2, 2: 2, 3: 2}
    admin.delete_consumer_groups([unique])[unique].result(10)
    assert unique not in {group.group_id for group in admin.list_consumer_groups().result(10).valid}


@pytest.mark.java
def test_java_tools(kafka_classpath, broker, create_topic, unique, tmp_path):
    """The console consumer reads in a group, and kafka-consumer-groups describes, resets and deletes it."""
    topic = create_topic(broker, unique, PARTITIONS)
    produce(broker.address, topic, 8)

    def command(name: str, *arguments: str) -> tuple[str, ...]:
        return (f"org.apache.kafka.tools.{name}", "--bootstrap-server", broker.address, *arguments)

    tool = "consumer.group.ConsumerGroupCommand"
    reading = ("--topic", topic, "--group", unique, "--from-beginning", "--max-messages", "8")
    resetting = ("--reset-offsets", "--to-earliest", "--execute", "--group", unique, "--topic", topic)
    done = run_commands(
        kafka_classpath,
        [
            command("consumer.ConsoleConsumer", *reading),
            command(tool, "--describe", "--group", unique),
            command(tool, *resetting),
            command(tool, "--list"),
            command(tool, "--delete", "--group", unique),
            command(tool, "--list"),
        ],
        tmp_path,
    )
    assert [code for code, _ in done] == [0] * 6, done
    read, described, _, listed, _, listed_then = (out for _, out in done)
    assert sorted(read.split()) == [str(number) for number in range(8)]
    rows = [line.split() for line in described.splitlines() if topic in line]
    assert sorted((row[2], row[3], row[4], row[5]) for row in rows) == [
        (str(number), "2", "2", "0") for number in range(PARTITIONS)
    ]
    assert unique in listed
    assert unique not in listed_then
