"""Work in slices: generators that yield where others may have their turn, and return a result at the end."""

from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

__all__ = ["batched", "run_at_once"]

T = TypeVar("T")

_BATCH = 1000  # elements: looking at so many takes less than a millisecond


def batched(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return `items` a thousand at a time."""
    return (items[at : at + _BATCH] for at in range(0, len(items), _BATCH))


def run_at_once(work: Generator[None, None, T]) -> T:
    """Do all of `work` without a break, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            result: T = stop.value
            return result
