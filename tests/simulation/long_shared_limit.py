"""The error bound of cluster-wide quotas: 8 processes under skewed and moving load, against one Kafka broker.

Compared are the busiest of ten minutes, over several phases of the clients: a broker admits bursts of ten seconds'
worth, of which five or six fall into a minute. Over ten minutes the processes admit at most 1.05 times the limit, or
1.05 times the most that one broker admits where that is more, and at least 0.85 times what one broker admits.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean

import pytest
from tests.simulation.shared_limit import (
    Client,
    Process,
    Run,
    gateway,
    one_broker,
    processes_of_one_gateway,
)

PROCESSES = 8
LIMIT = 1e6
MINUTE_MS = 60_000
MINUTES = 10
PHASES = 4
ERROR = 1.05
ERROR_IN_MEMORY = 1.07
"""The bound in memory for the mean of the four phases. With the largest error, fetches of a second's worth, the mean
over 14 phases is 1.045 in memory and 1.047 through the topic."""
WORST = 1.1
USED = 0.85
PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"


def clients(
    number: int, size: float, place: Callable[[int, int], int | None], every_ms: int = 20
) -> list[Client]:
    """Return clients. place: of a client's number and the time."""
    return [
        Client(size=size, every_ms=every_ms, place=lambda at, each=each: place(each, at))
        for each in range(number)
    ]


LOADS: dict[str, Sequence[Client]] = {
    "even": clients(8, 1e5, lambda each, at: each),
    "all at one process": clients(4, 1e5, lambda each, at: 0),
    "all move every 7 s": clients(6, 5e4, lambda each, at: at // 7000 * 3),
    "each moves every 2 s": clients(6, 5e4, lambda each, at: at // 2000 + each),
    "skewed, and moves": clients(12, 8e4, lambda each, at: each * each if at // 13_000 % 2 else 0),
    "on and off": clients(16, 1e5, lambda each, at: each if (at // 15_000 + each) % 3 else None),
    "bursts": clients(16, 1e5, lambda each, at: each if at % MINUTE_MS < 20_000 else None, every_ms=5),
    "many clients": clients(40, 2e5, lambda each, at: each),
    "large requests": clients(8, 1e6, lambda each, at: each),
    "below the limit": clients(8, 1e5, lambda each, at: each + at // 9000, every_ms=1000),
}


def busiest_minute_and_all(
    processes: Sequence[Process], load: Sequence[Client], *, seed: int, minutes: int = MINUTES
) -> tuple[float, float]:
    """Return the bytes admitted in the busiest minute, and in all."""
    outcome = Run(processes, load, seed=seed).until(minutes * MINUTE_MS)
    admitted = [outcome.bytes(at, at + MINUTE_MS) for at in range(0, minutes * MINUTE_MS, MINUTE_MS)]
    return max(admitted), sum(admitted)


def gateways(limit: float, key: str) -> list[Process]:
    """Return processes that share a cluster-wide limit through the topic."""
    return [gateway(number, limit, key) for number in range(PROCESSES)]


def of_one_gateway(limit: float, key: str) -> list[Process]:
    """Return the processes of one gateway, which share the limit of a broker in memory."""
    return processes_of_one_gateway(PROCESSES, limit, key)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("made", [gateways, of_one_gateway])
@pytest.mark.parametrize("key", [PRODUCE, FETCH])
@pytest.mark.parametrize("name", LOADS)
def test_error_bound(name: str, key: str, made: Callable[[float, str], list[Process]]) -> None:
    """Eight processes admit at most 5 % more than one broker, and not much less."""
    load = [replace(client, is_fetching=key == FETCH) for client in LOADS[name]]
    minutes, totals, one_total = [], [], []
    for seed in range(PHASES):
        processes = made(LIMIT, key)
        minute, total = busiest_minute_and_all(processes, load, seed=seed)
        minute_of_one, total_of_one = busiest_minute_and_all([one_broker(LIMIT, key)], load, seed=seed)
        minutes.append(minute / minute_of_one)
        totals.append(total)
        one_total.append(total_of_one)
    print(
        f"busiest minute {mean(minutes):.3f} of one broker's, at most {max(minutes):.3f}; "
        f"all {mean(totals) / mean(one_total):.3f}, {max(totals) / (MINUTES * 60 * LIMIT):.3f} of the limit"
    )
    assert mean(minutes) <= (ERROR if made is gateways else ERROR_IN_MEMORY)
    assert max(minutes) <= WORST
    assert max(totals) <= ERROR * max(*one_total, MINUTES * 60 * LIMIT)
    assert mean(totals) >= USED * mean(one_total)
