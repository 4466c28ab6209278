"""What a storage does again and again while it is open."""

from tidegate.storage.scheduling import Scheduler
from tidegate.storage.storage import Storage

__all__ = ["HOUSEKEEPING_EVERY_S", "keep_house"]

HOUSEKEEPING_EVERY_S = 60.0  # Kafka's `log.flush.offset.checkpoint.interval.ms`


def keep_house(storage: Storage, scheduler: Scheduler) -> None:
    """Let `storage` clean up again and again, until it is closed."""

    def run() -> None:
        if not storage.closed:
            storage.keep_house(storage.clock.now_ms())
            scheduler.call_later(HOUSEKEEPING_EVERY_S, run)

    scheduler.call_later(HOUSEKEEPING_EVERY_S, run)
