"""All metrics of a running node, under Kafka's names, read without effect."""

import asyncio
import json
import math
import re
import time
from pathlib import Path

import pytest
from tests.server.nodes import CLIENT, NodeClient, RunningNode, until

from tidegate.quota import Metric
from tidegate.server.metrics.meters import HISTOGRAM_NUMBERS, METER_NUMBERS
from tidegate.server.node import METRICS_SLICE_NS

ROOT = Path(__file__).parents[3]
RECORDED = json.loads((ROOT / "tests" / "vectors" / "metrics.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "metrics.md").read_text("utf-8")
NUMBERS = {"": (None,), "meter": METER_NUMBERS, "histogram": HISTOGRAM_NUMBERS}
EVERYBODY = [("client-id", None)]
PROCESSOR = "kafka.server:type=socket-server-metrics,listener=PLAINTEXT,networkProcessor=0"

Key = tuple[str, str, frozenset[str], str | None]
"""Group, name, tags other than those of clients, and attribute of a metric."""


def read(node: RunningNode) -> dict[tuple[str, str], float]:
    """Return every number of a node by bean and attribute."""
    metrics = list(node.node.metrics(node.node.clock.now_ms()))
    found = {(metric.bean, metric.bean_attribute): metric.value for metric in metrics}
    assert len(found) == len(metrics), "no two are the same"
    return found


def table(title: str) -> list[list[str]]:
    """Return the cells of a table of docs/metrics.md."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows[1:]]


def documented() -> dict[Key, str]:
    """Return the metrics of docs/metrics.md, with their units."""
    return {
        (group, name, tags_of(tags.split(", ")), number): unit
        for group, name, tags, kind, unit, _ in table("Kafka metrics in Tidegate")
        for number in NUMBERS[kind]
    }


def recorded() -> dict[Key, str | None]:
    """Return the metrics of a real broker that are numbers, with their units where they have one."""
    found = {}
    for bean in RECORDED["catalogue"]:
        properties = dict(part.split("=", 1) for part in bean["mbean"].partition(":")[2].split(","))
        group, bean_name = properties.pop("type"), properties.pop("name", None)
        for attribute in bean["attributes"]:
            number = attribute["name"] if bean_name and attribute["name"] != "Value" else None
            if attribute["name"] not in ("RateUnit", "EventType"):
                key = (group, bean_name or attribute["name"], tags_of(properties), number)
                found[key] = attribute.get("unit")
    return found


def tags_of(tags) -> frozenset[str]:
    """Return the names of tags without those of clients: not every one of them is in every bean."""
    return frozenset(tags) - {"", "user", "client-id"}


def of_client(group: str, client_id: str = "c1") -> str:
    """Return the bean of a client."""
    return f"kafka.server:type={group},client-id={client_id}"


def test_a_fresh_node_has_what_a_fresh_broker_has(with_node) -> None:
    """Queue sizes, exempt time and connections are there from the start; clients are not."""

    async def scenario(node: RunningNode) -> None:
        found = read(node)
        for group in ("Produce", "Fetch", "Request", "ControllerMutation"):
            assert found[f"kafka.server:type={group}", "queue-size"] == 0.0
        assert found["kafka.server:type=Request", "exempt-request-time"] == 0.0
        connections = "kafka.server:type=socket-server-metrics"
        assert found[connections, "broker-connection-accept-rate"] == 0.0
        assert found[f"{connections},listener=PLAINTEXT", "connection-accept-rate"] == 0.0
        for name in ("connection-accept-throttle-time", "ip-connection-accept-throttle-time"):
            assert math.isnan(found[f"{connections},listener=PLAINTEXT", name])
        client = await node.connect()
        await client.metadata()
        assert not any("client-id" in bean for bean, _ in read(node))

    with_node(scenario)


def test_throttles_are_seen(with_node) -> None:
    """Rates, throttle times and queue sizes of clients that are throttled for each kind of quota."""

    async def scenario(node: RunningNode) -> None:
        admin = await node.connect("admin")
        for key in ("producer_byte_rate", "consumer_byte_rate"):
            await admin.alter(CLIENT, key, 100.0)
        await admin.alter(CLIENT, "controller_mutation_rate", 1.0)
        producer, consumer, topics = [await node.connect() for _ in range(3)]
        produced = await produce(producer, 2000)
        consumer.send_fetch(max_bytes=2000)
        fetched = (await consumer.receive())[1]["throttle_time_ms"]
        mutated = (await create_topics(topics, 12))["throttle_time_ms"]
        assert min(produced, fetched, mutated) > 500
        found = read(node)
        assert 180.0 <= found[of_client("Produce"), "byte-rate"] <= 220.0
        assert found[of_client("Produce"), "throttle-time"] == produced
        assert found[of_client("Fetch"), "byte-rate"] == 0.0  # given back: it was answered empty
        assert found[of_client("Fetch"), "throttle-time"] == fetched
        assert -1.0 <= found[of_client("ControllerMutation"), "tokens"] < 0.0
        assert 0.3 < found[of_client("ControllerMutation"), "mutation-rate"] <= 0.4
        assert math.isnan(found[of_client("ControllerMutation"), "throttle-time"])
        # Mutations are throttled through the Request manager (B§5.4).
        sizes = [
            found[f"kafka.server:type={group}", "queue-size"]
            for group in ("Produce", "Fetch", "Request", "ControllerMutation")
        ]
        assert sizes == [1.0, 1.0, 1.0, 0.0]

    with_node(scenario)


def test_a_throttle_for_mutations_is_counted(with_node) -> None:
    """With the time that the client was told."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "controller_mutation_rate", 1.0)
        throttle_ms = (await create_topics(client, 12))["throttle_time_ms"]
        found = read(node)
        bean = "kafka.network:type=RequestMetrics,name=ThrottleTimeMs,request=CreateTopics"
        assert found[bean, "Count"] == 1.0
        assert found[bean, "Max"] == found[bean, "50thPercentile"] == throttle_ms > 0

    with_node(scenario)


def test_request_time_is_seen(with_node) -> None:
    """Percent of one thread by client, and the time of what is exempt."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "request_percentage", 1e6)
        await client.metadata()
        found = read(node)
        assert 0.0 < found[of_client("Request"), "request-time"] < 100.0
        assert math.isnan(found[of_client("Request"), "throttle-time"])
        await client.alter(CLIENT, "request_percentage", 1e-9)
        await client.metadata()
        assert read(node)["kafka.server:type=Request", "queue-size"] == 1.0
        assert read(node)[of_client("Request"), "throttle-time"] == 1000.0

    with_node(scenario)


def test_connections_are_seen_by_listener_and_address(with_node) -> None:
    """An address has a rate once it has a limit."""

    async def scenario(node: RunningNode) -> None:
        admin = await node.connect("admin")
        await admin.alter([("ip", "127.0.0.1")], "connection_creation_rate", 1000.0)
        await node.connect()
        found = read(node)
        group = "kafka.server:type=socket-server-metrics"
        assert 0.15 < found[group, "broker-connection-accept-rate"] <= 0.2
        assert 0.15 < found[f"{group},listener=PLAINTEXT", "connection-accept-rate"] <= 0.2
        assert 0.05 < found[f"{group},ip=127.0.0.1", "connection-accept-rate"] <= 0.1

    with_node(scenario)


def test_bounds_are_with_what_they_bound(with_node) -> None:
    """Rates of quotas and connections have a bound, nothing else has."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "producer_byte_rate", 100.0)
        await produce(client, 1)
        metrics = list(node.node.metrics(node.node.clock.now_ms()))
        (rate,) = [metric for metric in metrics if metric.name == "byte-rate"]
        assert (rate.bound, rate.tags) == (100.0, {"user": "", "client-id": "c1"})
        bounded = {metric.name for metric in metrics if metric.bound is not None}
        assert bounded == {"byte-rate", "broker-connection-accept-rate", "connection-accept-rate"}

    with_node(scenario)


def test_many_metrics_are_read_in_slices(with_node) -> None:
    """Others go on while the metrics of many clients are read, and clients come and go."""

    async def scenario(node: RunningNode) -> None:
        admin = await node.connect("admin")
        await admin.alter(EVERYBODY, "producer_byte_rate", 1e9)
        produce, now_ms = node.node.managers.produce, node.node.clock.now_ms()
        for number in range(5000):
            produce.record("ANONYMOUS", f"c{number}", 1.0, now_ms)
        expected = sum(1 for _ in node.node.metrics(now_ms))
        assert expected > 10_000
        parts: list[list[Metric]] = []
        turns = 0
        async for part in node.node.metrics_in_slices(now_ms):
            parts.append(part)
            produce.record("ANONYMOUS", f"new{len(parts)}", 1.0, now_ms)
            await asyncio.sleep(0)
            turns += 1
        assert turns > 3
        assert expected <= sum(map(len, parts)) <= expected + len(parts)

    with_node(scenario)


@pytest.mark.alone
def test_a_slice_is_short(with_node) -> None:
    """No list takes much longer than `METRICS_SLICE_NS` to make; most of them do not on any machine."""

    async def scenario(node: RunningNode) -> None:
        admin = await node.connect("admin")
        await admin.alter(EVERYBODY, "producer_byte_rate", 1e9)
        now_ms = node.node.clock.now_ms()
        for number in range(5000):
            node.node.managers.produce.record("ANONYMOUS", f"c{number}", 1.0, now_ms)
        took, begun = [], time.monotonic_ns()
        async for _ in node.node.metrics_in_slices(now_ms):
            took.append(time.monotonic_ns() - begun)
            begun = time.monotonic_ns()
        assert sorted(took)[len(took) // 2] < 5 * METRICS_SLICE_NS

    with_node(scenario)


def test_what_is_documented_is_served(with_node) -> None:
    """All that docs/metrics.md names, and nothing else, once every kind of quota is in use."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        for key in ("producer_byte_rate", "consumer_byte_rate", "request_percentage"):
            await client.alter(CLIENT, key, 1e9)
        await client.alter(CLIENT, "controller_mutation_rate", 1e9)
        await client.alter([("ip", "127.0.0.1")], "connection_creation_rate", 1000.0)
        await node.connect()
        await produce(client, 1)
        client.send_fetch(max_bytes=1)
        await client.receive()
        await create_topics(client, 1)
        metrics = list(node.node.metrics(node.node.clock.now_ms()))
        served = {(m.group, m.name, tags_of(m.tags), m.attribute) for m in metrics}
        assert served == documented().keys()
        clients = [metric for metric in metrics if "client-id" in metric.tags]
        names = {f"{metric.group} {metric.name}" for metric in clients}
        rows = [(f"{row[0]} {row[1]}", row[2]) for row in table("Kafka metrics in Tidegate")]
        assert names == {name for name, tags in rows if tags == "user, client-id"}

    with_node(scenario)


def test_what_a_broker_has_is_served_or_listed_with_a_reason() -> None:
    """And nothing is served that a broker does not have."""
    not_served = {
        (group, name): reason for group, name, reason in table("Kafka metrics that Tidegate does not have")
    }
    assert all(len(reason) > 5 for reason in not_served.values())
    ours, kafkas = set(documented()), set(recorded())
    assert ours - kafkas == set()
    assert {(group, name) for group, name, _, _ in kafkas - ours} == not_served.keys()
    assert {(group, name) for group, name, _, _ in ours} & not_served.keys() == set()


def test_units_are_kafkas() -> None:
    """Where the recording has one."""
    units = documented()
    wrong = {
        key: (unit, units[key])
        for key, unit in recorded().items()
        if unit and key in units and not unit.startswith(units[key])
    }
    assert wrong == {}


def test_beans_of_clients_are_those_of_the_recording(with_node) -> None:
    """Which metrics exist once some quotas are defined and some requests were made, to the name."""

    async def scenario(node: RunningNode) -> None:
        admin = await node.connect("admin")
        for key in ("producer_byte_rate", "consumer_byte_rate"):
            await admin.alter([("client-id", "mx")], key, 100.0)
        await admin.alter([("client-id", "mx")], "controller_mutation_rate", 1.0)
        for client_id in ("mx", "unlimited"):
            await produce(await node.connect(client_id), 1)
        client = await node.connect("mx")
        client.send_fetch(max_bytes=1)
        await client.receive()
        await create_topics(client, 1)
        beans = {bean for bean, _ in read(node) if "client-id" in bean}
        stage = RECORDED["stages"][3]["mbeans"]
        expected = {bean for bean in stage if "client-id" in bean}
        # Kafka's topics were created with more permits than there were, and so throttled through Request.
        assert beans == expected - {"kafka.server:type=Request,client-id=mx"}

    with_node(scenario)


def test_connections_and_bytes_are_counted(with_node) -> None:
    """Opened, closed and open ones; requests and answers with all their bytes."""

    async def scenario(node: RunningNode) -> None:
        first, second = await node.connect(), await node.connect()
        sent = 4 + first.send_produce(padding=100)
        size = 4 + (await first.receive())[2]
        sent += 4 + second.send_produce(padding=100, acks=0)
        second.writer.close()
        await until(lambda: not node.node._front.channels.keys() - {channel_of(node, first)})
        found = read(node)
        names = (
            "connection-creation-total", "connection-close-total", "connection-count",
            "response-total", "request-total", "incoming-byte-total", "outgoing-byte-total",
        )  # fmt: skip
        assert [found[PROCESSOR, name] for name in names] == [2.0, 1.0, 1.0, 2.0, 1.0, sent, size]
        assert found[PROCESSOR, "connection-creation-rate"] == pytest.approx(2 / 30, rel=0.01)
        assert found[PROCESSOR, "incoming-byte-rate"] == pytest.approx(sent / 30, rel=0.01)
        assert found[PROCESSOR, "request-size-avg"] == size
        assert found[PROCESSOR, "select-total"] >= 2.0
        assert 0.0 < found[PROCESSOR, "io-ratio"] < 1.0
        node.node._tick_metrics()
        found = read(node)
        produced = "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,version=9"
        assert (found[produced, "Count"], found[produced, "OneMinuteRate"]) == (2.0, 0.4)

    with_node(scenario)


@pytest.mark.alone
def test_idleness_is_seen(with_node) -> None:
    """A node that computes is not idle, and one that waits is."""

    async def scenario(node: RunningNode) -> None:
        idle = "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent"
        assert 0.9 < read(node)[idle, "Value"] <= 1.0
        begun = time.thread_time_ns()
        while time.thread_time_ns() - begun < 300_000_000:
            pass
        found = read(node)
        assert 0.9 < found[idle, "Value"] < 0.995  # 0.3 s of the 30 s or more that a fresh rate is over
        assert found[PROCESSOR, "io-time-ns-total"] >= 300_000_000
        handlers = "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent"
        assert found[handlers, "MeanRate"] == pytest.approx(1.0, abs=0.01)

    with_node(scenario)


def test_idle_connections_are_no_expired_sessions(with_node) -> None:
    """A connection that is closed for being idle is counted as closed; what is called expired is a login's session."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.metadata()
        await asyncio.wait_for(client.reader.read(1), 10)
        found = read(node)
        assert found[PROCESSOR, "connection-close-total"] == 1.0
        assert found[PROCESSOR, "expired-connections-killed-count"] == 0.0
        assert found["kafka.network:type=SocketServer,name=ExpiredConnectionsKilledCount", "Value"] == 0.0

    with_node(scenario, connections_max_idle_ms="200")


def test_memory_of_requests_is_seen(with_node) -> None:
    """What is given out, what is left, and how long somebody waited."""

    async def scenario(node: RunningNode) -> None:
        holder, waiter = await node.connect(), await node.connect()
        for client in (holder, waiter):
            client.writer.write((900_000).to_bytes(4, "big") + bytes(100_000))
        await until(lambda: len(node.node._memory._owners) == 1)
        await asyncio.sleep(0.05)
        found, server = read(node), "kafka.network:type=SocketServer,name=MemoryPool"
        assert found[f"{server}Used", "Value"] == 900_000.0
        assert found[f"{server}Available", "Value"] == 100_000.0
        depleted = found["kafka.server:type=socket-server-metrics", "MemoryPoolDepletedTimeTotal"]
        assert 50.0 <= depleted < 5000.0

    with_node(scenario, queued_max_request_bytes="1000000", socket_request_max_bytes="1000000")


def channel_of(node: RunningNode, client: NodeClient):
    """Return the node's channel of a client."""
    port = client.writer.get_extra_info("sockname")[1]
    (channel,) = (c for c in node.node._front.channels if c.transport._sock.getpeername()[1] == port)
    return channel


async def produce(client: NodeClient, padding: int) -> int:
    """Produce so many bytes and some more; return the throttle time."""
    client.send_produce(padding=padding)
    throttle_ms: int = (await client.receive())[1]["throttle_time_ms"]
    return throttle_ms


async def create_topics(client: NodeClient, partitions: int) -> dict:
    """Create a topic with so many partitions, and one that is refused for it."""
    topics = [
        {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        for name, count in (("t", partitions), ("u", 1))
    ]
    return await client.ask(19, 7, {"topics": topics, "timeout_ms": 1000, "validate_only": False})
