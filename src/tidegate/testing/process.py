"""The `tidegate serve` process of a test: its directory, its settings file, its start and its end.

The broker has its own process, so that it shares no interpreter lock, garbage collector or signal handler with the
tests, and is the program that users run. It stops when its standard input is closed: it does not outlive the tests, not
even if they are killed.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tidegate.child_python import module_command
from tidegate.errors import TidegateError

__all__ = ["BrokerError", "BrokerProcess"]

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
LOG_BYTES_MAX = 16 << 20
"""Bytes of the log that are returned, the last ones."""

_POLL_S = 0.002
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"})


class BrokerError(TidegateError, RuntimeError):
    """Raised when a broker of a test does not start, refuses a change, ends by itself, or does not throttle in time."""


class BrokerProcess:
    """A started broker. ports: those of each listener of each node, in order.

    Raises `BrokerError` with the log if the broker does not start in `START_TIMEOUT_S` seconds.
    """

    def __init__(self, settings: Mapping[str, str], *, nodes: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tidegate-"))
        self._final_log = ""
        try:
            self._process = self._start(settings, nodes)
            try:
                self.ports = self._wait_ports()
            except BaseException:
                self._end()
                raise
        except BaseException:
            self._remove()
            raise

    @property
    def usage_directory(self) -> Path:
        """Return the directory of the usage record."""
        return self.directory / "data" / "usage"

    @property
    def log(self) -> str:
        """Return what the broker has logged so far, its last 16 MiB; also after it has ended."""
        path = self.directory / "broker.log"
        if not path.exists():
            return self._final_log
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - LOG_BYTES_MAX, 0))
            return file.read().decode("utf-8", "replace")

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    def stop(self) -> None:
        """Stop the broker and remove its directory. Raises `BrokerError` if it had ended by itself, or does not end."""
        had_ended = self._process.poll() is not None
        is_stopped = self._end()
        self._remove()
        if not is_stopped:
            raise BrokerError(f"the broker did not stop in {STOP_TIMEOUT_S:.0f} s; its log:\n{self.log}")
        code = self._process.returncode
        if had_ended or code != 0:
            raise BrokerError(f"the broker ended by itself with exit code {code}; its log:\n{self.log}")

    def _start(self, settings: Mapping[str, str], nodes: int) -> "subprocess.Popen[bytes]":
        config = self.directory / "server.properties"
        config.touch(mode=0o600)  # it has passwords
        config.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in settings.items()), "utf-8")
        command = module_command("tidegate", "serve", "--stop-on-eof", "--config", str(config))
        command += ["--data", str(self.directory / "data"), "--port-file", str(self._port_file)]
        command += ["--nodes", str(nodes)]
        with (self.directory / "broker.log").open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, process_group=0)

    @property
    def _port_file(self) -> Path:
        return self.directory / "ports"

    def _wait_ports(self) -> list[int]:
        """Return the ports when the broker is ready: it then writes them."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._port_file.exists():
            code = self._process.poll()
            if code is not None:
                raise BrokerError(f"the broker did not start, exit code {code}; its log:\n{self.log}")
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"the broker did not start in {START_TIMEOUT_S:.0f} s; its log:\n{self.log}"
                )
            time.sleep(_POLL_S)
        return [int(line) for line in self._port_file.read_text("utf-8").split()]

    def _end(self) -> bool:
        """End the process; return whether it did so when asked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True

    def _remove(self) -> None:
        self._final_log = self.log
        shutil.rmtree(self.directory, ignore_errors=True)


def _escaped(value: str) -> str:
    """Return a value as `server.properties` has it."""
    text = value.translate(_ESCAPES)
    return f"\\{text}" if text.startswith(" ") else text
