"""Kafka's `recovery-point-offset-checkpoint`: up to which offset each partition is on the disk.

An entry for a deleted topic must not apply to a later topic of the same name. Before a topic is created, the caller
therefore checks `names`, and rewrites the file if the name is in it.

Follows: Kafka `OffsetCheckpointFile`.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tidegate.storage.private_files import replace_private_file
from tidegate.storage.topics.topic import Topic
from tidegate.storage.topics.topics import Topics

__all__ = ["CHECKPOINT", "CheckpointFile"]

CHECKPOINT = "recovery-point-offset-checkpoint"
_AT_ONCE = 200  # lines, between two yields
_logger = logging.getLogger(__name__)


class CheckpointFile:
    """The file in one data directory. names: the topics that the file may have entries for."""

    def __init__(self, directory: Path) -> None:
        self.names: frozenset[str] = frozenset()
        self._path = directory / CHECKPOINT
        self._begun = self._written = 0  # numbers of the latest write that began, and of the one in the file
        self._lock = threading.Lock()

    def read(self) -> dict[tuple[str, int], int]:
        """Return the offsets, by topic and partition; none if the file is missing or malformed."""
        try:
            version, _, *lines = self._path.read_text().splitlines()
            rows = [line.split(" ") for line in lines if line]
            points = {(name, int(partition)): int(offset) for name, partition, offset in rows}
        except (OSError, ValueError):
            return {}
        self.names = frozenset(name for name, _ in points)
        return points if version == "0" else {}

    def write(self, topics: Topics) -> None:
        """Write the recovery points of all logs of `topics`. Raises `OSError`."""
        lines = [line for topic in topics for line in _lines(topic)]
        self._replace(self._next(), lines)
        self.names = frozenset(topics.by_name)

    def try_to_write(self, topics: Topics) -> None:
        """Write as `write` does, but log an `OSError`: the next attempt may succeed."""
        try:
            self.write(topics)
        except OSError as error:
            self._cannot_write(error)

    def write_later(self, topics: Topics, submit: Callable[..., object]) -> Iterator[None]:
        """Write the same on the disk thread, to which `submit` passes functions. Yields often."""
        version, names = topics.version, frozenset(topics.by_name)
        lines: list[str] = []
        for topic in list(topics):
            before = len(lines)
            lines += _lines(topic)
            if before // _AT_ONCE != len(lines) // _AT_ONCE:
                yield
        if version != topics.version:  # a topic may have a successor by now
            self.try_to_write(topics)
            return
        self.names |= names
        submit(self._try_to_replace, self._next(), lines)

    def _next(self) -> int:
        self._begun += 1
        return self._begun

    def _replace(self, number: int, lines: list[str]) -> None:
        """Write the file, unless a later one has been written."""
        with self._lock:
            if number > self._written:
                replace_private_file(self._path, "\n".join(["0", str(len(lines)), *lines, ""]).encode())
                self._written = number

    def _try_to_replace(self, number: int, lines: list[str]) -> None:
        try:
            self._replace(number, lines)
        except OSError as error:
            self._cannot_write(error)

    def _cannot_write(self, error: OSError) -> None:
        if self._path.parent.is_dir():
            _logger.warning("cannot write %s: %s", CHECKPOINT, error)


def _lines(topic: Topic) -> list[str]:
    return [f"{topic.name} {partition} {log.recovery_point}" for partition, log in enumerate(topic.logs)]
