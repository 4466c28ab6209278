"""Topics of Produce and Fetch messages: cut off, malformed, of many partitions, and names of ids."""

import asyncio
import random
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidegate.api_keys import FETCH, PRODUCE
from tidegate.client.errors import ClientError
from tidegate.gateway.topic_names import MAX_ASKED, TopicNames
from tidegate.gateway.topics import (
    MAX_PARTITIONS,
    NO_RECORDS,
    UNKNOWN_TOPICS,
    Topics,
    fetched_topics,
    produced_sizes,
)
from tidegate.wire import encode_request, encode_response

MUTATIONS = 2_000
FEW_CALLS = 100
LAST_BY_NAME, LAST = 12, 15
ACKS_AND_TRANSACTION = 3


async def _none(_: Sequence[str]) -> Mapping[str, str]:
    return {}


@pytest.fixture
def names() -> TopicNames:
    """Return names of a cluster that names no ids."""
    return TopicNames(_none)


def fetched(version: int, topics: Mapping[str, Sequence[int]]) -> tuple[bytearray, int]:
    """Return a Fetch response with records of these sizes by partition, and the offset of its topics."""
    responses = [
        {
            "topic": topic,
            "topic_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, topic)),
            "partitions": [
                {
                    "partition_index": index,
                    "error_code": 0,
                    "high_watermark": 9,
                    "last_stable_offset": 9,
                    "log_start_offset": 0,
                    "aborted_transactions": [{"producer_id": 1, "first_offset": 2}] * (index % 3),
                    "preferred_read_replica": -1,
                    "records": bytes(size),
                }
                for index, size in enumerate(sizes)
            ],
        }
        for topic, sizes in topics.items()
    ]
    message = {"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "responses": responses}
    frame = bytearray(b"".join(encode_response(FETCH, version, 1, message).buffers))
    return frame, 8 + (version >= 12) + 4 + 6 * (version >= 7)


def topics_of(
    version: int, topics: Mapping[str, Sequence[int]], names: TopicNames, end: int | None = None
) -> Topics:
    """Return the topics of the beginning of such a response."""
    frame, at = fetched(version, topics)
    return fetched_topics(frame[:end], version, at, names)


@pytest.mark.parametrize("version", range(4, LAST_BY_NAME + 1))
def test_largest_topic_of_each_version_is_found(version: int, names: TopicNames) -> None:
    """Transactions, empty partitions and other topics are passed over."""
    assert topics_of(version, {"a": [10, 0, 500], "b": [400], "c": [0, 0]}, names) == ("a", 1)
    assert topics_of(version, {"a": [0], "b": [0]}, names) == NO_RECORDS
    assert topics_of(version, {}, names) == NO_RECORDS


@pytest.mark.parametrize("version", [4, 11, LAST_BY_NAME])
def test_beginning_of_a_long_response_names_what_is_seen(version: int, names: TopicNames) -> None:
    """The largest topic so far is named; every other one counts as one with records."""
    topics = {"a": [100], "b": [100_000], "c": [0]}
    assert topics_of(version, topics, names, end=5_000) == ("b", 2)
    assert topics_of(version, topics, names, end=150) == ("a", 2)
    assert topics_of(version, {"long": [0, 100_000]}, names, end=200) == ("long", 0)
    assert topics_of(version, topics, names, end=32) == UNKNOWN_TOPICS


def test_messages_of_many_partitions_are_not_read(names: TopicNames) -> None:
    """Their topics are unknown."""
    sizes = [0] * (MAX_PARTITIONS + 1)
    assert topics_of(LAST_BY_NAME, {"a": sizes}, names) == UNKNOWN_TOPICS
    assert topics_of(LAST_BY_NAME, {"a": [5], "b": sizes}, names) == ("a", 1)
    frame = produced(9, {"a": [1], "b": sizes})
    assert produced_sizes(frame, 9, ACKS_AND_TRANSACTION) is None


def produced(version: int, topics: Mapping[str, Sequence[int]]) -> memoryview:
    """Return the body of a Produce request."""
    data = [
        {
            "name": topic,
            "topic_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, topic)),
            "partition_data": [{"index": index, "records": bytes(size)} for index, size in enumerate(sizes)],
        }
        for topic, sizes in topics.items()
    ]
    message: dict[str, Any] = {"transactional_id": None, "acks": 1, "timeout_ms": 1, "topic_data": data}
    frame = encode_request(PRODUCE, version, 1, None, message)
    return memoryview(frame)[4 + 10 + (version >= 9) :]  # behind the header


@pytest.mark.parametrize("version", [3, 8, 9, LAST_BY_NAME])
def test_sizes_of_a_request_with_several_topics(version: int) -> None:
    """Each partition has its own; of a request with one topic they are not needed."""
    at = ACKS_AND_TRANSACTION + (version < 9)
    assert produced_sizes(produced(version, {"a": [1, 2], "b": [30]}), version, at) == {
        (b"a", 0): 1,
        (b"a", 1): 2,
        (b"b", 0): 30,
    }
    assert produced_sizes(produced(version, {"a": [1, 2]}), version, at) is None


def calls_to_read(body: bytes, version: int) -> int:
    """Return how many functions are called to find that a Produce request is not to be read."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        sizes = produced_sizes(memoryview(body), version, ACKS_AND_TRANSACTION + (version < 9))
    finally:
        sys.setprofile(None)
    assert sizes is None
    return calls


@pytest.mark.parametrize("version", [3, 8, 9, LAST_BY_NAME])
def test_requests_of_many_empty_topics_are_not_read(version: int) -> None:
    """A topic without partitions takes a few bytes: a large request has millions of them."""
    topics: Mapping[str, Sequence[int]] = {f"{number:x}": [] for number in range(MAX_PARTITIONS + 1)}
    assert calls_to_read(bytes(produced(version, topics)), version) < FEW_CALLS


def test_requests_of_many_tagged_fields_are_not_read() -> None:
    """Kafka's own clients send none of them."""
    body = bytes(produced(9, {"a": [1], "b": [1]}))
    records, thousand_tags = b"\x02\x00", b"\xe8\x07" + bytes(2_000)
    hostile = body.replace(records + b"\x00\x00\x02b", records + thousand_tags + b"\x00\x02b")
    assert len(hostile) > 2_000
    assert calls_to_read(hostile, 9) < FEW_CALLS


def test_malformed_messages_are_unknown_or_read(names: TopicNames) -> None:
    """No mutation raises, or gives a number that the usage record has no room for."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(MUTATIONS):
        version = rng.randint(4, LAST)
        frame, at = fetched(version, {"a": [10, 0], "b": [300], "c": [1]})
        request = bytearray(produced(9, {"a": [10, 0], "b": [300]}))
        for changed in (frame, request):
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(changed))] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                )
        topic, others = fetched_topics(
            frame[: rng.choice((None, rng.randrange(len(frame))))], version, at, names
        )
        produced_sizes(memoryview(request), 9, ACKS_AND_TRANSACTION)
        assert -1 <= others < MAX_PARTITIONS
        assert topic is None or 0 < len(topic) <= 249


def test_names_of_ids_are_asked_for_once() -> None:
    """An id is unknown until the cluster has named it; one that it does not name is not asked for at once again."""
    asked: list[Sequence[str]] = []
    known, hidden = uuid.uuid4(), uuid.uuid4()

    async def ask(ids: Sequence[str]) -> Mapping[str, str]:
        asked.append(ids)
        if len(asked) == 1:
            raise ClientError("no broker answers")
        return {str(known): "orders"}

    async def run() -> None:
        names = TopicNames(ask)
        following = asyncio.get_running_loop().create_task(names.follow())
        assert names.name(known.bytes, LAST) is None
        while not asked:
            await asyncio.sleep(0.01)
        assert names.name(known.bytes, LAST) is None
        names.forget_unknown()
        while names.name(known.bytes, LAST) is None:
            assert names.name(hidden.bytes, LAST) is None
            await asyncio.sleep(0.01)
        for _ in range(100):
            assert names.name(hidden.bytes, LAST) is None
            await asyncio.sleep(0)
        for _ in range(2 * MAX_ASKED):
            names.name(uuid.uuid4().bytes, LAST)
        while len(asked) < 3:
            await asyncio.sleep(0.01)
        following.cancel()

    asyncio.run(run())
    assert asked[0] == [str(known)]
    assert set(asked[1]) == {str(known), str(hidden)}
    assert len(asked[2]) == MAX_ASKED
    assert len(asked) == 3
