"""Quotas of gateways in the topic of the cluster: shared, kept, protected, and safe from what others write."""

import asyncio
import itertools
import math
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.e2e.lateness import Lateness
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.login_client import LoginClient
from tests.gateway.secure_kafka import PASSWORDS
from tests.server.nodes import until
from tests.waiting import wait_until

from tidegate import error_codes
from tidegate.api_keys import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from tidegate.client.errors import BrokerError, ClientError
from tidegate.client.settings import Address, ClientSettings
from tidegate.errors import ConfigError, TidegateError
from tidegate.gateway.gateway import run_work
from tidegate.gateway.quota_records import QUOTA_TOPIC, decode_definition, encode_definition
from tidegate.gateway.quota_topic import QuotaTopic
from tidegate.quota import Alteration, QuotaRecord
from tidegate.quota.admin.definition_filter import EntityParts
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.requests.handler import Wait
from tidegate.wire.records import Record

RATE = "producer_byte_rate"
WITHIN_S = 1.0
SETTLES_S = 20.0
RESTORED_S = 60.0
MOST_TRIES = 10
NAMES = 20
CHANGES = 200  # without a pause, so that the gateway often reads one after the next was stored


@pytest.fixture(scope="module")
def pair(secure_kafka, tmp_path_factory) -> Iterator[list[GatewayProcess]]:
    """Return two gateways before one cluster, by whose listener PLAINTEXT everybody is a super user."""
    directory = tmp_path_factory.mktemp("pair")
    pair = [GatewayProcess(directory / name, secure_kafka.broker.address) for name in ("first", "second")]
    for process in pair:
        process.start()
    yield pair
    for process in pair:
        process.close()


def alter(
    gateway: GatewayProcess | int, name: str, value: float | None, kind: str = "user", key: str = RATE
) -> int:
    """Set a quota through a gateway; return the error code."""
    (port,) = gateway.ports.values()
    with LoginClient(port) as client:
        return alter_by(client, name, value, kind, key)


def alter_by(client: LoginClient, name: str, value: float | None, kind: str = "user", key: str = RATE) -> int:
    """Set a quota on a connection; return the error code."""
    op = {"key": key, "value": value or 0.0, "remove": value is None}
    entry = {"entity": [{"entity_type": kind, "entity_name": name}], "ops": [op]}
    answer = client.ask(ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    return answer["entries"][0]["error_code"]


def quota_of(gateway: GatewayProcess, name: str, kind: str = "user", key: str = RATE) -> float | None:
    """Return a quota as a gateway describes it."""
    (port,) = gateway.ports.values()
    with LoginClient(port) as client:
        return quota_by(client, name, kind, key)


def quota_by(client: LoginClient, name: str, kind: str = "user", key: str = RATE) -> float | None:
    """Return a quota as it is described on a connection."""
    component = {"entity_type": kind, "match_type": 0, "match": name}
    answer = client.ask(DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component], "strict": True})
    assert answer["error_code"] == 0, answer
    return next(
        (each["value"] for entry in answer["entries"] for each in entry["values"] if each["key"] == key), None
    )


def becomes(
    gateway: GatewayProcess, name: str, value: float | None, within_s: float = WITHIN_S, **more: str
) -> None:
    """Wait until a gateway has a quota; check that it takes no longer than `within_s`."""
    with Lateness() as lateness:
        begun_s = time.monotonic()
        wait_until(
            lambda: same(quota_of(gateway, name, **more), value),
            within_s + SETTLES_S,
            told=lambda: f"{name} has {quota_of(gateway, name, **more)}, expected {value}",
        )
        assert lateness.elapsed_s(begun_s) < within_s


def same(found: float | None, value: float | None) -> bool:
    """Return whether two values of a quota are the same; NaN is the same as NaN."""
    return repr(found) == repr(value)


def write(secure_kafka, key: bytes, value: bytes | None, **settings: object) -> None:
    """Write a record to the topic, as another program would."""
    producer = Producer({"bootstrap.servers": secure_kafka.broker.address, **settings})
    producer.produce(QUOTA_TOPIC, value=value, key=key, partition=0)
    assert producer.flush(20) == 0


