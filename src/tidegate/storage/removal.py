"""Removing files that are no longer needed, on a thread of its own.

A client that deletes topics with thousands of partitions keeps this thread busy for seconds. Nothing waits for it: the
syncs and writes of other clients run on the disk thread. Files that are left when the process ends are found by their
names and removed at the next start.
"""

import contextlib
import shutil
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidegate.storage.private_files import remove_files

__all__ = ["FileRemoval"]


class FileRemoval:
    """Removes directories of deleted partitions, and files of deleted segments. Called on the event loop.

    sync: brings to the disk that the partitions are deleted; called on the thread before their directories go, once for
    all that were deleted meanwhile. Raises `OSError` where that fails: then the next start removes them.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._directories: deque[Path] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tidegate-removal")

    def remove_directory(self, directory: Path) -> None:
        """Remove the directory of a deleted partition soon."""
        self._directories.append(directory)
        self._thread.submit(self._remove_directories)

    def remove_files(self, paths: list[Path]) -> None:
        """Remove files soon."""
        self._thread.submit(remove_files, paths)

    def wait(self) -> None:
        """Wait until all is removed."""
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Remove what is left, and end the thread."""
        self._thread.shutdown(wait=True)

    def _remove_directories(self) -> None:
        """Remove all directories that were queued so far. Runs on the thread."""
        some = [self._directories.popleft() for _ in range(len(self._directories))]
        if not some:
            return
        with contextlib.suppress(OSError):
            self._sync()
            for directory in some:  # what cannot be deleted stays, and is tried again at the next start
                shutil.rmtree(directory, ignore_errors=True)
