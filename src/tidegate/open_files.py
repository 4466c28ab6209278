"""The limit of open files of this process."""

import contextlib
import fcntl
import os
import resource

__all__ = ["OPEN_FILES_PREPARED", "raise_open_files_limit"]

OPEN_FILES_PREPARED = 65_536
"""Descriptors that the kernel has room for from the start: half a megabyte."""


def raise_open_files_limit() -> int:
    """Raise the limit of open files to the hard limit, and return that; `resource.RLIM_INFINITY`: there is none.

    The kernel also makes room for the descriptors now: once a process has threads, each doubling of its table of
    descriptors delays the thread that opens a file or accepts a connection by some 15 ms (`synchronize_rcu`).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = min(hard, OPEN_FILES_PREPARED) if hard != resource.RLIM_INFINITY else OPEN_FILES_PREPARED
    with contextlib.suppress(OSError), open(os.devnull, "rb") as file:
        os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, most - 1))
    return hard
