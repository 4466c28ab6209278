"""Grants of memory to requests that are coming in: bounded, in order, and nobody keeps others out for ever."""

import random
from collections.abc import Callable

from tidegate.server.connection.request_memory import GRACE_S, NO_BOUND, SLOWEST_S, RequestMemory


class Client:
    """Notes that it was granted."""

    def __init__(self) -> None:
        self.collected_bytes = 0
        self.granted = False

    def on_grant(self) -> None:
        """Note it."""
        self.granted = True


class Clock:
    """A clock that stands still, and calls that wait for the next turn."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.calls: list[Callable[[], bool]] = []

    def turns(self) -> None:
        """Call what waits, until it is done."""
        while self.calls:
            if self.calls[0]():
                del self.calls[0]


def memory_of(clock: Clock, most_bytes: int) -> RequestMemory:
    """Return a memory of `most_bytes`."""
    return RequestMemory(most_bytes, monotonic_ns=lambda: clock.now_ns, later=clock.calls.append)


def test_who_does_not_fit_waits_in_order() -> None:
    """A small request does not overtake a large one that waits: none waits for ever."""
    clock = Clock()
    memory = memory_of(clock, 1000)
    first, large, small = Client(), Client(), Client()
    assert memory.ask(first, 600)
    assert not memory.ask(large, 500)
    assert not memory.ask(small, 10)
    memory.give_back(first)
    clock.turns()
    assert (large.granted, small.granted) == (True, True)
    assert (memory.granted_bytes, memory.waiting) == (510, 0)


def test_one_request_always_fits() -> None:
    """One that is larger than the bound is granted when it is alone, and others wait for it."""
    clock = Clock()
    memory = memory_of(clock, 1000)
    large, small = Client(), Client()
    assert memory.ask(large, 5000)
    assert not memory.ask(small, 1)
    memory.give_back(large)
    clock.turns()
    assert small.granted


def test_without_a_bound_nobody_waits() -> None:
    """-1 is Kafka's word for no bound."""
    memory = memory_of(Clock(), NO_BOUND)
    assert all(memory.ask(Client(), 1 << 40) for _ in range(10))


def test_giving_back_twice_or_nothing_is_harmless() -> None:
    """A client that leaves gives back its grant, its place in the queue, or nothing."""
    clock = Clock()
    memory = memory_of(clock, 1000)
    holder, waiting, other = Client(), Client(), Client()
    memory.ask(holder, 1000)
    memory.ask(waiting, 1000)
    for client in (other, waiting, waiting, holder, holder):
        memory.give_back(client)
    clock.turns()
    assert (memory.granted_bytes, memory.waiting, waiting.granted) == (0, 0, False)


def test_a_holder_behind_the_pace_is_named_while_others_wait() -> None:
    """After the grace a request must come in evenly within `SLOWEST_S`; where nobody waits it may take its time."""
    clock = Clock()
    memory = memory_of(clock, 1000)
    idle, steady, done = Client(), Client(), Client()
    for client in (idle, steady, done):
        memory.ask(client, 300)
    done.collected_bytes = 300
    idle.collected_bytes = 16
    clock.now_ns = int((GRACE_S + SLOWEST_S / 2) * 1e9)
    steady.collected_bytes = 160
    assert memory.slow() == []
    memory.ask(Client(), 500)
    assert memory.slow() == [idle]
    clock.now_ns = int(GRACE_S * 1e9) - 1
    assert memory.slow() == []
    clock.now_ns = int(1e6 * 1e9)
    assert memory.slow() == [idle, steady]


def test_any_order_of_events_keeps_the_bound_and_serves_everybody() -> None:
    """Clients that ask, get, leave and give back at random never hold more than the bound (or one request), and all
    who stay are granted in the end; seed 11."""
    rng = random.Random(11)
    clock = Clock()
    memory = memory_of(clock, 1000)
    holding: list[Client] = []
    waiting: list[Client] = []
    for _ in range(5000):
        kind = rng.randrange(4)
        if kind == 0:
            client, size = Client(), rng.choice((1, 10, 300, 700, 1000))
            (holding if memory.ask(client, size) else waiting).append(client)
        elif kind == 1 and holding:
            memory.give_back(holding.pop(rng.randrange(len(holding))))
        elif kind == 2 and waiting and rng.random() < 0.2:
            memory.give_back(waiting.pop(rng.randrange(len(waiting))))
        else:
            clock.turns()
        holding += [client for client in waiting if client.granted]
        waiting = [client for client in waiting if not client.granted]
        assert memory.granted_bytes <= 1000
        assert memory.waiting == len(waiting)
    for _ in range(len(holding) + len(waiting) + 1):
        clock.turns()
        holding += [client for client in waiting if client.granted]
        waiting = [client for client in waiting if not client.granted]
        if holding:
            memory.give_back(holding.pop())
    assert not waiting
    assert memory.granted_bytes == 0
