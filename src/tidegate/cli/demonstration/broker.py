"""The brokers of the demo: each a `tidegate serve` process of its own on a free port."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.child_python import module_command
from tidegate.errors import TidegateError

__all__ = ["running_broker"]

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.05


@contextmanager
def running_broker(data: Path, *options: str) -> Iterator[int]:
    """Give the port of a broker over `data` that runs until the end of the block; its log lies beside its data.

    options: more options of `tidegate serve`. Raises `TidegateError` if it does not start.
    """
    port_file, log_file = data.with_suffix(".port"), data.with_suffix(".log")
    port_file.unlink(missing_ok=True)
    command = module_command("tidegate", "serve", "--port", "0")
    command += ["--data", str(data), "--port-file", str(port_file), *options]
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )  # a group of its own: Ctrl-C is ours to handle
    try:
        yield _wait_port(process, port_file, log_file)
    finally:
        _stop(process)
        port_file.unlink(missing_ok=True)


def _wait_port(process: "subprocess.Popen[bytes]", port_file: Path, log: Path) -> int:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if port_file.exists():
            return int(port_file.read_text())
        time.sleep(_POLL_S)
    raise TidegateError("the broker did not start", hint=f"what it said is in {str(log)!r}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
