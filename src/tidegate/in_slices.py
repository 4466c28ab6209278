"""Work in slices: generators that yield where others may have their turn, and return a result at the end."""

from collections.abc import Generator
from typing import TypeVar

__all__ = ["run_at_once"]

T = TypeVar("T")


def run_at_once(work: Generator[None, None, T]) -> T:
    """Do all of `work` without a break, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            result: T = stop.value
            return result
