"""The recorder: what each call writes, when segments roll, and what happens without room."""

import errno
import os
import shutil
from types import SimpleNamespace

import pytest
from tests.unit.usage.recording import (
    START_MS,
    Decided,
    asked,
    client,
    closed_events,
    lose_events,
    open_recorder,
    record,
    record_requests,
    segment_of,
    spool_directory,
)

from tidegate.quota import UNLIMITED, QuotaRecord, QuotaType
from tidegate.server.requests.controller_record import ControllerRecord
from tidegate.server.requests.handler import Connection
from tidegate.server.requests.recorder import open_recorder as recorder_of
from tidegate.server.requests.request_rows import FETCHED, THROTTLED
from tidegate.server.settings.config import ServerConfig
from tidegate.testing import ManualClock
from tidegate.usage.appender import RETRY_MS
from tidegate.usage.columns import EXEMPT, FORWARDED, OBSERVED_ONLY, empty_event
from tidegate.usage.events import read_segment
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    NAMES_BYTES_MAX,
    NAMES_MAX,
    OPEN_SUFFIX,
    PRODUCED,
    segment_paths,
)

CLIENT = {
    "listener": "PLAINTEXT",
    "user": "alice",
    "client_id": "app",
    "client_host": "127.0.0.1",
    "client_software": "librdkafka",
    "client_software_version": "2.8",
}
FIRST_SEQ = START_MS * 1000


@pytest.mark.parametrize("is_converted", [True, False])
def test_the_second_process_is_a_setting(tmp_path, is_converted):
    """With tidegate.usage.parquet.enable=false rows stay in the spool: the timer starts no process."""
    texts = {"log.dirs": str(tmp_path), "tidegate.usage.parquet.enable": str(is_converted).lower()}
    config = ServerConfig.load({**texts, "tidegate.usage.segment.ms": "100"})
    clock = ManualClock()
    recorder = recorder_of(config, clock)
    try:
        recorder.start(clock.now_ms())
        clock.advance(200)
        recorder.maybe_roll(clock.now_ms())
        assert (recorder._writer is not None) == is_converted
    finally:
        recorder.close()
    spool = tmp_path / "usage" / "spool" / f"node-{config['node.id']}"
    if not is_converted:
        assert len(segment_paths(spool, CLOSED_SUFFIX)) == 1


def events_of(tmp_path, *calls):
    """Record `calls` and return the events without what is the same in all."""
    recorder = open_recorder(tmp_path)
    for call in calls:
        call(recorder)
    recorder.close()
    return closed_events(tmp_path)


def expected(kind, seq=FIRST_SEQ, **columns):
    return empty_event(kind) | {"ts_ms": START_MS, "seq": seq, "node_id": 1} | columns


_DECIDED = {
    "now_ms": START_MS, "connection_id": 7, "api_key": 1, "api_version": 12, "frame_bytes": 100,
    "response_bytes": 200, "handler_ns": 500, "network_ns": 600,
}  # fmt: skip
_DECIDED_COLUMNS = {
    "connection_id": 7, "api_key": 1, "api_version": 12, "request_bytes": 100, "response_bytes": 200,
    "handler_ns": 500, "network_ns": 600,
}  # fmt: skip


def test_request_row(tmp_path):
    """A request fills the columns of the client and of the decision, each with what the front kept under its name."""
    (event,) = events_of(
        tmp_path,
        lambda r: record_requests(
            r, client(),
            Decided(
                **_DECIDED, produce_ms=11, fetch_ms=12, request_ms=13, mutation_ms=14, throttle_ms=0, early_ms=15,
                row_flags=OBSERVED_ONLY | EXEMPT | PRODUCED | FETCHED | THROTTLED, fetch_bytes=400, lag=5, lag_bytes=0,
                topic="orders", other_topics=3,
            ),
        ),
    )  # fmt: skip
    throttles = {
        "produce_throttle_ms": 11, "fetch_throttle_ms": 12, "request_throttle_ms": 13, "mutation_throttle_ms": 14,
    }  # fmt: skip
    decided = _DECIDED_COLUMNS | throttles | {"early_ms": 15, "observed_only": True, "exempt": True}
    decided |= {"produce_bytes": 100, "fetch_bytes": 400, "lag": 5, "lag_bytes": 0}
    decided |= {"topic": "orders", "other_topics": 3}
    assert event == expected("request", **CLIENT, **decided)


