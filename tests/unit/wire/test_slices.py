"""Reading and writing in slices: the same results, in steps that are short."""

import gc
import time

import pytest
from tests.property.test_wire_roundtrip import finished
from tests.wire.crowded import crowded_bodies

from tidegate.wire import (
    API_BY_KEY,
    MessageError,
    ProtocolError,
    encode_response,
    encode_response_in_slices,
    read_request,
    read_request_in_slices,
)
from tidegate.wire.apis import spoken_pairs
from tidegate.wire.primitives import uvarint
from tidegate.wire.slices import COPIED_AT_ONCE_BYTES, NUMBERS_AT_ONCE, copies_in_slices
from tidegate.wire.writer_source import SLICED_BUFFER_BYTES

MAX_STEP_MS = 3.0
"""One step is under 1 ms of thread time on a quiet machine; three times that where others share its caches."""

PARTITION = {
    "error_code": 0,
    "partition_index": 1,
    "leader_id": 1,
    "leader_epoch": 0,
    "replica_nodes": [1],
    "isr_nodes": [1],
    "offline_replicas": [],
}


def longest_step_ms(slices):
    """Run a generator to its end; return the longest thread time between two yields.

    Without the garbage collector, which looks through all objects of the process, and here those are pytest's; and
    without the end of the message, which is the caller's.
    """
    longest_ns, end = 0, None
    gc.disable()
    try:
        while end is None:
            begun_ns = time.thread_time_ns()
            try:
                next(slices)
            except StopIteration as stop:
                end = stop
            longest_ns = max(longest_ns, time.thread_time_ns() - begun_ns)
    finally:
        gc.enable()
    return longest_ns / 1e6


def metadata(topics, partitions):
    """Return a Metadata answer of so many topics with so many partitions each."""
    topic = {
        "error_code": 0,
        "name": "orders",
        "topic_id": "00000000-0000-0000-0000-000000000001",
        "is_internal": False,
        "partitions": [PARTITION] * partitions,
        "topic_authorized_operations": 0,
    }
    return {"brokers": [], "cluster_id": "c", "controller_id": 1, "topics": [topic] * topics, "error_code": 0}


def test_small_requests_are_read_in_one_step():
    """A request that takes no time is read without a yield."""
    assert finished(read_request_in_slices(3, 12, b"\0\0\0\0")) == (read_request(3, 12, b"\0\0\0\0"), 0)


def test_each_element_ends_a_slice():
    """A long array of texts is read with a yield after each."""
    body = uvarint(9001) + b"\x02x\0" * 9000 + b"\0\0\0\0"
    message, slices = finished(read_request_in_slices(3, 9, body))
    assert message == read_request(3, 9, body)
    assert slices > 9000


def test_malformed_bytes_are_told_as_without_slices():
    """What is wrong far inside of a long request is said with the same path and byte."""
    body = uvarint(9001) + b"\x02x\0" * 8999
    with pytest.raises(ProtocolError) as plain:
        read_request(3, 9, body)
    with pytest.raises(ProtocolError) as sliced:
        finished(read_request_in_slices(3, 9, body))
    assert str(sliced.value) == str(plain.value)
    assert sliced.value.path == plain.value.path == "topics[8999].name"


