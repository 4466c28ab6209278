"""A broker that breaks the protocol costs one client its connection, and one line in the log; nothing else."""

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from tests.e2e.plain_client import receive_frame
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.hostility import garbled
from tests.gateway.lying_broker import BROKER_ID, LyingBroker
from tests.wire.odd_messages import plain_message

from tidegate import error_codes
from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
)
from tidegate.wire import encode_request, encode_response, read_response
from tidegate.wire.header import decode_response_header

TIMEOUT_S = 20.0
GARBLED_RESPONSES = 3000
MOST_GROWTH_MB = 8
_HEAD = struct.Struct(">ii")


@pytest.fixture(scope="module")
def broker() -> Iterator[LyingBroker]:
    """Return the server."""
    server = LyingBroker()
    yield server
    server.close()


@pytest.fixture(scope="module")
def lied_to(broker, tmp_path_factory) -> Iterator[GatewayProcess]:
    """Return a gateway before it; it has a second life after each test that ends it."""
    directory = tmp_path_factory.mktemp("lied-to")
    quotas = directory / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    process = GatewayProcess(directory, broker.address, ("--quotas", str(quotas))).start()
    yield process
    process.close()


def request(api_key: int, version: int, client_id: str, correlation_id: int = 77) -> bytes:
    """Return a plain request with its length."""
    return encode_request(api_key, version, correlation_id, client_id, plain_message(api_key, version))


def connected(gateway: GatewayProcess) -> socket.socket:
    """Return a connection to the gateway."""
    return socket.create_connection(("127.0.0.1", gateway.ports[BROKER_ID]), timeout=TIMEOUT_S)


def received(sock: socket.socket, size: int = 1 << 40) -> bytes:
    """Return the next bytes, up to `size` or the end of the connection."""
    data = bytearray()
    try:
        while len(data) < size and (part := sock.recv(min(size - len(data), 1 << 20))):
            data += part
    except ConnectionResetError:
        pass
    return bytes(data)


def ask(sock: socket.socket, frame: bytes) -> bytes:
    """Send a request and return the response without its length; b"" where the connection ends instead."""
    try:
        sock.sendall(frame)
        return receive_frame(sock)
    except ConnectionError:
        return b""


def frame(correlation_id: int, body: bytes) -> bytes:
    """Return a response."""
    return _HEAD.pack(4 + len(body), correlation_id) + body


