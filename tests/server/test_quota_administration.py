"""Altering and describing quotas at any size, over sockets: in slices, one after the other, all or nothing."""

import asyncio
import gc
import logging
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.open_stores import closed_after_test
from tests.server.nodes import MemoryStore, NodeClient, RunningNode, running_node

from tidegate.error_codes import KAFKA_STORAGE_ERROR
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaEntity, QuotaRecord
from tidegate.server.administration import host_names
from tidegate.storage.errors import StorageError
from tidegate.storage.metadata.store import MetadataStore

DESCRIBE, ALTER = 48, 49
POISON = "\ufffd" * 12_000  # 36,000 bytes of UTF-8: what a client id of 12,000 times 0xFF is read as
Op = tuple[str, float | None]


async def alter(
    client: NodeClient, *entries: tuple[dict[str, str | None], Sequence[Op]], validate_only: bool = False
) -> list[dict]:
    """Send one AlterClientQuotas and return the entries of its answer."""
    message = {
        "entries": [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
                "ops": [{"key": k, "value": v or 0.0, "remove": v is None} for k, v in ops],
            }
            for entity, ops in entries
        ],
        "validate_only": validate_only,
    }
    return (await client.ask(ALTER, 1, message))["entries"]


async def describe(
    client: NodeClient, *components: tuple[str, int, str | None], strict: bool = False
) -> dict:
    """Return what is described, by entity."""
    parts = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    answer = await client.ask(DESCRIBE, 1, {"components": parts, "strict": strict})
    return {
        tuple((part["entity_type"], part["entity_name"]) for part in entry["entity"]): {
            value["key"]: value["value"] for value in entry["values"]
        }
        for entry in answer["entries"]
    }


def many(count: int, rate: float = 1000.0) -> list[tuple[dict, list[Op]]]:
    """Return alterations of so many clients."""
    return [({"client-id": f"client-{number}"}, [("producer_byte_rate", rate)]) for number in range(count)]


def run(
    directory: Path,
    scenario: Callable[[RunningNode], Awaitable[None]],
    store: object = None,
    **settings: str,
) -> None:
    """Run a scenario against a node."""

    async def main() -> None:
        async with running_node(directory, store or MemoryStore(), settings) as node:  # type: ignore[arg-type]
            await scenario(node)

    asyncio.run(main())


@pytest.mark.alone
def test_thousands_of_definitions_do_not_hold_the_loop(tmp_path) -> None:
    """Altered and described with 5,000 clients known, no turn uses the processor for longer than 20 ms.

    The client is on another thread: what it does is not the loop's.
    """
    longest_ns = 0
    gc.disable()  # what it finds to look through is the tests' and the client's

    async def watch() -> None:
        nonlocal longest_ns
        while True:
            before_ns = time.thread_time_ns()
            await asyncio.sleep(0)
            longest_ns = max(longest_ns, time.thread_time_ns() - before_ns)

    async def scenario(node: RunningNode) -> None:
        managers = node.node.managers
        managers.produce.update_quota(QuotaEntity(client_id="x"), 1.0)
        for number in range(5_000):
            managers.produce.record("ANONYMOUS", f"client-{number}", 1.0, 1_700_000_000_000)
        other = await node.connect("other")

        async def alter_and_describe() -> tuple[list[dict], dict]:
            reader, writer = await asyncio.open_connection("127.0.0.1", node.node.listeners["PLAINTEXT"].port)
            client = NodeClient(reader, writer, "c1")
            answers = await alter(client, *many(5_000)), await describe(client)
            writer.close()
            return answers

        watcher = asyncio.create_task(watch())
        task = asyncio.create_task(asyncio.to_thread(asyncio.run, alter_and_describe()))
        answered = 0
        while not task.done():
            await other.metadata()
            answered += 1
        watcher.cancel()
        entries, described = await task
        assert [entry["error_code"] for entry in entries] == [0] * 5_000
        assert len(described) == 5_000
        assert answered > 10
        assert managers.produce.bound("anybody", "client-4999") == 1000.0

    run(tmp_path, scenario, closed_after_test(MetadataStore(tmp_path / "tidegate.db")))
    gc.enable()
    assert longest_ns < 20_000_000


