"""A node's spool directory: its lock, its reserved numbers, and recovery after a process was killed.

    lock                  held (flock) by the recorder of the node as long as its process runs
    writer.lock           held by the process that converts segments to Parquet
    state.json            the node, and the first number that no process has reserved yet
    spare                 the next file of rows, see `spare`
    <first seq>.*         segments, see `segment`

Sequence numbers and connection ids must never repeat, also after a process was killed. So each process reserves a block
of 2**32 numbers on disk before it uses the first; the rest of a block stays unused. A directory without state (new, or
deleted) begins at the wall clock in microseconds, which is more than all numbers that the node used before.

The record is private to the broker's user. A group can read it if the mode of the usage directory allows that
(`share_directory`): the broker, the writer and `tidegate compact` create files and directories with that mode. Lock
files stay private, because a reader could take the lock.
"""

import contextlib
import fcntl
import json
import logging
import os
import stat
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.usage.segment import (
    BAD_SUFFIX,
    CLOSED_SUFFIX,
    HEADER_BYTES,
    NAMES_SUFFIX,
    OPEN_SUFFIX,
    ROW_BYTES,
    segment_paths,
    used_bytes,
)

__all__ = [
    "RESERVED_NUMBERS",
    "WRITER_LOCK",
    "SpoolDirectory",
    "holds_lock",
    "lock_file",
    "make_private_directory",
    "node_of",
    "open_private",
    "parquet_directory",
    "share_directory",
    "spool_directory",
    "sync_directory",
    "write_private_file",
]

RESERVED_NUMBERS = 1 << 32
"""Numbers that a process reserves at a time; an int64 has room for 2**31 such blocks."""

WRITER_LOCK = "writer.lock"
"""File that the process which converts closed segments keeps locked."""

_LOCK = "lock"
_LOCKS = (_LOCK, WRITER_LOCK)
_SHARED_DIRECTORY = 0o2750  # what is made inside has the same group
_SHARED_FILE = 0o640
_STATE_BYTES_MAX = 4096
_LARGEST_NUMBER = 2**62  # leaves room for all numbers that one process uses
_log = logging.getLogger(__name__)


def spool_directory(usage_directory: Path, node_id: int) -> Path:
    """Return the directory to which the recorder of a node appends: `spool/node-N` in the usage directory."""
    return usage_directory / "spool" / f"node-{node_id}"


def parquet_directory(usage_directory: Path) -> Path:
    """Return the directory to which the writers of all nodes write Parquet: `parquet` in the usage directory."""
    return usage_directory / "parquet"


def make_private_directory(path: Path) -> None:
    """Create `path` and its missing parents, for the owner only, because names in the record are personal data.

    In a directory that is shared with a group, create them for the group, too.
    """
    missing = [directory for directory in (path, *path.parents) if not directory.is_dir()]
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
        if _is_shared(directory.parent):
            directory.chmod(_SHARED_DIRECTORY)


def open_private(path: Path, flags: int) -> int:
    """Return a descriptor of a file that is made for the owner, and for the group of a shared directory."""
    fd = os.open(path, flags, 0o600)
    if _is_shared(path.parent):
        os.fchmod(fd, _SHARED_FILE)
    return fd


def share_directory(directory: Path, group_id: int) -> None:
    """Share `directory`, what is in it and what is made there from now on with a group. Raises `OSError`."""
    for folder, _, files in os.walk(directory):
        os.chown(folder, -1, group_id)
        os.chmod(folder, _SHARED_DIRECTORY)
        for name in files:
            path = os.path.join(folder, name)
            if name in _LOCKS or os.path.islink(path):
                continue
            try:
                os.chown(path, -1, group_id)
                os.chmod(path, _SHARED_FILE)
            except FileNotFoundError:  # a writer that is finishing has converted the segment
                continue


def _is_shared(directory: Path) -> bool:
    mode = directory.stat().st_mode
    return bool(mode & stat.S_ISGID and mode & stat.S_IRGRP)


def write_private_file(path: Path, data: bytes) -> None:
    """Replace `path` with a file of `data`, whole or not at all, and wait until it is on disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    fd = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    temporary.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_file(path: Path) -> int | None:
    """Return a descriptor that keeps `path` locked while it is open; None if another process has the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def holds_lock(fd: int, path: Path) -> bool:
    """Return whether the locked file `fd` is the one at `path`. It is not if the file was removed."""
    try:
        there = path.stat()
    except OSError:
        return False
    mine = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def node_of(spool: Path) -> int:
    """Return the node that a spool directory belongs to. Raises `ConfigError` if no node has written there."""
    state = _read_state(spool / "state.json")
    if state is None:
        raise ConfigError(f"{str(spool)!r} is not a usage spool, expected a directory with a state.json")
    return state[0]