LIES = {
    "another correlation id": (METADATA, 9, frame(78, bytes(20)), "does not fit"),
    "another correlation id of a stream": (LIST_OFFSETS, 4, frame(78, bytes(100_000)), "does not fit"),
    "a negative length": (LIST_OFFSETS, 4, _HEAD.pack(-1, 77), "does not fit"),
    "a length without a correlation id": (LIST_OFFSETS, 4, _HEAD.pack(2, 77), "does not fit"),
    "a response too long to be read": (METADATA, 9, _HEAD.pack(2**31 - 1, 77) + bytes(100), "at most"),
    "bytes behind the response": (LIST_OFFSETS, 4, frame(77, bytes(8)) + b"more", "does not fit"),
    "no body of Metadata": (METADATA, 9, frame(77, b""), "Metadata"),
    "no body of ApiVersions": (API_VERSIONS, 3, frame(77, b""), "ApiVersions"),
    "garbage for Metadata": (METADATA, 9, frame(77, b"\xff" * 200), "Metadata"),
    "garbage for ApiVersions": (API_VERSIONS, 3, frame(77, b"\0\0\xff\xff\xff\xff" * 20), "ApiVersions"),
    "garbage for FindCoordinator": (FIND_COORDINATOR, 3, frame(77, b"\xff" * 20), "FindCoordinator"),
    "an end in place of a response": (LIST_OFFSETS, 4, b"", "closed the connection"),
    "half a short response": (LIST_OFFSETS, 4, frame(77, bytes(50))[:30], "closed the connection"),
    "half of Metadata": (METADATA, 9, frame(77, bytes(500_000))[:300_000], "closed the connection"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_one_connection_with_one_line(broker, lied_to, lie):
    """The client's connection closes without a byte of the lie; the log says why; a neighbour is served on."""
    api_key, version, answer, reason = LIES[lie]

    def tell(sock, header):
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_WR)

    broker.lies[lie] = tell
    logged = len(lied_to.log)
    with connected(lied_to) as neighbour, connected(lied_to) as client:
        assert ask(neighbour, request(METADATA, 9, "neighbour"))
        client.sendall(request(api_key, version, lie))
        assert received(client) == b""
        assert ask(neighbour, request(METADATA, 9, "neighbour"))
    lines = lied_to.log[logged:].splitlines()
    assert len(lines) <= 1, lines  # alike lines are written once a minute
    assert reason in lied_to.log, lied_to.log


def asked(gateway: GatewayProcess, api_key: int, version: int, client_id: str) -> dict:
    """Return the decoded response to a plain request."""
    with connected(gateway) as sock:
        answer = memoryview(ask(sock, request(api_key, version, client_id)))
    _, at = decode_response_header(answer, api_key, version)
    return read_response(api_key, version, answer, at)


def test_a_broker_without_a_port_is_left_out(broker, lied_to):
    """Its id is too high for the port of the listener: clients use the others; the log says why they do not see it."""
    hidden = 2**31 - 1
    brokers = [
        {"node_id": each, "host": f"kafka-{each}", "port": 9092, "rack": "r"}
        for each in (hidden, 1, hidden, 2)
    ]
    messages = {
        METADATA: {**broker.metadata(), "brokers": brokers},
        FIND_COORDINATOR: {**brokers[0], "throttle_time_ms": 0, "error_code": 0, "error_message": None},
    }

    def tell(sock, header):
        message = messages[header.api_key]
        encoded = encode_response(header.api_key, header.api_version, header.correlation_id, message)
        sock.sendall(b"".join(encoded.buffers))

    broker.lies["no port"] = tell
    seen = [(each, f"127.0.0.1:{lied_to.base_port + each}") for each in (1, 2)]
    for version in (0, 1, 4, 9):
        found = asked(lied_to, METADATA, version, "no port")
        assert [(each["node_id"], f"{each['host']}:{each['port']}") for each in found["brokers"]] == seen
        assert found["topics"] == []
    for version in (0, 3):
        found = asked(lied_to, FIND_COORDINATOR, version, "no port")
        assert (found["error_code"], found["node_id"]) == (error_codes.COORDINATOR_NOT_AVAILABLE, -1)
    assert f"clients do not see broker {hidden}: broker {hidden} has no port" in lied_to.log


@pytest.mark.parametrize("ending", ["end", "half-close", "reset"])
def test_a_stream_that_ends_too_early_ends_the_connection(broker, lied_to, ending):
    """The client gets what came of a long response, and then the end: it sees what it would see of the broker."""
    answer = frame(77, bytes(range(256)) * 8000)[:700_000]
    has_all = threading.Event()  # a reset discards what has not been read

    def tell(sock, header):
        sock.sendall(answer)
        assert has_all.wait(TIMEOUT_S)
        if ending == "half-close":
            sock.shutdown(socket.SHUT_WR)
            return
        if ending == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    broker.lies[ending] = tell
    with connected(lied_to) as client:
        client.sendall(request(LIST_OFFSETS, 4, ending))
        assert received(client, len(answer)) == answer
        has_all.set()
        assert received(client) == b""
    assert_healthy(lied_to)


def test_unasked_bytes_end_the_connection(broker, lied_to):
    """A broker that sends something between two requests is not believed."""
    is_answered = threading.Event()

    def tell(sock, header):
        sock.sendall(broker.honest_frame(header))
        assert is_answered.wait(TIMEOUT_S)
        sock.sendall(b"unasked")

    broker.lies["unasked"] = tell
    logged = len(lied_to.log)
    with connected(lied_to) as client:
        assert ask(client, request(LIST_OFFSETS, 4, "unasked"))
        is_answered.set()
        assert received(client) == b""
    assert lied_to.log[logged:].count("no request asked for") == 1


def test_a_response_byte_by_byte_arrives(broker, lied_to):
    """A slow broker delays its client, and no other one."""

    def tell(sock, header):
        for byte in broker.honest_frame(header):
            sock.sendall(bytes([byte]))
            time.sleep(0.01)

    broker.lies["slow"] = tell
    with connected(lied_to) as client, connected(lied_to) as neighbour:
        client.sendall(request(METADATA, 9, "slow"))
        assert ask(neighbour, request(METADATA, 9, "neighbour"))
        assert receive_frame(client)


def test_garbled_responses_leave_no_trace(broker, lied_to):
    """Thousands of responses with random bytes: connections close or answers pass, without a traceback or growth."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    kinds = [
        *((key, version) for key in (METADATA, FIND_COORDINATOR, API_VERSIONS) for version in range(4)),
        *((PRODUCE, version) for version in range(3, 10)),
        *((FETCH, version) for version in range(4, 12)),
        (METADATA, 9),
        (LIST_OFFSETS, 4),
    ]

    def tell(sock, header):
        answer = garbled(rng, broker.honest_frame(header))
        sock.sendall(answer)
        if struct.unpack_from(">i", answer)[0] > len(answer) - 4:
            sock.shutdown(socket.SHUT_WR)  # nothing follows, as the length says

    broker.lies["garbled"] = tell
    before_mb = 0.0
    number = 0
    while number < GARBLED_RESPONSES:
        with connected(lied_to) as client:
            while ask(client, request(*rng.choice(kinds), "garbled")) and number < GARBLED_RESPONSES:
                number += 1
        number += 1
        if not before_mb and number >= GARBLED_RESPONSES // 3:
            before_mb = lied_to.resident_mb()
    assert lied_to.resident_mb() - before_mb < MOST_GROWTH_MB
    assert_healthy(lied_to)


def assert_healthy(gateway: GatewayProcess) -> None:
    """Check that the gateway runs, has written no traceback, and serves."""
    assert gateway.process.poll() is None
    assert "Traceback" not in gateway.log, gateway.log[-3000:]
    with connected(gateway) as sock:
        assert ask(sock, request(METADATA, 9, "health"))


def test_metadata_of_many_partitions_holds_up_no_other_client(broker, lied_to):
    """The addresses of a response about 10,000 partitions are replaced; others wait less than 20 ms meanwhile."""
    partition = {
        "error_code": 0,
        "leader_id": 1,
        "leader_epoch": 1,
        "replica_nodes": [1, 2, 3],
        "isr_nodes": [1, 2, 3],
        "offline_replicas": [],
    }
    topic = {"error_code": 0, "is_internal": False, "topic_authorized_operations": 0}
    topics = [
        {
            **topic,
            "name": f"topic-{number}",
            "partitions": [{**partition, "partition_index": index} for index in range(100)],
        }
        for number in range(100)
    ]
    brokers = [{"node_id": node, "host": f"kafka{node}", "port": 9092, "rack": None} for node in (1, 2, 3)]

    message = {
        "throttle_time_ms": 0,
        "brokers": brokers,
        "cluster_id": "many",
        "controller_id": 1,
        "topics": topics,
        "cluster_authorized_operations": 0,
    }
    frames = {
        version: b"".join(encode_response(METADATA, version, 77, message).buffers) for version in (1, 4, 9)
    }

    def tell(sock, header):
        sock.sendall(frames[header.api_version])

    broker.lies["many"] = tell
    for version in frames:
        with connected(lied_to) as client, connected(lied_to) as neighbour:
            longest_s = []
            for _ in range(5):
                client.sendall(request(METADATA, version, "many"))
                longest_s.append(0.0)
                until = time.monotonic() + 0.2
                while time.monotonic() < until:
                    begun, waited_s = time.monotonic(), lied_to.waited_s()
                    assert ask(neighbour, request(LIST_OFFSETS, 4, "neighbour"))
                    waited_s = lied_to.waited_s() - waited_s
                    longest_s[-1] = max(longest_s[-1], time.monotonic() - begun - waited_s)
                frame = receive_frame(client)
                if longest_s[1:]:
                    continue
                _, at = decode_response_header(memoryview(frame), METADATA, version)
                found = read_response(METADATA, version, memoryview(frame), at)
                assert [each["port"] for each in found["brokers"]] == [
                    lied_to.base_port + node for node in (1, 2, 3)
                ]
                assert sum(len(each["partitions"]) for each in found["topics"]) == 10_000
        assert min(longest_s) < 0.02, (version, longest_s)


def test_malformed_alterations_are_refused_though_the_broker_is_silent(broker, lied_to):
    """A request for quotas is read before the broker is asked for the client's rights."""
    broker.lies["silent"] = lambda sock, header: None
    with connected(lied_to) as client:
        client.settimeout(5.0)
        cut = request(ALTER_CLIENT_QUOTAS, 1, "silent")[4:-1]
        client.sendall(struct.pack(">i", len(cut)) + cut)
        assert received(client) == b""
