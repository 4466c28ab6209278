"""All metrics of a running node, under Kafka's names, read without effect."""

import asyncio
import math
import time

from tests.server.nodes import CLIENT, NodeClient, RunningNode

from tidegate.quota import Metric
from tidegate.server.node import METRICS_SLICE_NS

LISTENER = {"listener": "PLAINTEXT"}
EVERYBODY = [("client-id", None)]


def read(node: RunningNode) -> dict[tuple[str, str], float]:
    """Return every number of a node by bean and attribute."""
    metrics = list(node.node.metrics(node.node._clock.now_ms()))
    found = {(metric.bean, metric.bean_attribute): metric.value for metric in metrics}
    assert len(found) == len(metrics), "no two are the same"
    return found


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
        metrics = list(node.node.metrics(node.node._clock.now_ms()))
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
        produce, now_ms = node.node.managers.produce, node.node._clock.now_ms()
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


def test_a_slice_is_short(with_node) -> None:
    """No list takes much longer than `METRICS_SLICE_NS` to make; most of them do not on any machine."""

    async def scenario(node: RunningNode) -> None:
        admin = await node.connect("admin")
        await admin.alter(EVERYBODY, "producer_byte_rate", 1e9)
        now_ms = node.node._clock.now_ms()
        for number in range(5000):
            node.node.managers.produce.record("ANONYMOUS", f"c{number}", 1.0, now_ms)
        took, begun = [], time.monotonic_ns()
        async for _ in node.node.metrics_in_slices(now_ms):
            took.append(time.monotonic_ns() - begun)
            begun = time.monotonic_ns()
        assert sorted(took)[len(took) // 2] < 5 * METRICS_SLICE_NS

    with_node(scenario)


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
