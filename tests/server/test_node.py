"""A node end to end on a real loop: decisions, muting, quota administration, hostile input, the usage record."""

import asyncio
import logging
import math
import socket
import struct
import time

import pytest
from tests.e2e.lateness import Lateness
from tests.server.nodes import (
    CLIENT,
    CREATE_TOPICS,
    CREATE_TOPICS_VERSION,
    MemoryStore,
    RunningNode,
    running_node,
    spool_events,
    until,
)

from tidegate.api_keys import API_VERSIONS
from tidegate.server.requests.handler import Answer, Deferred, Request, Work

WINDOW_S = 10  # (n - 1) windows of one second


def throttle_ms(*, value: int, bound: float) -> int:
    """Return what one burst on a fresh sensor is throttled for (B§6.2)."""
    return int((value / WINDOW_S - bound) / bound * WINDOW_S * 1000 + 0.5)


def test_a_connection_has_a_handler_table_of_its_own(with_node) -> None:
    """Another table serves its next request, and nobody else's; an api key that is not in it closes the connection."""

    async def scenario(node: RunningNode) -> None:
        one = await node.connect()
        await one.metadata()
        (channel,) = node.node._front.channels
        other = await node.connect()
        await other.metadata()
        channel.handlers = {API_VERSIONS: node.node.handlers[API_VERSIONS]}
        await one.ask(API_VERSIONS, 0, {})
        one.send_produce(padding=10)
        assert await one.closed()
        await other.metadata()

    with_node(scenario)


def test_api_versions_lists_what_is_served(with_node) -> None:
    """Every version of ApiVersions lists the handlers, ApiVersions itself and quota administration."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        for version in range(5):
            message = (
                {"client_software_name": "my-lib", "client_software_version": "1.2"} if version >= 3 else {}
            )
            body = await client.ask(18, version, message)
            assert body["error_code"] == 0
            assert [key["api_key"] for key in body["api_keys"]] == [
                0,
                1,
                3,
                17,
                18,
                19,
                29,
                30,
                31,
                36,
                48,
                49,
            ]
            assert body["api_keys"][0]["min_version"] == 0

    with_node(scenario)


def test_an_unknown_version_of_api_versions_is_answered(with_node) -> None:
    """A newer client learns which versions of ApiVersions it may use; the bytes are Kafka's."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.writer.write(bytes.fromhex("0000000d00120063000000090002633100"))
        answer = await asyncio.wait_for(client.reader.readexactly(20), 5)
        assert answer.hex() == "0000001000000009002300000001001200000004"

    with_node(scenario)


@pytest.mark.parametrize("name", ["", "a b", "-lead", "..", "a_b"])
def test_a_bad_software_name_is_refused(with_node, name: str) -> None:
    """A software name outside Kafka's pattern is answered with error 42."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        body = await client.ask(18, 3, {"client_software_name": name, "client_software_version": "1"})
        assert (body["error_code"], body["api_keys"]) == (42, [])

    with_node(scenario)


@pytest.mark.alone
def test_produce_is_answered_at_once_and_then_muted(with_node, lateness: Lateness) -> None:
    """A burst over quota is told Kafka's throttle time at once; the next answer comes when that is over."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        assert (await client.alter(CLIENT, "producer_byte_rate", 1000.0))["entries"][0]["error_code"] == 0
        size = client.send_produce(padding=10_300)
        begun = time.monotonic()
        _, body, _ = await client.receive()
        assert body["throttle_time_ms"] == throttle_ms(value=size, bound=1000.0) > 300
        assert lateness.elapsed_s(begun) < 0.2
        assert len(node.node._front.muting.queues[next(iter(node.node._front.muting.queues))]._heap) in (0, 1)
        await client.metadata()
        waited_ms = (time.monotonic() - begun) * 1000
        assert (
            body["throttle_time_ms"] - 5
            <= waited_ms
            < body["throttle_time_ms"] + 500 + lateness.ms_since(begun)
        )

    with_node(scenario)


