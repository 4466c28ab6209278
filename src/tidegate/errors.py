"""Errors that Tidegate raises, each with what was wrong, where, and what was expected."""

import shlex
import sys
from pathlib import Path

__all__ = ["ArgumentError", "ConfigError", "TidegateError", "install_hint"]


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


class ArgumentError(ConfigError):
    """Raise when a function of the Python API is called with a value that it cannot use."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="see docs/python-api.md for the arguments of each function")


def install_hint(extra: str) -> str:
    """Return how to install an extra of Tidegate: a command where it runs from a checkout.

    No package index has Tidegate, so that its bare name is no command.
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"{shlex.quote(sys.executable)} -m pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    return f"install tidegate again, with the extra {extra!r}"
