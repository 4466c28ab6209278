"""Memory that was freed, given back to the operating system.

What comes in pieces of many sizes leaves holes that the next do not fit into: a replay of 1,000,000 clients has twice
as much resident as it uses.
"""

import ctypes

import pyarrow as pa

__all__ = ["give_back"]


def give_back() -> None:
    """Release the free memory that Arrow and the C library keep for later use; takes milliseconds."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