def test_a_throttled_fetch_is_empty_and_its_bytes_are_taken_back(with_node) -> None:
    """The cap holds records to n - 1 windows of quota; the answer around them is over it: empty, and not counted."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "consumer_byte_rate", 100_000.0)
        client.send_fetch(max_bytes=50_000_000)
        _, body, _ = await client.receive()
        attempted = 1_000_000 + 62  # the cap, and what stands around the records in the body, + 4
        assert body["responses"] == []
        assert body["throttle_time_ms"] == throttle_ms(value=attempted, bound=100_000.0)
        assert node.node.managers.fetch.peek("ANONYMOUS", "c1", node.node.clock.now_ms()) == 0.0

    with_node(scenario)


def test_a_fetch_under_a_quota_that_is_no_number_is_given_nothing(with_node) -> None:
    """Kafka accepts NaN as a bound; as a size cap it is 0 (B§3.7, B§6.8)."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        assert (await client.alter(CLIENT, "consumer_byte_rate", math.nan))["entries"][0]["error_code"] == 0
        client.send_fetch(max_bytes=1000)
        _, body, _ = await client.receive()
        assert len(body["responses"][0]["partitions"][0]["records"]) == body["throttle_time_ms"] == 0

    with_node(scenario)


def test_a_fetch_within_its_quota_is_delivered_after_its_wait(with_node) -> None:
    """A long poll is answered when its handler is done, and the next request after it."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.send_fetch(max_bytes=1000, max_wait_ms=50)
        client.send_produce(padding=1)
        first, body, _ = await client.receive()
        assert (first, len(body["responses"][0]["partitions"][0]["records"])) == (0, 1000)
        assert (await client.receive())[0] == 1

    with_node(scenario)


@pytest.mark.alone
def test_mutations_are_refused_topic_by_topic(with_node) -> None:
    """Strict: what makes the balance negative passes, the next topic gets error 89, and the channel is muted."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "controller_mutation_rate", 10.0)
        topics = [
            {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
            for name, count in (("a", 112), ("b", 1))
        ]
        message = {"topics": topics, "timeout_ms": 1000, "validate_only": False}
        begun = time.monotonic()
        body = await client.ask(CREATE_TOPICS, CREATE_TOPICS_VERSION, message)
        assert [topic["error_code"] for topic in body["topics"]] == [0, 89]
        assert 100 < body["throttle_time_ms"] <= 200  # -2 tokens at 10/s, less what passed since the refusal
        await client.metadata()
        assert (time.monotonic() - begun) * 1000 >= body["throttle_time_ms"]

    with_node(scenario)


def test_request_time_is_throttled_for_one_window_at_most(with_node) -> None:
    """Handler and network time over request_percentage mute for at most one window, whatever the overrun."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "request_percentage", 0.000001)
        body = await client.metadata()
        assert body["throttle_time_ms"] == 1000

    with_node(scenario)


def test_request_time_is_charged_once_handler_and_network(with_node) -> None:
    """What request quotas were charged is handler plus network time of each request, once, as in the usage record."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "request_percentage", 1e6)
        for number in range(5):
            topics = [
                {
                    "name": "t",
                    "num_partitions": number,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
            ]
            await client.ask(
                CREATE_TOPICS,
                CREATE_TOPICS_VERSION,
                {"topics": topics, "timeout_ms": 1, "validate_only": False},
            )
        now_ms = node.node.clock.now_ms()
        percent = node.node.managers.request.peek("ANONYMOUS", "c1", now_ms)
        rows = [event for event in spool_events(node) if event["kind"] == "request"]
        charged_ns = sum(row["handler_ns"] + row["network_ns"] for row in rows)
        assert len(rows) == 6
        assert percent == pytest.approx(charged_ns * 1e-7 / (60 * WINDOW_S), rel=0.1)

    # A stall of some seconds changes less than that with windows of a minute.
    with_node(scenario, quota_window_size_seconds="60")


@pytest.mark.alone
def test_clients_share_one_thread(with_node) -> None:
    """All that request quotas are charged is no more than the time that went by: a node's capacity is 100 %."""

    async def scenario(node: RunningNode) -> None:
        clients = [await node.connect(f"client-{number}") for number in range(8)]
        await clients[0].alter([("client-id", None)], "request_percentage", 1e6)
        begun_ns = time.monotonic_ns()
        for _ in range(50):
            await asyncio.gather(*(client.metadata() for client in clients))
        took_ns = time.monotonic_ns() - begun_ns
        rows = [event for event in spool_events(node) if event["kind"] == "request"][1:]
        assert len(rows) == 400
        assert 0 < sum(row["handler_ns"] + row["network_ns"] for row in rows) <= took_ns

    with_node(scenario)


@pytest.mark.alone
def test_acks_0_is_muted_without_an_answer(with_node) -> None:
    """A Produce without answer is charged and mutes; one that failed closes."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "producer_byte_rate", 1000.0)
        client.send_produce(padding=10_400, acks=0)
        begun = time.monotonic()
        await client.metadata()
        assert time.monotonic() - begun > 0.35
        await client.alter(CLIENT, "request_percentage", 1e6)
        client.send_produce(padding=1, acks=0, timeout_ms=13)
        assert await client.closed()
        exempt = node.node.managers.request.exempt.peek(node.node.clock.now_ms())
        rows = [event for event in spool_events(node) if event["kind"] == "request" and event["api_key"] == 0]
        assert [(row["exempt"], row["network_ns"] > 0) for row in rows] == [(True, True), (True, False)]
        assert exempt == 0.0, "a failed request without an answer is charged to nobody"

    with_node(scenario)


def test_quotas_are_stored_and_hold_after_a_restart(with_node) -> None:
    """What was set over the wire is in the store, and in force when the next node starts from it."""

    async def set_quota(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter([("user", None), ("client-id", "c1")], "producer_byte_rate", 1000.0)

    async def meet_it(node: RunningNode) -> None:
        client = await node.connect()
        found = await client.ask(48, 1, {"components": [], "strict": False})
        assert found["entries"] == [
            {
                "entity": [
                    {"entity_type": "client-id", "entity_name": "c1"},
                    {"entity_type": "user", "entity_name": None},
                ],
                "values": [{"key": "producer_byte_rate", "value": 1000.0}],
            }
        ]
        client.send_produce(padding=20_000)
        assert (await client.receive())[1]["throttle_time_ms"] > 10_000

    store = with_node(set_quota)
    assert len(store.records) == 1
    with_node(meet_it, store)


def test_validate_only_stores_nothing(with_node) -> None:
    """A trial alteration is answered and changes nothing."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        op = {"key": "producer_byte_rate", "value": 5.0, "remove": False}
        entity = [{"entity_type": "user", "entity_name": "u"}]
        body = await client.ask(49, 1, {"entries": [{"entity": entity, "ops": [op]}], "validate_only": True})
        assert body["entries"][0]["error_code"] == 0

    store: MemoryStore = with_node(scenario)
    assert store.records == []


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ("ffffffff", "frame length is -1, expected 0 to"),
        ("7fffffff", "frame length is 2147483647, expected 0 to"),
        ("00000000", "malformed request header"),
        ("0000000803e7000000000001", "malformed request header"),
        ("0000000a03e7000000000001ffff", "got 999"),
        ("0000000b0003006300000001ffff00", "got 99"),
        ("0000000c001200630000000900026331", "malformed request header"),
        ("0000000a0002000100000001ffff", "api key 2 is not served"),
        ("0000000a0003000100000001ffff", "malformed Metadata"),
    ],
)
def test_a_hostile_frame_costs_its_sender_the_connection_and_us_one_line(
    with_node, caplog, frame: str, reason: str
) -> None:
    """A frame that cannot be served closes its connection with one log line; others go on."""
    caplog.set_level(logging.INFO)

    async def scenario(node: RunningNode) -> None:
        good, bad = await node.connect("good"), await node.connect("bad")
        await good.metadata()
        bad.writer.write(bytes.fromhex(frame))
        assert await bad.closed()
        await good.metadata()

    with_node(scenario)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1, lines
    assert reason in lines[0]
    assert "closed connection " in lines[0]
    assert "127.0.0.1" in lines[0]