def test_long_bytes_are_copied_by_who_keeps_them():
    """A field of bytes is a copy, a long one of the request itself: it is copied a piece at a time, or not at all."""
    content = bytes(range(256)) * (COPIED_AT_ONCE_BYTES // 64)
    message, _ = finished(read_request_in_slices(36, 0, len(content).to_bytes(4) + content))
    long = message["auth_bytes"]
    assert message == {"auth_bytes": content}
    assert type(long) is memoryview
    copies, slices = finished(copies_in_slices([b"short", long], len(content) + 5))
    assert copies == [b"short", content]
    assert type(copies[1]) is bytes
    assert slices >= 4
    assert finished(copies_in_slices([b"short", long], len(content) + 4)) == ([b"short", long], 0)


def test_long_bytes_of_an_answer_are_sent_as_they_are():
    """Metadata and assignments of megabytes are not copied into the answer."""
    metadata = bytes(SLICED_BUFFER_BYTES + 1)
    members = [{"member_id": f"m{n}", "group_instance_id": None, "metadata": metadata} for n in range(2)]
    named = dict.fromkeys(("protocol_type", "protocol_name", "leader", "member_id"), "x")
    answer = {"error_code": 0, "generation_id": 1, **named, "skip_assignment": False, "members": members}
    for version in (2, 9):
        sliced, _ = finished(encode_response_in_slices(11, version, 1, answer))
        assert sum(buffer is metadata for buffer in sliced.buffers) == 2
        plain = encode_response(11, version, 1, answer)
        assert b"".join(sliced.buffers) == b"".join(plain.buffers)
        assert sliced.size == plain.size


def test_long_arrays_of_numbers_are_read_and_written_in_slices():
    """An array of numbers is one call up to a length, beyond it several."""
    numbers = list(range(NUMBERS_AT_ONCE * 2 + 5))
    body = b"\0\1x" + (1).to_bytes(4) + b"\0\1t" + len(numbers).to_bytes(4)
    body += b"".join(number.to_bytes(4) for number in numbers)
    message, slices = finished(read_request_in_slices(9, 1, body))
    assert message == read_request(9, 1, body)
    assert message["topics"][0]["partition_indexes"] == numbers
    assert slices >= 3
    answer = metadata(1, 1)
    answer["topics"][0]["partitions"] = [{**PARTITION, "replica_nodes": numbers}]
    sliced, slices = finished(encode_response_in_slices(3, 12, 1, answer))
    assert sliced.buffers == encode_response(3, 12, 1, answer).buffers
    assert slices >= 3


def test_long_answers_are_in_several_buffers():
    """The bytes of a long answer are the same, none of its buffers grows much beyond its bound."""
    answer = metadata(300, 100)
    plain = encode_response(3, 12, 7, answer)
    sliced, _ = finished(encode_response_in_slices(3, 12, 7, answer))
    assert len(sliced.buffers) > 1
    assert max(map(len, sliced.buffers)) <= SLICED_BUFFER_BYTES + 100
    assert (sliced.size, sliced.body_size) == (plain.size, plain.body_size)
    for encoded in (plain, sliced):
        encoded.set_throttle_time_ms(1234)
    assert b"".join(sliced.buffers) == b"".join(plain.buffers)


def test_throttle_time_stays_in_the_first_buffer():
    """Where the throttle time comes after an array, the first buffer is not ended before it."""
    keys = [{"api_key": 1, "min_version": 0, "max_version": 1}] * (SLICED_BUFFER_BYTES // 4)
    answer = {"error_code": 0, "api_keys": keys, "throttle_time_ms": 0}
    plain = encode_response(18, 2, 7, answer)
    sliced, _ = finished(encode_response_in_slices(18, 2, 7, answer))
    for encoded in (plain, sliced):
        encoded.set_throttle_time_ms(1234)
    assert b"".join(sliced.buffers) == b"".join(plain.buffers)


def test_what_cannot_be_written_is_told_as_without_slices():
    """An answer with a text too long is refused with the same path."""
    answer = metadata(3, 1)
    answer["topics"][2] = {**answer["topics"][2], "name": "x" * 40_000}
    with pytest.raises(MessageError) as plain:
        encode_response(3, 12, 1, answer)
    with pytest.raises(MessageError) as sliced:
        finished(encode_response_in_slices(3, 12, 1, answer))
    assert str(sliced.value) == str(plain.value)
    assert sliced.value.path == "topics[2].name"


def is_short(begin, *, times):
    """Return whether no step of a generator is long, in one of so many runs."""
    return any(longest_step_ms(begin()) < MAX_STEP_MS for _ in range(times))


NEWEST = {key: (key, version) for key, version in spoken_pairs()}


@pytest.mark.alone
@pytest.mark.parametrize("pair", NEWEST.values(), ids=lambda pair: API_BY_KEY[pair[0]].name)
def test_steps_are_short_whatever_the_bytes_hold(pair):
    """As many structures as 20 KB can hold, in each array of each API in turn: no step is long."""
    for path, body in crowded_bodies(*pair, 20_000):
        finished(read_request_in_slices(*pair, body))  # compiles
        assert is_short(lambda at=body: read_request_in_slices(*pair, at), times=2), path


@pytest.mark.alone
def test_steps_are_short():
    """Many texts, copies of 15 MB, texts that are no UTF-8 and an answer of 60,000 partitions, step by step.

    The best of five: memory that the host has not given yet makes single steps longer.
    """
    finished(read_request_in_slices(3, 9, uvarint(9001) + b"\x02x\0" * 9000 + b"\0\0\0\0"))  # compiles
    finished(encode_response_in_slices(3, 12, 1, metadata(1, 1)))
    names = uvarint(90_001) + b"\x02x\0" * 90_000 + b"\0\0\0\0"
    wrong = uvarint(3001) + (uvarint(10_923) + b"\xff" * 10_922 + b"\0") * 3000 + b"\0\0\0\0"
    content = memoryview(bytes(15_000_000))
    answer = metadata(600, 100)
    for label, make in (
        ("names", lambda: read_request_in_slices(3, 9, names)),
        ("wrong", lambda: read_request_in_slices(3, 9, wrong)),
        ("bytes", lambda: copies_in_slices([content], len(content))),
        ("answer", lambda: encode_response_in_slices(3, 12, 1, answer)),
    ):
        assert is_short(make, times=5), label


def test_what_was_read_of_a_malformed_request_is_let_go_of_in_slices():
    """A request may be cut off behind 5,000 elements: they are freed a thousand at a time, then comes the error."""
    work = read_request_in_slices(3, 9, uvarint(5001) + b"\x02t\0" * 5000)
    for _ in range(5005):
        next(work)
    with pytest.raises(ProtocolError, match="malformed Metadata request"):
        list(work)
