"""Garbage collection: what it looks through at a time, and what it finds."""

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from tidegate.server.short_collections import ShortCollections


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return a loop whose process collects in short steps."""
    loop = asyncio.new_event_loop()
    collections = ShortCollections(loop)
    collections.start()
    yield loop
    collections.close()
    loop.close()
    assert gc.get_freeze_count() == 0


class _Knot:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.own = self


def _turn(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    loop.run_until_complete(asyncio.sleep(seconds))


@pytest.mark.alone
def test_no_step_is_long_however_much_lives(loop) -> None:
    """Half a million objects are made and kept, a part in each turn: no collection takes 20 ms of the processor."""
    longest_ns = begun_ns = 0

    def watch(phase: str, _: object) -> None:
        nonlocal longest_ns, begun_ns
        if phase == "start":
            begun_ns = time.thread_time_ns()
        else:
            longest_ns = max(longest_ns, time.thread_time_ns() - begun_ns)

    kept = []
    gc.callbacks.append(watch)
    try:
        for size in (200, 3_000, *[50_000] * 10, 20):
            kept.append([[number] for number in range(size)])
            _turn(loop, 0.6)
    finally:
        gc.callbacks.remove(watch)
    assert sum(map(len, kept)) == 503_220
    assert longest_ns < 20_000_000


def test_young_cycles_go(loop) -> None:
    """What refers to itself and is dropped is found, if not at once then within a second."""
    knots = [_Knot() for _ in range(10_000)]
    dropped = weakref.ref(knots[0])
    del knots
    _turn(loop, 0.6)
    assert dropped() is None
