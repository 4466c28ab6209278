"""Tests of the Produce handler."""

import gc
import resource
import struct
from collections import Counter
from functools import partial
from typing import Any

import pytest
from tests.batches import build_batch, renew_crc
from tests.unit.broker.node import CONNECTION, Node, decoded
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms
from tests.unit.storage.logs import NOW_MS, batch, contents

from tidegate import error_codes
from tidegate.broker import known_requests
from tidegate.in_slices import run_at_once
from tidegate.server.requests.handler import Answer, Charge, Deferred, Request
from tidegate.wire import decode_request_header, encode_request
from tidegate.wire.batch import crc_matches, read_header

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


def test_length_that_is_no_size_in_java_fails_the_whole_request(node: Node) -> None:
    """In the first batch or the second: error -1 without a text, as from Kafka 4.3.1. One less fits."""
    node.create("orders", 2)
    for before in (b"", batch()):
        for length, codes in ((2**31 - 12, {0: -1, 1: -1}), (2**31 - 13, {0: 0, 1: 87 if not before else 0})):
            bad = bytearray(batch())
            struct.pack_into(">i", bad, 8, length)
            request = message(batch())
            request["topic_data"][0]["partition_data"].append({"index": 1, "records": before + bytes(bad)})
            parts = node.call(PRODUCE, 9, request)["responses"][0]["partition_responses"]
            assert {part["index"]: part["error_code"] for part in parts} == codes
            if length == 2**31 - 12:
                assert {part["error_message"] for part in parts} == {None}


def test_null_records_are_answered(node: Node) -> None:
    """Kafka never answers for a partition that is there: it fails over them, and over counting their bytes again."""
    node.create("orders", 2)
    for records, codes in ((batch(), {0: 0, 1: 87}), (batch()[:8] + bytes(20), {0: 2, 1: 2})):
        request = message(records)
        request["topic_data"][0]["partition_data"].append({"index": 1, "records": None})
        parts = node.call(PRODUCE, 9, request)["responses"][0]["partition_responses"]
        assert {part["index"]: part["error_code"] for part in parts} == codes
    assert node.ask(PRODUCE, 9, message(None, acks=0)).close


def test_of_several_records_for_a_partition(node: Node) -> None:
    """Null before a batch says nothing; what was refused unseen is told before what the log refuses. As Kafka 4.3.1."""
    node.create("orders")
    wrong = bytearray(batch())
    wrong[-1] ^= 1
    for several, code in (
        ([None, batch()], 0),
        ([batch(), None], 87),
        ([b"", bytes(wrong)], 87),
        ([bytes(wrong)], 2),
    ):
        request = message(None)
        request["topic_data"][0]["partition_data"] = [{"index": 0, "records": records} for records in several]
        assert partition(node.call(PRODUCE, 9, request))["error_code"] == code


def test_one_bad_partition_does_not_hold_up_the_others(node: Node) -> None:
    """Partitions succeed and fail each on its own."""
    node.create("orders", 2)
    request = message(batch()[:-1] + b"!")
    request["topic_data"][0]["partition_data"].append({"index": 1, "records": batch() + b"rest"})
    first, second = node.call(PRODUCE, 9, request)["responses"][0]["partition_responses"]
    assert (first["error_code"], second["error_code"]) == (error_codes.CORRUPT_MESSAGE, 0)
    assert len(contents(node.log("orders", 1))) == len(batch())


@pytest.mark.parametrize("records", [batch(), batch()[:10]])
def test_topics_without_partitions_are_left_out(node: Node, records: bytes) -> None:
    """Whether the others are stored or all fail, as by Kafka."""
    node.create("orders")
    request = message(records)
    request["topic_data"].append({"name": "none", "partition_data": []})
    assert [topic["name"] for topic in node.call(PRODUCE, 9, request)["responses"]] == ["orders"]


def test_acks_0_has_no_answer(node: Node) -> None:
    """Without acks nothing is sent; a failure closes the connection (B§6.2)."""
    node.create("orders")
    for records, close in ((batch(), False), (batch()[:-1] + b"!", True)):
        answer = node.ask(PRODUCE, 9, message(records, acks=0))
        assert isinstance(answer, Answer)
        assert (answer.response, answer.charge, answer.close) == (None, Charge.PRODUCE, close)
    assert node.log("orders").end_offset == 1


