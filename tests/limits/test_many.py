"""What many clients, or much that is kept, may cost at one moment."""

import contextlib
import itertools
import socket
import struct
import time

import pytest
from tests.batches import build_batch
from tests.limits.bounds import MEMORY, PRODUCER_BYTES, judge_work
from tests.limits.frames import (
    ALTER_QUOTAS,
    API_VERSIONS,
    EMPTY_BATCH,
    FETCH,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    alter,
    commit,
    fetch,
    produce,
    request,
    size,
)
from tests.limits.watched import TIMEOUT_S, Connection, Exchanged

from tidegate.quota.measure.sensor_table import MAX_SENSOR_BYTES
from tidegate.storage.log.producers import MAX_PRODUCER_BYTES
from tidegate.usage.segment import NAMES_BYTES_MAX

pytestmark = pytest.mark.alone

CONNECTIONS = size(2000, 9000)
CONNECTION_BYTES = 10_000
"""What an idle connection may keep: its socket, its channel, its place in the tables."""

WAIT_BYTES = 5000
"""What a fetch may take while it waits: its partitions, its timer, its answer."""
QUOTA_BYTES = 5000
"""What a client under a quota may keep: its sensors."""


@contextlib.contextmanager
def connections(broker, count=CONNECTIONS):
    """Give many connections, each of which has been answered once."""
    hello = request(API_VERSIONS, 0, {})
    with contextlib.ExitStack() as opened:
        clients = []
        for at in range(count):
            clients.append(opened.enter_context(Connection(broker.port)))
            clients[-1].socket.sendall(hello)
            if at % 50 == 49:
                for client in clients[-50:]:
                    client.skip_answer()
        for client in clients[count - count % 50 :]:
            client.skip_answer()
        yield clients


def test_many_fetches_wait_for_one_append(new_broker):
    """All of them are answered for one append, in slices."""
    broker = new_broker()
    batch = request(PRODUCE, 8, produce("limits", [EMPTY_BATCH]))
    with Connection(broker.port) as producer, connections(broker) as clients:

        def wait_and_wake() -> Exchanged:
            waiting = request(
                FETCH, 11, fetch("limits", offset=producer.end_offset("limits"), wait_ms=60_000)
            )
            for client in clients:
                client.socket.sendall(waiting)
            time.sleep(0.5)
            producer.socket.sendall(batch)
            answer_bytes = producer.skip_answer() + sum(client.skip_answer() for client in clients)
            return Exchanged(len(batch) + len(waiting) * len(clients), answer_bytes)

        judge_work(broker, wait_and_wake, may_take_bytes=CONNECTIONS * WAIT_BYTES)


def test_many_connections_open_and_close_at_once(new_broker):
    """Thousands of clients that come and go at the same moment, as when their network fails."""
    broker = new_broker()

    def come_and_go() -> Exchanged:
        with connections(broker):
            pass
        time.sleep(1)
        return Exchanged()

    judge_work(broker, come_and_go, may_take_bytes=CONNECTIONS * CONNECTION_BYTES)


@pytest.mark.parametrize("is_burst_watched", [False, True])
def test_many_throttles_end_at_once(new_broker, is_burst_watched: bool):
    """Thousands of channels whose throttle ends in the same second, each with a request that waits behind it.

    Their requests come in one burst. A neighbour of another principal is watched all the time. A neighbour of the same
    principal waits for the requests that came before its own; it is watched once these have been answered.
    """
    broker = new_broker()
    if is_burst_watched:
        broker.start_neighbour("neighbour", "127.0.0.2")
    limited = alter([{"client-id": None}], {"producer_byte_rate": 100.0})
    free = alter([{"client-id": "neighbour"}], {"producer_byte_rate": 1e9})
    with Connection(broker.port) as admin:
        admin.ask_all([request(ALTER_QUOTAS, 0, free), request(ALTER_QUOTAS, 0, limited)])
    batch = build_batch([(None, bytes(1300))])  # (1,400 - 11 * 100) / 100: about 3 s

    with connections(broker) as clients:
        numbers = itertools.count()

        def send() -> int:
            sent = 0
            for client, number in zip(clients, numbers, strict=False):
                frame = request(PRODUCE, 8, produce("limits", [batch]), client_id=f"c{number}")
                client.socket.sendall(frame + request(API_VERSIONS, 0, {}))
                sent += len(frame)
            return sent

        def skip_answers() -> None:
            for client in clients:
                client.skip_answer()

        def prepare() -> None:
            if not is_burst_watched:
                send()
                skip_answers()

        def throttle() -> Exchanged:
            sent = 0
            if is_burst_watched:
                sent = send()
                skip_answers()
            skip_answers()
            return Exchanged(sent)

        seen = judge_work(broker, throttle, prepare=prepare, may_keep_bytes=CONNECTIONS * QUOTA_BYTES)
    assert seen.took_s > 1, "nobody was throttled"


