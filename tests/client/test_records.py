"""Producer and consumer against a scripted broker: leaders that move, throttles, and damaged records."""

import asyncio
import math

import pytest
from tests.client.scripted_broker import CLOSE, SILENCE, ScriptedBroker, brokers_of, run, settings_for

from tidegate.api_keys import FETCH, LIST_OFFSETS, METADATA, PRODUCE
from tidegate.client import (
    EARLIEST,
    LATEST,
    BrokerError,
    ClientError,
    ConnectionLostError,
    Consumer,
    Producer,
    Record,
    RequestTimeoutError,
    TopicPartition,
)
from tidegate.wire.batch import batches
from tidegate.wire.records import decode_batch, encode_batch

PLACE = TopicPartition("t", 0)
BATCH = encode_batch([Record(value=b"%d" % at) for at in range(3)], now_ms=1)


def stored(*, error_code=0, throttle_time_ms=0, topic="t"):
    """Return an answer to Produce."""
    answer = {
        "index": 0, "error_code": error_code, "base_offset": 7, "log_append_time": -1, "log_start_offset": 0,
        "record_errors": [], "error_message": None,
    }  # fmt: skip
    responses = [{"name": topic, "partition_responses": [answer]}]
    return {"responses": responses, "throttle_time_ms": throttle_time_ms}


def fetched(records=BATCH, *, error_code=0, throttle_time_ms=0):
    """Return an answer to Fetch."""
    answer = {
        "partition_index": 0, "error_code": error_code, "high_watermark": 3, "last_stable_offset": 3,
        "log_start_offset": 0, "aborted_transactions": None, "preferred_read_replica": -1, "records": records,
    }  # fmt: skip
    responses = [{"topic": "t", "partitions": [answer]}] if records is not None else []
    return {
        "throttle_time_ms": throttle_time_ms, "error_code": 0, "session_id": 0, "responses": responses
    }  # fmt: skip


def listed(offset):
    """Return an answer to ListOffsets."""
    answer = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 0}
    return {"throttle_time_ms": 0, "topics": [{"name": "t", "partitions": [answer]}]}


def led(answers, *, leaders=(0,)):
    """Return a script: the answers of each API in turn, the last of them for ever; the leaders of t likewise."""
    left = {key: list(values) for key, values in answers.items()}
    left[METADATA] = list(leaders)

    def script(request):
        values = left.get(request.api_key)
        if not values:
            return None
        value = values.pop(0) if len(values) > 1 else values[0]
        if request.api_key != METADATA:
            return value
        return {**brokers_of(script.broker, **({"t": value} if request.message["topics"] else {}))}

    return script


def with_client(client, answers, work, *, leaders=(0,), **changed):
    """Run `work` with a producer or consumer of a scripted broker; return its result and the broker."""

    async def main():
        script = led(answers, leaders=leaders)
        async with ScriptedBroker(script) as broker:
            script.broker = broker
            async with client(settings_for(broker, **changed)) as own:
                return await work(own), broker

    return run(main)


def send(producer):
    """Send a record to the partition."""
    return producer.send("t", 0, [Record(key=b"k", value=b"v")])


def poll_until(count, offset=0):
    """Return what polls until there are so many records."""

    async def work(consumer):
        consumer.assign({PLACE: offset})
        values = []
        while len(values) < count:
            values += [record.value for record in (await consumer.poll()).get(PLACE, [])]
        return values

    return work


# --- producer -------------------------------------------------------------------------------------------------------


def test_a_record_is_sent_to_the_leader():
    """The batch holds it; the broker's offset is returned."""
    offset, broker = with_client(Producer, {PRODUCE: [stored()]}, send)
    assert offset == 7
    [request] = broker.asked(PRODUCE)
    data = request.message["topic_data"][0]["partition_data"][0]["records"]
    [record] = [record for batch in batches(data) for record in decode_batch(data, batch)]
    assert (record.key, record.value) == (b"k", b"v")


