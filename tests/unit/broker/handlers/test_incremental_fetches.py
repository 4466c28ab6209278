"""Tests of fetch sessions (KIP-227), through the Fetch handler: what is answered, remembered and forgotten."""

import dataclasses
import gc
import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker import node as test_node
from tests.unit.broker.node import CONNECTION, Node, decoded
from tests.unit.storage.logs import append, batch

from tidegate import error_codes
from tidegate.api_keys import DELETE_RECORDS, FETCH
from tidegate.broker.handlers import fetch as fetch_handlers
from tidegate.in_slices import run_at_once
from tidegate.server.requests.handler import Answer, Charge, Deferred, FetchAnswer
from tidegate.storage.log.partition_log import PartitionLog

SIZE = len(batch())
NAMES = ("one", "two")
Told = dict[tuple[str, int], tuple[int, int, int, int]]
"""Of each partition in an answer: error, high watermark, start, and bytes of records."""


class Consumer:
    """A client with a session: sends what has changed, as Java's does.

    rack: a name of a rack keeps its requests from being met like earlier ones.
    """

    def __init__(self, node: Node, version: int = 12, *, rack: str = "", min_bytes: int = 0) -> None:
        self.node = node
        self.version = version
        self.rack = rack
        self.min_bytes = min_bytes
        self.max_bytes = 1 << 20
        self.wait_ms = 0
        self.session_id = self.epoch = 0
        self.replica_id = -1
        self.isolation_level = 0

    def topic(self, name: str) -> str:
        """Return how a topic is named in a request."""
        return name if self.version < 13 else self.node.storage.topics.by_name[name].topic_id

    def message(
        self, asked: dict[tuple[str, int], int], forgotten: tuple[tuple[str, int], ...] = ()
    ) -> dict[str, Any]:
        """Return a request for offsets by topic and partition."""
        field = "topic" if self.version < 13 else "topic_id"
        topics = [
            {
                field: topic,
                "partitions": [
                    {
                        "partition": index,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                    }
                ],
            }
            for (topic, index), offset in asked.items()
        ]
        return {
            "replica_id": self.replica_id,
            "max_wait_ms": self.wait_ms,
            "min_bytes": self.min_bytes,
            "max_bytes": self.max_bytes,
            "isolation_level": self.isolation_level,
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "topics": topics,
            "forgotten_topics_data": [{field: topic, "partitions": [index]} for topic, index in forgotten],
            "rack_id": self.rack,
        }

    def send(
        self, asked: dict[tuple[str, int], int], forgotten: tuple[tuple[str, int], ...] = ()
    ) -> Answer | Deferred:
        """Send a request; return what the handler gives."""
        return self.node.ask(FETCH, self.version, self.message(asked, forgotten))

    def take(self, answer: Answer | Deferred, *, throttled: bool = False) -> dict[str, Any]:
        """Take an answer as the front gives it, and go on to the next epoch as a client does."""
        if isinstance(answer, Deferred):
            answer = answer.answer()
        assert answer.response is not None
        if throttled:
            assert isinstance(answer, FetchAnswer)
            answer = Answer(answer.empty())
        elif answer.settle is not None:
            answer.settle(answer.response)
        found = decoded(FETCH, self.version, answer)
        if found["error_code"]:
            self.session_id = self.epoch = 0
        elif self.epoch == 0 and not found["session_id"]:
            self.session_id = 0
        else:
            self.session_id = found["session_id"]
            self.epoch += 1
        return found

    def fetch(
        self,
        asked: dict[tuple[str, int], int],
        *forgotten: tuple[str, int],
        throttled: bool = False,
    ) -> Told:
        """Fetch by names of topics; return what is told of each partition."""
        named = {(self.topic(name), index): offset for (name, index), offset in asked.items()}
        gone = tuple((self.topic(name), index) for name, index in forgotten)
        return self.told(self.take(self.send(named, gone), throttled=throttled))

    def told(self, answer: dict[str, Any]) -> Told:
        """Return what an answer tells of each partition, in its order."""
        names = {topic.topic_id: topic.name for topic in self.node.storage.topics}
        return {
            (topic["topic"] if self.version < 13 else names[topic["topic_id"]], part["partition_index"]): (
                part["error_code"],
                part["high_watermark"],
                part["log_start_offset"],
                len(bytes(part["records"] or b"")),
            )
            for topic in answer["responses"]
            for part in topic["partitions"]
        }