def test_alterations_come_one_after_the_other(tmp_path) -> None:
    """Of several large ones of the same entities at once, all of one holds in the end, and is what is stored."""
    store = closed_after_test(MetadataStore(tmp_path / "tidegate.db"))

    async def scenario(node: RunningNode) -> None:
        clients = [await node.connect() for _ in range(4)]
        answers = await asyncio.gather(
            *(alter(client, *many(600, rate=1.0 + number)) for number, client in enumerate(clients))
        )
        assert {entry["error_code"] for answer in answers for entry in answer} == {0}
        described = await describe(clients[0])
        assert len(described) == 600
        (rate,) = {values["producer_byte_rate"] for values in described.values()}
        assert node.node.managers.produce.bound("u", "client-599") == rate
        assert {record.value for record in store.load_quotas()} == {rate}

    run(tmp_path, scenario, store)


def test_whoever_describes_sees_an_alteration_whole_or_not_at_all(tmp_path) -> None:
    """Descriptions while 2,000 definitions are changed back and forth have one rate each."""

    async def scenario(node: RunningNode) -> None:
        writer, reader = await node.connect(), await node.connect()
        await alter(writer, *many(2_000, rate=1.0))

        async def change() -> None:
            for turn in range(4):
                await alter(writer, *many(2_000, rate=2.0 + turn))

        task = asyncio.create_task(change())
        seen = set()
        while not task.done():
            described = await describe(reader)
            assert len(described) == 2_000
            (rate,) = {values["producer_byte_rate"] for values in described.values()}
            seen.add(rate)
        await task
        assert len(seen) > 1

    run(tmp_path, scenario)


class FullStore(MemoryStore):
    """Has no room from the second piece of a change on."""

    def apply_quota_records_in_slices(self, records: Sequence[QuotaRecord]) -> Generator[None, None, None]:
        """Fail."""
        yield
        if len(records) > 1:
            raise StorageError("cannot use 'tidegate.db': database or disk is full")
        self.records += records


def test_what_cannot_be_stored_is_answered_and_changes_nothing(tmp_path, caplog) -> None:
    """Every entity gets Kafka's storage error; neither definitions nor what is in force have changed; no audit line."""
    caplog.set_level(logging.INFO, "tidegate.audit")

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await alter(client, *many(1, rate=5.0))
        entries = await alter(client, *many(3), ({"client-id": "c"}, [("bogus", 1.0)]))
        assert [entry["error_code"] for entry in entries] == [KAFKA_STORAGE_ERROR] * 4
        assert await describe(client) == {(("client-id", "client-0"),): {"producer_byte_rate": 5.0}}
        assert node.node.managers.produce.bound("u", "client-0") == 5.0
        assert (await alter(client, *many(1, rate=6.0)))[0]["error_code"] == 0

    run(tmp_path, scenario, FullStore())
    assert "Traceback" not in caplog.text
    assert "database or disk is full" in caplog.text
    audited = [record.getMessage() for record in caplog.records if vars(record).get("audit")]
    assert [line.rpartition(": ")[2] for line in audited] == [
        "producer_byte_rate none -> 5.0",
        "producer_byte_rate 5.0 -> 6.0",
    ]


def test_names_that_no_answer_could_hold_change_nothing(tmp_path) -> None:
    """The request is refused where it is read; what was described before is described after."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await alter(client, *many(1))
        frame = b"".join(
            [
                bytes.fromhex("0031 0000 00000007 0001 78 00000001 00000001 0009"), b"client-id",
                (12_000).to_bytes(2, "big"), b"\xff" * 12_000, bytes.fromhex("00000001 0012"),
                b"producer_byte_rate", bytes.fromhex("408f400000000000 00 00"),
            ]
        )  # fmt: skip
        client.writer.write(len(frame).to_bytes(4, "big") + frame)
        assert await client.closed()
        assert len(await describe(await node.connect())) == 1

    run(tmp_path, scenario)


def test_texts_that_quote_long_names_are_cut(tmp_path) -> None:
    """An entity asked for twice is quoted in the text of its error."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        twice = ({"client-id": "x" * 32_767}, [("producer_byte_rate", 1.0)])
        (entry,) = await alter(client, twice, twice)
        assert entry["error_code"] == 42
        assert entry["error_message"].startswith("Ignoring duplicate entity")
        assert len(entry["error_message"]) <= 32_767

    run(tmp_path, scenario)


