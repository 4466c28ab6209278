"""The two clocks: wall time in milliseconds for quota windows, monotonic nanoseconds for durations."""

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the server asks for the time; tests hand in a `tidegate.testing.ManualClock`."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch (may step back)."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a clock that never steps back."""
        ...


class SystemClock:
    """The machine's clocks. Follows: Kafka `Time.SYSTEM`."""

    monotonic_ns = staticmethod(time.monotonic_ns)  # the function itself: asked several times a request

    @staticmethod
    def now_ms() -> int:
        """Return the wall clock in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
