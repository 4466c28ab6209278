"""Several listeners: limits of their own, the one that is protected, and where clients of each are sent."""

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.memory_network import MemoryNode, MemoryTransport

from tidegate.server.listening.acceptor import MAX_WAITING
from tidegate.wire import encode_request, read_response

METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER = 3, 10, 60
TWO = {
    "listeners": "IN://127.0.0.1:9092,OUT://127.0.0.1:9093",
    "listener_security_protocol_map": "IN:PLAINTEXT,OUT:PLAINTEXT",
}


@pytest.fixture
def node_with(tmp_path: Path) -> Iterator[Callable[..., MemoryNode]]:
    """Return a function that starts a node in memory with two listeners, IN and OUT, and further settings."""
    started: list[MemoryNode] = []

    def start(**settings: str) -> MemoryNode:
        started.append(MemoryNode(tmp_path, **{**TWO, **settings}))
        return started[-1]

    yield start
    for node in started:
        node.close()


def ask(
    node: MemoryNode, client: MemoryTransport, api_key: int, version: int, message: dict[str, Any]
) -> Any:
    """Return the answer to a request whose answer has a flexible header."""
    client.client_send(encode_request(api_key, version, 1, "c1", message))
    node.loop.turn()
    data = client.client_take()
    assert struct.unpack_from(">i", data)[0] == len(data) - 4
    return read_response(api_key, version, data[4:], 5)


def is_served(node: MemoryNode, client: MemoryTransport) -> bool:
    """Return whether the connection was accepted and its requests are answered."""
    if client.closed:
        return False
    client.client_send(encode_request(18, 0, 1, "c1", {}))
    node.loop.turn()
    return bool(client.client_take())


