"""Python processes that this one starts: they do not import modules from the current directory.

A `json.py` in the directory where a user starts `tidegate` must not replace that of the standard library, neither in
Tidegate's own processes nor in those that Spark starts. Spark passes no options to Python, only the environment.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["SAFE_PATH_VARIABLE", "environment_variable", "module_command", "safe_path"]

SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
"""The environment variable that, set to "1", acts like the option `-P` for every Python process with it."""


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with the Python of this process."""
    return [sys.executable, "-P", "-m", module, *arguments]


def safe_path() -> AbstractContextManager[None]:
    """Prevent processes started in the block, and their children, from importing modules of the current directory."""
    return environment_variable(SAFE_PATH_VARIABLE, "1")


@contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for the duration of the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
