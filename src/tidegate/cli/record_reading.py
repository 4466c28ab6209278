"""Preparations of a command that reads a usage record, so that a large record takes less memory and time.

They change the process, so only the commands use them. A program that uses the Python API decides for itself.
"""

import ctypes
import gc
import logging
import sys
from importlib.abc import MetaPathFinder

__all__ = ["prepare_reading", "print_warnings"]

_NEW_OBJECTS, _YOUNGER_COLLECTIONS = 50_000, (20, 20)  # between two collections of Python

_M_ARENA_MAX, _ARENAS = -8, 2  # `mallopt` in glibc's malloc.h


def prepare_reading() -> None:
    """Avoid importing pandas, share memory arenas, collect garbage cycles rarely, and print warnings."""
    print_warnings()
    _leave_pandas_out()
    _share_arenas()
    _collect_rarely()


def print_warnings() -> None:
    """Print warnings on stderr. The Python API only logs them."""
    assert logging.lastResort is not None, "the process has just begun"
    logging.getLogger("tidegate").addHandler(logging.lastResort)


def _leave_pandas_out() -> None:
    """Make pyarrow import pandas only for a conversion to pandas, not for the first list that becomes an array.

    pyarrow tries to import pandas once, and if that fails, again at each conversion to pandas (`pandas-shim.pxi`). The
    import takes 0.3 s and 50 MB. Only for commands: a user of the Python API may need pandas.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow

    sys.meta_path.insert(0, _NoPandas)
    try:
        pyarrow.array([])
    finally:
        sys.meta_path.remove(_NoPandas)


def _share_arenas() -> None:
    """Limit the C library's memory arenas to two; otherwise each thread has its own arena, with its own free memory.

    The sums of 20,000,000 rows take 394 MB instead of 448 (docs/performance.md). Only glibc has arenas.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, _ARENAS)


def _collect_rarely() -> None:
    """Make Python's garbage collector run after 50,000 new objects, not after 700.

    A replay makes millions of objects that stay. To examine them so often took a sixth of its time.
    """
    gc.set_threshold(_NEW_OBJECTS, *_YOUNGER_COLLECTIONS)


class _NoPandas(MetaPathFinder):
    """An import finder that hides pandas from the finders after it."""

    @classmethod
    def find_spec(cls, fullname: str, *others: object) -> None:
        """Raise `ModuleNotFoundError` for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError(f"no module named {fullname!r}", name=fullname)
