"""The client processes of the demo: started together, listened to, and stopped together."""

import json
import subprocess
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from tidegate.child_python import module_command
from tidegate.cli.demonstration.clients import Report
from tidegate.cli.demonstration.tally import Tally
from tidegate.errors import TidegateError

__all__ = ["ClientProcesses"]

_STOP_TIMEOUT_S = 10.0
_ERRORS_SHOWN = 3


class ClientProcesses:
    """Run the clients for as long as the block lasts; `phase` holds each one's tally since `begin_phase`.

    clients: name → what it does (a name in `CLIENTS`), and the address of its broker.
    """

    def __init__(self, clients: Mapping[str, tuple[str, str]]) -> None:
        self._clients = clients
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._lock = threading.Lock()
        self.phase: dict[str, Tally] = {}

    def __enter__(self) -> "ClientProcesses":
        """Start the clients."""
        self.begin_phase()
        for name, (client, address) in self._clients.items():
            command = module_command("tidegate.cli.demonstration.clients", client, address)
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,  # Ctrl-C is ours to handle
            )
            self._processes[name] = process
            threading.Thread(target=self._listen, args=(name, process), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the clients: their standard input ends."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def begin_phase(self) -> dict[str, Tally]:
        """Begin new tallies and return those of the phase that ends."""
        now_s = time.monotonic()
        with self._lock:
            ended, self.phase = self.phase, {name: Tally(now_s) for name in self._clients}
        return ended

    def check(self) -> None:
        """Raise `TidegateError` when a client has ended or cannot go on."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise TidegateError(
                    f"the client {name!r} ended by itself with exit code {process.returncode}"
                )
            errors = self.phase[name].errors
            if errors:
                raise TidegateError(f"the client {name!r} was refused: {'; '.join(errors[:_ERRORS_SHOWN])}")

    def _listen(self, name: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                report = Report(**json.loads(line))
                with self._lock:
                    self.phase[name].add(report, time.monotonic())
