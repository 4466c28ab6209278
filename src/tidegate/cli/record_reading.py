"""Preparations of a command that reads a usage record: a large one takes less memory and time.

Only for a process of ours: a program that uses the Python API decides on these for itself.
"""

import ctypes
import gc
import sys
from importlib.abc import MetaPathFinder

__all__ = ["prepare_reading"]

_NEW_OBJECTS, _YOUNGER_COLLECTIONS = 50_000, (20, 20)  # between two collections of Python

_M_ARENA_MAX, _ARENAS = -8, 2  # `mallopt` in glibc's malloc.h


def prepare_reading() -> None:
    """Leave pandas out, share the memory of threads, and look for cycles of objects rarely."""
    _leave_pandas_out()
    _share_arenas()
    _collect_rarely()


def _leave_pandas_out() -> None:
    """Make pyarrow import pandas only for a conversion to it, and not for the first list that becomes an array.

    pyarrow looks for pandas once, and where there was none, again at each conversion (`pandas-shim.pxi`). pandas takes
    0.3 s and 50 MB. Only for a process of ours: a user of the Python API may need pandas.
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
    """Share two arenas of the C library's memory among threads; otherwise, each has its own, with its own free pieces.

    The sums of 20,000,000 rows take 394 MB instead of 448 (docs/performance.md). Only glibc has arenas.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, _ARENAS)


def _collect_rarely() -> None:
    """Make Python look for cycles after 50,000 new objects, and not after 700.

    A replay makes millions of objects that stay. To look at all of them so often took a sixth of its time.
    """
    gc.set_threshold(_NEW_OBJECTS, *_YOUNGER_COLLECTIONS)


class _NoPandas(MetaPathFinder):
    """A finder that finds no pandas, in place of the finders behind it."""

    @classmethod
    def find_spec(cls, fullname: str, *others: object) -> None:
        """Raise `ModuleNotFoundError` for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError(f"no module named {fullname!r}", name=fullname)