def test_a_failing_handler_closes_only_its_connection(with_node, caplog) -> None:
    """An error of ours is logged with its traceback and costs one connection."""

    async def scenario(node: RunningNode) -> None:
        good, bad = await node.connect(), await node.connect()
        with pytest.raises(asyncio.IncompleteReadError):
            await bad.metadata("fail")
        await good.metadata()

    with_node(scenario)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "request with api key 3 failed"
    ]


def unwritable(request: Request) -> Answer:
    """Answer with a name that no string can hold."""
    return request.answer({"throttle_time_ms": 0, "topics": [{"name": "x" * 40_000, "partitions": []}]})


def at_once(request: Request) -> Answer:
    """Answer ListOffsets at once."""
    return unwritable(request)


def in_slices(request: Request) -> Work:
    """Answer ListOffsets after a slice."""
    yield
    return unwritable(request)


def later(request: Request) -> Deferred:
    """Answer ListOffsets in a later turn."""
    deferred = Deferred()
    asyncio.get_running_loop().call_later(0.01, deferred.complete_by, lambda: unwritable(request))
    return deferred


@pytest.mark.parametrize("handler", [at_once, in_slices, later])
def test_an_answer_that_cannot_be_written_is_one_line(tmp_path, caplog, handler) -> None:
    """The connection closes, whenever the answer was to come, and the line names the field."""

    async def main() -> None:
        async with running_node(tmp_path, MemoryStore(), {}, handlers={2: handler}) as node:
            client, other = await node.connect(), await node.connect()
            client.send(2, 5, {"replica_id": -1, "isolation_level": 0, "topics": []})
            assert await client.closed()
            assert (await other.metadata())["topics"] == []

    asyncio.run(main())
    (record,) = caplog.records
    assert record.exc_info is None
    assert "closed connection" in record.getMessage()
    assert "cannot write ListOffsets response v5: topics[0].name" in record.getMessage()
    assert len(record.getMessage()) < 500


