"""Grants of memory to requests that are coming in: bounded, in order, and nobody keeps others out for ever."""

import random
from collections.abc import Callable

from tidegate.server.connection.request_memory import (
    GRACE_S,
    NO_BOUND,
    PATIENCE_S,
    RESERVED_S,
    REVOKE_AFTER_S,
    SLOWEST_S,
    RequestMemory,
)


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
    assert memory.ask(first, 600, "User:a")
    assert not memory.ask(large, 500, "User:a")
    assert not memory.ask(small, 10, "User:a")
    memory.release(first)
    clock.turns()
    assert (large.granted, small.granted) == (True, True)
    assert (memory.granted_bytes, len(memory._owners)) == (510, 0)


def test_one_request_always_fits() -> None:
    """One that is larger than the bound is granted when it is alone, and others wait for it."""
    clock = Clock()
    memory = memory_of(clock, 1000)
    large, small = Client(), Client()
    assert memory.ask(large, 5000, "User:a")
    assert not memory.ask(small, 1, "User:a")
    memory.release(large)
    clock.turns()
    assert small.granted


def test_without_a_bound_nobody_waits() -> None:
    """-1 is Kafka's word for no bound."""
    memory = memory_of(Clock(), NO_BOUND)
    assert all(memory.ask(Client(), 1 << 40, "User:a") for _ in range(10))


def test_giving_back_twice_or_nothing_is_harmless() -> None:
    """A client that leaves gives back its grant, its place in the queue, or nothing."""
    clock = Clock()
    memory = memory_of(clock, 1000)
    holder, waiting, other = Client(), Client(), Client()
    memory.ask(holder, 1000, "User:a")
    memory.ask(waiting, 1000, "User:a")
    for client in (other, waiting, waiting, holder, holder):
        memory.release(client)
    clock.turns()
    assert (memory.granted_bytes, len(memory._owners), waiting.granted) == (0, 0, False)


def test_a_holder_behind_the_pace_is_named_while_others_wait() -> None:
    """After the grace a request must come in evenly within `SLOWEST_S`; where nobody waits it may take its time."""
    clock = Clock()
    memory = memory_of(clock, 1000)
    idle, steady, done = Client(), Client(), Client()
    for client in (idle, steady, done):
        memory.ask(client, 300, "User:a")
    done.collected_bytes = 300
    idle.collected_bytes = 16
    clock.now_ns = int((GRACE_S + SLOWEST_S / 2) * 1e9)
    steady.collected_bytes = 160
    assert memory.slow() == []
    memory.ask(Client(), 500, "User:a")
    assert memory.slow() == [idle]
    clock.now_ns = int(GRACE_S * 1e9) - 1
    assert memory.slow() == []
    clock.now_ns = int(1e6 * 1e9)
    assert memory.slow() == [idle, steady]


def test_a_principal_that_holds_less_passes_those_that_wait() -> None:
    """What fits of a second principal is granted at once, whatever the first one waits for."""
    clock = Clock()
    memory = memory_of(clock, 1000)
    assert memory.ask(Client(), 600, "User:a")
    assert not memory.ask(Client(), 500, "User:a")
    assert memory.ask(Client(), 400, "User:b")
    assert not memory.ask(Client(), 1, "User:b"), "nothing is free"


def test_principals_that_wait_are_served_in_rounds() -> None:
    """Each in turn gets one, whatever the order and number of what they asked for."""
    clock = Clock()
    memory = memory_of(clock, 1000)
    holder = Client()
    memory.ask(holder, 1000, "User:holder")
    asked = {owner: [Client() for _ in range(3)] for owner in ("User:a", "User:b", "User:c")}
    for owner, clients in asked.items():
        for client in clients:
            memory.ask(client, 1000, owner)
    order = []
    for _ in range(9):
        memory.release(holder)
        clock.turns()
        owner, holder = next(
            (owner, client)
            for owner, clients in asked.items()
            for client in clients
            if client.granted and client not in [granted for _, granted in order]
        )
        order.append((owner, holder))
    assert [owner for owner, _ in order] == ["User:a", "User:b", "User:c"] * 3


def revoking_memory_of(clock: Clock, most_bytes: int) -> tuple[RequestMemory, list[Client]]:
    """Return a memory that notes which grants it revokes."""
    memory = memory_of(clock, most_bytes)
    revoked: list[Client] = []
    memory.on_revoke = revoked.append
    return memory, revoked


