"""A directory of results, on this machine or elsewhere by URI: files that are moved to their place at once.

On this machine, a move is a rename. An object store has none: there the file is copied by the store, which shows the
object as it was before until the copy is complete. Filesystems elsewhere without such a copy (HDFS) rename, and have
no file of that name for a moment.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from pyarrow import fs

from tidegate.config.locations import Location, Uri
from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.read.filesystems import place_of
from tidegate.usage.directory import lock_file, make_private_directory, sync_directory

__all__ = ["ANOTHER_HINT", "RUNS", "Store", "store_of"]

RUNS = "_runs"
"""The directory of the documents of runs, and of the files of a run until they are moved to their tables."""
ANOTHER_HINT = "give another directory"

_LOCK = "lock"


def store_of(directory: Location) -> "Store":
    """Return the store of a path or URI."""
    return _Remote(directory) if isinstance(directory, Uri) else _Local(directory)


class _Local:
    """A directory of results on this machine. Names are relative to it, with slashes."""

    is_exclusive = True
    """True: no other run writes here within `held`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the directory, and keep other runs of this machine out of it in a `with` block."""
        make_private_directory(self.directory)
        runs = self.directory / RUNS
        if runs.is_symlink():
            raise OutputError(f"{str(runs)!r} is a link, expected a directory", hint=ANOTHER_HINT)
        make_private_directory(runs)
        runs.chmod(0o700)
        lock = lock_file(runs / _LOCK)
        if lock is None:
            raise OutputError(
                f"another run is writing to {str(self.directory)!r}",
                hint="wait for it, or give each run a directory of its own",
            )
        try:
            yield
        finally:
            os.close(lock)

    def names(self, below: str = "") -> set[str]:
        """Return the names of files and directories in a directory. Raises `OutputError` if it is a file."""
        top = self.directory / below
        if os.path.isfile(top):
            raise OutputError(f"{str(top)!r} is a file, expected a directory", hint=ANOTHER_HINT)
        return {path.name for path in top.iterdir()} if top.is_dir() else set()

    def files(self, below: str) -> list[str]:
        """Return the names of all files below a directory, relative to it; "" if it is itself a file or a link."""
        top = self.directory / below
        if top.is_symlink() or top.is_file():
            return [""]
        found = []
        for place, directories, files in os.walk(top):
            links = [name for name in directories if os.path.islink(os.path.join(place, name))]
            found += [Path(place, name).relative_to(top).as_posix() for name in (*files, *links)]
        return sorted(found)

    def read(self, name: str) -> bytes | None:
        """Return what a file holds; None if it does not exist."""
        with suppress(OSError):
            return (self.directory / name).read_bytes()
        return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file in one step."""
        path = self.directory / name
        make_private_directory(path.parent)
        half = path.with_name(f"{path.name}.half")
        half.write_bytes(data)
        half.chmod(0o600)
        sync_directory(half)  # of a file: its contents
        half.replace(path)
        sync_directory(path.parent)

    def move(self, source: str, target: str) -> None:
        """Replace the file `target` with the file `source` in one step. A move that was made may be repeated."""
        place, path = self.directory / source, self.directory / target
        missing = [parent for parent in path.parents if not parent.is_dir()]
        for parent in reversed(missing):
            parent.mkdir(mode=0o700)
            sync_directory(parent.parent)
        try:
            place.replace(path)
        except FileNotFoundError:
            if not path.is_file():
                raise
        sync_directory(path.parent)

    def remove(self, name: str) -> None:
        """Remove what has this name, with all files below it."""
        path = self.directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def remove_file(self, name: str) -> None:
        """Remove a file, and its directory if that is empty then; do nothing if it is a directory."""
        path = self.directory / name
        if path.is_dir() and not path.is_symlink():
            return
        path.unlink(missing_ok=True)
        if path.parent != self.directory:
            with suppress(OSError):  # other files are in it
                path.parent.rmdir()

    def settle(self, below: str) -> None:
        """Wait until all files below a directory are on disk, for their owner only."""
        top = self.directory / below
        for path in (top, *top.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
            sync_directory(path)


class _Remote:
    """The same elsewhere, by URI."""

    is_exclusive = False

    def __init__(self, directory: Uri) -> None:
        self.directory = directory

    @contextmanager
    def held(self) -> Iterator[None]:
        yield

    def names(self, below: str = "") -> set[str]:
        place = place_of(self.directory / below if below else self.directory)
        if place.info().type == fs.FileType.File:
            raise OutputError(f"{str(place.uri)!r} is a file, expected a directory", hint=ANOTHER_HINT)
        return {info.base_name for info in place.below(recursive=False)} - {""}

    def files(self, below: str) -> list[str]:
        place = place_of(self.directory / below)
        start = len(place.path) + 1
        return sorted(info.path[start:] for info in place.below(recursive=True) if info.is_file)

    def read(self, name: str) -> bytes | None:
        return place_of(self.directory / name).read()

    def write(self, name: str, data: bytes) -> None:
        place_of(self.directory / name).write(data)

    def move(self, source: str, target: str) -> None:
        place, aim = place_of(self.directory / source), place_of(self.directory / target)
        aim.make_parent()
        try:
            place.filesystem.copy_file(place.path, aim.path)
        except (NotImplementedError, pa.ArrowNotImplementedError):
            _rename(place.filesystem, place.path, aim.path)

    def remove(self, name: str) -> None:
        place = place_of(self.directory / name)
        match place.info().type:
            case fs.FileType.File:
                place.filesystem.delete_file(place.path)
            case fs.FileType.Directory:
                place.filesystem.delete_dir(place.path)

    def remove_file(self, name: str) -> None:
        place = place_of(self.directory / name)
        if place.info().type == fs.FileType.File:
            place.filesystem.delete_file(place.path)

    def settle(self, below: str) -> None:
        """Return at once: a complete object is there for good."""


def _rename(filesystem: fs.FileSystem, source: str, target: str) -> None:
    if filesystem.get_file_info(source).type == fs.FileType.NotFound:
        return  # it was moved before
    if filesystem.get_file_info(target).type == fs.FileType.File:
        filesystem.delete_file(target)
    filesystem.move(source, target)


Store: TypeAlias = _Local | _Remote
"""A directory of results."""