def test_no_more_replicas_are_wanted_than_there_are(node: Node) -> None:
    """acks=all is satisfied by the one replica even where `min.insync.replicas` is two, as in Kafka 4.3."""
    node.create("orders", min_insync_replicas="2")
    for acks in (-1, 1):
        assert partition(node.call(PRODUCE, 9, message(batch(), acks=acks)))["error_code"] == 0


def changed(*fields: tuple[int, str, int], right_crc: bool = True, data: bytes | None = None) -> bytes:
    """Return a batch of two records with header fields changed."""
    out = bytearray(batch(2) if data is None else data)
    for at, code, value in fields:
        struct.pack_into(">" + code, out, at, value)
    if right_crc:
        renew_crc(out)
    return bytes(out)


ATTRIBUTES, DELTA, MAX_TIME, PRODUCER_ID, SEQUENCE, COUNT = 21, 23, 35, 43, 53, 57
LARGE = batch(value=bytes(1_048_588))
LATE = NOW_MS + 3_600_001
TIMES_TEXT = "One or more records have been rejected due to invalid timestamp"


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("records", "code", "log_start", "text"),
    [
        (changed((COUNT, "i", 5), right_crc=False), 2, -1, None),
        (changed((COUNT, "i", 0), right_crc=False), 2, -1, None),
        (changed((DELTA, "i", 7), right_crc=False), 2, -1, None),
        (changed((DELTA, "i", -1), right_crc=False), 2, -1, None),
        (changed((ATTRIBUTES, "h", 0x20), right_crc=False), 2, -1, None),
        (changed((ATTRIBUTES, "h", 0x08), right_crc=False), 2, -1, None),
        (changed((ATTRIBUTES, "h", 5), right_crc=False), 2, -1, None),
        (changed((PRODUCER_ID, "q", 5), right_crc=False), 2, -1, None),
        (changed((COUNT, "i", 5)), 87, 0, None),
        (changed((COUNT, "i", 1)), 87, 0, None),
        (changed((COUNT, "i", 0)), 87, 0, None),
        (changed((COUNT, "i", -1)), 87, 0, None),
        (changed((DELTA, "i", -1)), 87, 0, None),
        (changed((ATTRIBUTES, "h", 0x20)), 87, 0, None),
        (changed((PRODUCER_ID, "q", 5)), 87, 0, None),
        (changed((PRODUCER_ID, "q", 5), (SEQUENCE, "i", -5)), 87, 0, None),
        (changed((COUNT, "i", 100_000), (DELTA, "i", 99_999)), 87, 0, None),
        (changed((0, "q", 5)), 87, 0, None),
        (changed((0, "q", -1)), 87, 0, None),
        (changed((0, "q", 5), (COUNT, "i", 7), right_crc=False), 87, 0, None),
        (changed((ATTRIBUTES, "h", 5)), -1, 0, None),
        (changed((ATTRIBUTES, "h", 7)), -1, 0, None),
        (changed((ATTRIBUTES, "h", 0x10)), 53, -1, None),
        (changed((ATTRIBUTES, "h", 0x10), right_crc=False), 53, -1, None),
        (batch(2, time_ms=LATE), 32, 0, TIMES_TEXT),
        (changed((8, "i", 20), right_crc=False), 2, -1, None),
        (changed((16, "b", 1), right_crc=False), 87, -1, None),
        (changed((16, "b", 3), right_crc=False), 2, -1, "Invalid magic found in record: 3"),
        (batch() + bytes(40), 2, -1, None),
        (batch() * 2, 87, -1, None),
        (LARGE, 10, -1, None),
        (changed((COUNT, "i", 5), data=LARGE), 10, -1, None),
        (changed((COUNT, "i", 5), data=LARGE, right_crc=False), 10, -1, None),
        (changed((ATTRIBUTES, "h", 0x20), data=LARGE), 10, -1, None),
        (changed((MAX_TIME, "q", LATE), data=LARGE), 10, -1, None),
        (changed((0, "q", 5), data=LARGE), 87, 0, None),
    ],
)
def test_batches_are_refused_as_kafka_refuses_them(
    node: Node, records: bytes, code: int, log_start: int, text: str | None, known: bool
) -> None:
    """Code, log start and text are those that Apache Kafka 4.3.1 answered to the same batch; nothing is stored."""
    node.create("orders")
    if known:
        node.call(PRODUCE, 9, message(batch()))
    answer = partition(node.call(PRODUCE, 9, message(records)))
    assert answer["base_offset"] == -1
    assert (answer["error_code"], answer["log_start_offset"], answer["error_message"]) == (
        code,
        log_start,
        text,
    )
    assert node.log("orders").end_offset == known


