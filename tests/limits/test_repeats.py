"""Every array of every request, as long as one likes: the same element again and again, and elements that differ."""

import pytest
from tests.limits.bounds import PARTITION_BYTES, judge
from tests.limits.frames import METADATA, raw_frame, size
from tests.limits.repeats import TOPIC_ID, Repeat, repeats
from tests.limits.watched import Connection, WatchedBroker

from tidegate.storage.config import MAX_PARTITIONS
from tidegate.wire import API_BY_KEY

pytestmark = pytest.mark.alone

SERVED = {
    0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 29, 30, 31, 32, 33, 35, 36, 37,
    42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 60, 61, 68, 74, 75,
}  # fmt: skip
ENOUGH_FOR_CACHES = 5000  # what an id is as text is known of 4,096
ENOUGH_OF_ONE = 100  # the same again and again is one entry
CREATES_ONLY_IF_ASKED_SINCE = 4  # of Metadata
COUNT = size(20_000, 99_000)
"""More than 100,000 are refused (row W2)."""

REPEATS = [
    (repeat, differ)
    for repeat in repeats(SERVED)
    for differ in (False, True)
    if not differ or repeat.can_differ()
]


@pytest.fixture(scope="module")
def topic_id(broker: WatchedBroker) -> bytes:
    """Return the id of the topic `limits`."""
    with Connection(broker.port) as client:
        return client.topic_id("limits")


def test_every_api_that_is_served_is_here(broker: WatchedBroker) -> None:
    """An API that is served tomorrow is tested here too."""
    with Connection(broker.port) as client:
        answer = client.ask(18, 0, {})
    assert {api["api_key"] for api in answer["api_keys"]} == SERVED


@pytest.mark.parametrize(
    ("repeat", "differ"),
    REPEATS,
    ids=[f"{repeat}-{'differ' if differ else 'same'}" for repeat, differ in REPEATS],
)
def test_an_array_of_many_elements(
    broker: WatchedBroker, topic_id: bytes, repeat: Repeat, differ: bool
) -> None:
    """Whatever is repeated in a request stops nobody and takes memory in proportion to its bytes."""

    def frame(count: int) -> bytes:
        body = repeat.body(count, differ=differ).replace(TOPIC_ID, topic_id)
        return raw_frame(repeat.api_key, repeat.version, body)

    with Connection(broker.port) as client:
        client.socket.sendall(frame(ENOUGH_FOR_CACHES if differ else ENOUGH_OF_ONE))
        client.skip_answer()
    long = frame(COUNT)
    creates = repeat.api_key == METADATA and repeat.version < CREATES_ONLY_IF_ASKED_SINCE and differ
    may_keep_bytes = MAX_PARTITIONS * PARTITION_BYTES if creates else 0
    judge(broker, API_BY_KEY[repeat.api_key].name, [long], ends=True, may_keep_bytes=may_keep_bytes)