@pytest.fixture
def filled(node: Node) -> Node:
    """Return a node with two topics of two partitions, of three batches each."""
    for name in NAMES:
        node.create(name, 2)
        for index in range(2):
            for _ in range(3):
                append(node.log(name, index), batch())
    return node


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_only_what_has_changed_is_told(filled: Node, version: int) -> None:
    """Records, the end and the beginning of a log, errors; everything else is known."""
    consumer = Consumer(filled, version)
    at_end = {("one", 0): 3, ("two", 1): 3}
    assert consumer.fetch(at_end) == dict.fromkeys(at_end, (0, 3, 0, 0))
    assert (consumer.session_id > 0, consumer.epoch) == (True, 1)
    assert consumer.fetch({}) == {}
    append(filled.log("two", 1), batch())
    assert consumer.fetch({}) == {("two", 1): (0, 4, 0, SIZE)}
    assert consumer.fetch({}) == {("two", 1): (0, 4, 0, SIZE)}  # until another offset is asked for
    assert consumer.fetch({("two", 1): 4}) == {}
    filled.log("one", 0).raise_start(2)
    assert consumer.fetch({}) == {("one", 0): (0, 3, 2, 0)}
    assert consumer.fetch({}) == {}
    assert consumer.fetch({("one", 0): 1}) == {("one", 0): (1, -1, -1, 0)}
    assert consumer.fetch({}) == {("one", 0): (1, -1, -1, 0)}
    assert consumer.fetch({("one", 0): 3}) == {("one", 0): (0, 3, 2, 0)}
    assert consumer.epoch == 10


@pytest.mark.parametrize("version", [12, 18])
def test_partitions_come_and_go(filled: Node, version: int) -> None:
    """Those that are new are told of; without any the session ends."""
    consumer = Consumer(filled, version)
    consumer.fetch({("one", 0): 3})
    assert consumer.fetch({("two", 0): 3, ("two", 1): 3}) == {
        ("two", 0): (0, 3, 0, 0),
        ("two", 1): (0, 3, 0, 0),
    }
    assert consumer.fetch({}, ("one", 0), ("two", 1)) == {}
    for name, index in (("one", 0), ("two", 0), ("two", 1)):
        append(filled.log(name, index), batch())
    assert consumer.fetch({}) == {("two", 0): (0, 4, 0, SIZE)}
    before = consumer.session_id
    answer = consumer.take(consumer.send({}, ((consumer.topic("two"), 0),)))
    assert (answer["error_code"], answer["session_id"], answer["responses"]) == (0, 0, [])
    consumer.session_id, consumer.epoch = before, 6
    assert consumer.take(consumer.send({}))["error_code"] == error_codes.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_may_begin_with_nothing(filled: Node) -> None:
    """As in Kafka; partitions come later."""
    consumer = Consumer(filled)
    assert (consumer.fetch({}), consumer.session_id > 0) == ({}, True)
    assert consumer.fetch({("one", 0): 3}) == {("one", 0): (0, 3, 0, 0)}