@pytest.mark.parametrize(
    "records",
    [
        changed((ATTRIBUTES, "h", 0x40)),
        changed((ATTRIBUTES, "h", 0x80)),
        changed((ATTRIBUTES, "h", -32768)),
        changed((MAX_TIME, "q", -5)),
        changed((PRODUCER_ID, "q", -2), (SEQUENCE, "i", 0)),
        changed((12, "i", 77), right_crc=False),
        batch(time_ms=-1),
        batch() + bytes(5),
    ],
)
def test_odd_batches_are_stored_as_kafka_stores_them(node: Node, records: bytes) -> None:
    """What Apache Kafka 4.3.1 took although it is odd."""
    node.create("orders")
    assert partition(node.call(PRODUCE, 9, message(records)))["error_code"] == 0


def test_append_time_of_a_producer_is_taken_away(node: Node) -> None:
    """Where producers' times are kept the mark of a broker's time goes and the CRC is made right, as in Kafka."""
    node.create("orders")
    node.create("stamped", message_timestamp_type="LogAppendTime")
    marked = changed((ATTRIBUTES, "h", 0x08))
    assert partition(node.call(PRODUCE, 9, message(marked)))["error_code"] == 0
    header = read_header(contents(node.log("orders")))
    assert not header.is_log_append_time
    assert crc_matches(contents(node.log("orders")), header)
    answer = partition(node.call(PRODUCE, 9, message(marked, topic="stamped")))
    assert (answer["error_code"], answer["log_start_offset"], answer["error_message"]) == (32, 0, TIMES_TEXT)


def test_batch_larger_than_a_segment(node: Node) -> None:
    """Error 18, after what is wrong about the records and before a gap in the sequence, as in Kafka."""
    node.create("orders", segment_bytes="1048576", max_message_bytes="3000000")
    large = batch(value=bytes(1_100_000))
    gap = batch(value=bytes(1_100_000), producer_id=7, producer_epoch=0, base_sequence=9)
    node.call(PRODUCE, 9, message(batch(producer_id=7, producer_epoch=0, base_sequence=0)))
    for records, code, log_start in (
        (large, 18, -1),
        (gap, 18, -1),
        (changed((COUNT, "i", 5), data=large), 87, 0),
        (batch(value=bytes(1_048_576 - 61 - 11)), 0, 0),
    ):
        answer = partition(node.call(PRODUCE, 9, message(records)))
        assert (answer["error_code"], answer["log_start_offset"]) == (code, log_start)


def test_zstd_before_version_7_is_refused_first(node: Node) -> None:
    """Error 76 comes before CRC and size, as in Kafka."""
    node.create("orders")
    for records in (
        changed((ATTRIBUTES, "h", 4), right_crc=False),
        changed((ATTRIBUTES, "h", 4), data=LARGE),
    ):
        assert partition(node.call(PRODUCE, 3, message(records)))["error_code"] == 76


def test_transactional_batch_fails_the_whole_request(node: Node) -> None:
    """Error 53 for every partition, the request alone is charged and nothing is stored, as in Kafka."""
    node.create("orders", 2)
    request = message(batch())
    request["topic_data"][0]["partition_data"].append(
        {"index": 1, "records": changed((ATTRIBUTES, "h", 0x10))}
    )
    for sent in (request, message(changed((ATTRIBUTES, "h", 0x10)))):
        answer = node.ask(PRODUCE, 9, sent)
        assert isinstance(answer, Answer)
        assert answer.charge is Charge.REQUEST
        parts = decoded(PRODUCE, 9, answer)["responses"][0]["partition_responses"]
        assert {part["error_code"] for part in parts} == {53}
    assert node.log("orders").end_offset == 0


