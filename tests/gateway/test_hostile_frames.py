"""Hostile frames through a gateway to Kafka: connections close or answers come; nothing else happens."""

import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from tests.e2e.plain_client import receive_frame
from tests.fuzz.test_node_fuzz import harmless
from tests.fuzz.test_wire_fuzz import mutated
from tests.gateway.conftest import ALONE
from tests.gateway.hostility import fuzz, hostile_requests
from tests.gateway.raw_client import RawClient
from tests.waiting import wait_until
from tests.wire.odd_messages import odd_frames

from tidegate.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tidegate.wire import API_BY_KEY

FRAMES = 800
BOTH_SIDES = 3_000
MAX_STRING_BYTES = 32_767
ANSWERED, CLOSED, SILENT = "answered", "closed", "silent"
MOST_GROWTH_MB = 10
ANSWER_WITHIN_S, TIMEOUT_S = 3.0, 20.0


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBench]:
    """Return a Kafka of these tests alone.

    Some frames create `__consumer_offsets` with two partitions, which the broker does not expect: no group works any
    more. On the shared broker, the consumers of later tests would wait for ever.
    """
    broker = KafkaBench("kafka", tmp_path_factory.mktemp("kafka"), overrides=ALONE, java_options=SHORT_LIVED)
    broker.start()
    yield broker
    broker.stop()


def is_deadly(frame: bytes) -> bool:
    """Return whether a frame may stop Kafka 4.3.1 itself: it has a name that is too long once Kafka sends it on.

    Kafka decodes each byte that is not UTF-8 to U+FFFD, which takes three bytes. The thread that forwards requests to
    the controller fails to write a name of more than 32,767 bytes, and stops the process.
    """
    rewritten = len(frame.decode("utf-8", "replace").encode())
    return rewritten > max(len(frame), MAX_STRING_BYTES)


def outcome(port: int, frame: bytes, within_s: float = ANSWER_WITHIN_S) -> str:
    """Return what becomes of a frame."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as sock:
        sock.settimeout(within_s)
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        try:
            receive_frame(sock)
        except ConnectionError:
            return CLOSED
        except TimeoutError:
            return SILENT
        return ANSWERED


def test_hostile_frames_are_taken_as_by_kafka(kafka, gateway):
    """Mutated frames: answered where Kafka answers, or refused; no traceback, no growth; a neighbour is served on.

    Where Kafka is silent, it waits as long as the request says, for a client that may be there still.
    """
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    frames = hostile_requests()
    before, before_mb = gateway.descriptors(), 0.0
    outcomes: Counter[tuple[str, str]] = Counter()
    with RawClient(gateway.port, "neighbour") as neighbour:
        for number in range(FRAMES):
            if number == FRAMES // 3:
                before_mb = gateway.resident_mb()
            frame = harmless(bytes(mutated(rng, rng.choice(frames))))
            if is_deadly(frame):
                continue
            found = outcome(gateway.port, frame), outcome(kafka.port, frame)
            if SILENT in found and found[0] not in (found[1], CLOSED):  # the machine may have stood still
                found = outcome(gateway.port, frame, TIMEOUT_S), outcome(kafka.port, frame, TIMEOUT_S)
            outcomes[found] += 1
            assert found[0] in (found[1], CLOSED), (found, frame)
            if number % 50 == 0:
                assert neighbour.topic_ids("x") is not None
    print(outcomes)
    assert outcomes[CLOSED, CLOSED] > FRAMES // 3
    assert outcomes[ANSWERED, ANSWERED] > FRAMES // 10
    assert outcomes[CLOSED, ANSWERED] < FRAMES // 25  # versions that the gateway does not offer
    assert gateway.resident_mb() - before_mb < MOST_GROWTH_MB
    wait_until(lambda: gateway.descriptors() <= before + 2 * outcomes[SILENT, SILENT])
    assert "Traceback" not in gateway.log, gateway.log[-5000:]


def test_texts_that_stop_kafka_are_not_forwarded(gateway):
    """A request to change topics is refused if the broker could not answer it: Kafka would be silent, and then end."""
    frames = [
        frame
        for api_key in (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS)
        for label, frame in odd_frames(api_key, API_BY_KEY[api_key].max_version)
        if label.endswith("name=long-not-utf8")
    ]
    assert len(frames) >= 3
    assert all(map(is_deadly, frames))
    assert {outcome(gateway.port, frame) for frame in frames} == {CLOSED}


def test_hostile_frames_from_both_sides(tmp_path):
    """Mutated requests and garbled responses at once: each ends in an answer or a closed connection."""
    seed = time.time_ns() % 2**32
    print(f"seed {seed}")
    outcomes = fuzz(seed, BOTH_SIDES, tmp_path)
    print(outcomes)
    assert outcomes["answered"] > BOTH_SIDES // 20
    assert outcomes["closed"] > BOTH_SIDES // 20
