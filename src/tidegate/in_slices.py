"""Work in slices: generators that yield where others may have their turn, and return a result at the end."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

__all__ = ["batched", "release", "release_messages", "run_at_once"]

T = TypeVar("T")

_BATCH = 250  # elements: making something of so many takes less than a millisecond
_RELEASED_AT_ONCE = 500  # elements, each a few objects


def batched(items: Sequence[T], size: int = _BATCH) -> Iterator[Sequence[T]]:
    """Return `items` so many at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))


def run_at_once(work: Generator[None, None, T]) -> T:
    """Run `work` to its end without a break, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            result: T = stop.value
            return result


def release(*containers: list[Any] | dict[Any, Any]) -> Iterable[None]:
    """Empty what many elements are in, a part at a time: freeing what was read of a long request takes time, too.

    Few elements are left as they are.
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
