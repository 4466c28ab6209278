"""Memory limit of this process: the memory of the machine, or the lowest limit below that.

The limits are those of control groups of both versions, the process's own and those above it (a container's, a systemd
unit's `MemoryMax`), and those of the process itself (`ulimit -v`, `-d`).
"""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["process_memory_bytes"]

_ROOT = Path("/")
_GROUPS = "sys/fs/cgroup"


def process_memory_bytes(root: Path = _ROOT) -> int:
    """Return the memory limit in bytes. root: the root directory of the system's files."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft)
    for path in _limit_files(root):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(path.read_text()))
    return min(limits)


def _limit_files(root: Path) -> Iterator[Path]:
    """Yield the files that may contain a limit. Most of them do not exist."""
    yield root / _GROUPS / "memory.max"
    yield root / _GROUPS / "memory" / "memory.limit_in_bytes"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        within = PurePosixPath(name.lstrip("/"))
        for group in (within, *within.parents):
            if number == "0" and not controllers:
                yield root / _GROUPS / group / "memory.max"
            elif "memory" in controllers.split(","):
                yield root / _GROUPS / "memory" / group / "memory.limit_in_bytes"
