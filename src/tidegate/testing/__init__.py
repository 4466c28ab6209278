"""Public kit for tests of quotas: a clock that moves only when asked to."""

from tidegate.testing.clock import ManualClock

__all__ = ["ManualClock"]
