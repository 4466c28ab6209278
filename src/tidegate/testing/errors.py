"""The error of the broker in tests."""

from tidegate.errors import TidegateError

__all__ = ["BrokerError"]


class BrokerError(TidegateError, RuntimeError):
    """Raised when a broker of a test does not start, refuses a change, ends by itself, or does not throttle in time."""
