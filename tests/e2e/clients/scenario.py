"""What every client does against a running broker, whatever its language: judged by the broker, not by the client.

A group of two that shares a topic, of which one leaves and the other takes over; a third that goes on where they
committed; and a user's quotas, under which the usage record says who sent before a throttle time was over.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.e2e.broker import Broker
from tests.e2e.clients.programs import PLAIN, Job, Login, Member, Program, Tools
from tests.e2e.plain_client import PlainClient
from tests.e2e.tls_broker import Certificates

__all__ = ["MECHANISMS", "PARTITIONS", "ClientsBroker", "Obeyed", "consume_in_a_group", "obeyed"]

PARTITIONS = 4
WAIT_S = 60.0
SECRET = "open sesame"  # a blank and all
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PORTS = re.compile(r"listening on 127\.0\.0\.1:(\d+) \(ADMIN\), localhost:(\d+) \(CLIENTS\)")


class ClientsBroker:
    """A running broker with a listener for clients, by `protocol`, and one for whoever judges them.

    users: who can log in, by each of `MECHANISMS`; empty without SASL. more: settings, with `_` for `.`.
    """

    def __init__(self, directory: Path, *, protocol: str, users: tuple[str, ...] = (), **more: str) -> None:
        self.protocol, self._ca, encryption = protocol, "", {}
        if protocol.endswith("SSL"):
            certificates = Certificates.make(directory, "localhost")
            self._ca, encryption = str(certificates.authority_file), certificates.settings("localhost")
        known = " ".join(f'user_{user}="{SECRET}"' for user in users)
        settings = {
            "listeners": "ADMIN://127.0.0.1:0,CLIENTS://127.0.0.1:0",
            "advertised.listeners": "ADMIN://127.0.0.1:0,CLIENTS://localhost:0",
            "listener.security.protocol.map": f"ADMIN:PLAINTEXT,CLIENTS:{protocol}",
            "group.initial.rebalance.delay.ms": "0",
            "quota.window.num": "3",
            **encryption,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        if users:
            settings["listener.name.clients.sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
            settings["listener.name.clients.plain.sasl.jaas.config"] = f"{PLAIN} required {known};"
        self.broker = Broker(directory, settings).start()
        self._port = int(self.broker.wait_log(_PORTS)[2])
        self._clients: dict[str, Any] = {"bootstrap.servers": self.broker.address, "log_level": 0}
        self.admin = AdminClient(self._clients)
        for user in users:
            for kind in ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512:
                added = UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 4096), SECRET.encode())
                self.admin.alter_user_scram_credentials([added])[user].result(timeout=10)

    def job(self, name: str, *, mechanism: str = "", topic: str = "", **more: Any) -> Job:
        """Return a job on a topic, in the group of the same name, by the user `name`."""
        login = Login(
            protocol=self.protocol, mechanism=mechanism, ca=self._ca,
            user=name if mechanism else "", password=SECRET if mechanism else "",
        )  # fmt: skip
        where = {"bootstrap": f"localhost:{self._port}", "topic": topic or name, "group": topic or name}
        return Job(login=login, **{"client_id": name, "partitions": PARTITIONS, **where, **more})

    def owners(self, group: str) -> list[set[int]]:
        """Return which partitions each member of a group has, as the broker describes it."""
        described = self.admin.describe_consumer_groups([group])[group].result(timeout=10)
        return [
            {part.partition for part in member.assignment.topic_partitions} for member in described.members
        ]

    def committed(self, group: str) -> dict[int, int]:
        """Return the committed offset of each partition of which something was read.

        A client that is assigned a partition without records may commit its beginning, 0, and Kafka's own does.
        """
        found = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(
            10
        )
        return {part.partition: part.offset for part in found.topic_partitions if part.offset}

    def ends(self, topic: str) -> dict[int, int]:
        """Return the end of each partition that has records."""
        consumer = Consumer({**self._clients, "group.id": "unused"})
        try:
            ends = {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1]
                for number in range(PARTITIONS)
            }
        finally:
            consumer.close()
        return {number: end for number, end in ends.items() if end}

    def make_topic(self, topic: str) -> None:
        """Create a topic for a client that has no call for it."""
        from confluent_kafka.admin import NewTopic

        self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(timeout=10)

    def set_quotas(self, user: str, **bytes_per_second: float | None) -> None:
        """Set the byte quotas of a user; None removes one."""
        with PlainClient(self.broker.port, "judge") as client:
            client.alter_quotas({"user": user}, bytes_per_second)

    def close(self) -> None:
        """End the broker."""
        self.broker.close()


def wait_until(is_so: Callable[[], bool], what: str, seen: object, *members: Member) -> None:
    """Ask until it is so, while the members live. seen: what is reported where it never is."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        for member in members:
            member.check()
        said = "".join(member.errors for member in members)
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_S:.0f} s, but {seen}\n{said}"
        time.sleep(0.05)


