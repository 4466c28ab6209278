"""Which tests may run beside one another: `make test` has three processes, and what measures time wants the machine.

A lock of many readers or one writer, across the processes of a run: a test is a reader, one that is marked `alone` a
writer. Who waits stands in the door, so that nobody who comes later enters before him.
"""

import fcntl
from pathlib import Path


class Room:
    """Where tests run: any number of them together, or one alone."""

    def __init__(self, directory: Path) -> None:
        """Use two files of `directory`, which all processes of a run have in common."""
        self._door, self._room = ((directory / name).open("ab") for name in ("door.lock", "room.lock"))
        self._is_alone = False

    def enter(self, *, alone: bool) -> None:
        """Wait until there is room: for one who wants to be alone, until everybody else has left."""
        if alone and self._is_alone:
            return
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
        self._is_alone = alone

    def leave(self) -> None:
        """Make room."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        self._is_alone = False
