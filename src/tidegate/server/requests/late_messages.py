"""Parts of an answer that are made one by one, while it is written: an answer may have 200,000 of them."""

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from tidegate.server.requests.handler import Message

__all__ = ["LateMessages"]

T = TypeVar("T")


class LateMessages(Collection[Message]):
    """The messages that `make` returns for `values`, made anew each time that they are read."""

    __slots__ = ("_make", "_values")

    def __init__(self, values: Collection[T], make: Callable[[T], Message]) -> None:
        self._values, self._make = values, make

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, message: object) -> bool:
        return any(one == message for one in self)

    def __iter__(self) -> Iterator[Message]:
        return map(self._make, self._values)
