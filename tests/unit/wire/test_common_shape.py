"""The quick code of Produce and Fetch is used for the commonest shape, and for that alone."""

import pytest

from tidegate.wire.codecs import reader, writer
from tidegate.wire.common_shape import SHAPES

TOPIC_ID = "00000000-0000-0000-0000-000000000001"


def produce(topics=1, partitions=1, **more):
    """Return a Produce request."""
    topic = {
        "partition_data": [{"index": 0, "records": b"abc"}] * partitions,
        "name": "t",
        "topic_id": TOPIC_ID,
    }
    return {"transactional_id": None, "acks": 1, "timeout_ms": 1, "topic_data": [topic] * topics, **more}


class GenericReachedError(Exception):
    """Raised where the generic code is reached."""


def without_generic(program):
    """Return the program's quick function, with an exception in place of the generic one."""

    def generic(*_):
        raise GenericReachedError

    function = program.function
    return type(function)(function.__code__, {**function.__globals__, "generic": generic})


@pytest.mark.parametrize("version", range(3, 14))
def test_common_produce_is_read_quickly(version):
    """One topic with one partition never reaches the generic reader; anything else does."""
    quick, write = without_generic(reader(0, version, "request")), writer(0, version, "request")

    def body(message):
        out = bytearray()
        buffers = [out]
        write.function(message, out, buffers)
        return memoryview(b"".join(buffers))

    found = quick(body(produce()), 0)
    assert bytes(found["topic_data"][0]["partition_data"][0]["records"]) == b"abc"
    others = [produce(topics=2), produce(partitions=2), produce(topics=0), produce(transactional_id="x")]
    for other in others:
        with pytest.raises(GenericReachedError):
            quick(body(other), 0)


@pytest.mark.parametrize("version", range(3, 14))
def test_common_produce_is_answered_quickly(version):
    """One partition without errors never reaches the generic writer; errors do, and so do more partitions."""
    quick = without_generic(writer(0, version, "response"))
    partition = {"index": 0, "error_code": 0, "base_offset": 7, "record_errors": []}

    def answer(*partitions):
        return {"responses": [{"name": "t", "topic_id": TOPIC_ID, "partition_responses": list(partitions)}]}

    out = bytearray(9)
    assert 0 < quick(answer(partition), out, [out]) < len(out)
    others = [answer(partition, partition), answer()]
    if version >= 8:
        others.append(answer({**partition, "error_message": "no"}))
    for other in others:
        untouched = bytearray(9)
        with pytest.raises(GenericReachedError):
            quick(other, untouched, [untouched])
        assert untouched == bytes(9)


def test_shapes_are_those_of_the_hot_path():
    """Produce and Fetch have quick code, nothing else."""
    assert {name for name, _ in SHAPES} == {"Produce", "Fetch"}