@pytest.mark.parametrize("code", [3, 5, 6, 74, 75])
def test_a_partition_that_has_moved_is_sent_to_its_new_leader(code):
    """The leader is looked for again, and the batch is sent once more: the first was not stored."""
    offset, broker = with_client(Producer, {PRODUCE: [stored(error_code=code), stored()]}, send)
    assert offset == 7
    assert len(broker.asked(PRODUCE)) == 2


def test_a_partition_without_a_leader_is_waited_for():
    """While a topic is new it may have no leader."""
    assert with_client(Producer, {PRODUCE: [stored()]}, send, leaders=(-1, -1, 0))[0] == 7


def test_a_partition_that_never_has_a_leader_is_an_error():
    """After twenty lookups the error names the partition."""
    with pytest.raises(BrokerError, match=r"partition t-0: .*UNKNOWN_TOPIC_OR_PARTITION"):
        with_client(Producer, {PRODUCE: [stored()]}, send, leaders=(-1,))


def test_other_errors_are_raised_with_the_partition():
    """A batch that is too large is not sent again."""
    with pytest.raises(BrokerError, match="partition t-0") as caught:
        with_client(Producer, {PRODUCE: [stored(error_code=10)]}, send)
    assert caught.value.code == 10


def test_nothing_is_sent_twice_after_a_lost_connection():
    """Whether the records are stored is not known: the caller decides."""
    with pytest.raises(ConnectionLostError):
        with_client(Producer, {PRODUCE: [CLOSE, stored()]}, send)


def test_an_answer_about_another_partition_is_an_error():
    """The broker says nothing of the partition that was asked for."""
    with pytest.raises(ClientError, match="no result of partition t-0"):
        with_client(Producer, {PRODUCE: [stored(topic="u")]}, send)


def test_a_throttle_that_is_longer_than_the_timeout_ends_the_call():
    """The second record cannot be sent in time: an error, and nothing was sent early."""

    async def work(producer):
        await send(producer)
        with pytest.raises(RequestTimeoutError, match="throttles this client"):
            await send(producer)

    answers = {PRODUCE: [stored(throttle_time_ms=60_000)]}
    _, broker = with_client(Producer, answers, work, api_timeout_s=1.0)
    assert len(broker.asked(PRODUCE)) == 1


def test_the_metrics_are_over_all_responses():
    """ApiVersions and two of Metadata count with 0, then two of Produce; before the first response it is NaN."""

    async def work(producer):
        assert all(math.isnan(value) for value in producer.metrics().values())
        await send(producer)
        await send(producer)
        return producer.metrics()

    metrics, broker = with_client(Producer, {PRODUCE: [stored(throttle_time_ms=30), stored()]}, work)
    assert metrics == {
        "produce-throttle-time-avg": 30 / len(broker.received),
        "produce-throttle-time-max": 30.0,
    }


@pytest.mark.parametrize("acks", [0, 2])
def test_acks_without_an_answer_are_refused(acks):
    """Without an answer there is no throttle time."""
    with pytest.raises(ValueError, match="acks must be -1 or 1"):
        with_client(lambda settings: Producer(settings, acks=acks), {}, send)


# --- consumer -------------------------------------------------------------------------------------------------------


def test_records_come_in_order_from_the_position_on():
    """Records of a batch before the position are left out."""
    assert with_client(Consumer, {FETCH: [fetched(), fetched(b"")]}, poll_until(2, offset=1))[0] == [
        b"1",
        b"2",
    ]


@pytest.mark.parametrize("begin", [EARLIEST, LATEST])
def test_symbolic_offsets_are_asked_for(begin):
    """The leader says where a partition begins or ends."""
    answers = {FETCH: [fetched(), fetched(b"")], LIST_OFFSETS: [listed(2)]}
    values, broker = with_client(Consumer, answers, poll_until(1, offset=begin))
    assert values == [b"2"]
    assert broker.asked(LIST_OFFSETS)[0].message["topics"][0]["partitions"][0]["timestamp"] == begin


def test_no_more_records_than_asked_for():
    """The rest comes with the next poll, without another fetch."""

    async def work(consumer):
        consumer.assign({PLACE: 0})
        return [len((await consumer.poll())[PLACE]) for _ in range(2)]

    client = lambda settings: Consumer(settings, max_records=2)  # noqa: E731
    counts, broker = with_client(client, {FETCH: [fetched(), SILENCE]}, work)
    assert counts == [2, 1]
    assert len(broker.asked(FETCH)) == 1