def test_closed_long_polls_leave_nothing(broker):
    """A long poll whose client went away is forgotten, with whatever came with its request."""
    with Connection(broker.port) as client:
        end = client.end_offset("limits")
    waiting = request(FETCH, 11, fetch("limits", offset=end, wait_ms=2**31 - 1))
    padding = bytes(size(5_000_000, 50_000_000))
    long = struct.pack(">i", len(waiting) - 4 + len(padding)) + waiting[4:] + padding

    def poll_and_leave() -> Exchanged:
        for _ in range(20):
            with Connection(broker.port) as client:
                client.socket.sendall(long)
                time.sleep(0.02)
        time.sleep(0.3)
        return Exchanged(len(long))

    judge_work(broker, poll_and_leave, memory=MEMORY["Frame"])


def test_long_polls_do_not_keep_their_frames(broker):
    """While a fetch waits, the bytes of its request are not kept."""
    with Connection(broker.port) as client:
        end = client.end_offset("limits")
    waiting = request(FETCH, 11, fetch("limits", offset=end, wait_ms=2**31 - 1))
    padding = bytes(size(5_000_000, 50_000_000))
    long = struct.pack(">i", len(waiting) - 4 + len(padding)) + waiting[4:] + padding
    with contextlib.ExitStack() as opened:

        def poll() -> Exchanged:
            for _ in range(10):
                opened.enter_context(Connection(broker.port)).socket.sendall(long)
                time.sleep(0.1)
            return Exchanged(len(long))

        judge_work(broker, poll, memory=MEMORY["Frame"])


def test_announced_bytes_take_no_memory(broker):
    """A frame takes the memory of the bytes that came, not of those that were promised."""
    count = size(1000, 9000)
    with contextlib.ExitStack() as opened:

        def promise() -> Exchanged:
            for _ in range(count):
                opened.enter_context(Connection(broker.port)).socket.sendall(struct.pack(">ib", 1_000_000, 0))
            time.sleep(1)
            return Exchanged(count * 5)

        judge_work(broker, promise, may_keep_bytes=count * CONNECTION_BYTES)


def test_frames_at_once_stay_within_the_nodes_bound(new_broker):
    """All frames that are being received have one bound; who comes later is not read."""
    broker = new_broker(queued_max_request_bytes="20000000", socket_request_max_bytes="20000000")
    count, frame_bytes = 20, 5_000_000
    head = struct.pack(">ihhih", frame_bytes, API_VERSIONS, 0, 1, -1)
    with contextlib.ExitStack() as opened:

        def flood() -> Exchanged:
            clients = [opened.enter_context(Connection(broker.port)) for _ in range(count)]
            block = head + bytes(frame_bytes - 1000)
            for client in clients:
                client.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.socket.send(block)
            time.sleep(1)
            return Exchanged(count * frame_bytes)

        judge_work(broker, flood, may_keep_bytes=20_000_000 + count * 200_000)


def test_large_requests_that_are_under_way_have_a_bound(new_broker):
    """Forty clients ask for as much as a request can, at the same moment: a part of it is in memory at a time."""
    broker = new_broker(queued_max_request_bytes="60000000", socket_request_max_bytes="20000000")
    count = size(40, 100)
    parts = {"index": 0, "records": None}
    message = {**produce("limits", []), "topic_data": [{"name": "no", "partition_data": [parts] * 99_000}]}
    frame = request(PRODUCE, 8, message)

    def ask_all() -> Exchanged:
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(Connection(broker.port)) for _ in range(count)]
            for client in clients:
                client.socket.sendall(frame)
            return Exchanged(count * len(frame), sum(client.skip_answer() for client in clients))

    judge_work(broker, ask_all, may_take_bytes=4 * 60_000_000)  # all of them would take a gigabyte


def test_answers_that_nobody_reads_have_a_bound(new_broker):
    """A hundred clients are answered with eight megabytes each, and do not read: most of them are closed."""
    broker = new_broker(queued_max_request_bytes="60000000", socket_request_max_bytes="20000000")
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m" * 4000}
    with Connection(broker.port) as client:
        client.create("wide", 2000)
        named = [{"name": "wide", "partitions": [{**part, "partition_index": at} for at in range(2000)]}]
        client.ask_all([request(OFFSET_COMMIT, 5, {**commit({}), "group_id": "g", "topics": named})])
    frame = request(OFFSET_FETCH, 5, {"group_id": "g", "topics": None})
    count = size(100, 300)

    def ask_all() -> Exchanged:
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(Connection(broker.port, 100_000)) for _ in range(count)]
            for client in clients:
                client.socket.sendall(frame)
            time.sleep(4)
        return Exchanged(count * len(frame))

    judge_work(broker, ask_all, may_take_bytes=6 * 60_000_000)
    assert "response not read while other clients" in broker.log


