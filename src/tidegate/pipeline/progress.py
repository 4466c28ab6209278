"""The progress of a job, reported to a callback."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

__all__ = ["OnProgress", "Progress", "reported", "silent"]

T = TypeVar("T")


class Progress(NamedTuple):
    """A step of a job and how far it has come. total: None while it is not known."""

    what: str
    done: int
    total: int | None


OnProgress: TypeAlias = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Ignore the progress."""


def reported(items: Sequence[T], what: str, on_progress: OnProgress) -> Iterator[T]:
    """Yield the items; report the number of those that are done, at the beginning and after each."""
    for done, item in enumerate(items):
        on_progress(Progress(what, done, len(items)))
        yield item
    on_progress(Progress(what, len(items), len(items)))