def addresses(node: MemoryNode, listener: str) -> list[tuple[str, int]]:
    """Return where Metadata, FindCoordinator and DescribeCluster say that the node is, to a client of a listener."""
    client = node.connect(listener)
    metadata = ask(
        node, client, METADATA, 9,
        {
            "topics": [], "allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        },
    )  # fmt: skip
    found = ask(node, client, FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
    cluster = ask(node, client, DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False})
    return [
        (at["host"], at["port"]) for at in (*metadata["brokers"], *found["coordinators"], *cluster["brokers"])
    ]


def test_clients_are_told_the_address_of_their_listener(node_with) -> None:
    """What is advertised for it; where nothing is, where it listens. The answers that are kept are told apart."""
    node = node_with(advertised_listeners="OUT://broker.example:19093")
    for _ in range(2):
        assert addresses(node, "IN") == [("127.0.0.1", 9092)] * 3
        assert addresses(node, "OUT") == [("broker.example", 19093)] * 3


@pytest.mark.parametrize(
    "settings",
    [
        {"advertised_listeners": "OUT://:19093"},
        {"listeners": "OUT://:19093,IN://127.0.0.1:1", "tidegate_allow_anonymous": "true"},
        {"listeners": "OUT://0.0.0.0:19093,IN://127.0.0.1:1", "tidegate_allow_anonymous": "true"},
    ],
)
def test_where_no_host_is_said_clients_are_told_this_machines_name(
    node_with, settings: dict[str, str]
) -> None:
    """As Kafka has it, but for 0.0.0.0, which it refuses: there nobody could connect to."""
    node = node_with(**settings)
    assert addresses(node, "OUT") == [(socket.gethostname(), 19093)] * 3


def test_a_listener_that_is_full_leaves_the_other_open(node_with) -> None:
    """Clients of the full one wait until a connection of it closes."""
    node = node_with(listener_name_out_max_connections="1")
    first, second = node.connect("OUT"), node.connect("OUT")
    assert (is_served(node, first), is_served(node, second)) == (True, False)
    assert all(is_served(node, node.connect("IN")) for _ in range(3))
    first.client_end()
    node.loop.turn()
    node.loop.turn()
    assert is_served(node, second), "as soon as there is room, without any time"


@pytest.mark.parametrize("settings", [{"max_connections": "10"}, {"listener_name_out_max_connections": "10"}])
def test_another_address_takes_the_place_of_the_one_that_has_most(
    node_with, settings: dict[str, str]
) -> None:
    """The least recently used of its connections is closed; what more it opens waits for its own."""
    node = node_with(inter_broker_listener_name="IN", **settings)
    crowd = [node.connect("OUT", host="10.0.0.1") for _ in range(10)]
    node.loop.advance(10)
    assert all(is_served(node, client) for client in crowd[1:])
    more = [node.connect("OUT", host="10.0.0.1") for _ in range(3)]
    assert not any(is_served(node, client) for client in more)
    other = node.connect("OUT", host="10.0.0.2")
    assert is_served(node, other)
    assert [is_served(node, client) for client in crowd] == [False] + [True] * 9
    others = [node.connect("OUT", host="10.0.0.2") for _ in range(5)]
    assert [is_served(node, client) for client in others] == [True] * 4 + [False], "half for each"
    other.client_end()
    node.loop.turn()
    node.loop.turn()
    assert is_served(node, more[0]), "who waited first"


def test_an_address_that_is_full_displaces_no_other(node_with) -> None:
    """A connection that is refused in any case, by `max.connections.per.ip`, closes none."""
    node = node_with(max_connections="6", max_connections_per_ip_overrides="10.0.0.2:1")
    crowd = [node.connect("OUT", host="10.0.0.1") for _ in range(5)]
    first, second = (node.connect("OUT", host="10.0.0.2") for _ in range(2))
    assert [is_served(node, client) for client in (*crowd, first, second)] == [True] * 6 + [False]


def test_exact_mode_closes_no_connection_for_another(node_with) -> None:
    """As in Kafka new clients wait, from whatever address."""
    node = node_with(inter_broker_listener_name="IN", max_connections="2", tidegate_kafka_exact="true")
    crowd = [node.connect("OUT", host="10.0.0.1") for _ in range(3)]
    other = node.connect("OUT", host="10.0.0.2")
    assert [is_served(node, client) for client in (*crowd, other)] == [True, True, False, False]


def test_of_many_that_wait_the_oldest_of_the_largest_address_is_closed(node_with) -> None:
    """Descriptors of connections that wait for a slot have a bound."""
    node = node_with(max_connections="1")
    crowd = [node.connect("OUT", host="10.0.0.1") for _ in range(MAX_WAITING + 3)]
    node.loop.turn()
    assert [client.closed for client in crowd[:5]] == [False, True, True, False, False]


def test_a_listener_has_a_rate_of_its_own(node_with) -> None:
    """One that is over its rate accepts nobody for as long as Kafka says; the other takes no notice."""
    node = node_with(listener_name_out_max_connection_creation_rate="1")
    clients = [node.connect("OUT") for _ in range(12)]
    served = [is_served(node, client) for client in clients]
    assert served == [True] * 10 + [False] * 2
    assert all(is_served(node, node.connect("IN")) for _ in range(20))
    node.loop.advance(5000)
    assert is_served(node, clients[10])


def test_who_comes_by_the_protected_listener_takes_the_place_of_who_was_idle_longest(node_with) -> None:
    """It is never closed for `max.connections`; of the others the connection unused for longest is (B§6.9.5).

    Its listener has a maximum of its own here; without one that would be the broker's.
    """
    node = node_with(
        inter_broker_listener_name="IN", max_connections="2", listener_name_in_max_connections="10"
    )
    idle, busy = node.connect("OUT"), node.connect("OUT")
    for _ in range(3):
        node.loop.advance(10)
        assert is_served(node, busy)
    waiting = node.connect("OUT")
    assert not is_served(node, waiting)
    first = node.connect("IN")
    assert [is_served(node, client) for client in (idle, busy, first, waiting)] == [False, True, True, False]
    rest = [node.connect("IN") for _ in range(3)]
    assert [is_served(node, client) for client in (busy, first, *rest)] == [False, True, True, True, True]
    assert node.node.connections.total == 4


def test_listeners_that_are_alike_are_all_closed_for_too_many(node_with) -> None:
    """Where no listener is protected, nobody comes past `max.connections`."""
    node = node_with(max_connections="1")
    first, second = node.connect("OUT"), node.connect("IN")
    assert (is_served(node, first), is_served(node, second)) == (True, False)


def test_connections_and_bytes_are_counted_by_listener(node_with) -> None:
    """Each with what came by it; what the one thread does is the same for both."""
    node = node_with()
    clients = [node.connect("IN"), node.connect("OUT"), node.connect("OUT")]
    assert all(is_served(node, client) for client in clients)
    frame = encode_request(18, 0, 1, "c1", {})
    found = {
        listener: {
            metric.name: metric.value
            for metric in node.node.metrics(node.node.clock.now_ms())
            if metric.tags == {"listener": listener, "networkProcessor": "0"}
        }
        for listener in ("IN", "OUT")
    }
    for listener, count in (("IN", 1), ("OUT", 2)):
        totals = [found[listener][name] for name in ("connection-count", "response-total", "request-total")]
        assert totals == [count] * 3
        assert found[listener]["incoming-byte-total"] == count * len(frame)
    assert found["IN"].keys() == found["OUT"].keys()
    assert found["IN"]["select-total"] == found["OUT"]["select-total"] > 0
