"""Accepting: many at once, descriptors kept for the logs, and errors of ours."""

import asyncio
import contextlib
import errno
import re
import select
import socket
import time

import pytest
from bench.ports import free_port
from tests.descriptors import limited_descriptors
from tests.server.nodes import RunningNode, until

from tidegate.errors import ConfigError
from tidegate.server.listening.listener import bindable
from tidegate.server.listening.network import SocketNetwork
from tidegate.server.settings.config import ServerConfig


def connecting(port: int, count: int) -> list[socket.socket]:
    """Return sockets that have begun to connect."""
    clients = []
    for _ in range(count):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
        clients.append(client)
    return clients


async def connected(node: RunningNode, count: int) -> list[socket.socket]:
    """Return sockets that the node has accepted."""
    clients: list[socket.socket] = []
    while len(clients) < count:
        clients += connecting(node.node.listeners["PLAINTEXT"].port, 500)
        wanted = len(clients)
        await until(lambda wanted=wanted: len(node.node._front.channels) == wanted)
    return clients


def test_many_clients_can_connect_while_the_loop_is_busy(with_node) -> None:
    """After a restart all clients come at once: 500 are connected though nobody has accepted yet.

    A client that finds the queue full tries again after a second, then after three.
    """

    async def scenario(node: RunningNode) -> None:
        clients = connecting(node.node.listeners["PLAINTEXT"].port, 500)
        time.sleep(0.2)  # the loop is busy
        _, connected, _ = select.select([], clients, [], 0)
        assert len(connected) == 500
        await until(lambda: len(node.node._front.channels) == 500)
        for client in clients:
            client.close()
        await until(lambda: not node.node._front.channels)

    with_node(scenario)


def ways_in() -> list[tuple[int, str, str]]:
    """Return families of sockets, this machine's address in each, and how Java writes it; without IPv6, IPv4's."""
    ways = [(socket.AF_INET, "127.0.0.1", "127.0.0.1")]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        ways.append((socket.AF_INET6, "::1", "0:0:0:0:0:0:0:1"))
    return ways


@pytest.mark.parametrize("host", ["", "[::]"])
def test_all_addresses_are_those_of_ipv4_and_ipv6(with_node, host: str) -> None:
    """As Kafka's, and who connects is named as Java names addresses: ACLs, groups and the usage record have it so."""

    async def scenario(node: RunningNode) -> None:
        port = node.node.listeners["PLAINTEXT"].port
        for family, address, written in ways_in():
            with socket.socket(family) as client:
                client.connect((address, port))
                await until(lambda: len(node.node._front.channels) == 1)
                (channel,) = node.node._front.channels
                assert channel.connection.client_host == written
            await until(lambda: not node.node._front.channels)

    with_node(scenario, listeners=f"PLAINTEXT://{host}:0", tidegate_allow_anonymous="true")


def test_all_addresses_of_ipv4_are_no_others(with_node) -> None:
    """0.0.0.0 opens nothing that it does not say."""

    async def scenario(node: RunningNode) -> None:
        assert await (await node.connect()).metadata()
        with socket.socket(socket.AF_INET6) as client:
            assert client.connect_ex(("::1", node.node.listeners["PLAINTEXT"].port)) != 0

    with_node(scenario, listeners="PLAINTEXT://0.0.0.0:0", tidegate_allow_anonymous="true")


def test_a_name_of_both_families_is_bound_as_ipv4() -> None:
    """As in Java, whatever order the system gives them in: Debian's localhost is ::1 first. Else the first of them."""
    tcp = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    first, second = (socket.AF_INET6, *tcp, ("::1", 9, 0, 0)), (socket.AF_INET6, *tcp, ("fe80::1", 9, 0, 2))
    fourth = (socket.AF_INET, *tcp, ("127.0.0.1", 9))
    assert bindable([first, second, fourth]) == (socket.AF_INET, ("127.0.0.1", 9))
    assert bindable([first, second]) == (socket.AF_INET6, ("::1", 9, 0, 0))