def of_partitions(*parts: tuple[str, list[tuple[int, bytes | None]]], acks: int = 1) -> dict[str, Any]:
    """Return a request for several partitions."""
    topic_data = [
        {"name": name, "partition_data": [{"index": index, "records": records} for index, records in given]}
        for name, given in parts
    ]
    return {"transactional_id": None, "acks": acks, "timeout_ms": 1000, "topic_data": topic_data}


def told(answer: dict[str, Any]) -> list[Any]:
    """Return topics with index, error code and base offset of their partitions."""
    return [
        (
            topic["name"],
            [
                (part["index"], part["error_code"], part["base_offset"])
                for part in topic["partition_responses"]
            ],
        )
        for topic in answer["responses"]
    ]


def test_of_several_batches_for_a_partition_the_last_is_stored(node: Node) -> None:
    """Whether named twice in one topic or in two; one answer for each, as in Kafka."""
    node.create("orders", 2)
    one, two = batch(value=b"one"), batch(2, value=b"two")
    asked = of_partitions(("orders", [(0, one), (0, two), (1, one)]), ("orders", [(1, two)]))
    assert told(node.call(PRODUCE, 9, asked)) == [("orders", [(0, 0, 0), (1, 0, 0)])]
    assert [node.log("orders", index).end_offset for index in (0, 1)] == [2, 2]
    absent = of_partitions(("orders", [(7, one), (7, two)]), ("absent", [(0, one), (0, one)]))
    assert told(node.call(PRODUCE, 9, absent)) == [("orders", [(7, 3, -1)]), ("absent", [(0, 3, -1)])]
    bad_first = of_partitions(("orders", [(0, b""), (0, one)]))
    assert told(node.call(PRODUCE, 9, bad_first)) == [("orders", [(0, 87, -1)])]
    bad_last = of_partitions(("orders", [(0, one), (0, one + one)]))
    assert told(node.call(PRODUCE, 9, bad_last)) == [("orders", [(0, 87, -1)])]
    assert node.log("orders").end_offset == 4


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
    others = node.ask(PRODUCE, 9, message(batch(), acks=acks, topic="others"), in_turn=True)
    assert turn.finish()
    answer = node.ask(PRODUCE, 9, message(batch(value=bytes(1000)), acks=acks), in_turn=True)
    assert isinstance(answer, Answer)
    assert isinstance(others, Answer)
    assert answer.if_turn_fails is not None
    assert others.if_turn_fails is not None
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        assert not turn.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    instead = answer.if_turn_fails()
    assert instead is not None
    assert instead.charge is Charge.PRODUCE
    if acks:
        assert partition(decoded(PRODUCE, 9, instead))["error_code"] == error_codes.KAFKA_STORAGE_ERROR
    else:
        assert (instead.response, instead.close) == (None, True)
    assert others.if_turn_fails() is None
    assert (node.log("orders").end_offset, node.log("others").end_offset) == (1, 2)


