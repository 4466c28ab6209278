"""A data directory that is a small file system of its own, for tests of a process whose disk is full."""

import contextlib
import subprocess
from pathlib import Path

import pytest

__all__ = ["LOG_NAME", "fill", "free", "needs_mounts", "program_on_small_disk", "seen_from_outside"]

LOG_NAME = "process.log"
_PROGRAM = """
import ctypes, os, subprocess, sys
CLONE_NEWNS = 0x20000
assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size={size}", "none", {directory!r}], check=True)
if {logs_there}:
    log = os.open({directory!r} + "/{log}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 2)
from tidegate.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def _can_mount() -> bool:
    """Return whether this user may mount a file system in a namespace of its own."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not _can_mount(), reason="needs the right to mount (unshare --mount)")


def program_on_small_disk(directory: Path, size_bytes: int, *, logs_there: bool) -> str:
    """Return a program that runs `tidegate` with its arguments; for it, `directory` is a small file system.

    logs_there: whether stderr is the file `LOG_NAME` in it.
    """
    return _PROGRAM.format(size=size_bytes, directory=str(directory), logs_there=logs_there, log=LOG_NAME)


def seen_from_outside(pid: int, directory: Path) -> Path:
    """Return the directory as other processes reach it."""
    return Path(f"/proc/{pid}/root{directory}")


def fill(directory: Path) -> None:
    """Fill the disk, as another program would."""
    with contextlib.suppress(OSError), (directory / "filler").open("ab", buffering=0) as filler:
        for size in (1 << 20, 1):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(size))


def free(directory: Path) -> None:
    """Make space again."""
    (directory / "filler").unlink()