def _read_state(path: Path) -> tuple[int, int] | None:
    """Return the node id and the first unreserved number; None if the state is missing or damaged."""
    try:
        with path.open("rb") as file:
            state = json.loads(file.read(_STATE_BYTES_MAX))
        node_id, next_number = int(state["node_id"]), int(state["next_number"])
        if not 0 <= next_number <= _LARGEST_NUMBER:
            raise ValueError(f"next_number is {next_number}, expected 0 to {_LARGEST_NUMBER}")
        return node_id, next_number
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        _log.warning(
            "%s is damaged (%s): continuing the sequence numbers from the clock and the segments", path, error
        )
        return None


class SpoolDirectory:
    """Own a node's spool directory. Raises `ConfigError` when it is another node's or in use, else `OSError`.

    `next_number`: the first sequence number and connection id that this process may use.
    """

    def __init__(self, path: Path, *, node_id: int, now_ms: int) -> None:
        self.path = path
        self._node_id = node_id
        make_private_directory(path)
        self._lock = self._take_lock()
        try:
            self._open(now_ms)
        except BaseException:
            self.close()
            raise

    def _open(self, now_ms: int) -> None:
        state = _read_state(self.path / "state.json")
        if state is not None and state[0] != self._node_id:
            raise ConfigError(
                f"usage spool {str(self.path)!r} belongs to node {state[0]}, expected node {self._node_id}",
                hint="each node needs a spool directory of its own",
            )
        self._recover()
        first = now_ms * 1000 if state is None else state[1]
        self.next_number = max(first, self._past_segments())
        self.reserved = 0
        self.reserve(self.next_number)

    def reserve(self, number: int) -> None:
        """Reserve numbers on disk up to `number`, if they are not reserved. Call it before using `number`."""
        if number >= self.reserved:
            reserved = number + RESERVED_NUMBERS
            state = {"node_id": self._node_id, "next_number": reserved}
            write_private_file(self.path / "state.json", json.dumps(state).encode())
            self.reserved = reserved

    def restore(self) -> None:
        """Create the directory again if it was removed; its content is lost. Raises `OSError`."""
        if holds_lock(self._lock, self.path / _LOCK):
            return
        make_private_directory(self.path)
        try:
            lock = self._take_lock()
        except ConfigError as error:
            raise OSError(str(error)) from error
        os.close(self._lock)
        self._lock = lock
        reserved, self.reserved = self.reserved, 0
        self.reserve(max(reserved - RESERVED_NUMBERS, self.next_number))
        _log.warning("usage spool %s was removed: created it again", self.path)

    def size_bytes(self) -> int:
        """Return the bytes that all segment files take up."""
        size = 0
        for suffix in (OPEN_SUFFIX, CLOSED_SUFFIX, NAMES_SUFFIX, BAD_SUFFIX):
            for path in segment_paths(self.path, suffix):
                with contextlib.suppress(FileNotFoundError):  # the writer has deleted it
                    size += path.stat().st_size
        return size

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def _take_lock(self) -> int:
        lock = lock_file(self.path / _LOCK)
        if lock is None:
            raise ConfigError(
                f"usage spool {str(self.path)!r} is in use by another process",
                hint="stop the other process, or give this node another usage directory",
            )
        return lock

    def _recover(self) -> None:
        """Close the open segments of a killed process, and remove its incomplete files."""
        for path in segment_paths(self.path, OPEN_SUFFIX):
            close_segment(path)
        kept = {path.stem for path in segment_paths(self.path, CLOSED_SUFFIX)}
        kept |= {path.stem for path in segment_paths(self.path, BAD_SUFFIX)}
        for path in segment_paths(self.path, NAMES_SUFFIX):
            if path.stem not in kept:  # the writer was killed between the two files of a segment
                path.unlink(missing_ok=True)

    def _past_segments(self) -> int:
        ends = [0]
        for suffix in (CLOSED_SUFFIX, BAD_SUFFIX):
            for path in segment_paths(self.path, suffix):
                with contextlib.suppress(FileNotFoundError):
                    ends.append(int(path.stem) + path.stat().st_size // ROW_BYTES)
        return max(ends)


def close_segment(path: Path) -> None:
    """Cut an open segment after its last row and hand it to the writer; drop it if it has none."""
    used = used_bytes(path.read_bytes())
    if used <= HEADER_BYTES:
        path.unlink()
        path.with_suffix(NAMES_SUFFIX).unlink(missing_ok=True)
        return
    os.truncate(path, used)
    path.rename(path.with_suffix(CLOSED_SUFFIX))