def test_wrong_epochs_and_sessions(filled: Node) -> None:
    """Errors 71, 70 and 106, each without topics or a session; the session goes on."""
    consumer = Consumer(filled)
    consumer.fetch({("one", 0): 3})
    session_id = consumer.session_id
    for epoch, version, code in (
        (2, 12, error_codes.INVALID_FETCH_SESSION_EPOCH),
        (-2, 12, error_codes.INVALID_FETCH_SESSION_EPOCH),
        (1, 13, error_codes.FETCH_SESSION_TOPIC_ID_ERROR),
    ):
        other = Consumer(filled, version)
        other.session_id, other.epoch = session_id, epoch
        answer = decoded(FETCH, version, other.send({}))  # type: ignore[arg-type]
        assert (answer["error_code"], answer["session_id"], answer["responses"]) == (code, 0, [])
    other.session_id, other.epoch = session_id ^ 1, 1
    answer = decoded(FETCH, 13, other.send({}))  # type: ignore[arg-type]
    assert answer["error_code"] == error_codes.FETCH_SESSION_ID_NOT_FOUND
    assert consumer.fetch({}) == {}
    assert consumer.epoch == 2


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_ends_the_session_that_it_names(filled: Node, epoch: int) -> None:
    """With epoch 0 another one begins, with -1 none."""
    consumer = Consumer(filled)
    consumer.fetch({("one", 0): 3})
    before = consumer.session_id
    consumer.epoch = epoch
    answer = consumer.take(consumer.send({("one", 0): 3}))
    assert (answer["session_id"] not in (0, before)) is (epoch == 0)
    consumer.session_id, consumer.epoch = before, 1
    assert consumer.take(consumer.send({}))["error_code"] == error_codes.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_throttled_answer_changes_nothing_that_the_client_knows(filled: Node, partitions: int) -> None:
    """It has the session's id and no topics; what it would have told is told by the next one (B§6.3)."""
    consumer = Consumer(filled)
    asked = {("one", index): 3 for index in range(partitions)}
    named = {(name, index): offset for (name, index), offset in asked.items()}
    throttled = consumer.take(consumer.send(named), throttled=True)
    assert (throttled["session_id"], throttled["responses"]) == (0, [])
    consumer.epoch = 0
    assert len(consumer.fetch(asked)) == partitions
    session_id = consumer.session_id
    for repeat in range(3):
        filled.log("one", 0).raise_start(repeat + 1)
        answer = consumer.take(consumer.send({}), throttled=True)
        assert (answer["error_code"], answer["session_id"], answer["responses"]) == (0, session_id, [])
        assert consumer.fetch({}) == {("one", 0): (0, 3, repeat + 1, 0)}
        assert consumer.fetch({}) == {}


def test_a_session_that_is_throttled_away_takes_no_room(filled: Node) -> None:
    """A full fetch makes a session when its answer leaves, and not before."""
    consumer = Consumer(filled)
    answer = consumer.send({("one", 0): 3})
    assert isinstance(answer, FetchAnswer)
    assert answer.response is not None
    assert decoded(FETCH, 12, answer)["session_id"] == 0
    empty_again = decoded(FETCH, 12, Answer(answer.empty()))
    assert (empty_again["session_id"], empty_again["responses"]) == (0, [])


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_long_poll_is_answered_when_records_come(filled: Node, partitions: int) -> None:
    """Or when its time is over, then with nothing; another request meanwhile leaves it error 71."""
    consumer = Consumer(filled, min_bytes=1)
    asked = {("one", index): 3 for index in range(partitions)}
    consumer.fetch(asked)
    consumer.fetch({})
    consumer.wait_ms = 500
    waiting = consumer.send({})
    assert isinstance(waiting, Deferred)
    filled.scheduler.advance(0.6)
    assert consumer.told(consumer.take(waiting)) == {}
    waiting = consumer.send({})
    append(filled.log("one", 0), batch())
    filled.scheduler.turn()
    assert consumer.told(consumer.take(waiting)) == {("one", 0): (0, 4, 0, SIZE)}
    waiting = consumer.send({("one", 0): 4})
    session_id = consumer.session_id
    other = Consumer(filled)
    other.session_id, other.epoch = session_id, consumer.epoch + 1
    other.take(other.send({}))
    filled.scheduler.advance(0.6)
    answer = consumer.take(waiting)
    assert answer["error_code"] == error_codes.INVALID_FETCH_SESSION_EPOCH
    assert (answer["session_id"], answer["responses"]) == (session_id, [])


def test_no_partition_starves(filled: Node) -> None:
    """What was given is read last: with room for one batch each has its turn. As in Kafka from the second answer on."""
    consumer = Consumer(filled)
    consumer.max_bytes = SIZE
    keys = [(name, index) for name in NAMES for index in range(2)]
    position = dict.fromkeys(keys, 0)
    found = consumer.fetch(position)
    given: list[tuple[str, int]] = []
    for _ in range(11):
        news = [key for key, (_, _, _, size) in found.items() if size]
        given += news
        for key in news:
            position[key] += 1
        found = consumer.fetch({key: position[key] for key in news})
    assert given[:9] == [keys[0], *keys, *keys]
    assert set(position.values()) == {3} - {0} or sum(position.values()) == 11


