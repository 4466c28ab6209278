"""Python in processes that this one starts: no module of the current directory is theirs.

A `json.py` that happens to lie where someone starts `tidegate` must not stand in for the standard library's: neither in
our own processes, nor in what Spark starts, which takes no options of Python's but inherits its environment.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["SAFE_PATH_VARIABLE", "environment_variable", "module_command", "safe_path"]

SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
"""Set to "1" in an environment, it is `-P` for every Python that is started with it."""


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
