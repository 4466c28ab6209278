"""Python in processes that this one starts: no module of the current directory is theirs.

A `json.py` that happens to lie where someone starts `tidegate` must not stand in for the standard library's: neither in
our own processes, nor in what Spark starts, which takes no options of Python's but inherits its environment.
"""

import sys

__all__ = ["SAFE_PATH_VARIABLE", "module_command"]

SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
"""Set to "1" in an environment, it is `-P` for every Python that is started with it."""


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with the Python of this process."""
    return [sys.executable, "-P", "-m", module, *arguments]
