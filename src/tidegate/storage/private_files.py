"""Files that only the broker's own user may read: they contain records, quotas and names of clients."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

__all__ = [
    "PRIVATE_DIRECTORY",
    "PRIVATE_FILE",
    "make_private_directory",
    "make_private_file",
    "remove_files",
    "replace_private_file",
]

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700


def make_private_directory(directory: Path) -> None:
    """Make a directory, and those above it that are absent. One that is there keeps its mode. Raises `OSError`."""
    missing = [path for path in (directory, *directory.parents) if not path.is_dir()]
    for path in reversed(missing):
        path.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=path.is_dir())


@contextlib.contextmanager
def opened_file(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file for a moment; a file that is made is private. Raises `OSError`."""
    fd = os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        yield fd
    finally:
        os.close(fd)


def make_private_file(path: Path) -> None:
    """Make an empty file where there is none. Raises `OSError`."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))


def replace_private_file(path: Path, *parts: bytes) -> None:
    """Write a file of `parts` whole, or leave what was there. Raises `OSError`."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb", opener=partial(os.open, mode=PRIVATE_FILE)) as file:
        file.writelines(parts)
    temporary.replace(path)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files; those that cannot be removed stay."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
