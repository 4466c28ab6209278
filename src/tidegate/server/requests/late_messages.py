"""Parts of an answer that are made one by one while the answer is encoded: an answer may have 200,000 parts."""

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from tidegate.server.requests.handler import Message

__all__ = ["LateMessages"]

T = TypeVar("T")


class LateMessages(Collection[Message]):
    """The messages that `make` returns for `values`; each iteration makes them again."""

    __slots__ = ("_make", "_values")

    def __init__(self, values: Collection[T], make: Callable[[T], Message]) -> None:
        self._values, self._make = values, make

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, message: object) -> bool:
        return any(one == message for one in self)

    def __iter__(self) -> Iterator[Message]:
        return map(self._make, self._values)
