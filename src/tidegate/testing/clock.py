"""A clock for tests that moves only when told to."""

__all__ = ["ManualClock"]


class ManualClock:
    """A `Clock` that stands still until `advance` is called.

    >>> clock = ManualClock(start_ms=1000)
    >>> clock.advance(250)
    >>> clock.now_ms()
    1250
    """

    def __init__(self, *, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._monotonic_ns = 0

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch."""
        return self._now_ms

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the clock was made."""
        return self._monotonic_ns

    def advance(self, ms: int) -> None:
        """Move both clocks on by `ms` milliseconds (the wall clock alone steps back when negative)."""
        self._now_ms += ms
        self._monotonic_ns += max(ms, 0) * 1_000_000
