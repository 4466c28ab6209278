"""When a throttled client sends: not before the deadline of a broker, the latest of several, over all connections."""

import asyncio
import contextlib

import pytest
from tests.client.scripted_broker import CLOSE, SILENCE, ScriptedBroker, brokers_of, run, settings_for

from tidegate.api_keys import API_VERSIONS, METADATA
from tidegate.client import Admin, Cluster, ConnectionLostError, Node, RequestTimeoutError
from tidegate.client.cluster import MAX_IN_FLIGHT

METADATA_QUESTION = {
    "topics": [],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
AN_HOUR_MS = 3_600_000
LONGEST_MS = 2**31 - 1


def throttling(*throttle_times_ms, broker=None):
    """Return a script that answers Metadata with one throttle time after the other, then with 0."""
    left = list(throttle_times_ms)

    def script(request):
        if request.api_key != METADATA:
            return None
        return brokers_of(throttle_time_ms=left.pop(0) if left else 0)

    return script


def ask(node, **options):
    """Return the coroutine of a Metadata request."""
    return node.ask(METADATA, METADATA_QUESTION, **options)


def waits_s(broker):
    """Return how long after each answer the next request came, in seconds."""
    return [
        request.at_s - answered_s
        for answered_s, request in zip(broker.answered_s, broker.received[1:], strict=False)
    ]


def test_nothing_is_sent_before_the_deadline():
    """The answer comes at once; the next request waits as long as it says."""

    async def work():
        async with ScriptedBroker(throttling(150)) as broker:
            node = Node(broker.address, settings_for(broker))
            assert (await ask(node)).throttle_time_ms == 150
            left_s = node.throttled_s
            since_s = asyncio.get_running_loop().time() - broker.answered_s[-1]
            assert 0.15 - since_s <= left_s <= 0.15
            await ask(node)
            assert waits_s(broker)[1] >= 0.15
            await node.close()

    run(work)


def test_requests_that_wait_for_a_slot_wait_for_the_deadline_too():
    """Of many requests at once those in flight stay; the others come after the deadline that an answer sets."""

    async def work():
        async with ScriptedBroker(throttling(150)) as broker:
            node = Node(broker.address, settings_for(broker))
            await asyncio.gather(*(ask(node) for _ in range(MAX_IN_FLIGHT + 3)))
            asked = broker.asked(METADATA)
            deadline_s = asked[0].at_s + 0.15
            assert [request.at_s < deadline_s for request in asked] == [True] * MAX_IN_FLIGHT + [False] * 3
            await node.close()

    run(work)


def test_the_latest_deadline_holds():
    """A shorter throttle time does not bring the deadline forward, a longer one moves it back."""

    async def work():
        async with ScriptedBroker(throttling(200, 1, 300, 2)) as broker:
            node = Node(broker.address, settings_for(broker))
            await asyncio.gather(*(ask(node) for _ in range(4)))
            left_s = node.throttled_s
            assert left_s >= 0.3 - (asyncio.get_running_loop().time() - broker.answered_s[3])
            await ask(node)
            asked = broker.asked(METADATA)
            assert asked[4].at_s - asked[2].at_s >= 0.3
            await node.close()

    run(work)


def test_the_deadline_survives_a_reconnect():
    """A broker that closes the connection gets no request, of ApiVersions neither, before the deadline is over."""

    async def work():
        async with ScriptedBroker(throttling(200)) as broker:
            node = Node(broker.address, settings_for(broker))
            await ask(node)
            broker.hang_up()
            await ask(node)
            assert broker.connections == 2
            assert [request.api_key for request in broker.received[2:]] == [API_VERSIONS, METADATA]
            assert broker.received[2].at_s - broker.answered_s[1] >= 0.2
            await node.close()

    run(work)


def test_a_throttle_time_of_the_first_answer_holds_back_what_follows():
    """ApiVersions may be throttled, too: the request that the connection was opened for waits."""

    def script(request):
        if request.api_key != API_VERSIONS:
            return brokers_of()
        from tests.client.scripted_broker import versions

        return {**versions(), "throttle_time_ms": 150}

    async def work():
        async with ScriptedBroker(script) as broker:
            node = Node(broker.address, settings_for(broker))
            await ask(node)
            assert waits_s(broker)[0] >= 0.15
            await node.close()

    run(work)


def test_a_closed_connection_is_noticed_while_the_client_waits():
    """A request in flight fails at once, not after the deadline."""

    def script(request):
        if request.api_key != METADATA:
            return None
        if request.correlation_id == 2:
            return brokers_of(throttle_time_ms=AN_HOUR_MS)
        return CLOSE

    async def work():
        async with ScriptedBroker(script) as broker:
            node = Node(broker.address, settings_for(broker))
            first, second = await asyncio.gather(ask(node), ask(node), return_exceptions=True)
            assert first.throttle_time_ms == AN_HOUR_MS
            assert isinstance(second, ConnectionLostError)
            assert node.throttled_s > 3000
            await node.close()

    run(work)


@pytest.mark.parametrize("version", [5, 6])
def test_only_versions_after_which_the_broker_does_not_delay(version):
    """With Metadata 5 and older the broker has waited itself; from 6 on the client does (KIP-219)."""

    async def work():
        async with ScriptedBroker(throttling(AN_HOUR_MS)) as broker:
            node = Node(broker.address, settings_for(broker))
            reply = await ask(node, most_version=version)
            assert reply.throttle_time_ms == AN_HOUR_MS
            assert (node.throttled_s > 0) == (version >= 6)
            await node.close()

    run(work)


def test_a_negative_throttle_time_is_none():
    """The next request is sent at once."""

    async def work():
        async with ScriptedBroker(throttling(-5, -(2**31))) as broker:
            node = Node(broker.address, settings_for(broker))
            assert (await ask(node)).throttle_time_ms == 0
            assert (await ask(node)).throttle_time_ms == 0
            assert node.throttled_s == 0
            await node.close()

    run(work)


def test_the_longest_throttle_time_ends_with_the_timeout_of_the_call():
    """A throttle time of 24 days: the call ends in time, and its error says for how long the broker throttles."""

    async def work():
        script = throttling(*[LONGEST_MS] * 9)
        async with (
            ScriptedBroker(script) as broker,
            Cluster(settings_for(broker, api_timeout_s=0.5)) as cluster,
        ):
            await cluster.refresh()
            with pytest.raises(
                RequestTimeoutError, match=r"throttles this client for another 21474\d\d\.\d s"
            ):
                await cluster.refresh()
            assert len(broker.asked(METADATA)) == 1

    run(work)


def test_a_broker_that_throttles_without_end():
    """Each answer throttles again: every request waits its time, none is early, none times out."""

    async def work():
        async with ScriptedBroker(throttling(*[60] * 20)) as broker:
            node = Node(broker.address, settings_for(broker, request_timeout_s=1.0))
            for _ in range(20):
                await ask(node)
            assert all(wait_s >= 0.06 for wait_s in waits_s(broker)[1:])
            await node.close()

    run(work)


def test_requests_in_flight_get_the_throttle_time_as_allowance():
    """A request whose answer comes after its timeout, but within the allowance, does not time out."""

    async def work():
        loop = asyncio.get_running_loop()

        def script(request):
            if request.api_key != METADATA:
                return None
            if len(broker.asked(METADATA)) == 1:
                return brokers_of(throttle_time_ms=60_000)
            loop.call_later(
                1.5, lambda: [writer.write(request.response(brokers_of())) for writer in broker._writers]
            )
            return SILENCE

        async with ScriptedBroker(script) as broker:
            node = Node(broker.address, settings_for(broker, request_timeout_s=1.0))
            await asyncio.gather(ask(node), ask(node))
            await node.close()

    run(work)


def test_without_an_allowance_the_same_request_times_out():
    """What the test before this one would prove of a client without allowance."""

    async def work():
        async with ScriptedBroker(lambda request: SILENCE if request.api_key == METADATA else None) as broker:
            node = Node(broker.address, settings_for(broker, request_timeout_s=0.15))
            with pytest.raises(RequestTimeoutError):
                await ask(node)
            await node.close()

    run(work)


def test_a_cancelled_request_keeps_its_slot_until_its_answer_or_its_timeout():
    """Requests that are given up do not add up: at most five are in flight, and a silent broker is noticed."""

    async def work():
        def script(request):
            is_silent = request.api_key == METADATA and len(broker.asked(METADATA)) > 1
            return SILENCE if is_silent else None

        async with ScriptedBroker(script) as broker:
            node = Node(broker.address, settings_for(broker, request_timeout_s=2.0))
            await ask(node)  # connected from here on
            for _ in range(3):
                results = await asyncio.gather(
                    *(asyncio.wait_for(ask(node), 0.01) for _ in range(MAX_IN_FLIGHT)), return_exceptions=True
                )
                assert {type(result) for result in results} == {TimeoutError}
            assert len(broker.asked(METADATA)) == 1 + MAX_IN_FLIGHT
            with pytest.raises(RequestTimeoutError):
                await ask(node)  # waits for a slot: until the first five have timed out
            assert len(broker.asked(METADATA)) == 1 + MAX_IN_FLIGHT + 1
            await node.close()

    run(work)


def several(count, work):
    """Run `work` with some brokers of one cluster and a client of it."""

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            brokers = [await stack.enter_async_context(ScriptedBroker(node_id=at)) for at in range(count)]
            for broker in brokers:
                broker.brokers = brokers
            cluster = await stack.enter_async_context(Cluster(settings_for(*brokers)))
            await work(brokers, cluster)

    run(main)


def test_other_brokers_are_unaffected():
    """While one broker throttles the client, another is asked at once."""

    async def work(brokers, cluster):
        await cluster.refresh()
        brokers[0].script = lambda request: (
            brokers_of(*brokers, throttle_time_ms=AN_HOUR_MS) if request.api_key == METADATA else None
        )
        await cluster.ask_node(0, METADATA, METADATA_QUESTION)
        await cluster.ask_node(1, METADATA, METADATA_QUESTION)
        assert (await cluster.node(0)).throttled_s > 0
        assert (await cluster.node(1)).throttled_s == 0

    several(2, work)


def test_where_any_broker_will_do_one_that_throttles_is_passed_over():
    """Of three brokers, two throttle: every request goes to the third."""

    async def work(brokers, cluster):
        await cluster.refresh()
        for broker in brokers[:2]:
            broker.script = lambda request: (
                brokers_of(*brokers, throttle_time_ms=AN_HOUR_MS) if request.api_key == METADATA else None
            )
            await cluster.ask_node(broker.node_id, METADATA, METADATA_QUESTION)
        before = len(brokers[2].asked(METADATA))
        for _ in range(5):
            await cluster.ask_any(METADATA, METADATA_QUESTION)
        assert len(brokers[2].asked(METADATA)) == before + 5

    several(3, work)


def test_where_any_broker_will_do_one_that_is_gone_is_passed_over():
    """A broker that closes its connections does not fail a request that another can answer."""

    async def work(brokers, cluster):
        await cluster.refresh()
        brokers[0].script = lambda request: CLOSE
        for _ in range(4):
            await cluster.ask_any(METADATA, METADATA_QUESTION)

    several(2, work)


def test_every_response_is_reported_with_its_throttle_time():
    """Zeros too, and those of ApiVersions and Metadata: what the client's metrics are made of (B§7.2)."""
    reported = []

    async def work():
        async with (
            ScriptedBroker(throttling(20)) as broker,
            Cluster(settings_for(broker), reported.append) as cluster,
        ):
            await cluster.refresh()
            await cluster.refresh()

    run(work)
    assert reported == [0, 20, 0]


def test_a_client_that_is_closed_sends_nothing_more():
    """Requests after the end, and those that wait for a deadline when it comes, fail."""

    async def work():
        async with ScriptedBroker(throttling(50)) as broker:
            node = Node(broker.address, settings_for(broker))
            await ask(node)
            waiting = asyncio.ensure_future(ask(node))
            await asyncio.sleep(0)
            await node.close()
            with pytest.raises(Exception, match="the client is closed"):
                await waiting
            assert len(broker.asked(METADATA)) == 1

    run(work)


def test_tasks_that_are_cancelled_leave_nothing():
    """A call that is cancelled at any step leaves no task and no connection."""

    async def work():
        async with ScriptedBroker(lambda request: None) as broker:
            for steps in range(1, 12):
                admin = Admin(settings_for(broker))
                call = asyncio.ensure_future(admin.describe_client_quotas())
                for _ in range(steps):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait((call,))
                await admin.cluster.__aexit__()
            while broker.open_connections:
                await asyncio.sleep(0.001)

    run(work)
