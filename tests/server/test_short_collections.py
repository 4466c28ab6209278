"""Garbage collection: what it looks through at a time, and what it finds."""

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from tidegate.server.short_collections import ShortCollections, import_without_collections


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
@pytest.mark.parametrize(
    ("sizes", "turn_s"), [((200, 3_000, *[50_000] * 10, 20), 0.6), ((2_500,) * 200, 0.003)]
)
def test_no_step_is_long_however_much_lives(loop, sizes: tuple[int, ...], turn_s: float) -> None:
    """Half a million objects are made and kept, a part in each turn: no collection takes 20 ms of the processor.

    In few large parts, and in many small ones, as when work is done in slices.
    """
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
        for size in sizes:
            kept.append([[number] for number in range(size)])
            _turn(loop, turn_s)
    finally:
        gc.callbacks.remove(watch)
    assert sum(map(len, kept)) >= 500_000
    assert longest_ns < 20_000_000


@pytest.mark.parametrize("before", [0, 100_000])
def test_young_cycles_go(loop, before: int) -> None:
    """Dropped objects that refer to themselves go within a second, also after many objects were made."""
    kept = [[number] for number in range(before)]
    _turn(loop, 0.6)
    assert len(kept) == before
    knots = [_Knot() for _ in range(10_000)]
    dropped = weakref.ref(knots[0])
    del knots
    _turn(loop, 0.6)
    assert dropped() is None


def test_what_long_work_makes_is_put_aside_without_a_search() -> None:
    """Work that frees as many objects as it makes: no search begins, so all that it makes stay young."""
    loop = asyncio.new_event_loop()
    has_work = False
    collections = ShortCollections(loop, lambda: has_work)
    collections.start()
    kept = [[number] for number in range(50_000)]
    _turn(loop, 0.6)
    searches: list[str] = []
    gc.callbacks.append(lambda phase, _: searches.append(phase))
    try:
        has_work = True
        before = gc.get_freeze_count()
        for place in range(len(kept)):
            kept[place] = [place]
        young = len(gc.get_objects(0))
        assert young >= len(kept)
        _turn(loop, 0.6)
        assert searches == []
        assert gc.get_freeze_count() >= before + young - len(kept)
        assert len(gc.get_objects(0)) < len(kept)
        has_work = False
        _turn(loop, 0.6)
        # Of one timer or two: a slow machine comes late to the first.
        assert set(searches) == {"start", "stop"}
    finally:
        gc.callbacks.pop()
        collections.close()
        loop.close()


def test_no_collection_of_all_comes_by_itself(loop) -> None:
    """Those that `ShortCollections` asks for have little to look through; others would hold the loop."""
    generations = []

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.callbacks.append(watch)
    try:
        kept = [[number] for number in range(300_000)]
    finally:
        gc.callbacks.remove(watch)
    assert len(kept) == 300_000
    assert set(generations) == {0, 1}


def test_closing_gives_the_collector_back() -> None:
    """The thresholds are what they were before."""
    before = gc.get_threshold()
    loop = asyncio.new_event_loop()
    collections = ShortCollections(loop)
    collections.start()
    assert gc.get_threshold() != before
    collections.close()
    loop.close()
    assert gc.get_threshold() == before


def test_imports_are_not_searched_and_put_aside() -> None:
    """Modules stay: a search of what they hold finds nothing to free."""
    searches: list[str] = []
    gc.callbacks.append(lambda phase, _: searches.append(phase))
    try:
        with import_without_collections():
            kept = [[number] for number in range(50_000)]
        assert searches == []
        assert gc.isenabled()
        assert gc.get_freeze_count() > len(kept)
    finally:
        gc.callbacks.pop()
        gc.unfreeze()