@pytest.mark.parametrize("row_flags", [0, PRODUCED, EXEMPT, EXEMPT | PRODUCED])
def test_unthrottled_request_row(tmp_path, row_flags):
    """Nor is anything lost of one without a throttle, which has a shorter way."""
    decided = Decided(**_DECIDED, row_flags=row_flags, topic="orders", other_topics=1)
    (event,) = events_of(tmp_path, lambda r: record_requests(r, client(), decided))
    charged = {"produce_bytes": 100 if row_flags & PRODUCED else None, "exempt": bool(row_flags & EXEMPT)}
    charged |= {"topic": "orders", "other_topics": 1}
    assert event == expected("request", **CLIENT, **_DECIDED_COLUMNS, **charged)


def test_rows_of_one_connection(tmp_path):
    """Its requests may differ in everything from those before them."""
    kinds = {"produced": PRODUCED, "plain": 0, "fetched": FETCHED}
    requests = [
        Decided(
            api_key=key, api_version=version, row_flags=flags, fetch_bytes=9, lag=1, frame_bytes=key + version
        )
        for flags in kinds.values()
        for key in (0, 1)
        for version in (11, 12, 12)
    ]

    def record(recorder):
        known = client()
        for request in requests:
            request.channel.connection.recorded = known
        recorder.requests(requests)

    assert [
        (row["api_key"], row["api_version"], row["produce_bytes"], row["fetch_bytes"], row["lag"])
        for row in events_of(tmp_path, record)
    ] == [
        (
            request.api_key, request.api_version,
            request.frame_bytes if request.row_flags == PRODUCED else None,
            *((9, 1) if request.row_flags == FETCHED else (None, None)),
        )
        for request in requests
    ]  # fmt: skip


def test_topics_of_requests(tmp_path):
    """A Produce or Fetch without records has no topic and no others; other requests have null for both."""
    topics = [(0, "orders", 0), (1, "clicks", 2), (0, "orders", 1), (0, None, 0), (1, None, 0), (3, None, 0)]
    requests = [Decided(api_key=key, topic=topic, other_topics=others) for key, topic, others in topics]
    events = events_of(tmp_path, lambda r: record_requests(r, client(), *requests))
    assert [(event["api_key"], event["topic"], event["other_topics"]) for event in events] == [
        *topics[:-1],
        (3, None, None),
    ]


def test_a_hundred_thousand_topics_lose_no_event(tmp_path):
    """Topics that fill the table of names begin the next segment, in which clients and topics are numbered anew."""
    topics = [f"{number:06d}".rjust(249, "t") for number in range(100_000)]

    def produce_to_all(recorder):
        for first in range(0, len(topics), 500):
            some = [Decided(topic=topic) for topic in topics[first : first + 500]]
            record_requests(recorder, client(f"app-{first}"), *some)
            recorder.commit()
            assert len(recorder._topics) <= NAMES_MAX
        assert recorder.lost_events == 0

    events = events_of(tmp_path, produce_to_all)
    assert [event["topic"] for event in events] == topics
    assert [event["client_id"] for event in events[::500]] == [f"app-{n}" for n in range(0, len(topics), 500)]
    sizes = [path.stat().st_size for path in spool_directory(tmp_path, 1).glob("*.names")]
    assert len(sizes) == 4
    assert max(sizes) <= NAMES_BYTES_MAX


def test_request_row_with_nulls(tmp_path):
    """`NONE` is null, and zero is zero."""
    decided = Decided(response_bytes=None, row_flags=FETCHED, fetch_bytes=0)
    (event,) = events_of(tmp_path, lambda r: record_requests(r, client(), decided))
    assert (event["produce_bytes"], event["fetch_bytes"], event["early_ms"]) == (None, 0, None)
    assert (event["response_bytes"], event["exempt"], event["observed_only"]) == (0, False, False)


def test_network_row(tmp_path):
    """Network time that became known later carries the identity of its request."""
    request = asked(client(), api_key=1, api_version=12)
    (event,) = events_of(tmp_path, lambda r: r.network(*request, START_MS, 600, True))
    columns = {"connection_id": 7, "api_key": 1, "api_version": 12, "network_ns": 600, "exempt": True}
    assert event == expected("network", **CLIENT, **columns)