def test_a_stored_name_that_no_answer_could_hold_is_removed(tmp_path, caplog) -> None:
    """A definition that an earlier version stored heals at the start."""
    store = closed_after_test(MetadataStore(tmp_path / "tidegate.db"))
    poison = QuotaRecord(entity=(("client-id", POISON),), key="producer_byte_rate", value=1000.0)
    good = QuotaRecord(entity=(("client-id", "c"),), key="producer_byte_rate", value=1000.0)
    run_at_once(store.apply_quota_records_in_slices([poison, good]))

    async def scenario(node: RunningNode) -> None:
        assert list(await describe(await node.connect())) == [(("client-id", "c"),)]

    run(tmp_path, scenario, store)
    assert list(store.load_quotas()) == [good]
    assert "deleting 1 stored quotas" in caplog.text


class SilentNameServer:
    """Answers for no name until it is told to; knows `known`."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []

    def resolve(self, name: str) -> tuple[str, ...]:
        """Wait, then answer."""
        self.asked.append(name)
        self.answers.wait(30)
        return ("127.0.0.1",) if name.startswith("known") else ()


@pytest.fixture
def name_server(monkeypatch) -> SilentNameServer:
    """Have every node ask a name server that is silent at first."""
    server = SilentNameServer()
    original = host_names.HostNames.__init__
    monkeypatch.setattr(
        host_names.HostNames,
        "__init__",
        lambda self, loop, resolve=None: original(self, loop, server.resolve),
    )
    yield server
    server.answers.set()


IP_RATE: list[Op] = [("connection_creation_rate", 10.0)]


@pytest.mark.alone
def test_others_are_served_while_names_are_looked_up(tmp_path, name_server) -> None:
    """A silent name server holds up the one who asks, not the loop, and not other alterations."""

    async def scenario(node: RunningNode) -> None:
        asking, other = await node.connect(), await node.connect()
        hosts = [({"ip": f"{name}.test"}, IP_RATE) for name in ("known-1", "unknown", "known-2")]
        task = asyncio.create_task(alter(asking, *hosts))
        begun = time.monotonic()
        for _ in range(20):
            await other.metadata()
            assert (await alter(other, ({"ip": "127.1"}, IP_RATE)))[0]["error_code"] == 0
        assert time.monotonic() - begun < 5
        assert not task.done()
        name_server.answers.set()
        assert [entry["error_code"] for entry in await task] == [0, 42, 0]
        assert node.node.connections.ip_limit("127.0.0.1") == 10

    run(tmp_path, scenario)


def test_a_name_that_is_not_known_in_time_is_unknown(tmp_path, name_server, monkeypatch) -> None:
    """With Kafka's text for an unknown host; a client that leaves meanwhile leaves nothing behind."""
    monkeypatch.setattr(host_names, "LOOK_UP_S", 0.2)

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        (entry,) = await alter(client, ({"ip": "known.test"}, IP_RATE))
        assert entry["error_message"] == "known.test is not a valid IP or resolvable host."
        assert await describe(client) == {}

    run(tmp_path, scenario)


def test_a_node_serves_before_stored_names_are_known(tmp_path, name_server, caplog) -> None:
    """Stored hosts and those of `max.connections.per.ip.overrides` are limited when their addresses come."""
    store = MemoryStore()
    for name in ("known.test", "unknown.test", "known-removed.test"):
        store.records.append(QuotaRecord(entity=(("ip", name),), key="connection_creation_rate", value=7.0))

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.metadata()
        connections = node.node.connections
        assert connections.ip_limit("127.0.0.1") > 7
        name_server.answers.set()
        async with asyncio.timeout(5):
            while connections.ip_limit("127.0.0.1") != 7 or "'unknown.test'" not in caplog.text:
                await asyncio.sleep(0.01)
        await alter(client, ({"ip": "known-removed.test"}, [("connection_creation_rate", None)]))
        second = await node.connect()
        await second.metadata()
        async with asyncio.timeout(5):
            while not connections.address_is_full("127.0.0.1"):  # with 2 connections
                await asyncio.sleep(0.01)
        third = await node.connect()
        assert await third.closed()

    run(
        tmp_path, scenario, store, **{"max.connections.per.ip.overrides": "known-override.test:2,127.0.0.9:1"}
    )
    assert "cannot resolve host 'unknown.test'" in caplog.text
    assert "cannot resolve host 'known.test'" not in caplog.text


