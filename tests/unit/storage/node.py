"""A node's storage on a clock and a scheduler that stand still, without handlers."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.open_stores import closed_after_test
from tests.unit.storage.logs import NOW_MS, append, batch

from tidegate.in_slices import run_at_once
from tidegate.storage import Storage, StorageConfig
from tidegate.storage.housekeeping import start_housekeeping
from tidegate.storage.log.group_commit import SyncFile
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.testing import ManualClock


class _Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualScheduler:
    """A scheduler that runs what is due only when told to."""

    def __init__(self) -> None:
        self._soon: list[_Timer] = []
        self._later: list[tuple[float, _Timer]] = []
        self._now_s = 0.0

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> _Timer:
        """Put a call into the next turn."""
        self._soon.append(_Timer(lambda: callback(*args)))
        return self._soon[-1]

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any) -> _Timer:
        """Put a call into the next turn, from any thread."""
        return self.call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> _Timer:
        """Put a call off."""
        timer = _Timer(lambda: callback(*args))
        self._later.append((self._now_s + delay, timer))
        return timer

    def turn(self) -> None:
        """Run what is due now."""
        while self._soon:
            timer = self._soon.pop(0)
            if not timer.cancelled:
                timer.call()

    def one_turn(self) -> None:
        """Run what is due now, and nothing that it calls for."""
        due, self._soon = self._soon, []
        for timer in due:
            if not timer.cancelled:
                timer.call()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds
        due = [timer for at, timer in self._later if at <= self._now_s]
        self._later = [(at, timer) for at, timer in self._later if at > self._now_s]
        for timer in due:
            if not timer.cancelled:
                timer.call()
        self.turn()

    def idle(self) -> bool:
        """Return whether nothing is to be done in the next turn."""
        return not self._soon

    def waiting(self) -> int:
        """Return how many timers run."""
        return sum(not timer.cancelled for _, timer in self._later)


class StorageNode:
    """A storage in a directory."""

    def __init__(self, directory: Path, *, sync: SyncFile = os.fdatasync, **config: Any) -> None:
        self.clock = ManualClock(start_ms=NOW_MS)
        self.scheduler = ManualScheduler()
        self.storage = Storage.open(directory, StorageConfig(**config), self.clock, sync=sync)
        closed_after_test(self.storage.store)
        self.start()

    def start(self) -> None:
        """Start what runs beside requests."""
        start_housekeeping(self.storage, self.scheduler)

    def round(self) -> None:
        """Run a turn, wait until the threads have done what they were given, and run a turn with what came of it."""
        self.scheduler.turn()
        self.storage._worker.submit(lambda: None).result()
        self.storage._removal.wait()
        self.storage._group_worker.wait()
        self.scheduler.turn()

    def create(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic past its handler; return its id."""
        return run_at_once(
            self.storage.topics.create_in_slices(
                name, partitions, {key.replace("_", "."): value for key, value in configs.items()}
            )
        ).topic_id

    def log(self, name: str, partition: int = 0) -> PartitionLog:
        """Return a partition's log."""
        return self.storage.topics.by_name[name].logs[partition]

    def inode(self, name: str, partition: int = 0) -> int:
        """Return the inode of a partition's newest file."""
        return os.fstat(self.log(name, partition).segments[-1].written_file().fd).st_ino

    def fill(self, *names: str) -> None:
        """Create topics with three batches each in their only partition."""
        for name in names:
            self.create(name)
            for _ in range(3):
                append(self.log(name), batch())