@pytest.mark.parametrize(("strict", "granted"), [(False, True), (True, True), (True, False)])
def test_mutation_row(tmp_path, strict, granted):
    """Permits asked for, of which kind of quota object, and whether they were refused."""
    quota = SimpleNamespace(strict=strict)
    (event,) = events_of(tmp_path, lambda r: r.mutation(*asked(client()), 30, quota, granted, START_MS))
    columns = {"connection_id": 7, "api_key": 19, "api_version": 6, "mutations": 30}
    decided = {"strict": strict, "rejected": not granted}
    assert event == expected("mutation", **CLIENT, **columns, **decided)


def definition(key, value, **entity):
    """Return a definition of a quota; None in the entity is the default one."""
    parts = tuple((kind.replace("_", "-"), name) for kind, name in entity.items())
    return QuotaRecord(entity=parts, key=key, value=value)


@pytest.mark.parametrize("value", [1048576.0, 0.1, 0.0, -0.0, float("inf"), None])
def test_quota_row(tmp_path, value):
    """A definition keeps every bit of its value; removed is null."""
    (event,) = events_of(
        tmp_path,
        lambda r: r.quota(definition("producer_byte_rate", value, user="a b", client_id=None), START_MS),
    )
    entity = {"quota_user": "a%20b", "quota_client_id": "<default>", "quota_key": "producer_byte_rate"}
    assert event == expected("quota", **entity, quota_value=value)
    assert repr(event["quota_value"]) == repr(value)


def test_quota_row_with_nan(tmp_path):
    """Kafka takes NaN for a quota, so the record does."""
    (event,) = events_of(
        tmp_path,
        lambda r: r.quota(definition("consumer_byte_rate", float("nan"), client_id=""), START_MS),
    )
    assert event["quota_client_id"] == ""
    assert event["quota_value"] != event["quota_value"]


def test_start_and_expire_rows(tmp_path):
    """Both have a time and a place in the sequence, and nothing else."""
    events = events_of(tmp_path, lambda r: r.start(START_MS), lambda r: r.expire(START_MS))
    assert events == [expected("start"), expected("expire", seq=FIRST_SEQ + 1)]


def test_sweeps_with_nothing_between_them_are_one_row(tmp_path):
    """Only the last of them can have changed what follows: a broker that nobody uses writes nothing."""
    recorder = open_recorder(tmp_path)
    for now_ms in (START_MS, START_MS + 30_000, START_MS + 60_000):
        recorder.expire(now_ms)
        recorder.maybe_roll(now_ms + 10**6)
    recorder.start(START_MS + 70_000)
    for now_ms in (START_MS + 90_000, START_MS + 120_000):
        recorder.expire(now_ms)
    recorder.maybe_roll(START_MS + 10**6)
    recorder.expire(START_MS + 150_000)
    recorder.close()
    events = [(event["kind"], event["ts_ms"] - START_MS) for event in closed_events(tmp_path)]
    assert events == [("expire", 60_000), ("start", 70_000), ("expire", 120_000), ("expire", 150_000)]


def test_sweep_after_the_clock_went_back_is_another_row(tmp_path):
    """It forgets less than the one before it, which must not be lost."""
    recorder = open_recorder(tmp_path)
    for now_ms in (START_MS + 60_000, START_MS, START_MS + 30_000):
        recorder.expire(now_ms)
    recorder.close()
    assert [event["ts_ms"] - START_MS for event in closed_events(tmp_path)] == [60_000, 30_000]


