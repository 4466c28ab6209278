"""Errors that Tidegate raises, each with what was wrong, where, and what was expected."""

import shlex
import sys
from pathlib import Path
from typing import Any

__all__ = ["ArgumentError", "ConfigError", "TidegateError", "install_hint"]


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose.

    The message says what is wrong, the offending value and what was expected, in lower case and
    without a full stop. `hint` says how to fix it, if a fix is known.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the parts of a copy, for `pickle`: a subclass may have other parameters than `args`."""
        return _copied, (type(self), self.args), self.__dict__


def _copied(of: type[TidegateError], args: tuple[Any, ...]) -> TidegateError:
    error = of.__new__(of, *args)
    error.args = args  # `OSError.__new__` does not store them
    return error


class ConfigError(TidegateError, ValueError):
    """Raised if a setting, an option or a file of the user contains an unusable value."""


class ArgumentError(ConfigError):
    """Raised if a function of the Python API is called with a value that it cannot use."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="see docs/python-api.md for the arguments of each function")


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of Tidegate for the interpreter that runs.

    Tidegate is not in a package index: the command names the checkout that it runs from, or the source that pip used.
    """
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"{pip} -e {shlex.quote(f'{checkout}[{extra}]')}"
    source = _installed_from()
    if source is not None:
        return f"{pip} {shlex.quote(f'tidegate[{extra}] @ {source}')}"
    return f"in a clone of Tidegate, run: {pip} {shlex.quote(f'.[{extra}]')}"


def _installed_from() -> str | None:
    """Return the URL that pip installed Tidegate from; None without one, or if its file or directory is gone.

    Follows: PEP 610 (`direct_url.json`).
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        found = json.loads(distribution("tidegate").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    url, vcs = found.get("url"), found.get("vcs_info")
    if vcs is not None:
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    is_gone = url is None or (url.startswith("file:") and not Path(unquote(urlsplit(url).path)).exists())
    return None if is_gone else str(url)
