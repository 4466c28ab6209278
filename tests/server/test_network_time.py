"""Which request is charged with the time of receiving and sending, and what the usage record says of it."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.server.memory_network import ManualLoop, MemoryNode
from tests.server.nodes import (
    FETCH,
    METADATA,
    PRODUCE,
    MemoryStore,
    NodeClient,
    RunningNode,
    metadata_handler,
    running_node,
    until,
)

from tidegate.api_keys import API_VERSIONS
from tidegate.server.requests.charged_times import TIME_UNIT_NS
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Answer, Connection, Request
from tidegate.server.requests.recorder import Recorder
from tidegate.testing import ManualClock
from tidegate.usage.readers import read_segment
from tidegate.wire import RequestHeader, encode_request

LATE_BYTES = 32_000_000  # more than the kernel takes on its way
LARGE_BYTES = 300_000  # takes longer to send than a small request to receive
EVERYONE = [("client-id", None)]
ONE_SAMPLE = {"quota_window_size_seconds": "60"}  # however long a busy machine takes


def events(node: RunningNode) -> list[dict[str, Any]]:
    """Return the requests after the quota was set, and the rows of network time."""
    node.recorder.commit()
    (path,) = node.spool.glob("*.open")
    rows = [event for event in read_segment(path) if event["kind"] in ("request", "network")]
    return rows[1:]


def charged(node: RunningNode, client_id: str) -> float:
    """Return what a client was charged so far, in ns."""
    request = node.node.managers.request
    sensor = request.sensors.get(request.sensor_name("ANONYMOUS", client_id))
    return 0.0 if sensor is None else sensor.total * 1e7


async def with_quotas(node: RunningNode) -> NodeClient:
    """Put a generous request quota in force for everyone, and return a client."""
    admin = await node.connect("admin")
    await admin.alter(EVERYONE, "request_percentage", 1e6)
    return await node.connect()


def test_sending_is_charged_with_the_next_request(with_node) -> None:
    """The row of a request has what receiving it took and sending the answer before it, however long that took."""

    async def scenario(node: RunningNode) -> None:
        client = await with_quotas(node)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send_fetch(max_bytes=LATE_BYTES)
        await until(lambda: len(events(node)) == 1)
        (fetch,) = events(node)
        before = charged(node, "c1")
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        _, _, size = await client.receive()
        assert size > LATE_BYTES
        assert charged(node, "c1") == before
        await client.metadata()
        assert [row["kind"] for row in events(node)] == ["request", "request"]
        metadata = events(node)[-1]
        assert fetch["network_ns"] > 0
        assert metadata["network_ns"] > 1_000_000
        added = charged(node, "c1") - before
        assert added == pytest.approx(metadata["network_ns"] + metadata["handler_ns"])

    with_node(scenario, **ONE_SAMPLE)


def test_sending_is_charged_when_the_connection_closes(with_node) -> None:
    """Leaving evades no charge: the last answer has a row of its own."""

    async def scenario(node: RunningNode) -> None:
        client = await with_quotas(node)
        client.send_fetch(max_bytes=LARGE_BYTES)
        await client.receive()
        before = charged(node, "c1")
        client.writer.close()
        await until(lambda: len(events(node)) == 2)
        request, network = events(node)
        assert (network["kind"], network["api_key"], network["client_id"]) == ("network", FETCH, "c1")
        assert network["connection_id"] == request["connection_id"]
        assert not network["exempt"]
        assert charged(node, "c1") - before == pytest.approx(network["network_ns"])

    with_node(scenario, **ONE_SAMPLE)


def test_each_client_id_of_a_connection_pays_for_itself(with_node) -> None:
    """A connection that goes on under another client id does not leave it the bill."""

    async def scenario(node: RunningNode) -> None:
        client = await with_quotas(node)
        client.send_fetch(max_bytes=LARGE_BYTES)
        await client.receive()
        before = charged(node, "c1")
        client.client_id = "c2"
        await client.metadata()
        assert [(row["kind"], row["client_id"]) for row in events(node)] == [
            ("request", "c1"),
            ("network", "c1"),
            ("request", "c2"),
        ]
        _, network, metadata = events(node)
        assert charged(node, "c1") - before == pytest.approx(network["network_ns"])
        assert charged(node, "c2") == pytest.approx(metadata["network_ns"] + metadata["handler_ns"])

    with_node(scenario, **ONE_SAMPLE)


def test_answers_that_leave_together_are_of_one_client_id(with_node) -> None:
    """Who sends large answers' requests under one name and a last small one under another is charged as each."""

    async def scenario(node: RunningNode) -> None:
        client = await with_quotas(node)
        for sent in range(3):
            for client.client_id in ("c1", "c1", "c2", "c2"):
                client.send_fetch(max_bytes=10_000)
            for _ in range(4):
                await client.receive()
            await until(
                lambda sent=sent: len([r for r in events(node) if r["kind"] == "request"]) == 4 * sent + 4
            )
        client.writer.close()
        await until(lambda: events(node)[-1]["kind"] == "network")
        rows = [(row["kind"], row["client_id"]) for row in events(node)]
        assert {name for kind, name in rows if kind == "network"} == {"c1", "c2"}
        assert [name for kind, name in rows if kind == "request"] == ["c1", "c1", "c2", "c2"] * 3
        for name in ("c1", "c2"):
            mine = [row for row in events(node) if row["client_id"] == name]
            assert charged(node, name) == pytest.approx(
                sum(row["network_ns"] + row["handler_ns"] for row in mine)
            )

    with_node(scenario, **ONE_SAMPLE)