def test_the_slowest_grant_of_the_largest_holder_is_revoked() -> None:
    """A principal that holds less has waited for long enough: no more is revoked than it needs."""
    clock = Clock()
    memory, revoked = revoking_memory_of(clock, 1000)
    done, fast, slow, other = Client(), Client(), Client(), Client()
    for client in (done, fast, slow):
        memory.ask(client, 300, "User:a")
    memory.ask(other, 100, "User:b")
    done.collected_bytes, fast.collected_bytes, slow.collected_bytes = 300, 200, 100
    newcomer = Client()
    assert not memory.ask(newcomer, 200, "User:c")
    memory.revoke_some()
    assert revoked == [], "it has not waited for long"
    clock.now_ns = int(REVOKE_AFTER_S * 1e9)
    memory.revoke_some()
    clock.turns()
    assert revoked == [slow]
    assert newcomer.granted
    assert memory.granted_bytes == 900


def test_a_principal_alone_loses_no_grant() -> None:
    """It may use all of the memory; what it waits for is granted in order."""
    clock = Clock()
    memory, revoked = revoking_memory_of(clock, 1000)
    for _ in range(10):
        memory.ask(Client(), 300, "User:a")
    clock.now_ns = int(1e6 * 1e9)
    memory.revoke_some()
    assert revoked == []
    assert len(memory._owners) == 7


def test_a_principal_that_would_hold_as_much_revokes_nothing() -> None:
    """Two with requests of one size do not take the memory from each other for ever; nor is a whole request lost."""
    clock = Clock()
    memory, revoked = revoking_memory_of(clock, 1000)
    memory.ask(Client(), 800, "User:a")
    memory.ask(Client(), 800, "User:b")
    clock.now_ns = int(1e6 * 1e9)
    memory.revoke_some()
    assert revoked == []
    whole = Client()
    whole.collected_bytes = 900
    memory, revoked = revoking_memory_of(clock, 1000)
    memory.ask(whole, 900, "User:a")
    memory.ask(Client(), 200, "User:b")
    clock.now_ns *= 2
    memory.revoke_some()
    assert revoked == []


def test_a_large_request_is_served_among_many_small_ones() -> None:
    """After a while the next grant is reserved for it; the small ones of others wait no longer than that."""
    clock = Clock()
    memory, _ = revoking_memory_of(clock, 1000)
    large = Client()
    small = [Client() for _ in range(5)]
    for number, client in enumerate(small):
        memory.ask(client, 190, f"User:{number}")
    assert not memory.ask(large, 900, "User:large")
    rounds = 0
    while not large.granted:
        clock.now_ns += 50_000_000
        memory.revoke_some()
        memory.release(small.pop(0)) if small else None
        clock.turns()
        client = Client()
        if memory.ask(client, 190, f"User:{rounds % 5}") or rounds < 5:
            small.append(client)
        rounds += 1
        assert clock.now_ns < (PATIENCE_S + RESERVED_S) * 1e9
    assert clock.now_ns >= PATIENCE_S * 1e9
    assert memory.granted_bytes <= 1000


def test_any_order_of_events_keeps_the_bound_and_serves_everybody() -> None:
    """Clients that ask, get, leave and give back at random never hold more than the bound (or one request), and all
    who stay are granted in the end; seed 11."""
    rng = random.Random(11)
    clock = Clock()
    memory, revoked = revoking_memory_of(clock, 1000)
    holding: list[Client] = []
    waiting: list[Client] = []
    for _ in range(5000):
        kind = rng.randrange(4)
        if kind == 0:
            client, size = Client(), rng.choice((1, 10, 300, 700, 1000))
            (holding if memory.ask(client, size, f"User:{rng.randrange(3)}") else waiting).append(client)
        elif kind == 1 and holding:
            memory.release(holding.pop(rng.randrange(len(holding))))
        elif kind == 2 and waiting and rng.random() < 0.2:
            memory.release(waiting.pop(rng.randrange(len(waiting))))
        else:
            clock.now_ns += rng.choice((0, 1_000_000, 1_000_000_000))
            memory.revoke_some()
            clock.turns()
        holding = [client for client in holding if client not in revoked]
        holding += [client for client in waiting if client.granted and client not in revoked]
        waiting = [client for client in waiting if not client.granted]
        assert memory.granted_bytes <= 1000
        assert len(memory._owners) == len(waiting)
    for _ in range(len(holding) + len(waiting) + 1):
        clock.turns()
        holding += [client for client in waiting if client.granted and client not in revoked]
        waiting = [client for client in waiting if not client.granted]
        if holding:
            memory.release(holding.pop())
    assert not waiting
    assert memory.granted_bytes == 0
