"""Accept queues: the kernel chooses one by the client's address."""

import contextlib
import select
import socket

import pytest
from tests.server.listening.test_listener import ways_in
from tests.server.nodes import RunningNode, until

from tidegate.server.listening import accept_queues
from tidegate.server.listening.accept_queues import QUEUES, bind_queues, listen_on


def bound(family: int, address: str) -> socket.socket:
    sock = socket.socket(family)
    sock.bind((address, 0))
    return sock


def ready_index(queues: list[socket.socket]) -> int:
    """Return the index of the queue with a connection, which is taken from it."""
    (ready,), _, _ = select.select(queues, [], [], 5)
    ready.accept()[0].close()
    return queues.index(ready)


def expected_index(address: str) -> int:
    """Return the queue of an address: the highest bits of its product with 2^32 over the golden ratio."""
    if ":" in address:
        high, low = (
            int.from_bytes(socket.inet_pton(socket.AF_INET6, address)[at : at + 4], "big") for at in (0, 4)
        )
        word = high ^ low
    else:
        word = int.from_bytes(socket.inet_aton(address), "big")
    return (word * 0x9E3779B1 % 2**32) * QUEUES >> 32


@pytest.mark.parametrize(("family", "address"), [way[:2] for way in ways_in()])
def test_the_queue_follows_the_address(family: int, address: str) -> None:
    sources = [f"127.0.0.{number}" for number in range(1, 41)] if family == socket.AF_INET else [address]
    queues = bind_queues(bound(family, address))
    listen_on(queues, 10)
    assert len(queues) == QUEUES
    with contextlib.ExitStack() as closing:
        for queue in queues:
            closing.enter_context(queue)
        for source in sources:
            with bound(family, source) as client:
                client.connect((address, queues[0].getsockname()[1]))
                assert ready_index(queues) == expected_index(source)
    assert len({expected_index(source) for source in sources}) == min(len(sources), QUEUES)


def joined(port: int) -> socket.socket:
    """Return a socket at a port that another process of the gateway has bound."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock


def test_connections_of_one_address_are_spread_over_processes() -> None:
    """Each process gets its part of them, all in the queue of the address."""
    processes = 3
    first = bind_queues(bound(socket.AF_INET, "127.0.0.1"))
    port = first[0].getsockname()[1]
    all_queues = [first, *(bind_queues(joined(port)) for _ in range(processes - 1))]
    with contextlib.ExitStack() as closing:
        for queues in all_queues:
            listen_on(queues, 10, processes=processes)
            for queue in queues:
                closing.enter_context(queue)
        together = [queue for queues in all_queues for queue in queues]
        found = []
        for _ in range(90):
            with bound(socket.AF_INET, "127.0.0.9") as client:
                client.connect(("127.0.0.1", port))
                found.append(divmod(ready_index(together), QUEUES))
    assert {queue for _, queue in found} == {expected_index("127.0.0.9")}
    counts = [sum(process == number for process, _ in found) for number in range(processes)]
    assert min(counts) >= 10, counts  # 30 each; so few by chance: less than once in a million


def test_a_full_queue_of_one_address_delays_no_other() -> None:
    """Without this the kernel would drop the other client's attempt too, and it would try again after a second."""
    queues = bind_queues(bound(socket.AF_INET, "127.0.0.1"))
    listen_on(queues, 10)
    port = queues[0].getsockname()[1]
    with contextlib.ExitStack() as closing:
        for queue in queues:
            closing.enter_context(queue)
        crowd = []
        for _ in range(40):
            client = closing.enter_context(bound(socket.AF_INET, "127.0.0.2"))
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            crowd.append(client)
        _, connected, _ = select.select([], crowd, [], 0.2)
        assert len(connected) < 20, "the queue of the crowd is not full: the test shows nothing"
        with bound(socket.AF_INET, "127.0.0.3") as other:
            other.settimeout(0.5)
            other.connect(("127.0.0.1", port))


def test_without_a_choice_by_address_there_is_one_queue(with_node, monkeypatch) -> None:
    """Where the kernel refuses the program, the listener works as any other."""

    def refuse(sock: socket.socket, processes: int) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(accept_queues, "_attach", refuse)

    async def scenario(node: RunningNode) -> None:
        assert len(node.node.listeners["PLAINTEXT"]._queues) == 1
        clients = [await node.connect() for _ in range(20)]
        assert await clients[-1].metadata()
        await until(lambda: len(node.node._front.channels) == 20)

    with_node(scenario)


def test_the_port_of_a_listener_is_its_own() -> None:
    """No other program gets it: neither one that asks for it nor one that asks for any port, with SO_REUSEADDR."""
    queues = bind_queues(bound(socket.AF_INET, "127.0.0.1"))
    listen_on(queues, 10)
    with contextlib.ExitStack() as closing:
        for queue in queues:
            closing.enter_context(queue)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(queues[0].getsockname())
