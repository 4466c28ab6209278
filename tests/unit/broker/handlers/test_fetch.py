"""Tests of the Fetch handler."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node, decoded
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms, no_collection
from tests.unit.storage.logs import append, batch, contents

from tidegate import error_codes
from tidegate.in_slices import run_at_once
from tidegate.server.requests.handler import NO_LAG, Answer, Charge, Deferred, FetchAnswer
from tidegate.storage.log.file_slice import FileSlice
from tidegate.wire import encode_request

FETCH = 1
SIZE = len(batch())


def message(
    *parts: tuple[str, int, int],
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    **fields: Any,
) -> dict[str, Any]:
    """Return a request for (topic, partition, offset) parts."""
    topics = [
        {
            "topic": topic,
            "topic_id": topic if "-" in topic else "11111111-2222-3333-4444-555555555555",
            "partitions": [
                {
                    "partition": partition,
                    "current_leader_epoch": fields.get("epoch", -1),
                    "fetch_offset": offset,
                    "last_fetched_epoch": fields.get("last_epoch", -1),
                    "log_start_offset": -1,
                    "partition_max_bytes": partition_max_bytes,
                }
            ],
        }
        for topic, partition, offset in parts
    ]
    return {
        "replica_id": fields.get("replica_id", -1),
        "replica_state": {"replica_id": fields.get("replica_id", -1), "replica_epoch": -1},
        "max_wait_ms": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": fields.get("isolation_level", 0),
        "session_id": fields.get("session_id", 0),
        "session_epoch": fields.get("session_epoch", -1),
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def partitions(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every partition of an answer."""
    return [part for topic in answer["responses"] for part in topic["partitions"]]


@pytest.fixture
def filled(node: Node) -> Node:
    """Return a node with three batches in each of two partitions of `orders`."""
    node.create("orders", 2)
    for partition in range(2):
        for _ in range(3):
            append(node.log("orders", partition), batch())
    return node


@pytest.mark.parametrize("version", range(4, 19))
def test_records_are_answered(filled: Node, version: int) -> None:
    """Every version gives the records as they are stored, and the end of the log."""
    topic = "orders" if version < 13 else filled.storage.topics.by_name["orders"].topic_id
    (part,) = partitions(filled.call(FETCH, version, message((topic, 0, 1))))
    assert (part["error_code"], part["high_watermark"], part["last_stable_offset"]) == (0, 3, 3)
    assert bytes(part["records"]) == contents(filled.log("orders"))[SIZE:]


def test_replication_throttles_do_not_reach_clients(node: Node) -> None:
    """A topic whose replicas are throttled is read like any other, in full and at once (B§6.10)."""
    throttled = {f"{end}.replication.throttled.replicas": "*" for end in ("leader", "follower")}
    run_at_once(node.storage.topics.create_in_slices("throttled", 1, throttled))
    for _ in range(3):
        append(node.log("throttled"), batch())
    answer = node.call(FETCH, 12, message(("throttled", 0, 0)))
    (part,) = partitions(answer)
    assert (answer["throttle_time_ms"], part["error_code"]) == (0, 0)
    assert bytes(part["records"]) == contents(node.log("throttled"))


def test_records_are_a_slice_of_the_file(filled: Node) -> None:
    """The answer refers to the file instead of holding its bytes; the fetch is charged as one."""
    answer = filled.ask(FETCH, 12, message(("orders", 0, 0)))
    assert isinstance(answer, Answer)
    assert answer.charge is Charge.FETCH
    assert answer.response is not None
    assert any(isinstance(buffer, FileSlice) for buffer in answer.response.buffers)


def test_empty_form_has_no_topics(filled: Node) -> None:
    """What a throttled client gets has no records and no error (B§6.3.4)."""
    answer = filled.ask(FETCH, 12, message(("orders", 0, 0)))
    assert isinstance(answer, FetchAnswer)
    empty = decoded(FETCH, 12, Answer(answer.empty()))
    assert (empty["error_code"], empty["session_id"], empty["responses"]) == (0, 0, [])


def lag_of(answer: Any) -> tuple[int, int]:
    """Return the lag that an answer shows, in records and bytes."""
    assert isinstance(answer, FetchAnswer)
    return answer.lag, answer.lag_bytes