def test_a_failing_long_poll_closes_its_connection(tmp_path, caplog) -> None:
    """What goes wrong with an answer that comes later is told as if it had come at once."""

    def handler(request: Request) -> Deferred:
        deferred = Deferred()
        asyncio.get_running_loop().call_soon(deferred.complete_by, lambda: 1 // 0)
        return deferred

    async def main() -> None:
        async with running_node(tmp_path, MemoryStore(), {}, handlers={2: handler}) as node:
            client = await node.connect()
            client.send(2, 5, {"replica_id": -1, "isolation_level": 0, "topics": []})
            assert await client.closed()
            assert not node.node._front.channels

    asyncio.run(main())
    (record,) = caplog.records
    assert "request with api key 2 failed" in record.getMessage()
    assert record.exc_info[0] is ZeroDivisionError


def test_a_muted_client_that_leaves_is_noticed_at_once(with_node) -> None:
    """A muted connection closes when its client does, long before the throttle ends."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "producer_byte_rate", 1.0)
        client.send_produce(padding=30_000)
        assert (await client.receive())[1]["throttle_time_ms"] > 1_000_000
        assert len(node.node._front.channels) == 1
        client.writer.close()
        await client.writer.wait_closed()
        await until(lambda: not node.node._front.channels)
        assert [queue.size for queue in node.node._front.muting.queues.values()] == [0, 0, 0, 0]
        assert node.node.connections.total == 0

    with_node(scenario)


@pytest.mark.parametrize(("how", "acks", "served"), [("closes", 0, 4), ("resets", 0, 4), ("resets", 1, 2)])
def test_requests_sent_before_leaving_are_served(with_node, how: str, acks: int, served: int) -> None:
    """A client that writes into its muted connection and leaves has its requests served when the throttle ends.

    After a reset, as in Kafka (`tests/e2e/test_reset_while_muted.py`), until an answer cannot leave.
    """

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "producer_byte_rate", 1000.0)
        client.send_produce(padding=13_000, acks=0)
        await asyncio.sleep(0.05)
        for _ in range(3):
            client.send_produce(padding=5, acks=acks)
        await asyncio.sleep(0.05)
        if how == "resets":
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.writer.transport.abort()
        else:
            client.writer.close()
            await client.writer.wait_closed()
        await until(lambda: not node.node._front.channels)
        requests = [e for e in spool_events(node) if e["kind"] == "request" and e["api_key"] == 0]
        assert len(requests) == served

    with_node(scenario)


def test_too_many_connections_of_one_address_are_closed(with_node) -> None:
    """Past max.connections.per.ip the newest connection is closed, and a slot comes back with each that goes."""

    async def scenario(node: RunningNode) -> None:
        first, second = await node.connect(), await node.connect()
        await first.metadata()
        await second.metadata()
        assert await (await node.connect()).closed()
        first.writer.close()
        await until(lambda: node.node.connections.total == 1)
        await (await node.connect()).metadata()

    with_node(scenario, max_connections_per_ip="2")


@pytest.mark.alone
@pytest.mark.parametrize(("rate", "throttle_s"), [(1.0, 1.0), (4.0, 0.25)])
def test_an_address_over_its_connection_rate_is_parked_and_closed(
    with_node, lateness: Lateness, rate: float, throttle_s: float
) -> None:
    """With connection_creation_rate, connections over the rate are kept unread and closed when their throttle ends."""

    async def scenario(node: RunningNode) -> None:
        admin = await node.connect()
        await admin.alter([("ip", "127.0.0.1")], "connection_creation_rate", rate)
        first = time.monotonic()
        for _ in range(int(10 * rate)):  # as many are allowed at once
            client = await node.connect()
            await client.metadata()
        begun = time.monotonic()
        client = await node.connect()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.metadata()
        took = time.monotonic() - begun
        assert (
            throttle_s - (begun - first) - 0.005 < took < throttle_s + 0.2 + lateness.ms_since(begun) / 1000
        )

    with_node(scenario)


def test_a_client_that_does_not_read_is_closed_in_the_end(with_node, caplog) -> None:
    """An answer that nobody takes is kept for a named time, then the connection closes with one line."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.writer.transport.pause_reading()
        client.send_fetch(max_bytes=30_000_000)
        await asyncio.sleep(0.2)
        (channel,) = node.node._front.channels
        assert channel.sending
        node.node.closing.stalled()
        assert not channel.closed
        channel.last_active_ns -= 61_000_000_000
        node.node.closing.stalled()
        assert channel.closed

    with_node(scenario)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "client did not read its response for 60 s"
    ]


