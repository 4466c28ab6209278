"""Periodic work of an open storage, in slices of a millisecond: no request waits for it.

Twice a second, check for removed files. Each second, write index entries and producers of logs that have grown, so that
a start after a kill reads little. Each minute, or more often if `log.retention.check.interval.ms` says so, delete data
past its retention and write the offsets up to which logs are synced.
"""

import logging
from collections.abc import Callable, Iterator

from tidegate.scheduling import Scheduler
from tidegate.storage.config import StorageConfig
from tidegate.storage.storage import Storage

__all__ = [
    "HOUSEKEEPING_EVERY_S",
    "LOOK_EVERY_S",
    "SAVE_EVERY_S",
    "SLICE_MS",
    "clean_every_s",
    "start_chore",
    "start_housekeeping",
]

HOUSEKEEPING_EVERY_S = 60.0  # Kafka's `log.flush.offset.checkpoint.interval.ms`
LEAST_CLEAN_EVERY_S = 0.1
LOOK_EVERY_S = 0.5
SAVE_EVERY_S = 1.0
SLICE_MS = 1
_PAUSE_S = 0.004

_logger = logging.getLogger(__name__)


def start_housekeeping(storage: Storage, scheduler: Scheduler) -> None:
    """Start the periodic work and the syncs of `storage`, until it is closed. Call once for a storage."""
    storage.commits.start(scheduler)
    storage.group_writes.start(scheduler)
    every_s = clean_every_s(storage.config)
    start_chore(storage, scheduler, every_s, lambda: storage.clean(storage.clock.wall_ms()))
    start_chore(storage, scheduler, LOOK_EVERY_S, storage.check_files)
    start_chore(storage, scheduler, SAVE_EVERY_S, storage.save_positions)


def clean_every_s(config: StorageConfig) -> float:
    """Return how often expired data is deleted (`log.retention.check.interval.ms`), in seconds."""
    asked_s = config.log_retention_check_interval_ms / 1000
    return max(LEAST_CLEAN_EVERY_S, min(asked_s, HOUSEKEEPING_EVERY_S))


def start_chore(
    storage: Storage, scheduler: Scheduler, every_s: float, begin: Callable[[], Iterator[None]]
) -> None:
    """Run the work of `begin` every `every_s` seconds, in slices of `SLICE_MS`, until `storage` is closed."""
    _Chore(storage, scheduler, every_s, begin)


class _Chore:
    """Work that is repeated at an interval, in slices with pauses. An error is logged and does not end it."""

    def __init__(
        self,
        storage: Storage,
        scheduler: Scheduler,
        every_s: float,
        begin: Callable[[], Iterator[None]],
    ) -> None:
        self._storage = storage
        self._scheduler = scheduler
        self._every_s = every_s
        self._begin = begin
        self._work: Iterator[None] | None = None
        scheduler.call_later(every_s, self._run)

    def _run(self) -> None:
        if self._storage.closed:
            return
        try:
            if self._work is None:
                self._work = self._begin()
            if not self._run_slice(self._work):
                self._work = None
        except Exception:
            self._work = None
            _logger.exception(
                "housekeeping of %s failed; it is repeated at the next interval", self._storage.directory
            )
        self._scheduler.call_later(self._every_s if self._work is None else _PAUSE_S, self._run)

    def _run_slice(self, work: Iterator[None]) -> bool:
        """Run a slice; return whether there is more."""
        monotonic_ns = self._storage.clock.monotonic_ns
        until_ns = monotonic_ns() + SLICE_MS * 1_000_000
        return any(monotonic_ns() >= until_ns for _ in work)