def test_lag_is_the_sum_over_partitions(filled: Node) -> None:
    """What is between where it is read and the high watermark; read whole, and by a request that is known."""
    for _ in range(2):
        assert lag_of(filled.ask(FETCH, 12, message(("orders", 0, 1)))) == (2, 2 * SIZE)
        assert lag_of(filled.ask(FETCH, 12, message(("orders", 0, 3)))) == (0, 0)
    assert lag_of(filled.ask(FETCH, 12, message(("orders", 0, 1), ("orders", 1, 0)))) == (5, 5 * SIZE)
    assert lag_of(filled.ask(FETCH, 12, message(("orders", 0, 1), max_bytes=1))) == (2, 2 * SIZE)


def test_lag_of_what_cannot_be_read_is_not_known(filled: Node) -> None:
    """A partition with an error counts for nothing."""
    assert lag_of(filled.ask(FETCH, 12, message(("orders", 0, 4)))) == (NO_LAG, NO_LAG)
    for odd in (
        ("orders", 1, 9),
        ("orders", 1, -1),
        ("orders", 1, -(2**63)),
        ("absent", 0, -1),
        ("absent", 0, 0),
    ):
        assert lag_of(filled.ask(FETCH, 12, message(("orders", 0, 1), odd))) == (2, 2 * SIZE)
    assert (
        lag_of(filled.ask(FETCH, 12, message(("orders", 0, 1), session_id=9, session_epoch=1)))[0] == NO_LAG
    )


def test_what_waiting_has_brought_is_noted(filled: Node) -> None:
    """A fetch that waited for records shows the lag and the topic of those that came."""
    for _ in range(2):  # the second time the request is known by its first bytes
        _, answers = waiting(filled, ("orders", 0, filled.log("orders", 0).end_offset))
        append(filled.log("orders", 0), batch())
        filled.scheduler.turn()
        assert lag_of(answers[0]) == (1, SIZE)
        assert topics_of(answers[0]) == ("orders", 0)


def topics_of(answer: Any) -> tuple[str | None, int]:
    """Return the topic with the most bytes that an answer shows, and the number of others."""
    assert isinstance(answer, FetchAnswer)
    return answer.topic, answer.other_topics