def test_sweeps_without_room_are_counted(tmp_path):
    """Each that found no room is lost; the next that does is a row."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    recorder.start(START_MS)
    lose_events(recorder, tmp_path, 3)
    clock.advance(RETRY_MS)
    recorder.expire(START_MS)
    recorder.close()
    assert [(event["kind"], event["lost_events"]) for event in closed_events(tmp_path)] == [
        ("gap", 3),
        ("expire", None),
    ]


def test_events_keep_their_order(tmp_path):
    """Sequence numbers follow the calls, over segments too."""
    recorder = open_recorder(tmp_path, segment_bytes=segment_of(10))
    alice, bob = client(), client(user="bob")
    for index in range(33):
        record(recorder, (alice, bob)[index % 2], START_MS, index)
    recorder.close()
    events = closed_events(tmp_path)
    assert [event["seq"] - FIRST_SEQ for event in events] == list(range(33))
    assert [event["request_bytes"] for event in events] == list(range(33))
    assert [event["user"] for event in events[:3]] == ["alice", "bob", "alice"]
    assert len(segment_paths(spool_directory(tmp_path, 1), CLOSED_SUFFIX)) == 4


def test_rows_can_be_read_at_once(tmp_path):
    """Every row is in the file when `commit` returns, nothing is kept back in the process."""
    recorder = open_recorder(tmp_path)
    who = client()
    for index in range(3):
        record(recorder, who, START_MS, index)
        (path,) = segment_paths(spool_directory(tmp_path, 1), OPEN_SUFFIX)
        assert [event["request_bytes"] for event in read_segment(path)] == list(range(index + 1))
    recorder.close()


def test_a_client_of_another_recorder_is_numbered_anew(tmp_path):
    """Names follow a client into whatever segment its rows go to."""
    first, second = open_recorder(tmp_path / "1"), open_recorder(tmp_path / "2")
    bob = client(user="bob")
    record(second, client(user="carol"), START_MS)
    record(second, bob, START_MS)
    record(first, bob, START_MS)
    first.close()
    second.close()
    assert [event["user"] for event in closed_events(tmp_path / "1")] == ["bob"]


def test_definitions_follow_a_gap(tmp_path):
    """After a gap the definitions in force are written again: what changed them may be lost."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock, segment_bytes=segment_of(8))
    recorder.start(START_MS)
    for index in range(20):
        recorder.quota(definition("producer_byte_rate", 1.0, user=f"u{index}"), START_MS)
    recorder.quota(definition("producer_byte_rate", None, user="u7"), START_MS)
    lose_events(recorder, tmp_path, 3)
    clock.advance(RETRY_MS)
    recorder.expire(START_MS)
    recorder.close()
    gap, *definitions, last = closed_events(tmp_path)
    assert (gap["kind"], gap["lost_events"], last["kind"]) == ("gap", 3, "expire")
    assert [event["quota_user"] for event in definitions] == [
        f"u{index}" for index in range(20) if index != 7
    ]


def test_restart_continues_the_sequence(tmp_path):
    """Sequence numbers and connection ids of a later run are above all earlier ones, though the clock fell."""
    seqs, connections = [], []
    for now_ms in (START_MS, 0, START_MS + 5):
        recorder = open_recorder(tmp_path, ManualClock(start_ms=now_ms))
        connections += [recorder.next_connection_id() for _ in range(3)]
        record(recorder, client(), START_MS)
        recorder.close()
        seqs = [event["seq"] for event in closed_events(tmp_path)]
    assert seqs == sorted(set(seqs))
    assert connections == sorted(set(connections))
    assert len(seqs) == 3


