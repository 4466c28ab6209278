"""Requests written, and responses read, in slices are those that are written and read at once."""

import pytest

from tidegate.in_slices import run_at_once
from tidegate.wire import (
    ProtocolError,
    encode_request,
    encode_request_in_slices,
    encode_response,
    read_response,
    read_response_in_slices,
)

METADATA, CREATE_TOPICS = 3, 19
TOPICS = 2000
_NEW = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
_MADE = {
    "topic_id": "00000000-0000-0000-0000-000000000007",
    "error_code": 0,
    "error_message": None,
    "topic_config_error_code": 0,
    "num_partitions": 1,
    "replication_factor": 1,
    "configs": None,
}


@pytest.mark.parametrize("version", range(2, 8))
def test_a_request_is_the_same(version):
    """Of every version, byte by byte, with many slices."""
    message = {
        "topics": [{**_NEW, "name": f"topic-{number}"} for number in range(TOPICS)],
        "timeout_ms": 1000,
        "validate_only": False,
    }
    work = encode_request_in_slices(CREATE_TOPICS, version, 7, "client", message)
    slices, made = 0, None
    while made is None:
        try:
            next(work)
            slices += 1
        except StopIteration as stop:
            made = stop.value
    assert made == encode_request(CREATE_TOPICS, version, 7, "client", message)
    assert slices >= TOPICS


@pytest.mark.parametrize("version", range(2, 8))
def test_a_response_is_the_same(version):
    """Of every version; where it is cut short, the error is the same, too."""
    topics = [{**_MADE, "name": f"topic-{number}"} for number in range(TOPICS)]
    encoded = encode_response(CREATE_TOPICS, version, 7, {"throttle_time_ms": 3, "topics": topics})
    body = memoryview(b"".join(encoded.buffers))[4 + encoded.size - encoded.body_size :]
    expected = read_response(CREATE_TOPICS, version, body)
    assert run_at_once(read_response_in_slices(CREATE_TOPICS, version, body)) == expected
    assert len(expected["topics"]) == TOPICS
    with pytest.raises(ProtocolError) as at_once:
        read_response(CREATE_TOPICS, version, body[:-30])
    with pytest.raises(ProtocolError) as in_slices:
        run_at_once(read_response_in_slices(CREATE_TOPICS, version, body[:-30]))
    assert str(in_slices.value) == str(at_once.value)
