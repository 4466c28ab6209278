"""The watch over muted sockets, on real sockets and a real event loop."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest

from tidegate.server.connection.mute_watch import MuteWatch

CLIENTS = 128
MOST_AT_ONCE = 16  # charging a client that leaves for what it had sent takes up to 0.3 ms


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Return both ends of some connections, the server's first."""
    with contextlib.ExitStack() as stack:
        yield [
            (stack.enter_context(first), stack.enter_context(second))
            for first, second in (socket.socketpair() for _ in range(CLIENTS))
        ]


def test_clients_that_leave_together_do_not_hold_the_loop(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    """Each is reported once, and the loop does other work in between."""
    left: list[int] = []
    seen = asyncio.run(_leave_together(pairs, left))
    assert sorted(left) == list(range(CLIENTS))
    assert max(after - before for before, after in pairwise(seen)) <= MOST_AT_ONCE


async def _leave_together(pairs: list[tuple[socket.socket, socket.socket]], left: list[int]) -> list[int]:
    """Close the clients' ends; return how many had been reported at each turn of the loop."""
    watch = MuteWatch(asyncio.get_running_loop())

    def on_gone(number: int, _is_broken: bool) -> None:
        left.append(number)

    for number, (server, _) in enumerate(pairs):
        watch.watch(server.fileno(), pytest.fail, partial(on_gone, number))
    for _, client in pairs:
        client.close()
    seen = [0]
    while len(left) < CLIENTS:
        await asyncio.sleep(0)
        seen.append(len(left))
    watch.close()
    return seen
