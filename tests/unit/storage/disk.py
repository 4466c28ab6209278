"""A disk that a test holds up, lets fail, and asks what was synced."""

import os
import threading

WAIT_S = 10
"""A test that waits longer for the disk thread, or lets it wait longer, fails."""


class Disk:
    """The sync of a node: counts by inode, waits while it is not `free`, and fails for `failing`."""

    def __init__(self) -> None:
        self.synced: list[int] = []
        self.failing: set[int] = set()
        self.begun = threading.Event()
        self.free = threading.Event()
        self.free.set()

    def __call__(self, fd: int) -> None:
        """Sync a file."""
        self.begun.set()
        assert self.free.wait(WAIT_S)
        inode = os.fstat(fd).st_ino
        if inode in self.failing:
            raise OSError(5, "Input/output error")
        self.synced.append(inode)
