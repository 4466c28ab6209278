"""Errors of ours on the request path: one connection closes, one line says so, the client is charged, others go on."""

import asyncio

import pytest
from tests.server.nodes import (
    CLIENT,
    FETCH,
    METADATA,
    METADATA_VERSION,
    MemoryStore,
    RunningNode,
    running_node,
    spool_events,
)
from tests.server.test_turns import NO_TOPICS, NotedTurn, all_accepted, all_in_one_turn, ask

from tidegate.server.requests.handler import Answer, Deferred, Request
from tidegate.wire import ZERO_ID


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the logged lines without the connection they begin with."""
    return [record.getMessage().partition(": ")[2] or record.getMessage() for record in caplog.records]


def raising(error: Exception) -> object:
    """Return a handler that raises `error`."""

    def handle(request: Request) -> Answer:
        raise error

    return handle


@pytest.mark.parametrize("error", [KeyError(3), AssertionError("no"), OSError("disk"), MemoryError()])
def test_any_error_of_a_handler_is_logged_with_its_traceback(with_node, caplog, error: Exception) -> None:
    """Not even a KeyError is taken for an API that is not served."""

    async def scenario(node: RunningNode) -> None:
        node.node.handlers[METADATA] = raising(error)
        good, bad = await node.connect(), await node.connect()
        with pytest.raises(asyncio.IncompleteReadError):
            await bad.metadata()
        await good.ask(18, 0, {})

    with_node(scenario)
    assert messages(caplog) == ["request with api key 3 failed"]
    assert caplog.records[0].exc_info[1] is error


@pytest.mark.parametrize("telemetry", [71, 72])
def test_telemetry_is_not_offered_and_not_answered(with_node, telemetry: int) -> None:
    """Without these APIs no client is told error 89 by them (B§5.6); a request for one closes its connection."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        offered = (await client.ask(18, 0, {}))["api_keys"]
        assert telemetry not in {api["api_key"] for api in offered}
        # The fields of both requests.
        message = {"subscription_id": 0, "terminating": False, "compression_type": 0, "metrics": b""}
        client.send(telemetry, 0, {"client_instance_id": ZERO_ID, **message})
        assert await client.closed()

    with_node(scenario)


def test_a_request_whose_handler_failed_is_charged(with_node) -> None:
    """What failed has cost time all the same: it is charged to its client, and recorded."""

    async def scenario(node: RunningNode) -> None:
        admin, bad = await node.connect("admin"), await node.connect()
        await admin.alter(CLIENT, "request_percentage", 1e6)
        with pytest.raises(asyncio.IncompleteReadError):
            await bad.metadata("fail")
        assert node.node.managers.request.peek("ANONYMOUS", "c1", node.node.clock.now_ms()) > 0
        (row,) = [event for event in spool_events(node) if event["client_id"] == "c1"]
        assert (row["handler_ns"] > 0, row["response_bytes"]) == (True, 0)

    with_node(scenario)


def test_an_unknown_version_of_api_versions_is_charged_to_its_client(with_node) -> None:
    """The answer is an error and costs its client what any answer does: it is muted for it, as by Kafka."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "request_percentage", 0.000001)
        admin = await node.connect("admin")
        await admin.alter([("client-id", None)], "request_percentage", 1e6)
        await asyncio.sleep(1.1)
        client.writer.write(bytes.fromhex("0000000d00120063000000090002633100"))
        await asyncio.wait_for(client.reader.readexactly(20), 5)
        assert [queue.size for queue in node.node._front.muting.queues.values()].count(1) == 1
        row = spool_events(node)[-1]
        assert (row["client_id"], row["api_version"], row["request_bytes"]) == ("c1", 99, 13)
        assert row["handler_ns"] > 0
        assert row["request_throttle_ms"] > 0

    with_node(scenario)


def test_a_turn_that_fails_leaves_nobody_waiting(tmp_path, caplog) -> None:
    """Where the turn's end raises, who has a part in it is closed, who has none answered; the next turn works."""

    async def main() -> None:
        turn = NotedTurn()
        async with running_node(tmp_path, MemoryStore(), {}, turn, {METADATA: turn.handle}) as node:
            all_in_one_turn(node)
            clients = [await node.connect(name) for name in "abcd"]
            await all_accepted(node)
            end = turn.finish

            def broken_end() -> bool:
                turn.finish = end  # type: ignore[method-assign]
                raise RuntimeError("as asked")

            turn.finish = broken_end  # type: ignore[method-assign]
            for client in clients:
                ask(client)
            assert await clients[0].closed()
            assert await clients[1].closed()
            for client in clients[2:]:
                assert (await client.receive())[1]["cluster_id"] is None
            for client in clients[2:]:
                ask(client)
            for client in clients[2:]:
                await client.receive()

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "closed all connections of a turn: internal error at the end of the turn"
    ]


def test_an_answer_that_cannot_be_sent_closes_the_connection(with_node, caplog) -> None:
    """An error while an answer is decided or sent, at once or after a wait, leaves nobody without an end."""

    def half_answer(request: Request) -> Answer:
        answer = request.answer({**_no_topics_answer(), "cluster_authorized_operations": -1})
        answer.response.buffers = [None]  # type: ignore[union-attr]
        return answer

    def late(request: Request) -> Deferred:
        deferred = Deferred()
        asyncio.get_running_loop().call_later(0.02, deferred.complete, half_answer(request))
        return deferred

    async def scenario(node: RunningNode) -> None:
        for handle in (half_answer, late):
            node.node.handlers[METADATA] = handle
            client = await node.connect()
            client.send(METADATA, METADATA_VERSION, NO_TOPICS)
            assert await client.closed()
        assert not node.node._front.channels

    with_node(scenario)
    assert messages(caplog) == ["response with api key 3 failed"] * 2


def _no_topics_answer() -> dict:
    return {"throttle_time_ms": 0, "brokers": [], "cluster_id": None, "controller_id": 1, "topics": []}


def test_a_waiting_request_keeps_no_frame(with_node) -> None:
    """A long poll may last for weeks: the memory that its request came in is free meanwhile."""
    waiting: list[tuple[Request, Deferred]] = []

    def wait(request: Request) -> Deferred:
        deferred = Deferred()
        waiting.append((request, deferred))
        deferred.on_cancel = waiting.clear
        return deferred

    async def scenario(node: RunningNode) -> None:
        node.node.handlers[FETCH] = wait
        client = await node.connect()
        client.send_fetch(max_bytes=1)
        while not waiting:
            await asyncio.sleep(0.01)
        assert len(waiting[0][0].frame) == 0

    with_node(scenario)