@pytest.mark.parametrize(
    "name", ["a..b", ".", "x" * 300, "é.test", "fe80::1%nowhere", "0x7f.1", " 127.0.0.1", "a\0b"]
)
def test_odd_names_are_refused_as_kafka_does(tmp_path, name) -> None:
    """With its text, and nothing in the log but that they do not resolve."""

    async def scenario(node: RunningNode) -> None:
        (entry,) = await alter(await node.connect(), ({"ip": name}, IP_RATE), validate_only=True)
        message = f"{name} is not a valid IP or resolvable host."
        assert (entry["error_code"], entry["error_message"]) == (42, message)

    run(tmp_path, scenario)


def test_of_several_names_of_an_ip_entity_the_last_is_looked_up(tmp_path) -> None:
    """It is the one that counts, as in Kafka."""

    async def scenario(node: RunningNode) -> None:
        entity = [{"entity_type": "ip", "entity_name": name} for name in ("a..b", "127.0.0.1")]
        message = {"entries": [{"entity": entity, "ops": []}], "validate_only": True}
        (entry,) = (await (await node.connect()).ask(ALTER, 1, message))["entries"]
        assert (entry["error_code"], entry["error_message"]) == (0, None)

    run(tmp_path, scenario)


def test_changes_left_over_by_a_killed_process_are_completed_or_dropped(tmp_path) -> None:
    """Binding ones are in the definitions after the next start; those that are not leave no trace."""
    records = [
        QuotaRecord(entity=(("client-id", f"c{number}"),), key="producer_byte_rate", value=float("nan"))
        for number in range(350)
    ]
    whole = len(
        list(closed_after_test(MetadataStore(tmp_path / "whole.db")).apply_quota_records_in_slices(records))
    )
    found = set()
    for steps in range(whole + 1):
        path = tmp_path / f"{steps}.db"
        work = closed_after_test(MetadataStore(path)).apply_quota_records_in_slices(records)
        for _ in range(steps):
            next(work, None)
        found.add(len(list(closed_after_test(MetadataStore(path)).load_quotas())))
        with closing(sqlite3.connect(path)) as database:
            (left,) = database.execute("SELECT count(*) FROM quota_changes").fetchone()
        assert left == 0
    assert found == {0, 350}


class Told:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def on_quota(self, record: QuotaRecord) -> None:
        """Note it."""
        self.events.append(record)

    def on_ip_rate(self, address: str | None, rate: float | None) -> None:
        """Note it."""
        self.events.append((address, rate))


def test_every_subscriber_is_told_each_record_in_order(tmp_path) -> None:
    """Who subscribes later is told first what holds by then; who has unsubscribed, nothing more."""
    rate = "connection_creation_rate"
    client = QuotaRecord(entity=(("client-id", "c"),), key="producer_byte_rate", value=5.0)
    host = QuotaRecord(entity=(("ip", "127.1"),), key=rate, value=10.0)
    default = QuotaRecord(entity=(("ip", None),), key=rate, value=20.0)

    async def scenario(node: RunningNode) -> None:
        first, second, gone = Told(), Told(), Told()
        for subscriber in (first, gone):
            node.quotas.subscribe(subscriber)
        node.quotas.unsubscribe(gone)
        asking = await node.connect()
        await alter(
            asking, ({"client-id": "c"}, [("producer_byte_rate", 5.0)]), ({"ip": "127.1"}, [(rate, 10.0)])
        )
        await alter(asking, ({"ip": None}, [(rate, 20.0)]))
        assert first.events == [client, host, ("127.0.0.1", 10.0), default, (None, 20.0)]
        node.quotas.subscribe(second)
        assert {e.key: e for e in second.events if isinstance(e, QuotaRecord)}.keys() == {
            rate,
            "producer_byte_rate",
        }
        assert sorted(e for e in second.events if isinstance(e, tuple) and e[0]) == [("127.0.0.1", 10.0)]
        assert (None, 20.0) in second.events
        before = len(second.events)
        await alter(asking, ({"ip": "127.1"}, [(rate, None)]))
        assert first.events[5:] == second.events[before:]
        assert first.events[-1] == ("127.0.0.1", None)
        assert gone.events == []

    run(tmp_path, scenario)
