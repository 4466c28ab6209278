"""Errors that Tidegate raises, each with what was wrong, where, and what was expected."""

__all__ = ["ConfigError", "TidegateError"]


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose.

    The message says what is wrong, the offending value and what was expected, in lower case and
    without a full stop. `hint` says how to mend it, where a way is known.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(TidegateError, ValueError):
    """Raise when a setting, an option or a file of the user's holds a value that cannot be used."""