def test_known_requests_follow_their_topic(node: Node) -> None:
    """A topic that is deleted is not found by who produced to it before; one made anew is another."""
    node.create("orders")
    for _ in range(2):
        assert partition(node.call(PRODUCE, 9, message(batch())))["error_code"] == 0
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["orders"]))
    absent = partition(node.call(PRODUCE, 9, message(batch())))
    assert absent["error_code"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    node.create("orders")
    offsets = [partition(node.call(PRODUCE, 9, message(batch())))["base_offset"] for _ in range(3)]
    assert offsets == [0, 1, 2]


@pytest.mark.parametrize("acks", [0, 1])
def test_topics_are_noted_for_the_usage_record(node: Node, acks: int) -> None:
    """The topic with the most stored bytes, and how many others; what is refused counts for nothing."""
    for name in ("orders", "clicks"):
        node.create(name, partitions=2)

    def topics_of(*parts: tuple[str, list[tuple[int, bytes | None]]]) -> tuple[str | None, int]:
        answer = node.ask(PRODUCE, 9, of_partitions(*parts, acks=acks))
        assert isinstance(answer, Answer)
        return answer.topic, answer.other_topics

    one, two = [(0, batch())], [(0, batch()), (1, batch())]
    for _ in range(2):  # the second time the request is known by its first bytes
        assert topics_of(("orders", one)) == ("orders", 0)
    assert topics_of(("orders", one), ("clicks", two)) == ("clicks", 1)
    assert topics_of(("orders", one), ("absent", two), ("clicks", [(7, batch())])) == ("orders", 0)
    assert topics_of(("absent", one)) == (None, 0)


def test_known_requests_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """More partitions than are kept are served all the same."""
    monkeypatch.setattr(known_requests, "MAX_KEPT", 3)
    node.create("orders", partitions=8)
    for number in range(3):
        for index in range(8):
            answer = partition(node.call(PRODUCE, 9, message(batch(), index=index)))
            assert (answer["error_code"], answer["base_offset"]) == (0, number)


def test_synced_answer_over_many_partitions_takes_several_turns(node: Node) -> None:
    """acks=all to 300 partitions that are synced: the answer is made over several turns, and complete."""
    node.create("orders", 300, flush_messages="1")
    parts = [(index, batch()) for index in range(300)]
    deferred = node.ask(PRODUCE, 9, of_partitions(("orders", parts), acks=-1))
    assert isinstance(deferred, Deferred)
    answers: list[Answer] = []
    deferred.when_ready(lambda: answers.append(deferred.answer()))
    node.scheduler.one_turn()
    node.storage._worker.submit(lambda: None).result()
    turns = 0
    while not answers:
        node.scheduler.one_turn()
        turns += 1
    assert turns > 3
    assert (answers[0].topic, answers[0].other_topics) == ("orders", 0)
    (topic,) = decoded(PRODUCE, 9, answers[0])["responses"]
    assert [part["error_code"] for part in topic["partition_responses"]] == [0] * 300


@pytest.mark.alone
def test_many_partitions_take_no_long_step(node: Node) -> None:
    """20,000 batches for one partition, or for as many that are not there: no step is long."""
    node.create("orders")
    begun = Counter[str]()

    def begin(name: str, frame: memoryview) -> Any:
        begun[name] += 1
        return node.begin(frame)

    absent = [(index + 1, batch()) for index in range(20_000)]
    for name, parts in (("there", [(0, batch())] * 20_000), ("absent", absent)):
        frame = memoryview(encode_request(PRODUCE, 9, 7, "tester", of_partitions(("orders", parts)))[4:])
        answer, longest_ms = longest_step_ms(partial(begin, name, frame))
        assert longest_ms < MOST_STEP_MS
        assert isinstance(answer, Answer)
    assert node.log("orders").end_offset == begun["there"]


@pytest.mark.parametrize("topic", ["orders", "nobody"])
def test_refused_batches_leave_no_cycles(node: Node, topic: str) -> None:
    """An error that is kept until the answer does not keep its frames, and they it: 2 KB for each partition named."""
    node.create("orders")
    node.call(PRODUCE, 8, message(b"", topic=topic))
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        node.call(PRODUCE, 8, message(b"", topic=topic))
        node.call(PRODUCE, 8, message(batch() + batch(), topic=topic))
        gc.collect()
        errors = [found for found in gc.garbage if isinstance(found, Exception)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert errors == []


def test_internal_topics_take_records_of_one_client(node: Node) -> None:
    """Others than `__admin_client` get error 17, also where a request that began alike was stored before."""
    node.create("__consumer_offsets")
    request = message(batch(), topic="__consumer_offsets")
    for client_id, code in (("__admin_client", 0), ("tester", 17), ("__admin_client", 0), ("tester", 17)):
        frame = memoryview(encode_request(PRODUCE, 9, 7, client_id, request)[4:])
        header = decode_request_header(frame)
        answer = node.handle(Request(header, frame, CONNECTION, node.permits, node.clock.now_ms()))
        assert partition(decoded(PRODUCE, 9, answer))["error_code"] == code
    assert node.log("__consumer_offsets").end_offset == 2
    assert node.ask(PRODUCE, 9, message(batch(), topic="__consumer_offsets", acks=0)).close


def test_compacted_topics_take_records_without_a_key(node: Node) -> None:
    """Kafka refuses them with error 87; here records are not looked into (row L13)."""
    node.create("orders", cleanup_policy="compact")
    answer = partition(node.call(PRODUCE, 9, message(build_batch([(None, b"value")], timestamp_ms=NOW_MS))))
    assert (answer["error_code"], answer["base_offset"]) == (error_codes.NONE, 0)