def test_descriptors_are_kept_for_logs(with_node, caplog) -> None:
    """Connections are refused, in one kind of line, while files can still be opened; later they are accepted again."""

    async def scenario(node: RunningNode) -> None:
        good = await node.connect()
        listener = node.node.listeners["PLAINTEXT"]
        with limited_descriptors() as descriptors, contextlib.ExitStack() as stack:
            limit = descriptors.lowest_free() * 4 // 3 + 80  # of which a quarter is kept
            descriptors.limit(limit)
            listener.start()
            descriptors.use_up_to(limit - limit // 4 - 8)
            for client in connecting(listener.port, 6):  # these take descriptors of this process too
                stack.callback(client.close)
            await until(lambda: listener.refused > 0)
            await good.metadata()
            descriptors.use(10)
            assert all(channel.transport.fd < limit - limit // 4 for channel in node.node._front.channels)
        await until(lambda: len(node.node._front.channels) == 1)
        await (await node.connect()).metadata()

    with_node(scenario)
    assert {record.repeats for record in caplog.records} == {"descriptors"}
    assert "reserved for logs and the usage record" in caplog.records[0].getMessage()


def test_connections_that_wait_for_a_slot_make_room_where_descriptors_run_out(with_node, caplog) -> None:
    """The oldest of them closes; the client that is served stays, and none is refused."""

    async def scenario(node: RunningNode) -> None:
        good = await node.connect()
        await good.metadata()
        listener, acceptor = node.node.listeners["PLAINTEXT"], node.node._acceptors["PLAINTEXT"]
        with contextlib.ExitStack() as stack, limited_descriptors() as descriptors:
            clients = [stack.enter_context(each) for each in connecting(listener.port, 5)]
            await until(lambda: len(acceptor._waiting) == 5)
            late = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
            descriptors.limit(descriptors.lowest_free() + 1)
            listener.start()
            await until(lambda: select.select(clients, [], [], 0)[0] == clients[:1])
            assert len(acceptor._waiting) == 5
            assert listener.refused == 0
            assert select.select([late], [], [], 0)[0] == []
            await good.metadata()

    with_node(scenario, max_connections="1")
    assert not caplog.records


def test_without_any_descriptor_connections_are_closed(with_node, caplog) -> None:
    """A client is told at once, though nothing can be opened any more; with descriptors left it is served again."""

    async def scenario(node: RunningNode) -> None:
        good = await node.connect()
        port = node.node.listeners["PLAINTEXT"].port
        with contextlib.ExitStack() as stack, limited_descriptors() as descriptors:
            clients = [stack.enter_context(socket.socket()) for _ in range(5)]
            descriptors.limit(descriptors.lowest_free() + 100)
            descriptors.use_all()
            for client in clients:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            await until(lambda: node.node.listeners["PLAINTEXT"].refused == 5)
            assert [client.recv(1) for client in clients] == [b""] * 5
            await good.metadata()
            assert len(node.node._front.channels) == 1
        await (await node.connect()).metadata()

    with_node(scenario)
    assert {record.repeats for record in caplog.records} == {"descriptors"}


def test_a_connection_that_cannot_be_served_takes_no_slot(with_node, caplog) -> None:
    """An error of ours while a connection is taken closes it, gives its slot back, and the next one is taken."""

    async def scenario(node: RunningNode) -> None:
        admitted = node.node._acceptors["PLAINTEXT"]._on_admitted

        def fail(*_: object) -> None:
            node.node._acceptors["PLAINTEXT"]._on_admitted = admitted
            raise OSError("as asked")

        node.node._acceptors["PLAINTEXT"]._on_admitted = fail
        assert await (await node.connect()).closed()
        assert node.node.connections.total == 0
        await (await node.connect()).metadata()
        await asyncio.sleep(0)

    with_node(scenario)
    assert [record.getMessage() for record in caplog.records] == [
        "closed a new connection (listener PLAINTEXT): internal error"
    ]


@pytest.mark.alone
def test_connections_that_close_together_do_not_hold_the_loop(with_node) -> None:
    """2,000 clients that leave in the same moment are let go of in turns."""

    async def scenario(node: RunningNode) -> None:
        clients = await connected(node, 2000)
        for client in clients:
            client.close()
        longest_s, begun = 0.0, time.thread_time()
        while node.node._front.channels:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest_s, begun = max(longest_s, now - begun), now
        assert longest_s < 0.02

    with_node(scenario)


@pytest.mark.alone
def test_idle_connections_are_closed_without_holding_the_loop(with_node) -> None:
    """2,000 connections that have become idle together are closed in slices."""

    async def scenario(node: RunningNode) -> None:
        clients = await connected(node, 2000)
        for channel in node.node._front.channels:
            channel.last_active_ns -= 10**15
        longest_s, begun = 0.0, time.thread_time()
        node.node.closing.idle()
        while node.node._front.channels:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest_s, begun = max(longest_s, now - begun), now
        assert longest_s < 0.02
        for client in clients:
            client.close()

    with_node(scenario)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("a..b", "invalid host name"),
        ("x" * 64 + ".example", "invalid host name"),
        ("no.such.host.invalid", ""),
    ],
)
def test_a_host_that_cannot_be_listened_on_is_named(host, reason) -> None:
    """Whatever the resolver says of the name, it is an error of the settings with the address in it."""
    texts = {"listeners": f"PLAINTEXT://{host}:1", "tidegate.allow.anonymous": "true"}
    address = ServerConfig.load(texts).listeners[0].address

    async def listen() -> None:
        network = SocketNetwork(asyncio.get_running_loop(), time.monotonic_ns)
        try:
            network.listen(address, ServerConfig.load({}), print, lambda host: False)
        finally:
            network.poller.close()

    with pytest.raises(ConfigError, match=re.escape(f"cannot listen on {host}:1: {reason}")):
        asyncio.run(listen())


def test_a_listener_refuses_and_accepts_again_at_its_port(with_node) -> None:
    """A gateway's port refuses clients while its broker is down; meanwhile no other program can bind it."""
    port = free_port()

    async def scenario(node: RunningNode) -> None:
        (client,) = await connected_to(node, 1)
        node.node.refuse_connections()
        node.node.listeners["PLAINTEXT"].start()  # by a rate of connections that allows one again
        assert [status(port) for _ in range(3)] == [errno.ECONNREFUSED] * 3
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        node.node.accept_connections()
        clients = connecting(port, 100)
        await until(lambda: len(node.node._front.channels) == 101)
        for each in (client, *clients):
            each.close()

    async def connected_to(node: RunningNode, count: int) -> list[socket.socket]:
        clients = connecting(port, count)
        await until(lambda: len(node.node._front.channels) == count)
        return clients

    def status(port: int) -> int:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port))

    with_node(scenario, listeners=f"PLAINTEXT://127.0.0.1:{port}")
