"""The clocks: engine time in ms for quotas, the wall clock for time stamps, monotonic nanoseconds for durations.

Engine time is the wall clock at its start plus the monotonic time since then: it looks like the wall clock, but is
never stepped. Kafka measures quotas with the wall clock: if that is set back by an hour, it throttles clients that are
well within their quotas for an hour (decision 0027).
"""

import time
from typing import Protocol

__all__ = ["NS_PER_MS", "Clock", "SystemClock"]

NS_PER_MS = 1_000_000


class Clock(Protocol):
    """The clock of the server; tests pass a `tidegate.testing.ManualClock`."""

    def now_ms(self) -> int:
        """Return engine time: milliseconds since the epoch that never step back."""

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch (may be stepped)."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a clock that never steps back."""


class SystemClock:
    """The machine's clocks. Follows: Kafka `Time.SYSTEM`.

    engine_offset_ns: engine time minus the monotonic clock, to continue the engine time of another process of this
    machine; None: engine time begins now, with the wall clock.
    """

    monotonic_ns = staticmethod(time.monotonic_ns)  # the function itself: each request calls it several times

    def __init__(self, *, engine_offset_ns: int | None = None) -> None:
        if engine_offset_ns is None:
            engine_offset_ns = time.time_ns() - time.monotonic_ns()
        self._engine_offset_ns = engine_offset_ns

    def now_ms(self) -> int:
        """Return engine time in milliseconds since the epoch."""
        return (time.monotonic_ns() + self._engine_offset_ns) // NS_PER_MS

    @staticmethod
    def wall_ms() -> int:
        """Return the wall clock in milliseconds since the epoch."""
        return time.time_ns() // NS_PER_MS
