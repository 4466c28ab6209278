"""Traffic that passes through the gateway: large, many, pipelined, abandoned, and slowly read."""

import socket
import struct
import time

from tests.e2e.plain_client import receive_frame
from tests.gateway.raw_client import RawClient, fetched, produced
from tests.waiting import wait_until

from tidegate.api_keys import FETCH, METADATA, PRODUCE
from tidegate.wire import encode_request

CONNECTIONS = 1000
MOST_HELD_MB = 3
QUIET_S = 10.0


def records_of(answer: dict) -> bytes:
    """Return the records in the answer to a Fetch of one partition."""
    return b"".join(part["records"] or b"" for each in answer["responses"] for part in each["partitions"])


def fill(gateway, topic: str, *, batches: int, size: int) -> None:
    """Produce batches of one record."""
    with RawClient(gateway.port, "filler") as client:
        for _ in range(batches):
            answer = client.produce(topic, size)
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0


def is_produced(client: RawClient, topic: str, partitions: int = 1) -> bool:
    """Produce a record to each partition of a topic; return whether none was refused."""
    answer = client.produce(topic, *[1] * partitions)
    return {part["error_code"] for part in answer["responses"][0]["partition_responses"]} == {0}


def test_large_responses_are_kafkas_own(kafka, gateway, topic, unique):
    """A response of 8 MB, streamed, has the bytes that Kafka sends; so have the next ones of the connection."""
    fill(gateway, topic, batches=9, size=900_000)
    with RawClient(kafka.port, unique) as direct, RawClient(gateway.port, unique) as through:
        for max_bytes in (64 << 20, 8 << 20, 1 << 20, 70_000, 64 << 20):
            expected = direct.fetch(topic, max_bytes=max_bytes)
            found = through.fetch(topic, max_bytes=max_bytes)
            assert records_of(found) == records_of(expected)
        assert len(records_of(found)) > 8_000_000


def test_a_client_that_does_not_read_holds_little(gateway, topic, unique):
    """A fetch of 50 MB that is not read stays with Kafka and in the kernel; others are served meanwhile."""
    fill(gateway, topic, batches=56, size=900_000)
    before_mb = gateway.resident_mb()
    with RawClient(gateway.port, f"{unique}-slow") as slow, RawClient(gateway.port, unique) as other:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        slow.send(FETCH, 11, fetched({topic: {0: 0}}))
        begun = time.monotonic()
        while time.monotonic() - begun < 1.0:
            assert len(records_of(other.fetch(topic, max_bytes=200_000))) >= 200_000
        assert gateway.resident_mb() - before_mb < MOST_HELD_MB
        answer = slow.receive()
        assert len(records_of(answer)) > 50_000_000
        assert slow.produce(topic, 10)["responses"][0]["partition_responses"][0]["error_code"] == 0


def test_many_partitions_are_fetched_at_once(kafka, gateway, create_topic, unique):
    """A Fetch of 200 partitions, and a Produce to all of them, are as those of Kafka."""
    with RawClient(gateway.port, unique) as client:
        create_topic(kafka, unique, 200)
        assert is_produced(client, unique, 200)
        asked = fetched({unique: dict.fromkeys(range(200), 0)})
        with RawClient(kafka.port, unique) as direct:
            expected, found = direct.ask(FETCH, 11, asked), client.ask(FETCH, 11, asked)
        assert records_of(found) == records_of(expected)
        assert len(found["responses"][0]["partitions"]) == 200


def test_pipelined_requests_are_answered_in_order(gateway, topic, unique):
    """Requests of many kinds that were sent together are answered one after the other."""
    with RawClient(gateway.port, unique) as client:
        assert is_produced(client, topic)
        for number in range(50):
            client.send(PRODUCE, 9, produced(topic, 100_000 if number % 10 == 0 else 100))
            client.send(PRODUCE, 9, produced(topic, 100, acks=0))
            client._sent.pop()  # it gets no answer
            client.send(METADATA, 9, _metadata(topic))
            client.send(FETCH, 11, fetched({topic: {0: 0}}, max_bytes=300_000, max_wait_ms=0))
        offsets = []
        for _ in range(50):
            produce, metadata, fetch = client.receive(), client.receive(), client.receive()
            offsets.append(produce["responses"][0]["partition_responses"][0]["base_offset"])
            assert metadata["topics"][0]["name"] == topic
            assert records_of(fetch)
        assert offsets == [1 + 2 * number for number in range(50)]


def _metadata(topic: str) -> dict:
    return {
        "topics": [{"name": topic}],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def test_a_client_that_half_closes_is_answered(gateway, topic, unique):
    """A client that has sent its last byte gets the answers to what it sent."""
    with RawClient(gateway.port, unique) as client:
        assert is_produced(client, topic)
        for _ in range(3):
            client.send(PRODUCE, 9, produced(topic, 100))
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.receive()["responses"][0]["partition_responses"][0]["error_code"] for _ in range(3)] == [
            0, 0, 0,
        ]  # fmt: skip
        assert client.socket.recv(1) == b""


def test_connections_and_streams_leave_no_descriptors(gateway, topic, unique):
    """After a thousand connections that ended in every way the gateway has as many descriptors as before."""
    fill(gateway, topic, batches=1, size=900_000)
    before = gateway.descriptors()
    frame = encode_request(FETCH, 11, 1, unique, fetched({topic: {0: 0}}))
    long_poll = encode_request(FETCH, 11, 1, unique, fetched({topic: {0: 1}}, max_wait_ms=200))
    for number in range(CONNECTIONS):
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as sock:
            way = number % 5
            if way == 0:
                continue
            if way == 4:
                sock.sendall(long_poll)
                continue
            sock.sendall(frame)
            if way == 1:
                assert len(receive_frame(sock)) > 900_000
            elif way == 2:  # in the middle of the stream
                sock.recv(10_000)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: gateway.descriptors() <= before)
    assert "Traceback" not in gateway.log


def test_requests_of_clients_that_left_are_charged(gateway, topic, unique):
    """A producer that leaves before its answer has used its quota all the same."""
    with RawClient(gateway.port, "admin") as admin:
        admin.set_quotas(unique, producer_byte_rate=1_000)
    before = gateway.descriptors()
    for _ in range(3):
        client = RawClient(gateway.port, unique)
        client.send(PRODUCE, 9, produced(topic, 20_000))
        client.socket.close()

    def told() -> int:
        with RawClient(gateway.port, unique) as client:
            return client.produce(topic, 10)["throttle_time_ms"]

    wait_until(lambda: told() > 45_000)  # 60,000 bytes are 6 windows of 10 s
    wait_until(lambda: gateway.descriptors() <= before)
