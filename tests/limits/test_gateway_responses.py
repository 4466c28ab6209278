"""A gateway reads the responses of its brokers on the event loop: the largest ones delay other clients by little."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.limits.bounds import HOLD_MS
from tests.unit.gateway.test_metadata import broker, response

from tidegate.gateway.addresses import Addresses
from tidegate.gateway.metadata import MAX_BROKERS, with_addresses
from tidegate.gateway.relay import handle_with_addresses
from tidegate.gateway.responses import Rewriter
from tidegate.gateway.upstream_response import Response
from tidegate.server.requests.handler import Deferred, Request
from tidegate.wire import Message, decode_request_header, encode_request, encode_response, read_response

pytestmark = pytest.mark.alone

ATTEMPTS = 7
FIND_COORDINATOR, DESCRIBE_CLUSTER = 10, 60
COUNT = 20_000


@pytest.mark.parametrize("version", [0, 1, 8, 9, 12])
@pytest.mark.parametrize(
    ("first_id", "host"),
    [
        pytest.param(0, "gateway.example.com", id="with ports"),
        pytest.param(100_000, "gateway.example.com", id="without ports"),
        pytest.param(100_000, "broker-{id}.example.com", id="with names"),
    ],
)
def test_metadata_of_the_largest_cluster(version: int, first_id: int, host: str) -> None:
    """Addresses are replaced in one step, which takes no longer than others may; the best attempt counts."""
    brokers = [broker(first_id + number, f"kafka-{number}.example.com") for number in range(MAX_BROKERS)]
    frame, addresses = response(version, brokers), Addresses({"L": (host, 19_092)})
    times_ms = []
    for _ in range(ATTEMPTS):
        begun_ns = time.thread_time_ns()
        with_addresses(frame, version, 8 + (version >= 9), addresses, "L")
        times_ms.append((time.thread_time_ns() - begun_ns) / 1e6)
    assert min(times_ms) < HOLD_MS, times_ms


class AnsweringUpstream:
    """A connection to a broker that has answered already."""

    closed = False

    def __init__(self, answer: bytes) -> None:
        self._answer = bytearray(answer)

    def start(self, request: Request, respond: Any) -> Deferred:
        """Return the answer."""
        deferred = Deferred()
        response = Response(self._answer, len(self._answer) - 4, None)
        deferred.complete(respond(request.header, response))
        return deferred

    def send_rest(self, request: Request) -> tuple[()]:
        """Send nothing."""
        return ()


@pytest.mark.parametrize("api_key", [FIND_COORDINATOR, DESCRIBE_CLUSTER])
def test_many_addresses_in_a_response(api_key: int) -> None:
    """Coordinators of as many groups as a client asks for, brokers of a large cluster: each step is short."""
    version, asked, answer, list_name = MESSAGES[api_key]
    frame = memoryview(encode_request(api_key, version, 5, "x", asked))[4:]
    responded = b"".join(encode_response(api_key, version, 5, answer).buffers)
    rewriter = Rewriter(Addresses({"L": ("gateway", 1000)}))
    longest_ms = []
    for _ in range(ATTEMPTS):
        connection: Any = SimpleNamespace(listener="L", upstream=AnsweringUpstream(responded))
        request = Request(decode_request_header(frame), frame, connection, None, 0)  # type: ignore[arg-type]
        steps, step_ms, begun_ns = handle_with_addresses(rewriter, request), [], time.thread_time_ns()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                made = done.value.response
                break
            finally:
                now_ns = time.thread_time_ns()
                step_ms.append((now_ns - begun_ns) / 1e6)
                begun_ns = now_ns
        longest_ms.append(max(step_ms))
    found = read_response(api_key, version, memoryview(b"".join(made.buffers))[4:], 5)[list_name]
    assert [(each["host"], each["port"]) for each in found] == [("gateway", 1000 + n) for n in range(COUNT)]
    assert min(longest_ms) < HOLD_MS, longest_ms


def place(number: int, id_name: str) -> Message:
    """Return a broker in a response."""
    return {id_name: number, "host": f"kafka-{number}.example.com", "port": 9092}


COORDINATORS = [
    {**place(number, "node_id"), "key": f"group-{number}", "error_code": 0, "error_message": None}
    for number in range(COUNT)
]
CLUSTER = {"error_code": 0, "error_message": None, "cluster_id": "c", "controller_id": 1}
MESSAGES: dict[int, tuple[int, Message, Message, str]] = {
    FIND_COORDINATOR: (
        *(4, {"key_type": 0, "coordinator_keys": [each["key"] for each in COORDINATORS]}),
        *({"throttle_time_ms": 0, "coordinators": COORDINATORS}, "coordinators"),
    ),
    DESCRIBE_CLUSTER: (
        *(0, {"include_cluster_authorized_operations": False}),
        {
            **{"throttle_time_ms": 0, **CLUSTER, "cluster_authorized_operations": 0},
            "brokers": [{**place(number, "broker_id"), "rack": None} for number in range(COUNT)],
        },
        "brokers",
    ),
}