def test_an_idle_connection_is_closed(with_node) -> None:
    """connections.max.idle.ms closes a connection that asks nothing."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        assert await client.closed()

    with_node(scenario, connections_max_idle_ms="200")


def test_everything_the_engine_was_asked_is_recorded_in_order(with_node) -> None:
    """The usage record has start, windows, quotas, mutations and requests with sizes, times and throttles."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.ask(18, 3, {"client_software_name": "my-lib", "client_software_version": "1.2"})
        await client.alter([("user", "<default>"), ("client-id", None)], "consumer_byte_rate", 9.0)
        await client.alter(CLIENT, "producer_byte_rate", 1000.0)
        size = client.send_produce(padding=10_200)
        _, body, answer_size = await client.receive()
        early = client.send_produce(padding=1)
        await client.receive()
        events = spool_events(node)
        kinds = [event["kind"] for event in events]
        assert kinds == [
            "start",
            *["quota"] * 4,
            "request",
            "quota",
            "request",
            "quota",
            "request",
            *["request"] * 2,
        ]
        assert [e["quota_key"] for e in events[1:5]] == [
            "quota.window.num", "quota.window.size.seconds",
            "controller.quota.window.num", "controller.quota.window.size.seconds",
        ]  # fmt: skip
        default = events[6]
        assert (default["quota_user"], default["quota_client_id"]) == ("%3Cdefault%3E", "<default>")
        produced, after = events[10:]
        assert produced["request_bytes"] == produced["produce_bytes"] == size
        assert produced["response_bytes"] == answer_size
        assert produced["produce_throttle_ms"] == body["throttle_time_ms"] > 0
        assert produced["request_throttle_ms"] == produced["fetch_throttle_ms"] == 0
        assert produced["fetch_bytes"] is None
        assert (produced["user"], produced["client_id"]) == ("ANONYMOUS", "c1")
        assert (produced["client_software"], produced["client_software_version"]) == ("my-lib", "1.2")
        assert produced["client_host"] == "127.0.0.1"
        assert produced["handler_ns"] > 0
        assert produced["network_ns"] > 0
        assert produced["early_ms"] is None
        assert after["request_bytes"] == early
        assert 0 < after["early_ms"] <= produced["produce_throttle_ms"]

    with_node(scenario)