def test_both_gateways_have_a_change_within_a_second(pair, unique):
    """What one gateway was told, the other one has, and the removal, too; a name of a host is one of them."""
    first, second = pair
    assert alter(first, unique, 1000.0) == 0
    becomes(second, unique, 1000.0)
    assert alter(second, unique, 2000.0) == 0
    becomes(first, unique, 2000.0)
    assert alter(first, unique, None) == 0
    becomes(second, unique, None)
    ip = {"kind": "ip", "key": "connection_creation_rate"}
    assert alter(first, "localhost", 5000.0, **ip) == 0
    becomes(second, "localhost", 5000.0, **ip)
    assert alter(second, "localhost", None, **ip) == 0
    assert alter(first, "no-such-host.invalid", 1.0, **ip) == error_codes.INVALID_REQUEST
    assert alter(second, unique, -1.0) == error_codes.INVALID_REQUEST
    assert alter(first, unique, math.nan) == 0  # as in Kafka
    becomes(second, unique, math.nan)
    assert alter(first, unique, None) == 0


def test_concurrent_alterations_end_alike(pair, unique):
    """Two clients alter the same quota at two gateways as fast as they can: both gateways end with one value."""
    names = [f"{unique}-{number}" for number in range(3)]

    def run(gateway: GatewayProcess, first: int) -> None:
        (port,) = gateway.ports.values()
        with LoginClient(port) as client:
            for number in range(first, 60, 2):
                assert alter_by(client, names[number % 3], 1000.0 + number) == 0

    threads = [threading.Thread(target=run, args=(gateway, first)) for first, gateway in enumerate(pair)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A gateway applies its own change before it has read those that precede it in the topic.
    for gateway, other in (pair, pair[::-1]):
        assert alter(gateway, f"{unique}-end-{gateway.port}", 1.0) == 0
        becomes(other, f"{unique}-end-{gateway.port}", 1.0)
    for name in names:
        assert quota_of(pair[0], name) == quota_of(pair[1], name), name


def test_changes_in_a_row_stay(pair, unique):
    """A change is described as soon as it is answered, though a busy gateway reads its earlier records only then."""
    (port,) = pair[0].ports.values()
    ended = threading.Event()

    def alter_others(name: str) -> None:
        with LoginClient(port) as client:
            for number in itertools.count(1):
                assert alter_by(client, name, float(number)) == 0
                if ended.is_set():
                    return

    described = []
    with ThreadPoolExecutor() as pool, LoginClient(port) as client:
        others = [pool.submit(alter_others, f"{unique}-{number}") for number in range(3)]
        try:
            for number in range(CHANGES):
                assert alter_by(client, unique, 1.0 + number) == 0
                described.append(quota_by(client, unique))
        finally:
            ended.set()
        for other in others:
            other.result()
    assert described == [1.0 + number for number in range(CHANGES)]
    becomes(pair[1], unique, float(CHANGES))


def test_quotas_outlive_the_gateway(secure_kafka, gateway_before, unique):
    """A gateway that starts again, after a kill, has the quotas."""
    gateway = gateway_before(secure_kafka.broker.address)
    assert alter(gateway, unique, 1234.5, key="request_percentage") == 0
    gateway.kill()
    gateway.start()
    assert quota_of(gateway, unique, key="request_percentage") == 1234.5


def test_records_of_others_are_skipped(secure_kafka, pair, unique, gateway_before):
    """What no gateway writes is skipped with a warning, now and at a start; compressed records are read."""
    entity = f'{{"entity":[["user","{unique}"]],"key":'.encode()
    for key, value in [
        (b"", b""),
        (b"\xff\xfe", b"1"),
        (b"[" * 5000, b"1"),
        (b"[]", b"1"),
        (b'{"entity":[],"key":"producer_byte_rate"}', b"1"),
        (b'{"entity":[["user",5]],"key":"producer_byte_rate"}', b"1"),
        (b'{"entity":[["user","a"],["ip","1.2.3.4"]],"key":"producer_byte_rate"}', b"1"),
        (b'{"entity":[["ip","1.2.3.4"]],"key":"producer_byte_rate"}', b"1"),
        (b'{"entity":[["user","' + b"x" * 40_000 + b'"]],"key":"producer_byte_rate"}', b"1"),
        (entity + b'"no_such_rate"}', b"1"),
        (entity + b'"producer_byte_rate"}', b"-5"),
        (entity + b'"producer_byte_rate"}', b"nan"),
        (entity + b'"producer_byte_rate"}', b"1e999"),
        (entity + b'"producer_byte_rate"}', b"0.5"),
    ]:
        write(secure_kafka, key, value)
    for number, codec in enumerate(("gzip", "lz4", "snappy", "zstd"), 7000):
        write(secure_kafka, entity + b'"producer_byte_rate"}', b"%d" % number, **{"compression.type": codec})
        for gateway in pair:
            becomes(gateway, unique, float(number), SETTLES_S)
    started = gateway_before(secure_kafka.broker.address)
    assert quota_of(started, unique) == 7003.0
    for gateway in (*pair, started):
        assert f"of topic {QUOTA_TOPIC}: not a quota: " in gateway.log
        assert "Traceback" not in gateway.log


def delete_topic(kafka) -> None:
    """Delete the quota topic."""
    admin = AdminClient({"bootstrap.servers": kafka.broker.address})
    admin.delete_topics([QUOTA_TOPIC])[QUOTA_TOPIC].result(30)


def created_again(gateways: Iterable[GatewayProcess]) -> int:
    """Return how often gateways have created the quota topic again."""
    return sum(
        gateway.log.count(f"topic {QUOTA_TOPIC} was deleted: it was created again") for gateway in gateways
    )


def test_changes_while_the_topic_is_deleted_stay(secure_kafka, pair, unique, gateway_before):
    """Each change that a gateway has confirmed is in force at both gateways, and at one that starts later."""
    is_deleted, started_changes = threading.Event(), []

    def alter_in_a_row(gateway: GatewayProcess) -> dict[str, float]:
        """Change quotas until the topic is deleted; return those that were confirmed."""
        (port,) = gateway.ports.values()
        confirmed: dict[str, float] = {}
        with LoginClient(port) as client:
            for number in itertools.count():
                started_changes.append(number)
                name = f"{unique}-{number % NAMES}-{port}"
                confirmed.pop(name, None)
                if alter_by(client, name, 1.0 + number) == 0:
                    confirmed[name] = 1.0 + number
                if is_deleted.is_set():
                    return confirmed
        raise AssertionError

    before = created_again(pair)
    with ThreadPoolExecutor() as pool:
        altering = [pool.submit(alter_in_a_row, gateway) for gateway in pair]
        try:
            wait_until(lambda: started_changes[-1:] > [3 * NAMES], SETTLES_S)
            delete_topic(secure_kafka)
        finally:
            is_deleted.set()
        confirmed = altering[0].result() | altering[1].result()
    assert confirmed
    wait_until(lambda: created_again(pair) > before, RESTORED_S, told=lambda: pair[0].log)
    for gateway in (*pair, gateway_before(secure_kafka.broker.address)):
        for name, value in confirmed.items():
            becomes(gateway, name, value, RESTORED_S)


def test_deleted_topic_is_created_again(secure_kafka, pair, unique, gateway_before):
    """The quotas stay in force, and the new topic has them: a gateway that starts later knows them."""
    assert alter(pair[0], unique, 4000.0) == 0
    becomes(pair[1], unique, 4000.0)
    before = created_again(pair)
    delete_topic(secure_kafka)

    def is_created_again() -> bool:
        assert quota_of(pair[0], unique) == 4000.0
        return created_again(pair) > before

    wait_until(is_created_again, SETTLES_S, told=lambda: pair[0].log)
    started = gateway_before(secure_kafka.broker.address)
    becomes(started, unique, 4000.0, SETTLES_S)
    wait_until(lambda: alter(pair[0], unique, 4001.0) == 0, SETTLES_S, told=lambda: pair[0].log)
    for gateway in (pair[1], started):
        becomes(gateway, unique, 4001.0, SETTLES_S)


def test_topic_without_compaction_is_refused(secure_kafka, tmp_path, pair):
    """The gateway does not start with a topic that would lose quotas, and says what to do."""
    admin = AdminClient({"bootstrap.servers": secure_kafka.broker.address})

    def set_policy(policy: str) -> None:
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, QUOTA_TOPIC, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)
        asked = ConfigResource(ConfigResource.Type.TOPIC, QUOTA_TOPIC)
        wait_until(
            lambda: admin.describe_configs([asked])[asked].result(30)["cleanup.policy"].value == policy
        )

    set_policy("delete")
    try:
        done = start(secure_kafka.broker.address, tmp_path)
    finally:
        set_policy("compact")
    assert done.returncode == 2
    assert f"topic {QUOTA_TOPIC} has cleanup.policy=delete" in done.stderr
    assert "hint: set its cleanup.policy to compact" in done.stderr