def test_files_are_private(tmp_path):
    """Names are personal data: nobody but the owner reads them."""
    recorder = open_recorder(tmp_path / "usage")
    record(recorder, client(), START_MS)
    paths = list((tmp_path / "usage").rglob("*"))
    assert {os.stat(path).st_mode & 0o777 for path in paths if path.is_file()} == {0o600}
    assert {os.stat(path).st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    recorder.close()


@pytest.mark.parametrize("offset_ms", [3_600_000, -1, -86_400_000])
def test_clock_row(tmp_path, offset_ms):
    """How far the wall clock is from engine time, whatever that is."""
    (event,) = events_of(tmp_path, lambda r: r.clock(START_MS, offset_ms))
    assert event == expected("clock", wall_offset_ms=offset_ms)


def test_the_clock_follows_a_gap(tmp_path):
    """The row that said how the wall clock was stepped may be among the lost ones."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    recorder.clock(START_MS, 5000)
    lose_events(recorder, tmp_path, 3)
    clock.advance(RETRY_MS)
    recorder.expire(START_MS)
    recorder.close()
    events = [(event["kind"], event["wall_offset_ms"]) for event in closed_events(tmp_path)]
    assert events == [("gap", 0), ("clock", 5000), ("expire", 0)]


GROUPS = "tidegate.callbacks:QuotaGroups"


def tags(recorder, client_id="app", group="etl", limit=5.0, quota_type=QuotaType.PRODUCE):
    """Record that a client is counted in a group."""
    bound = UNLIMITED if limit is None else limit
    sensor = SimpleNamespace(name=group, tags={"group": group}, bound=bound)
    recorder.tags(quota_type, "alice", client_id, sensor, START_MS)


@pytest.mark.parametrize("limit", [5.0, 0.0, None])
def test_rows_of_a_callback(tmp_path, limit):
    """Its class, and the tags that it chose for a client with their limit; null: there is none."""
    callback, row = events_of(
        tmp_path, lambda r: r.callback(GROUPS, START_MS), lambda r: tags(r, limit=limit)
    )
    assert callback == expected("callback", callback=GROUPS)
    assert row == expected(
        "tags", FIRST_SEQ + 1, user="alice", client_id="app", quota_key="producer_byte_rate", quota_value=limit,
        callback=GROUPS, tags='{"group":"etl"}',
    )  # fmt: skip


def test_tags_are_a_row_where_they_are_news(tmp_path):
    """Another client, type, group or limit, also one that goes back, and after another callback; nothing else."""
    calls = [
        lambda r: r.callback(GROUPS, START_MS),
        tags,
        tags,
        lambda r: tags(r, "other"),
        lambda r: tags(r, quota_type=QuotaType.FETCH),
        lambda r: tags(r, limit=6.0),
        lambda r: tags(r, "other", limit=6.0),
        lambda r: tags(r, limit=5.0),
        lambda r: tags(r, "other"),
        lambda r: tags(r, group="web"),
        tags,
        lambda r: r.callback(GROUPS, START_MS),
        tags,
        lambda r: r.callback(None, START_MS),
    ]
    found = [
        (event["client_id"], event["quota_key"], event["quota_value"], event["tags"], event["callback"])
        for event in events_of(tmp_path, *calls)
    ]
    produce, etl = "producer_byte_rate", '{"group":"etl"}'
    assert found == [
        ("", None, None, None, GROUPS),
        ("app", produce, 5.0, etl, GROUPS),
        ("other", produce, 5.0, etl, GROUPS),
        ("app", "consumer_byte_rate", 5.0, etl, GROUPS),
        ("app", produce, 6.0, etl, GROUPS),
        ("app", produce, 5.0, etl, GROUPS),
        ("app", produce, 5.0, '{"group":"web"}', GROUPS),
        ("app", produce, 5.0, etl, GROUPS),
        ("", None, None, None, GROUPS),
        ("app", produce, 5.0, etl, GROUPS),
        ("", None, None, None, None),
    ]


def test_each_segment_says_the_tags_that_are_used_in_it(tmp_path):
    """So a reader of some hours knows them, and what is remembered is bounded by the names in a segment."""
    recorder = open_recorder(tmp_path, segment_bytes=segment_of(8))
    recorder.callback(GROUPS, START_MS)
    for index in range(100):
        tags(recorder, f"app-{index}")
        tags(recorder)
        assert len(recorder._said_tags) <= 8
        assert len(recorder._said_limits) <= 8
    recorder.close()
    paths = segment_paths(spool_directory(tmp_path, 1), CLOSED_SUFFIX)
    assert len(paths) > 10
    for path in paths:
        names = [event["client_id"] for event in read_segment(path) if event["kind"] == "tags"]
        assert len(names) == len(set(names))
        assert names.count("app") == 1


def test_the_callback_follows_a_gap(tmp_path):
    """With the tags, when they are used; so does that there is none any more."""
    for directory, name in ((tmp_path / "1", GROUPS), (tmp_path / "2", None)):
        clock = ManualClock(start_ms=START_MS)
        recorder = open_recorder(directory, clock)
        recorder.callback(GROUPS, START_MS)
        recorder.callback(name, START_MS)
        tags(recorder)
        lose_events(recorder, directory, 3)
        tags(recorder)
        clock.advance(RETRY_MS)
        tags(recorder)
        recorder.close()
        events = [(event["kind"], event["callback"]) for event in closed_events(directory)]
        assert events == [("gap", None), ("callback", name), ("tags", name)]


def test_a_start_is_without_a_callback(tmp_path):
    """What was said before is not said of it."""
    events = events_of(
        tmp_path, lambda r: r.callback(GROUPS, START_MS), tags, lambda r: r.start(START_MS), tags
    )
    assert [(event["kind"], event["callback"]) for event in events] == [
        ("callback", GROUPS), ("tags", GROUPS), ("start", None), ("tags", None),
    ]  # fmt: skip


class Writer:
    """A writer that is there, and counts how often it was looked after and stopped."""

    looks = stops = 0

    def keep_running(self) -> None:
        """Count."""
        self.looks += 1

    def stop(self) -> None:
        """Count."""
        self.stops += 1


def test_writer_that_cannot_be_started_is_tried_again(tmp_path, caplog):
    """Without a descriptor or a process to be had the spool waits, one line says so, and nothing is raised."""
    writer, left = Writer(), [3]

    def start() -> Writer:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return writer

    recorder = open_recorder(tmp_path, start_writer=start)
    for _ in range(5):
        recorder.maybe_roll(START_MS)
    recorder.close()
    assert (left[0], writer.looks, writer.stops) == (0, 3, 1)
    assert caplog.messages == [
        "cannot start the usage writer: [Errno 24] Too many open files; events stay in the spool"
    ]


def test_losses_are_reported_when_they_grow(tmp_path, caplog):
    """Once, with how many there are by then; not again while there are no more."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path / "usage", clock)
    recorder.start(START_MS)
    shutil.rmtree(tmp_path / "usage")
    for _ in range(5):
        clock.advance(500)
        recorder.maybe_roll(START_MS)
    recorder.close()
    (line,) = (record for record in caplog.records if "events of the usage record so far" in record.message)
    assert line.message == "lost 1 events of the usage record so far"
    assert line.repeats == "lost events of node 1"  # written once a minute on a disk that is full


def test_rows_are_in_the_order_in_which_the_engine_was_asked(tmp_path):
    """Whatever else happens between two requests of a turn, its row stands between theirs."""
    recorder = open_recorder(tmp_path)
    request, quota = asked(client()), SimpleNamespace(strict=False)
    between = {
        "network": lambda: recorder.network(*request, START_MS, 5, False),
        "mutation": lambda: recorder.mutation(*request, 3, quota, True, START_MS),
        "quota": lambda: recorder.quota(definition("producer_byte_rate", 1.0, user="alice"), START_MS),
        "callback": lambda: recorder.callback("a:Callback", START_MS),
        "tags": lambda: tags(recorder),
        "expire": lambda: recorder.expire(START_MS),
        "clock": lambda: recorder.clock(START_MS, 7),
    }
    for event in between.values():
        record_requests(recorder, client(), Decided())
        event()
    recorder.commit()
    recorder.close()
    kinds = [event["kind"] for event in closed_events(tmp_path)]
    assert kinds == [kind for name in between for kind in ("request", name)]


def test_a_controller_records_the_permits_of_forwarded_requests(tmp_path):
    """On a connection id of its own, with the throttle time; the request is marked, and is in no row of it."""
    recorder = open_recorder(tmp_path)
    record, request = ControllerRecord(recorder), Decided(mutation_ms=5)
    request.channel.connection = Connection(3, "PLAINTEXT", "127.0.0.1", "127.0.0.1", 9092)
    record.mutation(
        request.channel.connection, request.header, 30, SimpleNamespace(strict=True), True, START_MS
    )
    record.request(request)
    record.commit()
    recorder.close()
    events = [
        (event["kind"], event["connection_id"], event["mutations"], event["mutation_throttle_ms"])
        for event in closed_events(tmp_path)
    ]
    assert events == [("mutation", FIRST_SEQ, 30, 0), ("forwarded", FIRST_SEQ, None, 5)]
    assert request.row_flags == FORWARDED


def test_requests_are_marked_where_the_controller_records_nothing():
    """They are not the node's own whether or not there is another record."""
    record, request = ControllerRecord(None), Decided()
    record.mutation(*asked(client()), 30, SimpleNamespace(strict=True), True, START_MS)
    record.request(request)
    record.commit()
    assert request.row_flags == FORWARDED