def test_many_long_client_ids(new_broker):
    """Client ids of 32,000 bytes, all different, under quotas of three kinds: tables are bounded in bytes."""
    broker = new_broker()
    rates = {"producer_byte_rate": 1e9, "consumer_byte_rate": 1e9, "request_percentage": 1e6}
    with Connection(broker.port) as admin:
        admin.ask_all([request(ALTER_QUOTAS, 0, alter([{"client-id": None}], rates))])
    count = size(6000, 30_000)  # 192 MB of names, half of which fit

    def come() -> Exchanged:
        with Connection(broker.port) as client:
            for at in range(0, count, 50):
                ids = [f"{number:010}{'z' * 31_990}" for number in range(at, at + 50)]
                client.ask_all([request(API_VERSIONS, 0, {}, client_id=client_id) for client_id in ids])
        return Exchanged(count * 32_000)

    judge_work(broker, come, may_keep_bytes=MAX_SENSOR_BYTES + 2 * NAMES_BYTES_MAX)


def test_made_up_producer_ids(new_broker):
    """Producers that never were: their sequences have a bound over all partitions."""
    broker = new_broker()
    partitions, ids = 10, size(2000, 10_000)
    with Connection(broker.port) as client:
        client.create("ids", partitions)
    now_ms = int(time.time() * 1000)

    def produce_all() -> Exchanged:
        sent = 0
        with Connection(broker.port) as client:
            for producer_id in range(ids):
                batch = build_batch(
                    [(None, b"")],
                    producer_id=producer_id + 1,
                    producer_epoch=0,
                    base_sequence=0,
                    timestamp_ms=now_ms,
                )
                frames = [
                    request(PRODUCE, 8, produce("ids", [batch], partition=at)) for at in range(partitions)
                ]
                client.ask_all(frames)
                sent += sum(map(len, frames))
        return Exchanged(sent)

    judge_work(broker, produce_all, may_keep_bytes=min(partitions * ids * PRODUCER_BYTES, MAX_PRODUCER_BYTES))


def test_a_fetch_session_that_grows_past_its_bound(new_broker):
    """An incremental fetch may name 90,000 partitions: the session is closed, however large it would be."""
    broker = new_broker()
    part = fetch("limits")["topics"][0]["partitions"][0]
    named = [
        {"topic": f"n{at}", "partitions": [{**part, "partition": index} for index in range(1000)]}
        for at in range(90)
    ]
    begin = {**fetch("limits"), "min_bytes": 0, "session_epoch": 0}

    def grow() -> Exchanged:
        with Connection(broker.port) as client:
            session_id = client.ask(FETCH, 11, begin)["session_id"]
            frame = request(
                FETCH, 11, {**begin, "session_id": session_id, "session_epoch": 1, "topics": named}
            )
            client.socket.sendall(frame)
            return Exchanged(len(frame), client.skip_answer())

    judge_work(broker, grow, memory=MEMORY["Fetch"])


def test_connects_at_once(broker):
    """Two hundred clients that connect in one moment are all answered within a second."""
    hello = request(API_VERSIONS, 0, {})
    took_s = []

    def connect() -> Exchanged:
        began_s = time.monotonic()
        opened = [socket.socket() for _ in range(200)]
        try:
            for client in opened:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", broker.port))
            for client in opened:
                client.settimeout(30)
                client.send(hello)
            for client in opened:
                assert client.recv(4)
        finally:
            for client in opened:
                client.close()
        took_s.append(time.monotonic() - began_s)
        return Exchanged()

    judge_work(broker, connect, may_take_bytes=200 * CONNECTION_BYTES)
    assert min(took_s) < 1


def test_a_broker_with_much_in_it_is_never_away(new_broker):
    """Partitions, definitions, sensors, segments that expire, a record that is rolled: no timer holds the loop."""
    broker = new_broker(tidegate_usage_segment_ms="100")
    with Connection(broker.port) as client:
        for at in range(size(2, 7)):
            client.create(f"wide-{at}", 500)
        client.ask_all(
            [
                request(
                    ALTER_QUOTAS,
                    0,
                    alter([{"client-id": f"d{i}"} for i in range(500)], {"producer_byte_rate": 1e9}),
                )
            ]
            * 2
        )
        rates = {"producer_byte_rate": 1e9, "consumer_byte_rate": 1e9, "request_percentage": 1e6}
        client.ask_all([request(ALTER_QUOTAS, 0, alter([{"client-id": None}], rates))])
        client.ask_all(
            request(PRODUCE, 8, produce("limits", [EMPTY_BATCH]), client_id=f"c{i}")
            for i in range(size(5000, 50_000))
        )
        ago_ms = int(time.time() * 1000) - 3_600_000
        client.create("expires", segment_ms="1", retention_ms="3604000")  # four seconds from now
        client.ask_all(
            request(PRODUCE, 8, produce("expires", [build_batch([(None, b"")], timestamp_ms=ago_ms + 2 * i)]))
            for i in range(size(300, 1000))
        )
    expires = broker.data_dir / "expires-0"
    segments = len(list(expires.glob("*.log")))
    assert segments > 200

    def idle() -> Exchanged:
        time.sleep(8)
        return Exchanged()

    judge_work(broker, idle, may_take_bytes=5_000_000)
    deadline = time.monotonic() + TIMEOUT_S
    while len(list(expires.glob("*.log"))) >= segments / 10:
        assert time.monotonic() < deadline, "segments do not expire"
        time.sleep(0.1)