def test_a_throttled_fetch_is_empty_and_asked_again_after_the_deadline():
    """The next fetch has the same offset, and comes no earlier than it may."""
    answers = {FETCH: [fetched(None, throttle_time_ms=150), fetched(), SILENCE]}
    values, broker = with_client(Consumer, answers, poll_until(3))
    assert values == [b"0", b"1", b"2"]
    first, second = broker.asked(FETCH)[:2]
    assert second.at_s - first.at_s >= 0.15
    assert first.message["topics"] == second.message["topics"]


def test_poll_returns_in_time_while_the_broker_throttles():
    """A poll that is over leaves the fetch under way; the deadline stays over a new assignment."""

    async def work(consumer):
        consumer.assign({PLACE: 0})
        assert await consumer.poll(timeout_s=0.1) == {}
        consumer.assign({PLACE: 1})
        assert await consumer.poll(timeout_s=0.1) == {}

    _, broker = with_client(Consumer, {FETCH: [fetched(None, throttle_time_ms=60_000)]}, work)
    assert len(broker.asked(FETCH)) == 1


def test_records_of_an_assignment_that_is_gone_are_dropped():
    """A response that comes after `assign` does not move the new position."""

    async def work(consumer):
        consumer.assign({PLACE: 0})
        await consumer.poll(timeout_s=0.05)
        consumer.assign({PLACE: 2})
        values = []
        while not values:
            values += [record.value for record in (await consumer.poll()).get(PLACE, [])]
        return values

    assert with_client(
        Consumer, {FETCH: [fetched(None, throttle_time_ms=100), fetched(), fetched(), SILENCE]}, work
    )[0] == [b"2"]


@pytest.mark.parametrize("answer", [CLOSE, fetched(b"", error_code=6), fetched(b"", error_code=5)])
def test_a_leader_that_is_gone_is_looked_for_again(answer):
    """A lost connection and a moved partition go unseen by the caller."""
    assert len(with_client(Consumer, {FETCH: [answer, fetched(), SILENCE]}, poll_until(3))[0]) == 3


def test_an_offset_that_is_gone_is_an_error_with_a_hint():
    """OFFSET_OUT_OF_RANGE says what to do."""
    with pytest.raises(BrokerError, match="partition t-0") as caught:
        with_client(Consumer, {FETCH: [fetched(b"", error_code=1)]}, poll_until(1))
    assert "EARLIEST" in caught.value.hint


def test_a_damaged_batch_loses_no_record_before_it():
    """Records of the batch before it are returned; then the error names partition and offset, at every poll."""
    bad = bytearray(encode_batch([Record(value=b"x")], now_ms=1))
    bad[7], bad[-1] = 3, 0xFF  # base offset 3, a wrong CRC

    async def work(consumer):
        values = await poll_until(3)(consumer)
        for _ in range(2):
            with pytest.raises(ClientError, match=r"partition t-0, offset 3: the CRC"):
                await consumer.poll()
        return values

    answers = {FETCH: [fetched(BATCH + bytes(bad)), fetched(bytes(bad))]}
    assert with_client(Consumer, answers, work)[0] == [b"0", b"1", b"2"]


def test_a_batch_that_is_cut_off_is_an_error():
    """A response with only a part of a batch does not make the consumer ask for ever."""
    with pytest.raises(ClientError, match="no whole batch in 70 bytes"):
        with_client(Consumer, {FETCH: [fetched(BATCH[:70])]}, poll_until(1))


def test_a_poll_that_is_cancelled_leaves_nothing():
    """The fetch that it began ends with the consumer."""

    async def work(consumer):
        consumer.assign({PLACE: 0})
        poll = asyncio.ensure_future(consumer.poll(timeout_s=60))
        await asyncio.sleep(0.05)
        poll.cancel()
        await asyncio.wait((poll,))

    with_client(Consumer, {FETCH: [SILENCE]}, work)
