"""Blocks of a page, typed into one shell one after the other: what a newcomer gets who pastes them."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["type_blocks"]

_MARK = "--- block {} ---"


def type_blocks(blocks: Sequence[str], directory: Path, *, port: int, timeout_s: float) -> list[str]:
    """Return what each block printed. All of them have to end well, in time; what they left running ends.

    port: what the page's broker listens on; nobody else may.
    """
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError as error:
            raise AssertionError(f"the page's port {port} is in use: {error}") from error
    typed = "".join(f"echo; echo '{_MARK.format(number)}'\n{text}" for number, text in enumerate(blocks))
    output = directory / "terminal"
    with output.open("wb") as terminal:
        shell = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail"],
            cwd=directory,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdin=subprocess.PIPE,
            stdout=terminal,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.communicate(typed.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            terminal.write(f"\nnot done after {timeout_s:.0f} s\n".encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    text = output.read_text(encoding="utf-8")
    assert shell.returncode == 0, text
    return re.split(_MARK.format(r"\d+") + "\n", text)[1:]
