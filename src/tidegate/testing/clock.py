"""A clock for tests that moves only when asked to."""

__all__ = ["ManualClock"]


class ManualClock:
    """A `Clock` that stands still until it is asked to move.

    >>> clock = ManualClock(start_ms=1000)
    >>> clock.advance(250)
    >>> clock.step_wall(-3_600_000)
    >>> clock.now_ms(), clock.wall_ms()
    (1250, -3598750)
    """

    def __init__(self, *, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = self._wall_ms = start_ms
        self._monotonic_ns = 0

    def now_ms(self) -> int:
        """Return engine time in milliseconds since the epoch."""
        return self._now_ms

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch."""
        return self._wall_ms

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the clock was made."""
        return self._monotonic_ns

    def advance(self, ms: int) -> None:
        """Advance all clocks by `ms` milliseconds."""
        if ms < 0:
            raise ValueError(f"ms must be 0 or more, got {ms}; hint: step_wall sets the wall clock back")
        self._now_ms += ms
        self._wall_ms += ms
        self._monotonic_ns += ms * 1_000_000

    def step_wall(self, ms: int) -> None:
        """Set the wall clock on (or back, where negative) by `ms` milliseconds, and no other."""
        self._wall_ms += ms