@pytest.mark.parametrize("version", [12, 17])
def test_topics_are_noted_for_the_usage_record(filled: Node, version: int) -> None:
    """The topic with the most bytes of records, and how many others; without records, none."""
    filled.create("clicks", 2)
    append(filled.log("clicks", 0), batch())
    append(filled.log("clicks", 1), batch())
    append(filled.log("clicks", 1), batch())
    by_name = filled.storage.topics.by_name
    orders, clicks = (by_name[name].topic_id if version > 12 else name for name in ("orders", "clicks"))

    def asked(*parts: tuple[str, int, int]) -> tuple[str | None, int]:
        return topics_of(filled.ask(FETCH, version, message(*parts)))

    for _ in range(2):  # the second time the request is known by its first bytes
        assert asked((orders, 0, 1)) == ("orders", 0)
        assert asked((orders, 0, 3)) == (None, 0)
    # Partitions of a topic need not stand together.
    assert asked((clicks, 0, 0), (orders, 0, 1), (clicks, 1, 0)) == ("clicks", 1)
    assert asked((orders, 0, 0), (clicks, 1, 0), (clicks, 0, 1)) == ("orders", 1)
    assert asked((orders, 0, 3), (clicks, 0, 0)) == ("clicks", 0)


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (("orders", 0, 4), error_codes.OFFSET_OUT_OF_RANGE),
        (("orders", 0, -1), error_codes.OFFSET_OUT_OF_RANGE),
        (("orders", 7, 0), error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        (("absent", 0, 0), error_codes.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_errors_are_answered_at_once(filled: Node, part: tuple[str, int, int], code: int) -> None:
    """A partition's error ends all waiting; the other partitions are answered too."""
    answer = filled.call(FETCH, 12, message(("orders", 1, 3), part, wait_ms=10_000))
    assert [part["error_code"] for part in partitions(answer)] == [0, code]


def test_unknown_id_is_error_100(filled: Node) -> None:
    """From 13 on topics have ids."""
    (part,) = partitions(filled.call(FETCH, 13, message(("absent", 0, 0))))
    assert part["error_code"] == error_codes.UNKNOWN_TOPIC_ID


def test_id_of_zero_fails_its_partitions_alone(filled: Node) -> None:
    """Kafka 4.3.1 fails the whole request with error -1."""
    topic_id = filled.storage.topics.by_name["orders"].topic_id
    request = message((topic_id, 0, 0), ("00000000-0000-0000-0000-000000000000", 0, 0))
    answer = filled.call(FETCH, 13, request)
    assert answer["error_code"] == 0
    assert [part["error_code"] for part in partitions(answer)] == [0, error_codes.UNKNOWN_TOPIC_ID]


def test_leader_epoch_ahead_of_ours_is_refused(filled: Node) -> None:
    """There is only leader epoch 0."""
    for epoch, code in ((0, 0), (1, error_codes.UNKNOWN_LEADER_EPOCH)):
        (part,) = partitions(filled.call(FETCH, 12, message(("orders", 0, 0), epoch=epoch)))
        assert part["error_code"] == code


def test_limits_hold_over_all_partitions(filled: Node) -> None:
    """max_bytes is for all partitions, partition_max_bytes for each; the first batch of all is always whole."""
    both = ("orders", 0, 0), ("orders", 1, 0)

    def sizes(**limits: int) -> list[int]:
        return [len(part["records"]) for part in partitions(filled.call(FETCH, 12, message(*both, **limits)))]

    assert sizes() == [3 * SIZE, 3 * SIZE]
    assert sizes(partition_max_bytes=SIZE + 1) == [SIZE + 1, SIZE + 1]
    assert sizes(max_bytes=4 * SIZE) == [3 * SIZE, SIZE]
    assert sizes(max_bytes=4 * SIZE - 1) == [3 * SIZE, 0]
    assert sizes(max_bytes=0) == [SIZE, 0]


def test_a_negative_limit_is_an_error_where_there_is_something_to_read(filled: Node) -> None:
    """As Kafka's log throws; nothing to read is none. Also in a request that is known. Of the answer: the first."""
    both = message(("orders", 0, 0), ("orders", 1, 0), max_bytes=-1)
    for _ in range(2):
        parts = partitions(filled.call(FETCH, 12, both))
        assert [(part["error_code"], len(part["records"] or b"")) for part in parts] == [(-1, 0), (0, SIZE)]
    for limits in ({"partition_max_bytes": -1}, {"max_bytes": -1}):
        for offset, code in ((0, -1), (2, -1), (3, 0), (4, 1), (0, -1)):
            known = message(("orders", 0, offset))
            filled.call(FETCH, 12, known)
            (part,) = partitions(filled.call(FETCH, 12, message(("orders", 0, offset), **limits)))
            assert (part["error_code"], len(part["records"] or b"")) == (code, 0)


def test_diverging_epochs_have_no_transactions(filled: Node) -> None:
    """Not even an empty list, whatever the isolation level, as Kafka answers."""
    for level in (0, 1):
        request = message(("orders", 0, 9), last_epoch=0, isolation_level=level)
        (part,) = partitions(filled.call(FETCH, 12, request))
        assert (part["diverging_epoch"]["end_offset"], part["aborted_transactions"]) == (3, None)


def test_quota_caps_what_is_read(filled: Node) -> None:
    """Record bytes are capped before reading, and with them what a fetch waits for (B§6.3.1)."""
    filled.permits.fetch_bytes = 2 * SIZE
    request = message(("orders", 0, 0), min_bytes=1 << 20, wait_ms=10_000)
    (part,) = partitions(filled.call(FETCH, 12, request))
    assert len(part["records"]) == 2 * SIZE


def test_isolation_is_told_apart_in_the_answer_only(filled: Node) -> None:
    """Nothing is transactional: the records are the same, the list of aborted transactions empty or null."""
    for level, aborted in ((0, None), (1, [])):
        (part,) = partitions(filled.call(FETCH, 12, message(("orders", 0, 0), isolation_level=level)))
        assert (part["aborted_transactions"], len(part["records"])) == (aborted, 3 * SIZE)


def test_who_has_no_room_for_a_batch_has_no_transactions(filled: Node) -> None:
    """Not even an empty list, where the first batch does not fit; one of no room at all has, as in Kafka."""
    for max_bytes, aborted in ((1, None), (SIZE - 1, None), (0, []), (SIZE, [])):
        request = message(
            ("orders", 0, 0), ("orders", 1, 0), partition_max_bytes=max_bytes, isolation_level=1
        )
        first, second = partitions(filled.call(FETCH, 12, request))
        assert (len(first["records"]), first["aborted_transactions"]) == (SIZE, [])
        assert second["aborted_transactions"] == aborted


@pytest.mark.parametrize("level", [2, -1])
def test_an_isolation_level_that_there_is_not_fails_all(filled: Node, level: int) -> None:
    """By name each partition too, as often as it was named; where nothing is there nobody looks at the level."""
    parts = ("orders", 0, 0), ("orders", 0, 1), ("u", 3, 0)
    failed = filled.call(FETCH, 12, message(*parts, isolation_level=level))
    assert failed["error_code"] == -1
    named = [
        (part["partition_index"], part["error_code"], part["high_watermark"]) for part in partitions(failed)
    ]
    assert named == [(0, -1, -1), (0, -1, -1), (3, -1, -1)]
    (missing,) = partitions(filled.call(FETCH, 12, message(("u", 3, 0), isolation_level=level)))
    assert missing["error_code"] == 3


def waiting(node: Node, *parts: tuple[str, int, int], min_bytes: int = 1) -> tuple[Deferred, list[Answer]]:
    """Return a fetch that waits half a second, and where its answer will appear; one like it was given up before."""
    request = message(*parts, wait_ms=500, min_bytes=min_bytes)
    before = node.ask(FETCH, 12, request)
    assert isinstance(before, Deferred)
    before.cancel()
    deferred = node.ask(FETCH, 12, request)
    assert isinstance(deferred, Deferred)
    answers: list[Answer] = []
    deferred.when_ready(lambda: answers.append(deferred.answer()))
    return deferred, answers


def test_append_ends_the_wait(filled: Node) -> None:
    """A long poll at the end of the log is answered with what comes in."""
    _, answers = waiting(filled, ("orders", 0, 3), ("orders", 1, 3))
    append(filled.log("orders", 1), batch())
    filled.scheduler.turn()
    sizes = [len(part["records"]) for part in partitions(decoded(FETCH, 12, answers[0]))]
    assert sizes == [0, SIZE]
    assert answers[0].charge is Charge.FETCH


def test_min_bytes_are_waited_for(filled: Node) -> None:
    """What is there already counts; the rest is waited for."""
    _, answers = waiting(filled, ("orders", 0, 2), min_bytes=3 * SIZE)
    append(filled.log("orders"), batch())
    filled.scheduler.turn()
    assert answers == []
    append(filled.log("orders"), batch())
    filled.scheduler.turn()
    (part,) = partitions(decoded(FETCH, 12, answers[0]))
    assert len(part["records"]) == 3 * SIZE


def test_time_ends_the_wait(filled: Node) -> None:
    """After max_wait_ms an empty answer is sent."""
    _, answers = waiting(filled, ("orders", 0, 3))
    filled.scheduler.advance(0.5)
    (part,) = partitions(decoded(FETCH, 12, answers[0]))
    assert (part["error_code"], part["high_watermark"], bytes(part["records"])) == (0, 3, b"")


def test_deletion_ends_the_wait(filled: Node) -> None:
    """Who waits for a topic that is deleted is told that it is not there."""
    _, answers = waiting(filled, ("orders", 0, 3))
    run_at_once(filled.storage.topics.delete_in_slices(filled.storage.topics.by_name["orders"]))
    filled.scheduler.turn()
    (part,) = partitions(decoded(FETCH, 12, answers[0]))
    assert part["error_code"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION


def test_lost_client_leaves_nothing(filled: Node) -> None:
    """When the connection goes away nothing waits on."""
    timers = filled.scheduler.waiting()
    deferred, answers = waiting(filled, ("orders", 0, 3))
    deferred.cancel()
    append(filled.log("orders"), batch())
    filled.scheduler.advance(1)
    assert (answers, filled.scheduler.waiting()) == ([], timers)


def test_sessions_that_are_not_there(filled: Node) -> None:
    """Naming one is error 70; ending one is a full fetch."""
    for session_id, epoch in ((77, 1), (0, 1), (0, -2), (77, -2)):
        answer = filled.call(FETCH, 12, message(("orders", 0, 0), session_id=session_id, session_epoch=epoch))
        assert (answer["error_code"], answer["responses"]) == (error_codes.FETCH_SESSION_ID_NOT_FOUND, [])
    answer = filled.call(FETCH, 12, message(session_id=77, session_epoch=-1))
    assert answer["error_code"] == 0


@pytest.mark.parametrize("version", [12, 15])
def test_followers_are_refused(filled: Node, version: int) -> None:
    """There are no followers: error 6. As no principal has ClusterAction, it costs its time (KIP-124)."""
    topic = "orders" if version < 13 else filled.storage.topics.by_name["orders"].topic_id
    answer = filled.ask(FETCH, version, message((topic, 0, 0), replica_id=2))
    assert isinstance(answer, Answer)
    assert answer.charge is Charge.REQUEST
    (part,) = partitions(decoded(FETCH, version, answer))
    assert part["error_code"] == error_codes.NOT_LEADER_OR_FOLLOWER


def test_followers_are_exempt_like_kafkas_on_request(tmp_path: Path) -> None:
    """With `tidegate.kafka.exact` everybody may say that it is a follower (B§6.3)."""
    node = Node(tmp_path, kafka_exact=True)
    node.create("orders")
    answer = node.ask(FETCH, 12, message(("orders", 0, 0), replica_id=2))
    assert isinstance(answer, Answer)
    assert answer.charge is Charge.EXEMPT
    node.storage.close()


def test_no_topics_no_wait(filled: Node) -> None:
    """A fetch of nothing is answered at once."""
    assert filled.call(FETCH, 12, message(wait_ms=10_000))["responses"] == []


def told(answer: dict[str, Any]) -> list[Any]:
    """Return topics with number, error code and bytes of their partitions."""
    return [
        (
            topic.get("topic", topic.get("topic_id")),
            [
                (part["partition_index"], part["error_code"], len(part["records"]))
                for part in topic["partitions"]
            ],
        )
        for topic in answer["responses"]
    ]


def test_of_a_partition_named_often_the_last_counts(filled: Node) -> None:
    """At the place of the first, in one topic or in several, as Kafka 4.3.1 answers."""
    parts = [("orders", 0, 0), ("orders", 0, 2), ("orders", 1, 0), ("orders", 0, 1)]
    assert told(filled.call(FETCH, 11, message(*parts))) == [("orders", [(0, 0, 2 * SIZE), (1, 0, 3 * SIZE)])]
    merged = message(*parts)
    merged["topics"] = [
        {**merged["topics"][0], "partitions": [part["partitions"][0] for part in merged["topics"]]}
    ]
    assert told(filled.call(FETCH, 11, merged)) == [("orders", [(0, 0, 2 * SIZE), (1, 0, 3 * SIZE)])]
    out_of_range = message(("orders", 0, 0), ("orders", 1, 0), ("orders", 0, 100))
    assert told(filled.call(FETCH, 11, out_of_range)) == [("orders", [(0, 1, 0), (1, 0, 3 * SIZE)])]


def test_unknown_partitions_come_last_and_once(filled: Node) -> None:
    """After those that are there, each once, as Kafka 4.3.1 answers."""
    asked = message(
        ("u", 0, 0), ("orders", 8, 0), ("orders", 1, 0), ("u", 0, 0), ("u", 1, 0), ("orders", 0, 0)
    )
    assert told(filled.call(FETCH, 11, asked)) == [
        ("orders", [(1, 0, 3 * SIZE), (0, 0, 3 * SIZE)]),
        ("u", [(0, 3, 0)]),
        ("orders", [(8, 3, 0)]),
        ("u", [(1, 3, 0)]),
    ]
    topic_id = filled.storage.topics.by_name["orders"].topic_id
    unknown = "11111111-2222-3333-4444-555555555555"
    by_id = message((unknown, 0, 0), (topic_id, 0, 0), (topic_id, 0, 2), (unknown, 0, 0), (unknown, 3, 0))
    assert told(filled.call(FETCH, 13, by_id)) == [
        (topic_id, [(0, 0, SIZE)]),
        (unknown, [(0, 100, 0), (3, 100, 0)]),
    ]
    by_id = message((topic_id, 9, 0), (unknown, 0, 0), (topic_id, 0, 2))
    assert told(filled.call(FETCH, 13, by_id)) == [
        (topic_id, [(0, 0, SIZE)]),
        (unknown, [(0, 100, 0)]),
        (topic_id, [(9, 3, 0)]),
    ]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("last_epoch", "offset", "code", "size", "end"),
    [
        (-1, 0, 0, 3 * SIZE, None),
        (-2, 0, 0, 3 * SIZE, None),
        (0, 0, 0, 3 * SIZE, None),
        (0, 2, 0, SIZE, None),
        (0, 3, 0, 0, None),
        (0, 200, 0, 0, 3),
        (1, 2, 1, 0, None),
        (7, 200, 1, 0, None),
    ],
)
def test_epoch_that_was_last_seen(
    filled: Node, last_epoch: int, offset: int, code: int, size: int, end: int | None, known: bool
) -> None:
    """A later one than there is, is out of range; past the end of one a consumer is told where it is: Kafka 4.3.1."""
    if known:
        filled.call(FETCH, 12, message(("orders", 0, 0)))
    (part,) = partitions(filled.call(FETCH, 12, message(("orders", 0, offset), last_epoch=last_epoch)))
    assert (part["error_code"], len(part["records"])) == (code, size)
    diverging = part.get("diverging_epoch") or {"epoch": -1, "end_offset": -1}
    assert diverging == {"epoch": -1 if end is None else 0, "end_offset": -1 if end is None else end}


def test_fetch_that_has_diverged_does_not_wait(filled: Node) -> None:
    """It is answered at once, however long it would wait."""
    asked = message(("orders", 0, 200), last_epoch=0, wait_ms=60_000, min_bytes=10**6)
    assert isinstance(filled.ask(FETCH, 12, asked), Answer)


@pytest.mark.alone
@pytest.mark.parametrize("parts", [[("orders", 0, 0)] * 20_000, [("u", at, 0) for at in range(20_000)]])
def test_many_partitions_take_no_long_step(filled: Node, parts: list[tuple[str, int, int]]) -> None:
    """20,000 times the same, or as many that are not there: no step is long, and nothing is answered twice."""
    asked = message(("orders", 0, 0))
    (first,) = message(parts[0])["topics"]
    numbered = [{**first["partitions"][0], "partition": index} for _, index, _ in parts]
    asked["topics"] = [{**first, "partitions": numbered}]
    frame = memoryview(encode_request(FETCH, 11, 7, "tester", asked)[4:])
    answer, longest_ms = longest_step_ms(lambda: filled.begin(frame))
    assert longest_ms < MOST_STEP_MS
    assert isinstance(answer, Answer)
    assert len(partitions(decoded(FETCH, 11, answer))) == len(set(parts))


@pytest.mark.alone
def test_long_poll_over_many_partitions_takes_no_long_step(node: Node) -> None:
    """3,000 partitions are waited for, woken by one append and answered over several turns."""
    node.create("orders", 3000)
    asked = message(("orders", 0, 0), wait_ms=60_000)
    first = asked["topics"][0]
    numbered = [{**first["partitions"][0], "partition": index} for index in range(3000)]
    asked["topics"] = [{**first, "partitions": numbered}]
    frame = memoryview(encode_request(FETCH, 11, 7, "tester", asked)[4:])
    deferred, longest_ms = longest_step_ms(lambda: node.begin(frame), times=1)
    assert (
        longest_ms < 20.0
    )  # the most that anything may hold the loop: the last step takes the places in 3,000 logs
    assert isinstance(deferred, Deferred)
    answers: list[Answer] = []
    deferred.when_ready(lambda: answers.append(deferred.answer()))
    append(node.log("orders", 7), batch())
    longest_ns, turns = 0, 0
    with no_collection():
        while not answers:
            begun_ns = time.thread_time_ns()
            node.scheduler.one_turn()
            longest_ns, turns = max(longest_ns, time.thread_time_ns() - begun_ns), turns + 1
    assert longest_ns / 1e6 < 20.0
    assert turns > 30
    parts = partitions(decoded(FETCH, 11, answers[0]))
    assert [part["partition_index"] for part in parts if part["records"]] == [7]


def test_client_that_leaves_ends_the_work_on_its_answer(node: Node) -> None:
    """Nothing goes on for a long poll whose client has left while its answer is made."""
    node.create("orders", 300)
    asked = message(*(("orders", index, 0) for index in range(300)), wait_ms=60_000)
    deferred = node.ask(FETCH, 11, asked)
    assert isinstance(deferred, Deferred)
    append(node.log("orders", 7), batch())
    node.scheduler.one_turn()
    deferred.cancel()
    node.scheduler.one_turn()
    assert node.scheduler.idle()
