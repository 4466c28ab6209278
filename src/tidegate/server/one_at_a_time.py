"""Work in slices that others of its kind wait for."""

from collections import deque
from collections.abc import Generator

from tidegate.server.handler import Wait

__all__ = ["OneAtATime"]


class OneAtATime:
    """Lets one piece of work in slices after the other through."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: deque[Wait] = deque()

    def acquire(self) -> Generator[Wait | None, None, None]:
        """Wait until all that came before has ended."""
        if self._busy:
            self._waiting.append(Wait())
            yield self._waiting[-1]
        self._busy = True

    def release(self) -> None:
        """Resume the next work that waits, if any."""
        if self._waiting:
            self._waiting.popleft().resume()
        else:
            self._busy = False