def create_topic(client: Program, broker: ClientsBroker, tools: Tools, job: Job) -> None:
    """Let the client create the job's topic, if it can."""
    if client.creates_topics:
        client.run(tools, job, "create")
    else:
        broker.make_topic(job.topic)


def consume_in_a_group(
    client: Program, broker: ClientsBroker, tools: Tools, job: Job, *, with_third: bool
) -> None:
    """Two members share a topic that the client made and filled, one leaves, the other takes over; a third goes on."""
    create_topic(client, broker, tools, job)
    client.run(tools, job, "produce")
    with ExitStack() as ending:

        def member() -> Member:
            started = client.member(tools, job)
            ending.callback(started.kill)
            return started

        def wait_until_shared(count: int, *members: Member) -> None:
            owners: list[set[int]] = []

            def is_shared() -> bool:
                owners[:] = broker.owners(job.group)
                return _is_shared(owners, count)

            wait_until(is_shared, f"the partitions are shared by {count}", owners, *members)

        first, second = member(), member()
        wait_until_shared(2, first, second)
        ends = broker.ends(job.topic)
        assert sum(ends.values()) == job.count, ends
        both = lambda: {*first.records, *second.records}  # noqa: E731
        wait_until(lambda: both() == _records({}, ends), "all records", ends, first, second)
        second.leave()
        wait_until_shared(1, first)
        first.leave()
        wait_until(lambda: broker.owners(job.group) == [], "an empty group", "members")
        _check_committed(broker, job, ends)
        if with_third:
            client.run(tools, job, "produce")
            later = broker.ends(job.topic)
            third = member()
            wait_until(lambda: set(third.records) >= _records(ends, later), "what came later", later, third)
            third.leave()
            assert sorted(third.records) == sorted(_records(ends, later)), (third.records, ends, later)
            _check_committed(broker, job, later)


def _check_committed(broker: ClientsBroker, job: Job, ends: dict[int, int]) -> None:
    """Fail where other positions are committed than the ends of what was read."""
    committed = broker.committed(job.group)
    assert committed == ends, f"committed is {committed}, but the partitions end at {ends}"


def _is_shared(owners: list[set[int]], members: int) -> bool:
    """Return whether each partition has one owner, and each of so many members has some."""
    owned = sorted(number for parts in owners for number in parts)
    return owned == list(range(PARTITIONS)) and len(owners) == members and all(owners)


def _records(begin: dict[int, int], end: dict[int, int]) -> set[tuple[int, int]]:
    return {(number, offset) for number, last in end.items() for offset in range(begin.get(number, 0), last)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeyed:
    """How often a client was throttled, how often it sent before that was over, and how early at most."""

    throttled: int
    early: int
    longest_early_ms: int

    @property
    def waits(self) -> bool:
        """Return whether it waits as it is told, at least nine times of ten."""
        return self.early * 10 <= self.throttled


QUOTA = 40_000.0  # bytes per second
RECORD_BYTES = 8_000
RECORDS = 40


def obeyed(
    client: Program, broker: ClientsBroker, tools: Tools, name: str, mechanism: str = ""
) -> dict[str, Obeyed]:
    """Produce and consume under quotas of the client's user: what the usage record says of each.

    A client sends each record when the one before it was acknowledged: none is on its way while an answer tells of
    a throttle.
    """
    where = {"mechanism": mechanism, "topic": f"{name}-{mechanism}-throttled"}
    job = broker.job(name, **where, client_id=f"{name}-produce", count=RECORDS, size=RECORD_BYTES)
    reading = broker.job(name, **where, client_id=f"{name}-fetch", fetch_bytes=RECORD_BYTES)
    user = job.login.principal
    create_topic(client, broker, tools, job)
    broker.set_quotas(user, producer_byte_rate=QUOTA)
    client.run(tools, job, "produce")
    broker.set_quotas(user, producer_byte_rate=None, consumer_byte_rate=QUOTA)
    member = client.member(tools, reading)
    try:
        wait_until(lambda: len(set(member.records)) == RECORDS, "all records", RECORDS, member)
        member.leave()
    finally:
        member.kill()
    broker.set_quotas(user, consumer_byte_rate=None)
    rows = by_client(broker.broker.data_dir / "usage", tools.directory / "obeyed")
    return {
        what: Obeyed(
            throttled=row["throttled_requests"],
            early=row["early_requests"],
            longest_early_ms=row["longest_early_ms"],
        )
        for what in ("produce", "fetch")
        for row in rows
        if (row["user"], row["client_id"]) == (user, f"{name}-{what}") and row["throttled_requests"]
    }


def by_client(usage: Path, out: Path) -> list[dict[str, Any]]:
    """Return what `tidegate obedience` found of each client."""
    command = [sys.executable, "-m", "tidegate", "obedience", usage, "--out", out, "--overwrite"]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    rows: list[dict[str, Any]] = pq.read_table(out / "obedience_by_client").to_pylist()
    return rows