def start(upstream: str, tmp_path, *options: str) -> subprocess.CompletedProcess:
    """Start a gateway that is expected to fail."""
    command = [sys.executable, "-m", "tidegate", "gateway", "--upstream", upstream, *options]
    command += ["--listen", "127.0.0.1:29292", "--data", str(tmp_path / "data")]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_cluster_that_is_down_is_an_error_at_the_start(tmp_path):
    """One sentence names the address; the time until then is that of the settings."""
    config = tmp_path / "client.properties"
    config.write_text("default.api.timeout.ms=2000\n")
    done = start("127.0.0.1:1", tmp_path, "--upstream-config", str(config))
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_rights_to_quotas_are_those_at_the_cluster(secure_kafka, gateway_before, tmp_path, unique):
    """A user without ALTER_CONFIGS on the cluster is refused, with it accepted; describing needs its own right."""
    config = secure_kafka.client_properties(tmp_path / "upstream.properties", "LOGIN", "PLAIN")
    gateway = gateway_before(secure_kafka.address("LOGIN"), "--upstream-config", str(config))
    (port,) = gateway.ports.values()
    refused = error_codes.CLUSTER_AUTHORIZATION_FAILED
    question = {"components": [], "strict": False}
    secure_kafka.forbid("bob")
    with LoginClient(port) as client:
        client.log_in("PLAIN", "bob", PASSWORDS["bob"])
        assert alter_by(client, unique, 10.0) == refused
        assert client.ask(DESCRIBE_CLIENT_QUOTAS, 1, question)["error_code"] == refused
        secure_kafka.allow(ResourceType.BROKER, "kafka-cluster", AclOperation.ALTER_CONFIGS, "bob")
        secure_kafka.allow(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS, "bob")
        deadline = time.monotonic() + SETTLES_S
        while alter_by(client, unique, 10.0) == refused:
            assert time.monotonic() < deadline
        assert client.ask(DESCRIBE_CLIENT_QUOTAS, 1, question)["error_code"] == 0
    assert quota_of_user(port, unique) == 10.0
    assert "'User:bob' from 127.0.0.1 (listener PLAINTEXT) is not authorized to alter quota" in gateway.log
    assert "'User:bob' from 127.0.0.1 (listener PLAINTEXT) altered quota of user=" in gateway.log


