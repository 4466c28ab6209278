"""Answers to Produce: where the throttle time lies, and which of them are read."""

from collections.abc import Mapping, Sequence

import pytest

from tidegate import error_codes
from tidegate.api_keys import PRODUCE
from tidegate.gateway.addresses import Addresses
from tidegate.gateway.responses import Rewriter, produce_answer
from tidegate.gateway.topic_names import TopicNames
from tidegate.gateway.upstream_response import Response
from tidegate.server.requests.handler import Answer
from tidegate.wire import Message, RequestHeader, encode_response, read_response

PORT = 19_092
PARTITIONS = 3_000


async def _no_names(_: Sequence[str]) -> Mapping[str, str]:
    return {}


def produced(error_code: int, partitions: int, *, throttle_time_ms: int = 7) -> Message:
    """Return a Produce response with one error for all partitions."""
    results = [
        {
            "index": index,
            "error_code": error_code,
            "base_offset": -1,
            "log_append_time_ms": -1,
            "log_start_offset": -1,
            "record_errors": [],
            "error_message": None,
        }
        for index in range(partitions)
    ]
    topics = [{"name": "orders", "partition_responses": results}]
    return {"responses": topics, "throttle_time_ms": throttle_time_ms, "node_endpoints": []}


def answered(version: int, message: Message) -> tuple[Answer, bytearray]:
    """Return the answer to a Produce, and the frame that the broker has sent."""
    frame = bytearray(b"".join(encode_response(PRODUCE, version, 5, message).buffers))
    rewriter = Rewriter(Addresses({"PLAINTEXT": ("gateway", PORT)}))
    header = RequestHeader(PRODUCE, version, 5, "x", 0)
    response = Response(frame, len(frame) - 4, None)
    return produce_answer(header, response, rewriter, "PLAINTEXT", names=TopicNames(_no_names)), frame


def told(version: int, answer: Answer) -> Message:
    """Return what the client reads, with a throttle time of 1000 ms from the gateway."""
    assert answer.response is not None
    answer.response.set_throttle_time_ms(1000)
    frame = memoryview(b"".join(answer.response.buffers))
    return read_response(PRODUCE, version, frame[4:], 4 + (version >= 9))


@pytest.mark.parametrize("version", range(3, 13))
def test_errors_of_many_partitions_pass_unread(version: int) -> None:
    """A client can cause thousands of them: the response is forwarded as it came, but for its throttle time."""
    message = produced(error_codes.UNKNOWN_TOPIC_OR_PARTITION, PARTITIONS)
    answer, frame = answered(version, message)
    assert answer.response is not None
    assert answer.response.buffers[0] is frame
    found = told(version, answer)
    assert answer.response.buffers[0] is frame
    assert found["throttle_time_ms"] == 1000
    assert len(found["responses"][0]["partition_responses"]) == PARTITIONS


@pytest.mark.parametrize("version", [10, 12])
def test_addresses_of_new_leaders_are_those_of_the_gateway(version: int) -> None:
    """A partition that has moved names its leader, and the response its address."""
    message = produced(error_codes.NOT_LEADER_OR_FOLLOWER, 2)
    message["node_endpoints"] = [{"node_id": 3, "host": "kafka3", "port": 9092, "rack": None}]
    answer, _ = answered(version, message)
    found = told(version, answer)
    assert found["throttle_time_ms"] == 1000
    assert [(each["host"], each["port"]) for each in found["node_endpoints"]] == [("gateway", PORT + 3)]


@pytest.mark.parametrize("version", [3, 9, 12])
@pytest.mark.parametrize("size", [0, 3, 5])
def test_short_garbage_is_not_written_to(version: int, size: int) -> None:
    """A response without room for a throttle time passes as it is."""
    frame = bytearray(b"\0\0\0\0\0\0\0\5" + b"\1" * size)
    rewriter = Rewriter(Addresses({"PLAINTEXT": ("gateway", PORT)}))
    header = RequestHeader(PRODUCE, version, 5, "x", 0)
    sent = bytes(frame)
    answer = produce_answer(
        header, Response(frame, len(frame) - 4, None), rewriter, "PLAINTEXT", names=TopicNames(_no_names)
    )
    assert answer.response is not None
    assert b"".join(answer.response.buffers) == sent
