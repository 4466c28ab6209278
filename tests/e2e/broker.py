"""A real `tidegate serve` process for the end-to-end tests: started, watched, killed, started again."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.ports import free_port

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0

_LISTENING = re.compile(r"listening on .*?:(\d+)\b")


@dataclass
class Broker:
    """One broker over one data directory; `start` may be called again after `kill` or `stop`.

    nodes: how many nodes the process has. ports: those of the first listener of each, of which the first is `port`.
    options: further options of `tidegate serve`.
    first_port: what `port` is to be, the others following it; 0: any. A single node keeps the port that it had.
    """

    directory: Path
    overrides: dict[str, str] = field(default_factory=dict)
    nodes: int = 1
    first_port: int = 0
    port: int = 0
    ports: list[int] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    process: subprocess.Popen | None = None
    _said_before: int = 0

    @property
    def address(self) -> str:
        """Return `host:port`, for a client's bootstrap servers."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Return all that the broker has written to stderr, over all its lives."""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def data_dir(self) -> Path:
        """Return the directory that holds the broker's data."""
        return self.directory / "data"

    @property
    def _log_path(self) -> Path:
        return self.directory / "broker.log"

    def command(self) -> list[str]:
        """Return what starts Tidegate, without its arguments."""
        return [sys.executable, "-m", "tidegate"]

    def streams(self) -> dict[str, Any]:
        """Return how the process's streams differ from the usual: all to the log."""
        return {}

    def start(self) -> "Broker":
        """Start the process and wait until it listens."""
        self.spawn()
        return self.wait_listening()

    def spawn(self) -> None:
        """Start the process."""
        self._said_before = len(self.log) if self._log_path.exists() else 0
        overrides = {"log.dirs": str(self.data_dir), **self.overrides}
        has_several = "," in overrides.get("listeners", "")  # each says its own port
        if self.nodes == 1 and not has_several:
            # The system would give a port that another test may get, too, while this broker is down.
            self.port = self.port or self.first_port or free_port()
        first_port = self.first_port or (self.port if self.nodes == 1 else 0)
        port = [] if has_several else ["--port", str(first_port)]
        arguments = [part for key, value in overrides.items() for part in ("--override", f"{key}={value}")]
        nodes = ["--nodes", str(self.nodes)] if self.nodes > 1 else []
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command(), "serve", *port, *nodes, *arguments, *self.options],
                **{"stdout": log, **self.streams()},
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                process_group=0,  # as a job of a shell has
            )

    def wait_listening(self) -> "Broker":
        """Wait until the process listens."""
        before = self._said_before
        self.ports = [int(self.wait_log(_LISTENING, start=before)[1])]
        for number in range(2, self.nodes + 1):
            line = re.compile(rf"node {number} {_LISTENING.pattern}")
            self.ports.append(int(self.wait_log(line, start=before)[1]))
        self.port = self.ports[0]
        return self

    def wait_log(
        self, pattern: re.Pattern, *, start: int = 0, timeout_s: float = START_TIMEOUT_S
    ) -> re.Match:
        """Return the first match of `pattern` in the log from `start` on, waiting for it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            match = pattern.search(self.log, start)
            if match:
                return match
            assert self.process.poll() is None, (
                f"the broker ended with {self.process.returncode}:\n{self.log}"
            )
            time.sleep(0.02)
        raise AssertionError(f"{pattern.pattern!r} did not appear within {timeout_s} s in:\n{self.log}")

    def kill(self) -> None:
        """Kill the process as a crash would (SIGKILL)."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Ask the process to end and return its exit code."""
        self.process.send_signal(signum)
        return self.process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """End the process whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
                raise