def quota_of_user(port: int, name: str) -> float:
    """Return a quota as a super user sees it."""
    with LoginClient(port) as client:
        client.log_in("PLAIN", "gateway", PASSWORDS["gateway"])
        component = {"entity_type": "user", "match_type": 0, "match": name}
        answer = client.ask(DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component], "strict": True})
    return answer["entries"][0]["values"][0]["value"]


@pytest.mark.parametrize("value", [1.0, 1e18, 0.1 + 0.2, None])
def test_definition_survives_its_record(value):
    """A number is read as it was written, to the last digit."""
    record = QuotaRecord(
        entity=(("client-id", None), ("user", 'a"\u00fc\\')), key="request_percentage", value=value
    )
    assert decode_definition(encode_definition(record)) == record


def test_definition_of_nothing_is_none():
    """A record without a key is no definition."""
    assert decode_definition(Record(key=None, value=b"1")) is None


class StoreOfNothing:
    """A store that keeps nothing: what was stored is followed."""

    def load_quotas(self) -> list[QuotaRecord]:
        """Return no quota."""
        return []

    def apply_quota_records_in_slices(self, records: Sequence[QuotaRecord]) -> Iterator[None]:
        """Store nothing."""
        yield


def test_followed_record_does_not_undo_a_later_one():
    """Where this process has applied its own, later record, an earlier one that it then reads changes nothing."""

    async def run() -> None:
        quotas = QuotaAdministration(StoreOfNothing(), asyncio.get_running_loop())
        entity = (("user", "alice"),)
        records = [QuotaRecord(entity=entity, key=RATE, value=value) for value in (1.0, 2.0)]
        await run_work(quotas.follow_in_slices(records[1:]))
        await run_work(quotas.follow_in_slices(records))
        assert quotas.definitions.values(entity) == {RATE: 2.0}
        quotas.close()

    asyncio.run(run())


