"""A broker that is killed again and again under load, and what must hold after each start and in the end."""

import os
import random
import re
import signal
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.ports import free_port
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.e2e.broker import Broker
from tests.kills.connection import ANONYMOUS, Connection, own_quotas
from tests.kills.ledger import Delivery, Partition, ViolationError
from tests.kills.load import SESSION_MS, Group, Load, Member, Reader, consumer
from tests.kills.record import check_record, check_tidy
from tests.kills.workers import PROBE, Counted, Quotas, Settings, Topics, Worker

from tidegate.quota import ClientQuotaManager, QuotaEntity, QuotaType, QuotaWindow

__all__ = ["Round", "Tally"]

AUDITOR = "auditor"
MEMBERS = ("member-0", "member-1")
UNLIMITED = (AUDITOR, "quotas", "settings", *MEMBERS)
PRODUCERS = (
    Delivery.EXACTLY_ONCE, Delivery.EXACTLY_ONCE, Delivery.EXACTLY_ONCE, Delivery.AT_MOST_ONCE,
    Delivery.AT_LEAST_ONCE,
)  # fmt: skip
TOPICS = {"ledger": 4, "orders": 2, "kept": 2}
RETAINED = "kept"
"""The topic whose old segments are deleted: each partition keeps this many bytes."""
RETAINED_BYTES = 2 << 20
SEGMENT_BYTES = 1 << 20
SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.segment.bytes": str(SEGMENT_BYTES),
    "tidegate.usage.segment.ms": "500",
}
LONG_LIFE_S = 60.0  # retention comes then
LONG_EACH = 25  # kills
SETTLES_S = 2 * SESSION_MS / 1000 + 20  # and the time that clients take to connect again
SPOOL_BYTES_MAX = 64 << 20
TIMEOUT_S = 60.0
_PROBE_BYTES = 20_000
_NOT_KNOWN_YET = (KafkaError._UNKNOWN_PARTITION, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
_EXPECTED = (
    r"cutting \d+ incomplete bytes |quota callback \S+ \w+ took |observed throttle, not applied: "
    r"|\w+_byte_rate .* is low: "
)
_HARMLESS = re.compile(
    rf" INFO |^tidegate .* listening on | WARNING (\d+ similar lines in .*, the latest: )?({_EXPECTED})"
)


@dataclass
class Tally:
    """What was seen."""

    kills: int = 0
    acknowledged: int = 0
    quotas: int = 0
    settings: int = 0
    topics: int = 0
    positions: int = 0
    unacknowledged_in_force: int = 0
    rows: int = 0
    longest_start_s: float = 0.0
    longest_settling_s: float = 0.0
    expired: int = 0


class Round:
    """One data directory and its clients. say: takes a line about how far it is."""

    def __init__(
        self, directory: Path, rng: random.Random, *, nodes: int, kills: int, say: Callable[[str], None]
    ) -> None:
        self.tally = Tally()
        self._rng = rng
        self._kills = kills
        self._say = say
        self._starts = 0
        self._broker = Broker(
            directory, {**SETTINGS, **self._chosen_settings()}, nodes, first_port=free_port(nodes - 1)
        )
        self._ports = [self._broker.first_port + number for number in range(nodes)]
        self._partitions = [Partition(name, number) for name in TOPICS for number in range(TOPICS[name])]
        self._loads: list[Load] = []
        self._readers: list[Reader] = []
        self._group = Group("members", [name for name in TOPICS if name != RETAINED])
        self._members: list[Member] = []
        self._begin()

    def _chosen_settings(self) -> dict[str, str]:
        return {"log.flush.interval.messages": "1"} if self._rng.random() < 0.2 else {}

    def _begin(self) -> None:
        """Make the clients, none of which runs yet."""
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        clients = [f"load-{number}" for number in range(len(PRODUCERS))]
        for number, (client, delivery) in enumerate(zip(clients, PRODUCERS, strict=True)):
            self._loads.append(Load(bootstrap, client, number, delivery, self._partitions))
        read = [partition for partition in self._partitions if partition.topic != RETAINED]
        self._readers = [Reader(bootstrap, f"reader-{number}", read) for number in range(2)]
        self._members = [Member(bootstrap, name, self._group) for name in MEMBERS]
        limited = [*clients, "reader-0", "reader-1"]
        self._quotas = Quotas("quotas", self._random(), self._ports, limited)
        self._settings = Settings("settings", self._random(), self._ports, limited)
        self._topics = Topics("topics", self._random(), self._ports)
        self._counted = []
        for number in range(2):
            producer = len(PRODUCERS) + number
            for partition in self._partitions:
                partition.stream(producer, Delivery.AT_MOST_ONCE)
            worker = Counted(f"counted-{number}", self._random(), self._ports, producer, self._partitions)
            self._counted.append(worker)
        self._workers: list[Worker] = [self._quotas, self._settings, self._topics, *self._counted]
        self._auditor: Consumer = consumer(bootstrap, AUDITOR)

    def _random(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def run(self) -> Tally:
        """Kill as often as was asked for, check, and return what was seen. Raises `ViolationError`."""
        try:
            self._start()
            self._prepare()
            for thread in (*self._loads, *self._readers, *self._members, *self._workers):
                thread.start()
            while self.tally.kills < self._kills:
                self._live()
                self._die()
            self._finish()
            return self.tally
        finally:
            for load in self._loads:
                load.flush_s = 0.0
            for each in (*self._loads, *self._readers, *self._members):
                each.stopping.set()
            self._auditor.close()
            self._broker.close()

    def _prepare(self) -> None:
        with self._connected() as connection:
            for name, count in TOPICS.items():
                retained = {"retention_bytes": str(RETAINED_BYTES)} if name == RETAINED else {}
                assert connection.create_topic(name, count, **retained) == 0
            assert connection.create_topic(PROBE, 1) == 0
            free = {"consumer_byte_rate": 1e12, "request_percentage": 1e6}
            quotas = {own_quotas(client): free for client in UNLIMITED}
            self._quotas.alter(connection, {**quotas, own_quotas(PROBE): {"producer_byte_rate": 1000.0}})

    @contextmanager
    def _connected(self, node: int = 1, client_id: str = AUDITOR) -> Iterator[Connection]:
        with closing(Connection(self._ports[node - 1], client_id)) as connection:
            yield connection

    # --- a life and its end

    def _live(self) -> None:
        """Let everybody work for a while: once in a long time until old segments are deleted.

        The group has to settle in that time.
        """
        for worker in self._workers:
            worker.release()
        rng = self._rng
        if self.tally.kills % LONG_EACH == LONG_EACH // 2:
            life_s = LONG_LIFE_S + rng.uniform(-0.3, 2.0)
            begun_s = time.monotonic()
            self._wait_settled()
            life_s -= time.monotonic() - begun_s
        else:
            life_s = rng.uniform(0, 0.3) if rng.random() < 0.2 else rng.uniform(0.3, 4.0)
        time.sleep(max(life_s, 0))

    def _die(self) -> None:
        """Kill, sometimes the writers too, sometimes again while it starts; start, and check all."""
        due = self._due()
        for worker in self._workers:
            worker.halt()
        self._kill(with_writers=self._rng.random() < 0.3)
        for worker in self._workers:
            worker.wait_parked()
        while self.tally.kills < self._kills and self._rng.random() < 0.3:
            self._broker.spawn()
            self._starts += 1
            time.sleep(self._rng.uniform(0, 0.4))
            self._kill(with_writers=False)
        if self._rng.random() < 0.2:
            self._check_record()
        self._start()
        self._check(due)
        self._check_probe()
        self._report()

    def _due(self) -> list[tuple[Partition, dict[int, int]]]:
        """Return what was acknowledged until now and not looked up."""
        return [(partition, partition.unchecked()) for partition in self._partitions]

    def _kill(self, *, with_writers: bool) -> None:
        code = self._broker.process.poll()
        if code is not None:
            raise ViolationError(f"the broker ended by itself with code {code}:\n{self._broker.log[-2000:]}")
        pid = self._broker.process.pid
        writers = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        self._broker.kill()
        for writer in writers if with_writers else ():
            with suppress(ProcessLookupError):
                os.kill(writer, signal.SIGKILL)
        self.tally.kills += 1

    def _start(self) -> None:
        begun_s = time.monotonic()
        self._starts += 1
        self._broker.start()
        self.tally.longest_start_s = max(self.tally.longest_start_s, time.monotonic() - begun_s)

    # --- what must hold

    def _check(self, due: list[tuple[Partition, dict[int, int]]]) -> None:
        positions = [(reader, dict(reader.acknowledged)) for reader in self._readers]
        of_group = self._group.acknowledged.copy()
        with self._connected() as connection:
            in_force = self._quotas.intended.settle(connection.quotas())
            in_force += self._settings.intended.settle(self._changed_settings())
            in_force += self._topics.intended.settle(self._topics.found(connection))
            self.tally.unacknowledged_in_force += in_force
            for reader, acknowledged in positions:
                if acknowledged:
                    node = connection.coordinator(reader.name)
                    with self._connected(node) as coordinator:
                        found = coordinator.positions(reader.name, TOPICS)
                    reader.check_positions(acknowledged, found)
            if of_group:
                with self._connected(connection.coordinator(self._group.name)) as coordinator:
                    found = coordinator.positions(self._group.name, TOPICS)
                self._group.check_positions(of_group, found)
        self._read(self._partitions)
        for partition, records in due:
            self.tally.acknowledged += partition.check(records)
        for reader in self._readers:
            reader.check_samples()
        self._check_problems()

    def _changed_settings(self) -> dict[Hashable, str]:
        """Return what each node says of its settings, which none says of another."""
        found: dict[Hashable, str] = {}
        for node in range(1, len(self._ports) + 1):
            with self._connected(node) as connection:
                found |= self._settings.found(connection)
        return found

    def _check_probe(self) -> None:
        """See that the quota that was set last throttles, by Kafka's rule, in a sensor that nobody has used."""
        rate = self._quotas.intended.state[own_quotas(PROBE), "producer_byte_rate"]
        manager = ClientQuotaManager(QuotaType.PRODUCE, QuotaWindow())
        manager.update_quota(QuotaEntity(user=ANONYMOUS, client_id=PROBE), rate)
        with self._connected() as connection:
            node = connection.leaders([PROBE])[PROBE][0]
        with self._connected(node, PROBE) as connection:
            _, throttle_ms = connection.produce(PROBE, 0, bytes(_PROBE_BYTES))
            request_bytes = connection.last_request_bytes
        wanted_ms = manager.record(ANONYMOUS, PROBE, request_bytes, 0)
        longest = int(self._settings.in_force(node, "tidegate.quota.throttle.max.ms") or 0)
        if longest:
            wanted_ms = min(wanted_ms, longest)
        if throttle_ms != wanted_ms:
            raise ViolationError(
                f"a quota of {rate:.0f} bytes a second throttles {request_bytes} bytes for {throttle_ms} ms, "
                f"expected {wanted_ms} (tidegate.quota.throttle.max.ms is {longest})"
            )

    def _read(self, partitions: list[Partition]) -> None:
        """Read up to where each partition ends, and take note of where it begins."""
        ends = {}
        assigned = []
        for partition in partitions:
            place = TopicPartition(partition.topic, partition.number)
            start, end = self._start_and_end(place)
            if end < partition.end:
                raise ViolationError(
                    f"{partition.topic}-{partition.number} ends at {end}, was read to {partition.end}"
                )
            partition.begin(start)
            if end > partition.end:
                ends[partition.topic, partition.number] = partition, end
                assigned.append(TopicPartition(partition.topic, partition.number, partition.end))
        self._consume(assigned, ends)

    def _start_and_end(self, place: TopicPartition) -> tuple[int, int]:
        """Return the offsets, asked again while the client has not found out who the brokers are."""
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._auditor.get_watermark_offsets(place, timeout=TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_KNOWN_YET or time.monotonic() > until_s:
                    raise
                time.sleep(0.05)

    def _consume(
        self, assigned: list[TopicPartition], ends: dict[tuple[str, int], tuple[Partition, int]]
    ) -> None:
        self._auditor.assign(assigned)
        until_s = time.monotonic() + TIMEOUT_S
        while ends:
            for message in self._auditor.consume(5000, timeout=0.5):
                until_s = time.monotonic() + TIMEOUT_S
                if message.error() is not None:
                    raise ViolationError(
                        f"reading {message.topic()}-{message.partition()}: {message.error()}"
                    )
                place = message.topic(), message.partition()
                if place not in ends:
                    continue
                partition, end = ends[place]
                partition.read(message.offset(), message.value())
                if message.offset() + 1 >= end:
                    del ends[place]
            if ends and time.monotonic() > until_s:
                raise ViolationError(f"no more records come of {sorted(ends)}")
        self._auditor.unassign()

    def _check_problems(self) -> None:
        for thread in (*self._loads, *self._readers):
            if thread.problem is not None:
                raise ViolationError(thread.problem)
        bad = [line for line in self._broker.log.splitlines() if not _HARMLESS.search(line)]
        if bad:
            raise ViolationError("the log says:\n" + "\n".join(bad[:40]))

    def _check_record(self) -> None:
        counted = {
            client: (connection.answered, connection.sent)
            for worker in self._counted
            for client, connection in worker.connections.items()
        }
        usage = self._broker.data_dir / "usage"
        self.tally.rows = check_record(usage, counted, self._starts)
        spooled = sum(path.stat().st_size for path in usage.glob("spool/*/*.closed"))
        if spooled > SPOOL_BYTES_MAX:
            raise ViolationError(f"{spooled} bytes wait in the spool")

    def _report(self) -> None:
        tally = self.tally
        tally.quotas = self._quotas.intended.acknowledged
        tally.settings = self._settings.intended.acknowledged
        tally.topics = self._topics.intended.acknowledged
        tally.positions = sum(reader.commits for reader in self._readers) + self._group.commits
        self._say(
            f"{tally.kills} of {self._kills} kills, {tally.acknowledged:,} records acknowledged and there, "
            f"{tally.quotas} quota changes, {tally.settings} of settings, {tally.topics} of topics"
        )

    # --- the end

    def _finish(self) -> None:
        """Let all clients finish without quotas; read everything from the beginning; stop; look at what is left."""
        self._wait_settled()
        self._remove_all()
        for each in (*self._loads, *self._readers, *self._members):
            each.stopping.set()
        for each in (*self._loads, *self._readers, *self._members):
            each.join()
        for worker in self._workers:
            worker.end()
        self._check(self._due())
        for partition in self._partitions:
            left = sum(partition.unchecked().values())
            assert left == 0, left
        self._read_again()
        assert self._broker.stop() == 0
        self._wait_converted()
        self._check_record()
        check_tidy(self._broker.data_dir / "usage")
        self._check_directories()
        self._report()

    def _wait_settled(self) -> None:
        """Wait until every partition has one owner in the group: by then the sessions of all that is lost are over.

        The group goes on from then on: a commit that is asked for afterwards is acknowledged.
        """
        begun_s = time.monotonic()
        wanted = sorted((name, number) for name in self._group.topics for number in range(TOPICS[name]))
        until_s = time.monotonic() + SETTLES_S
        while sorted(place for member in self._members for place in member.owned) != wanted:
            if time.monotonic() > until_s:
                owned = {member.name: sorted(member.owned) for member in self._members}
                raise ViolationError(
                    f"the group has not settled {SETTLES_S:.0f} s after the last kill: {owned}"
                )
            time.sleep(0.05)
        settled_s, commits = time.monotonic() - begun_s, self._group.commits
        self.tally.longest_settling_s = max(self.tally.longest_settling_s, settled_s)
        while self._group.commits == commits:
            if time.monotonic() > until_s:
                raise ViolationError("the group has settled, and nobody commits")
            time.sleep(0.05)

    def _remove_all(self) -> None:
        quotas: dict = {}
        kept = {own_quotas(client) for client in (*UNLIMITED, PROBE)}
        for entity, key in self._quotas.intended.state:
            if entity not in kept:
                quotas.setdefault(entity, {})[key] = None
        with self._connected() as connection:
            self._quotas.alter(connection, quotas)
        settings: dict = {}
        for node, name in self._settings.intended.state:
            settings.setdefault(node, {})[name] = None
        for node, changes in settings.items():
            with self._connected(int(node or 1)) as connection:
                self._settings.alter(connection, node, changes)

    def _read_again(self) -> None:
        """Read every record once more: what was there is there, the same."""
        again = [Partition(partition.topic, partition.number) for partition in self._partitions]
        for partition, other in zip(self._partitions, again, strict=True):
            for stream in partition.streams.values():
                other.stream(stream.producer, stream.delivery).sent = stream.sent
        self._read(again)
        for partition, other in zip(self._partitions, again, strict=True):
            if other.codes[other.start :] != partition.codes[other.start :]:
                raise ViolationError(f"{partition.topic}-{partition.number} reads otherwise than before")
            for stream in other.streams.values():
                if stream.delivery is Delivery.EXACTLY_ONCE and stream.next not in (-1, stream.sent):
                    raise ViolationError(
                        f"{partition.topic}-{partition.number} ends with record {stream.next - 1} of producer "
                        f"{stream.producer}, which sent {stream.sent}"
                    )
            self.tally.expired += other.start

    def _wait_converted(self) -> None:
        """Wait for the writers, which outlive the broker."""
        spool = self._broker.data_dir / "usage" / "spool"
        until_s = time.monotonic() + TIMEOUT_S
        while list(spool.glob("*/*.closed")):
            if time.monotonic() > until_s:
                raise ViolationError(f"nobody converts {sorted(spool.glob('*/*.closed'))[:3]}")
            time.sleep(0.05)

    def _check_directories(self) -> None:
        """See that deleted topics and segments have left nothing."""
        there = {**self._topics.intended.state, **TOPICS, PROBE: 1}
        wanted = {f"{name}-{number}" for name, count in there.items() for number in range(count)} | {"usage"}
        found = {path.name for path in self._broker.data_dir.iterdir() if path.is_dir()}
        found |= {path.name for path in self._broker.data_dir.rglob("*.deleted")}
        if found != wanted:
            raise ViolationError(
                f"directories that are missing: {sorted(wanted - found)[:5]}, that nobody needs: "
                f"{sorted(found - wanted)[:5]}"
            )
