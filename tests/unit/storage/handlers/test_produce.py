"""Tests of the Produce handler."""

import resource
import struct
from typing import Any

import pytest
from tests.unit.storage.node import NOW_MS, Node, batch, contents, decoded

from tidegate.server.handler import Answer, Charge
from tidegate.storage import error_codes
from tidegate.storage.handlers import known_requests

PRODUCE = 0


def message(records: bytes | None, *, acks: int = 1, topic: str = "orders", index: int = 0) -> dict[str, Any]:
    """Return a request for one partition."""
    part = {"name": topic, "partition_data": [{"index": index, "records": records}]}
    return {"transactional_id": None, "acks": acks, "timeout_ms": 1000, "topic_data": [part]}


def partition(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the one partition of an answer."""
    return answer["responses"][0]["partition_responses"][0]


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [1, -1])
def test_batch_is_stored_and_answered(node: Node, version: int, acks: int) -> None:
    """Every version stores the batch and answers its offset."""
    node.create("orders")
    node.call(PRODUCE, version, message(batch(2), acks=acks))
    answer = partition(node.call(PRODUCE, version, message(batch(3), acks=acks)))
    assert (answer["error_code"], answer["base_offset"], answer["log_append_time"]) == (0, 2, -1)
    assert node.log("orders").end_offset == 5


def test_version_13_names_topics_by_id(node: Node) -> None:
    """From 13 on topics have ids; an unknown one is error 100."""
    topic_id = node.create("orders")
    request = message(batch())
    request["topic_data"][0]["topic_id"] = topic_id
    answer = node.call(PRODUCE, 13, request)
    assert (answer["responses"][0]["topic_id"], partition(answer)["base_offset"]) == (topic_id, 0)
    request["topic_data"][0]["topic_id"] = "11111111-2222-3333-4444-555555555555"
    assert partition(node.call(PRODUCE, 13, request))["error_code"] == error_codes.UNKNOWN_TOPIC_ID


def test_bytes_are_charged(node: Node) -> None:
    """A produce is charged as one, also where every partition failed (B§6.2)."""
    for topic in ("orders", "absent"):
        answer = node.ask(PRODUCE, 9, message(batch(), topic=topic))
        assert isinstance(answer, Answer)
        assert answer.charge is Charge.PRODUCE


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (message(batch(), topic="absent"), error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        (message(batch(), index=1), error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        (message(batch(), index=-1), error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        (message(batch(), acks=5), error_codes.INVALID_REQUIRED_ACKS),
        (message(None), error_codes.INVALID_RECORD),
        (message(b""), error_codes.INVALID_RECORD),
        (message(batch() * 2), error_codes.INVALID_RECORD),
        (message(batch()[:-1] + b"!"), error_codes.CORRUPT_MESSAGE),
        (message(batch(value=bytes(1_048_588))), error_codes.MESSAGE_TOO_LARGE),
    ],
)
def test_refusals(node: Node, request_: dict[str, Any], code: int) -> None:
    """Each refusal has Kafka's code, no offset, and stores nothing."""
    node.create("orders")
    answer = partition(node.call(PRODUCE, 9, request_))
    assert (answer["error_code"], answer["base_offset"], answer["error_message"]) == (code, -1, None)
    assert node.log("orders").end_offset == 0


def test_unparsable_batch_fails_the_whole_request_uncharged(node: Node) -> None:
    """Bytes that are no batch fail every partition with Kafka's text and charge the request only (B§6.2)."""
    node.create("orders", 2)
    bad = bytearray(batch())
    struct.pack_into(">i", bad, 8, 0)
    request = message(batch())
    request["topic_data"][0]["partition_data"].append({"index": 1, "records": bytes(bad)})
    answer = node.ask(PRODUCE, 9, request)
    assert isinstance(answer, Answer)
    assert answer.charge is Charge.REQUEST
    for part in decoded(PRODUCE, 9, answer)["responses"][0]["partition_responses"]:
        assert part["error_code"] == error_codes.CORRUPT_MESSAGE
        assert part["error_message"] == "Record size 0 is less than the minimum record overhead (14)"
    assert node.log("orders").end_offset == 0


def test_one_bad_partition_does_not_hold_up_the_others(node: Node) -> None:
    """Partitions succeed and fail each on its own."""
    node.create("orders", 2)
    request = message(batch()[:-1] + b"!")
    request["topic_data"][0]["partition_data"].append({"index": 1, "records": batch() + b"rest"})
    first, second = node.call(PRODUCE, 9, request)["responses"][0]["partition_responses"]
    assert (first["error_code"], second["error_code"]) == (error_codes.CORRUPT_MESSAGE, 0)
    assert len(contents(node.log("orders", 1))) == len(batch())


def test_acks_0_has_no_answer(node: Node) -> None:
    """Without acks nothing is sent; a failure closes the connection (B§6.2)."""
    node.create("orders")
    for records, close in ((batch(), False), (batch()[:-1] + b"!", True)):
        answer = node.ask(PRODUCE, 9, message(records, acks=0))
        assert isinstance(answer, Answer)
        assert (answer.response, answer.charge, answer.close) == (None, Charge.PRODUCE, close)
    assert node.log("orders").end_offset == 1


def test_several_replicas_wanted_are_not_there(node: Node) -> None:
    """acks=all with `min.insync.replicas` of two is error 19 on one node."""
    node.create("orders", min_insync_replicas="2")
    assert partition(node.call(PRODUCE, 9, message(batch(), acks=-1)))["error_code"] == 19
    assert partition(node.call(PRODUCE, 9, message(batch(), acks=1)))["error_code"] == 0


def test_append_time_is_answered(node: Node) -> None:
    """With LogAppendTime the answer has the broker's clock."""
    node.create("orders", message_timestamp_type="LogAppendTime")
    assert partition(node.call(PRODUCE, 9, message(batch())))["log_append_time"] == NOW_MS


def test_retry_of_an_idempotent_batch(node: Node) -> None:
    """The same batch again has the same offset; a gap is error 45 and tells the log start."""
    node.create("orders")
    data = batch(2, producer_id=1, producer_epoch=0, base_sequence=0)
    assert [partition(node.call(PRODUCE, 9, message(data)))["base_offset"] for _ in range(2)] == [0, 0]
    late = batch(producer_id=1, producer_epoch=0, base_sequence=9)
    answer = partition(node.call(PRODUCE, 9, message(late)))
    assert (answer["error_code"], answer["log_start_offset"]) == (error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)


def test_frame_may_be_read_only(node: Node) -> None:
    """A request in immutable memory is served as well."""
    node.create("orders")
    assert partition(node.call(PRODUCE, 9, message(batch()), writable=False))["error_code"] == 0


@pytest.mark.parametrize("acks", [0, 1])
def test_what_a_turn_could_not_write_is_refused_instead(node: Node, acks: int) -> None:
    """The answer that was made before the write is replaced by error 56; without an answer the connection closes."""
    node.create("orders")
    node.create("others")
    for topic in ("orders", "others"):
        node.ask(PRODUCE, 9, message(batch(), acks=acks, topic=topic))  # known from now on
    turn = node.storage.turn
    turn.putting_off = True
    others = node.ask(PRODUCE, 9, message(batch(), acks=acks, topic="others"))
    assert turn.end()
    turn.putting_off = True
    answer = node.ask(PRODUCE, 9, message(batch(value=bytes(1000)), acks=acks))
    assert isinstance(answer, Answer)
    assert isinstance(others, Answer)
    assert answer.instead is not None
    assert others.instead is not None
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        assert not turn.end()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    instead = answer.instead()
    assert instead is not None
    assert instead.charge is Charge.PRODUCE
    if acks:
        assert partition(decoded(PRODUCE, 9, instead))["error_code"] == error_codes.KAFKA_STORAGE_ERROR
    else:
        assert (instead.response, instead.close) == (None, True)
    assert others.instead() is None
    assert (node.log("orders").end_offset, node.log("others").end_offset) == (1, 2)


def test_known_requests_follow_their_topic(node: Node) -> None:
    """A topic that is deleted is not found by who produced to it before; one made anew is another."""
    node.create("orders")
    for _ in range(2):
        assert partition(node.call(PRODUCE, 9, message(batch())))["error_code"] == 0
    node.storage.topics.delete(node.storage.topics.by_name["orders"])
    absent = partition(node.call(PRODUCE, 9, message(batch())))
    assert absent["error_code"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    node.create("orders")
    offsets = [partition(node.call(PRODUCE, 9, message(batch())))["base_offset"] for _ in range(3)]
    assert offsets == [0, 1, 2]


def test_known_requests_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """More partitions than are kept are served all the same."""
    monkeypatch.setattr(known_requests, "MAX_KEPT", 3)
    node.create("orders", partitions=8)
    for number in range(3):
        for index in range(8):
            answer = partition(node.call(PRODUCE, 9, message(batch(), index=index)))
            assert (answer["error_code"], answer["base_offset"]) == (0, number)
