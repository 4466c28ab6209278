"""File descriptors of this process that a test limits and uses up."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.unit.in_slices import no_collection

__all__ = ["Descriptors", "limited_descriptors"]


class Descriptors:
    """The descriptors of this process. Make it with `limited_descriptors`."""

    def __init__(self) -> None:
        self._soft, self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._files: list[int] = []

    @staticmethod
    def lowest_free() -> int:
        """Return the number that the next opened file gets."""
        fd = os.dup(0)
        os.close(fd)
        return fd

    def limit(self, limit: int) -> None:
        """Limit the numbers of new descriptors: each is below `limit`."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, self._hard))

    def use(self, count: int) -> None:
        """Use `count` descriptors. Raises `OSError` if fewer are left."""
        for _ in range(count):
            self._files.append(os.dup(0))

    def use_up_to(self, number: int) -> None:
        """Use descriptors until one has this number or a larger one."""
        while not self._files or self._files[-1] < number:
            self.use(1)

    def use_all(self) -> None:
        """Use each descriptor that is left."""
        with suppress(OSError):
            while True:
                self.use(1)

    def give_back(self) -> None:
        """Restore the limit, and close the descriptors that were used."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._soft, self._hard))
        while self._files:
            os.close(self._files.pop())


@contextmanager
def limited_descriptors() -> Iterator[Descriptors]:
    """Yield the descriptors of this process; give them back after the block.

    No garbage is collected in the block. It may contain files of earlier tests: if one was closed, its number would be
    free again, and the code under test would get it.
    """
    descriptors = Descriptors()
    with no_collection():
        try:
            yield descriptors
        finally:
            descriptors.give_back()
