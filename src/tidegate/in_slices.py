"""Work in slices: generators that yield at points where other work may run, and return a result at the end."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

__all__ = [
    "batched",
    "counts_in_slices",
    "lots",
    "map_in_slices",
    "release",
    "release_messages",
    "run_at_once",
]

T = TypeVar("T")
Made = TypeVar("Made")

_BATCH = 250  # elements: to process them takes less than a millisecond
_RELEASED_AT_ONCE = 500  # elements, each a few objects


def batched(items: Sequence[T], size: int = _BATCH) -> Iterator[Sequence[T]]:
    """Return `items` in batches."""
    return (items[at : at + size] for at in range(0, len(items), size))


def lots(
    items: Iterable[T], size_of: Callable[[T], int], *, most: int | None = None, most_size: int
) -> Iterator[list[T]]:
    """Return `items` in lists that end with the item that reaches `most` items or `most_size` in all.

    >>> list(lots("aabbbc", ord, most=3, most_size=300))
    [['a', 'a', 'b'], ['b', 'b', 'c']]
    """
    lot: list[T] = []
    size = 0
    for item in items:
        lot.append(item)
        size += size_of(item)
        if len(lot) == most or size >= most_size:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot


def map_in_slices(make: Callable[[T], Made], items: Sequence[T]) -> Generator[None, None, list[Made]]:
    """Return what `make` returns for each item.

    >>> run_at_once(map_in_slices(str.upper, ["a", "b"]))
    ['A', 'B']
    """
    made: list[Made] = []
    for some in batched(items):
        made += map(make, some)
        yield
    return made


def counts_in_slices(keys: Iterable[T]) -> Generator[None, None, dict[T, int]]:
    """Return how often each key occurs, in the order in which they occur first.

    >>> run_at_once(counts_in_slices("abca"))
    {'a': 2, 'b': 1, 'c': 1}
    """
    counts: dict[T, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
        yield
    return counts


def run_at_once(work: Generator[None, None, T]) -> T:
    """Run `work` to its end without a break, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            result: T = stop.value
            return result


def release(*containers: list[Any] | dict[Any, Any]) -> Iterable[None]:
    """Empty large containers in slices, because freeing the data of a long request takes time, too.

    Small containers are not changed.
    """
    return _release(containers) if sum(map(len, containers)) > _RELEASED_AT_ONCE else ()


def _release(containers: Iterable[list[Any] | dict[Any, Any]]) -> Iterator[None]:
    released = 0
    for items in containers:
        while items:
            count = min(len(items), _RELEASED_AT_ONCE - released)
            if isinstance(items, dict):
                for _ in range(count):
                    items.popitem()
            else:
                del items[-count:]
            released += count
            if released == _RELEASED_AT_ONCE:
                released = 0
                yield


def release_messages(*messages: list[Any]) -> Generator[None, None, None]:
    """Empty lists of messages and all lists in them, which nothing else may need, yielding in between."""
    lists = [some for some in messages if some]
    left = _RELEASED_AT_ONCE
    while lists:
        items = lists.pop()
        some = items[-left:]
        del items[-left:]
        if items:
            lists.append(items)
        left -= len(some)
        while some:
            message = some.pop()
            if isinstance(message, dict):
                lists += [value for value in message.values() if type(value) is list and value]
        if not left:
            left = _RELEASED_AT_ONCE
            yield