LONG_NAME = "é" * 10_000
ALICE, BOB, CAROL = ((("user", name),) for name in ("alice", "bob", "carol"))


class PlayedTopic:
    """A quota topic whose partition is played by this class. The process reads a stored record after `let_read`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic = QuotaTopic(ClientSettings(addresses=(Address("localhost", 9092),)))
        self.quotas = QuotaAdministration(self.topic, asyncio.get_running_loop())
        self.stored: list[Record] = []
        self.followed: asyncio.Queue[float | None] = asyncio.Queue()
        self.sizes: list[int] = []
        self.refused_sends = self.tries = 0
        self.refusal: TidegateError | None = None
        self._readable, self._position = asyncio.Semaphore(0), 0
        self._is_there = self._has_leader = True
        for name, of in (("send", self.topic._producer), ("poll", self.topic._consumer)):
            monkeypatch.setattr(of, name, getattr(self, name))
        monkeypatch.setattr(self.topic._consumer, "assign", self._assign)
        monkeypatch.setattr(self.topic._consumer, "position", lambda _: self._position)
        monkeypatch.setattr(self.topic, "_create", self._create)
        monkeypatch.setattr(self.topic, "_end", self._end)
        monkeypatch.setattr("tidegate.gateway.quota_topic._PAUSE_S", 0.01)
        follow_in_slices = self.quotas.follow_in_slices

        def follow(records: Iterable[QuotaRecord]) -> Iterator[Wait | None]:
            yield from follow_in_slices(records)
            self.followed.put_nowait(self.in_force(ALICE))

        monkeypatch.setattr(self.quotas, "follow_in_slices", follow)

    def in_force(self, entity: EntityParts) -> float | None:
        """Return the quota of an entity."""
        return self.quotas.definitions.values(entity).get(RATE)

    async def alter_here(self, value: float | None, entity: EntityParts = ALICE) -> None:
        """Set a quota through this process."""
        alteration = Alteration(entity=entity, ops=[(RATE, value)])
        await run_work(self.quotas.alter_in_slices([alteration], lambda *_: None, validate_only=False))

    def alter_elsewhere(
        self, value: float | None, entity: EntityParts = ALICE, *, is_restored: bool = False
    ) -> None:
        """Set a quota through another process, or write the one that it has in force."""
        record = QuotaRecord(entity=entity, key=RATE, value=value)
        self._store([encode_definition(record, is_restored=is_restored)])

    def let_read(self, records: int = 1) -> None:
        """Allow the process to read so many records more."""
        for _ in range(records):
            self._readable.release()

    async def read(self, records: int = 1) -> list[float | None]:
        """Wait until the process has read so many records more. Return the quota of alice after each."""
        self.let_read(records)
        return [await self.followed.get() for _ in range(records)]

    def delete(self) -> None:
        """Delete the topic."""
        self.stored, self._is_there = [], False
        self.let_read()

    def create_elsewhere(self) -> None:
        """Delete the topic, and create it through another process before this one notices."""
        assert self._position > 0
        self.stored = []
        self.let_read()

    def lose_leader(self) -> None:
        """Take the leader of the partition away for some time."""
        self._has_leader = False
        self.let_read()

    async def send(self, name: str, partition: int, records: Sequence[Record]) -> int:
        """Store records; return the offset of the first. While the topic is gone, wait."""
        if self.refused_sends:
            self.refused_sends -= 1
            raise ClientError("no answer in time")
        while not self._is_there:
            await asyncio.sleep(0.001)
        self.sizes.append(sum(len(record.key) for record in records))
        return self._store(records)

    async def poll(self, timeout_s: float) -> dict[str, list[Record]]:
        """Return the next record when it may be read; as fast as possible where the process reads to the end."""
        if timeout_s > 100.0:
            await self._readable.acquire()
        if not self._is_there or not self._has_leader:
            self._has_leader = True
            raise BrokerError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, None)
        if self._position > len(self.stored):
            raise BrokerError(error_codes.OFFSET_OUT_OF_RANGE, None)
        self._position += 1
        return {QUOTA_TOPIC: [self.stored[self._position - 1]]}

    def _store(self, records: Sequence[Record]) -> int:
        first = len(self.stored)
        self.stored += [replace(record, offset=offset) for offset, record in enumerate(records, first)]
        return first

    def _assign(self, _: object) -> None:
        self._position = 0

    async def _create(self) -> bool:
        self.tries += 1
        if self.refusal is not None:
            raise self.refusal
        is_new, self._is_there = not self._is_there, True
        await asyncio.sleep(0.01)
        return is_new

    async def _end(self) -> int:
        return len(self.stored)


def play(monkeypatch: pytest.MonkeyPatch, scene: Callable[[PlayedTopic], Awaitable[None]]) -> None:
    """Play a scene while a process follows the topic."""

    async def run() -> None:
        played = PlayedTopic(monkeypatch)
        tasks = [asyncio.ensure_future(each) for each in (played.topic.follow(played.quotas), scene(played))]
        done, _ = await asyncio.wait(tasks, timeout=SETTLES_S, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        played.quotas.close()
        assert done == {tasks[1]}, done
        tasks[1].result()

    asyncio.run(run())


def values_of(records: Iterable[Record], entity: EntityParts = ALICE) -> list[float | None]:
    """Return the values that records set for an entity, in their order."""
    definitions = (decode_definition(record) for record in records)
    return [each.value for each in definitions if each is not None and each.entity == entity]


def test_own_record_is_not_undone_by_those_before_it(monkeypatch):
    """A process applies its own change at once; then it reads the records before it, its own and those of others."""

    async def scene(played: PlayedTopic) -> None:
        await played.alter_here(1.0)
        played.alter_elsewhere(2.0)
        await played.alter_here(3.0)
        played.alter_elsewhere(4.0)
        played.alter_elsewhere(5.0)
        assert await played.read(5) == [3.0, 3.0, 3.0, 4.0, 5.0]

    play(monkeypatch, scene)


def test_change_while_the_topic_is_created_again_stays(monkeypatch):
    """One that waits for the topic is stored in the new one before the quotas in force, and is one of them."""

    async def scene(played: PlayedTopic) -> None:
        await played.alter_here(1.0)
        await played.alter_here(10.0, BOB)
        played.delete()
        await played.alter_here(2.0)
        assert await played.followed.get() == 2.0
        assert (values_of(played.stored), values_of(played.stored, BOB)) == ([2.0], [10.0])

    play(monkeypatch, scene)


def test_change_by_another_process_while_the_topic_is_created_again_stays(monkeypatch):
    """The change in the new topic is newer than the quota that this process has in force."""

    async def scene(played: PlayedTopic) -> None:
        for entity in (ALICE, BOB, CAROL):
            await played.alter_here(1.0, entity)
        await played.read(3)
        played.delete()
        played.alter_elsewhere(2.0)
        played.alter_elsewhere(None, BOB)
        assert await played.followed.get() == 2.0
        assert [played.in_force(entity) for entity in (ALICE, BOB, CAROL)] == [2.0, None, 1.0]
        assert values_of(played.stored, CAROL) == [1.0]
        assert len(played.stored) == 3

    play(monkeypatch, scene)


def test_last_changes_are_written_to_a_topic_of_another_process(monkeypatch):
    """The process that has created the topic again had not read these changes before the topic was deleted."""

    async def scene(played: PlayedTopic) -> None:
        for entity in (ALICE, BOB):
            await played.alter_here(1.0, entity)
        await played.read(2)
        await played.alter_here(2.0)
        await played.alter_here(None, BOB)
        await played.alter_here(3.0, CAROL)
        played.create_elsewhere()
        played.alter_elsewhere(1.0, is_restored=True)
        assert await played.followed.get() == 2.0
        assert [values_of(played.stored, of) for of in (ALICE, BOB, CAROL)] == [[1.0, 2.0], [None], [3.0]]

    play(monkeypatch, scene)


def test_newer_change_in_a_topic_of_another_process_stays(monkeypatch):
    """It is not one of the quotas that the other process had in force when it created the topic."""

    async def scene(played: PlayedTopic) -> None:
        for value in (1.0, 3.0):
            await played.alter_here(value)
        await played.read(2)
        await played.alter_here(2.0)
        played.create_elsewhere()
        played.alter_elsewhere(4.0)
        assert await played.followed.get() == 4.0
        assert values_of(played.stored) == [4.0]

    play(monkeypatch, scene)


def test_topic_that_had_no_leader_gets_nothing(monkeypatch):
    """A newer change by another process stays, though this process has not yet read its own change."""

    async def scene(played: PlayedTopic) -> None:
        await played.alter_here(3.0)
        played.alter_elsewhere(4.0)
        await played.alter_here(5.0, BOB)
        played.lose_leader()
        assert await played.followed.get() == 4.0
        assert len(played.stored) == 3

    play(monkeypatch, scene)


def test_quotas_are_written_to_a_topic_that_stays_without(monkeypatch):
    """The process that has created the topic was killed before it wrote all quotas: others wait for it, then write."""

    async def scene(played: PlayedTopic) -> None:
        for entity in (ALICE, BOB):
            await played.alter_here(1.0, entity)
        await played.read(2)
        played.create_elsewhere()
        played.alter_elsewhere(1.0, BOB, is_restored=True)
        assert await played.followed.get() == 1.0
        assert values_of(played.stored) == values_of(played.stored, BOB) == [1.0]
        assert played.tries == MOST_TRIES

    play(monkeypatch, scene)


def test_each_reason_is_logged(monkeypatch, caplog):
    """Also where a topic cannot be restored because it was created with other settings."""

    async def scene(played: PlayedTopic) -> None:
        await played.alter_here(1.0)
        await played.read()
        played.refusal = ConfigError("no compaction", hint="set it")
        played.create_elsewhere()
        await until(lambda: played.tries > 3)
        played.refusal = None
        await until(lambda: values_of(played.stored) == [1.0])

    play(monkeypatch, scene)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("cannot read topic" in line and "hint" not in line for line in lines) == 1
    assert sum("cannot restore topic" in line and "hint: set it" in line for line in lines) == 1
    assert "can be read again" in lines[-1]


def test_quotas_are_written_when_the_cluster_answers_again(monkeypatch):
    """The topic was created, but the first tries to write to it failed."""

    async def scene(played: PlayedTopic) -> None:
        await played.alter_here(1.0)
        played.refused_sends = 3
        played.delete()
        await until(lambda: values_of(played.stored) == [1.0])
        await played.alter_here(2.0)
        assert await played.read(2) == [2.0, 2.0]

    play(monkeypatch, scene)


def test_many_quotas_are_written_in_batches(monkeypatch):
    """No batch has more bytes than a broker accepts."""
    names = [f"{number}{LONG_NAME}" for number in range(100)]

    async def scene(played: PlayedTopic) -> None:
        for name in names:
            await played.alter_here(1.0, (("user", name),))
        played.sizes.clear()
        played.delete()
        await until(lambda: len(played.stored) == len(names))
        assert max(played.sizes) < 1 << 19
        assert len(played.sizes) < len(names)

    play(monkeypatch, scene)