def test_an_exempt_request_takes_no_others_time(with_node) -> None:
    """Who answers a large fetch with a Produce of acks=0 is charged for the fetch all the same."""

    async def scenario(node: RunningNode) -> None:
        client = await with_quotas(node)
        client.send_fetch(max_bytes=LARGE_BYTES)
        await client.receive()
        before = charged(node, "c1")
        client.send_produce(padding=1, acks=0)
        await client.metadata()
        rows = events(node)
        assert [(row["kind"], row["api_key"], row["exempt"]) for row in rows] == [
            ("request", FETCH, False),
            ("network", FETCH, False),
            ("request", PRODUCE, True),
            ("request", METADATA, False),
        ]
        mine = rows[1]["network_ns"] + rows[3]["network_ns"] + rows[3]["handler_ns"]
        assert charged(node, "c1") - before == pytest.approx(mine)

    with_node(scenario, **ONE_SAMPLE)


def test_a_long_client_id_pays_at_once(with_node) -> None:
    """It is not kept until the next request, however the answer leaves."""

    async def scenario(node: RunningNode) -> None:
        client = await with_quotas(node)
        client.client_id = "x" * 30_000
        for max_bytes in (LARGE_BYTES, LATE_BYTES):
            before = len(events(node))
            client.send_fetch(max_bytes=max_bytes)
            await client.receive()
            await until(lambda before=before: len(events(node)) == before + 2)
            request, network = events(node)[-2:]
            assert (request["kind"], network["kind"]) == ("request", "network")
            assert network["client_id"] == request["client_id"] == client.client_id
            assert network["network_ns"] > 0
        channels = node.node._front.channels  # type: ignore[union-attr]
        assert client.client_id not in {
            channel.answered.client_id for channel in channels if channel.answered is not None
        }

    with_node(scenario, **ONE_SAMPLE)


class LookedAtClock(ManualClock):
    """A clock that goes on by `step_ns` whenever it is looked at: everything takes some time."""

    def __init__(self, step_ns: int) -> None:
        super().__init__()
        self._step_ns = step_ns

    def monotonic_ns(self) -> int:
        """Return the time, a step later."""
        self._monotonic_ns += self._step_ns
        return self._monotonic_ns


class ChargedTimes(Recorder):
    """Keeps how much time each connection was charged, instead of its rows."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        super().__init__(directory, node_id=1, clock=clock)
        self.request = self._add
        self.ns: Counter[int] = Counter()

    def _add(self, exchange: Exchange) -> None:
        """Add the times of a request."""
        assert exchange.handler_ns % TIME_UNIT_NS == exchange.network_ns % TIME_UNIT_NS == 0
        self.ns[exchange.channel.connection.id] += exchange.handler_ns + exchange.network_ns

    def network(
        self, connection: Connection, header: RequestHeader, now_ms: int, network_ns: int, exempt: bool
    ) -> None:
        """Add network time by itself."""
        assert network_ns % TIME_UNIT_NS == 0
        self.ns[connection.id] += network_ns


@pytest.mark.parametrize("step_ns", [1000, 337, 90])
def test_a_turns_time_is_charged_once(tmp_path: Path, step_ns: int) -> None:
    """Nearly all of it, nothing twice, in whole units, and what is done for all requests of a turn to each alike."""
    loop, clients, rounds = ManualLoop(LookedAtClock(step_ns)), 20, 50
    recorder = ChargedTimes(tmp_path / "spool", loop.clock)
    world = MemoryNode(tmp_path, loop=loop, recorder=recorder)
    connections = [world.connect() for _ in range(clients)]
    frame = encode_request(API_VERSIONS, 2, 1, "c1", {})
    spent_ns = 0
    for _ in range(rounds):
        begun_ns = loop.clock.monotonic_ns()
        for connection in connections:
            connection.client_send(frame)
        loop.turn()
        spent_ns += loop.clock.monotonic_ns() - begun_ns
        assert all(connection.client_take() for connection in connections)
    for connection in connections:
        connection.client_end()
    loop.turn()
    world.close()
    charged_ns = sum(recorder.ns.values())
    kept_ns = clients * TIME_UNIT_NS  # at most, for requests that have not come
    assert 0.9 * spent_ns < charged_ns + kept_ns
    assert charged_ns <= spent_ns
    assert len(recorder.ns) == clients
    assert max(recorder.ns.values()) - min(recorder.ns.values()) <= 1000 + TIME_UNIT_NS * (step_ns < 1000)


@pytest.mark.parametrize("fails", [False, True])
def test_handler_time_that_was_spent_for_others_is_not_charged(tmp_path: Path, fails: bool) -> None:
    """A handler sends what others have put off: they are charged for it, also where it fails then."""

    def handler(request: Request) -> Answer:
        begun_ns = time.monotonic_ns()
        time.sleep(0.2)
        request.others_ns += time.monotonic_ns() - begun_ns
        if fails:
            raise RuntimeError("the handler failed")
        return metadata_handler(request)

    async def main() -> None:
        async with running_node(tmp_path, MemoryStore(), {}, handlers={METADATA: handler}) as node:
            client = await with_quotas(node)
            if fails:
                with pytest.raises(asyncio.IncompleteReadError):
                    await client.metadata()
            else:
                await client.metadata()
            (row,) = events(node)
            assert row["handler_ns"] < 100_000_000

    asyncio.run(main())