@pytest.mark.parametrize("version", [12, 18])
def test_topics_that_come_and_go_in_a_session(filled: Node, version: int) -> None:
    """A name that is unknown is an error until it is there; an id whose topic is gone leaves its name (3, 103)."""
    consumer = Consumer(filled, version)
    consumer.fetch({("one", 0): 3, ("two", 0): 3})
    asked = consumer.topic("two")
    run_at_once(filled.storage.topics.delete_in_slices(filled.storage.topics.by_name["two"]))

    def codes(answer: dict[str, Any]) -> list[int]:
        return [part["error_code"] for topic in answer["responses"] for part in topic["partitions"]]

    assert codes(consumer.take(consumer.send({}))) == [error_codes.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(consumer.take(consumer.send({}))) == [error_codes.UNKNOWN_TOPIC_OR_PARTITION]
    filled.create("two", 1)
    found = codes(consumer.take(consumer.send({(asked, 0): 0})))
    assert found == [0 if version < 13 else error_codes.INCONSISTENT_TOPIC_ID]


def test_an_id_that_nobody_knows_is_known_once_there_is_a_topic(filled: Node) -> None:
    """Error 100 until then, in each answer."""
    consumer = Consumer(filled, 13)
    unknown = "11111111-2222-3333-4444-555555555555"
    answer = consumer.take(consumer.send({(unknown, 0): 0}))
    for _ in range(2):
        (part,) = answer["responses"][0]["partitions"]
        assert part["error_code"] == error_codes.UNKNOWN_TOPIC_ID
        answer = consumer.take(consumer.send({}))


def test_unknown_isolation_level_fails_as_a_whole(filled: Node) -> None:
    """The session is there afterwards, an epoch further on, as in Kafka."""
    consumer = Consumer(filled)
    consumer.fetch({("one", 0): 3, ("one", 1): 3})
    consumer.isolation_level = 7
    answer = decoded(FETCH, 12, consumer.send({}))  # type: ignore[arg-type]
    assert (answer["error_code"], answer["session_id"]) == (-1, consumer.session_id)
    consumer.isolation_level = 0
    consumer.epoch += 1
    assert consumer.fetch({}) == {}


def test_followers_have_sessions_where_kafka_is_followed_exactly(tmp_path: Path) -> None:
    """They are exempt, so their answers always leave; otherwise there is none."""
    for exact in (False, True):
        node = Node(tmp_path / str(exact), kafka_exact=exact)
        node.create("one")
        follower = Consumer(node)
        follower.replica_id = 2
        answer = follower.send({("one", 0): 0})
        assert isinstance(answer, Answer)
        assert answer.charge is (Charge.EXEMPT if exact else Charge.REQUEST)
        assert (follower.take(answer)["session_id"] != 0) is exact
        node.storage.close()


def test_a_session_that_grows_too_large_is_closed(tmp_path: Path) -> None:
    """With error 70, and a fetch of too many partitions gets none; neither holds memory."""
    node = Node(tmp_path, max_partitions=5)
    for name in NAMES:
        append(node.storage.topics.by_id[node.create(name)].logs[0], batch(3))
    consumer = Consumer(node)
    found = consumer.take(consumer.send({("one", index): 0 for index in range(6)}))
    assert (found["session_id"], len(found["responses"])) == (0, 1)
    consumer.fetch({("one", index): 3 for index in range(5)})
    assert consumer.session_id
    answer = consumer.take(consumer.send({("two", 0): 3}))
    assert (answer["error_code"], answer["responses"]) == (error_codes.FETCH_SESSION_ID_NOT_FOUND, [])
    answer = consumer.take(consumer.send({("two", 0): 3}))
    assert answer["session_id"] != 0
    node.storage.close()


def test_a_full_session_may_replace_partitions(tmp_path: Path) -> None:
    """A request that adds as many partitions as it forgets keeps the session, and all that it adds are read."""
    node = Node(tmp_path, max_partitions=5)
    for name in NAMES:
        append(node.storage.topics.by_id[node.create(name)].logs[0], batch(3))
    consumer = Consumer(node)
    consumer.fetch({("one", index): 3 for index in range(5)})
    forgotten = (("one", 0), ("one", 1))
    answer = consumer.take(consumer.send({("two", 1): 0, ("two", 0): 0}, forgotten))
    assert answer["error_code"] == error_codes.NONE
    read = [
        part["partition_index"]
        for topic in answer["responses"]
        for part in topic["partitions"]
        if part["records"]
    ]
    assert read == [0]
    node.storage.close()


@pytest.mark.parametrize("exact", [False, True])
def test_sessions_are_divided_unless_kafka_is_followed_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    """Where one client's sessions fill the cache, another client gets one at once; in Kafka after two minutes."""
    node = Node(tmp_path, max_incremental_fetch_session_cache_slots=4, kafka_exact=exact)
    node.create("one")
    crowd = [Consumer(node) for _ in range(4)]
    for consumer in crowd:
        assert consumer.take(consumer.send({("one", 0): 0}))["session_id"]
    assert not Consumer(node).take(Consumer(node).send({("one", 0): 0}))["session_id"]
    other = dataclasses.replace(CONNECTION, client_host="10.0.0.9")
    monkeypatch.setattr(test_node, "CONNECTION", other)
    newcomer = Consumer(node)
    assert bool(newcomer.take(newcomer.send({("one", 0): 0}))["session_id"]) is not exact
    node.storage.close()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("version", [11, 12, 18])
def test_a_client_always_knows_what_there_is(tmp_path: Path, version: int, seed: int) -> None:
    """Whatever happens to logs, answers and sessions; a request that is like an earlier one is answered as others."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    node = Node(tmp_path)
    node.create("one", 1 + seed % 3)
    quick, slow = Consumer(node, version), Consumer(node, version, rack="r")
    logs: dict[tuple[str, int], PartitionLog] = {
        ("one", index): log for index, log in enumerate(node.storage.topics.by_name["one"].logs)
    }
    position = dict.fromkeys(logs, 0)
    known: dict[tuple[str, int], tuple[int, int]] = {}
    asked = dict(position)
    for _ in range(150):
        for log in logs.values():
            if rng.random() < 0.3:
                append(log, batch())
            if rng.random() < 0.1:
                log.raise_start(rng.randint(log.start_offset, log.end_offset))
        if rng.random() < 0.05:
            quick.session_id = quick.epoch = slow.session_id = slow.epoch = 0
        if quick.epoch == 0:
            asked = dict(position)
        throttled = rng.random() < 0.15
        max_bytes = rng.choice((SIZE, 3 * SIZE, 1 << 20))
        quick.max_bytes = slow.max_bytes = max_bytes
        found = quick.fetch(asked, throttled=throttled)
        assert list(slow.fetch(asked, throttled=throttled).items()) == list(found.items())
        if throttled:
            asked = dict(position) if quick.epoch == 0 else {}
            quick.epoch *= quick.session_id != 0
            slow.epoch *= slow.session_id != 0
            continue
        asked = {}
        for key, (code, end, start, size) in found.items():
            known[key] = end, start
            if code:
                position[key] = asked[key] = logs[key].start_offset
            elif size:
                position[key] = asked[key] = min(position[key] + size // SIZE, logs[key].end_offset)
        for key, log in logs.items():
            if key not in found or not found[key][0]:
                assert known[key] == (log.end_offset, log.start_offset)
    node.storage.close()


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_session_that_nobody_uses_keeps_no_deleted_log(filled: Node, partitions: int) -> None:
    """A log is let go of within a minute of its deletion; a topic of the same name is found again."""
    consumer = Consumer(filled)
    consumer.fetch({(name, 0): 0 for name in NAMES[:partitions]})
    consumer.fetch({})
    log = filled.storage.topics.by_name["one"].log(0)

    def keepers() -> list[str]:
        return [type(one).__name__ for one in gc.get_referrers(log)]

    assert "FetchedPartition" in keepers()
    run_at_once(filled.storage.topics.delete_in_slices(filled.storage.topics.by_name["one"]))
    filled.scheduler.advance(fetch_handlers.FORGET_DELETED_EVERY_S)
    gc.collect()
    assert not {"FetchedPartition", "_Source"} & set(keepers())
    assert consumer.fetch({})["one", 0][0] == error_codes.UNKNOWN_TOPIC_OR_PARTITION


def test_records_that_were_deleted_are_told_of(filled: Node) -> None:
    """The beginning of a log is news, whoever moves it."""
    consumer = Consumer(filled)
    consumer.fetch({("one", 0): 3})
    part = {"partition_index": 0, "offset": 2}
    message = {"topics": [{"name": "one", "partitions": [part]}], "timeout_ms": 0}
    filled.call(DELETE_RECORDS, 2, message)
    assert consumer.fetch({}) == {("one", 0): (0, 3, 2, 0)}
