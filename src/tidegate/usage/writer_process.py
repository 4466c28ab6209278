"""The Parquet writer's process, as the broker controls it: start it, restart it, and let it finish.

    writer = start_writer(spool, parquet, node_id=node_id, clock=clock)
    writer.keep_running()      # from the server's timer
    writer.stop()              # after `Recorder.close()`: it converts the last segment by itself and exits

The writer is a new interpreter, not a fork, so it does not copy the broker's memory. It watches its standard input,
whose other end only the broker has, so it also ends when the broker is killed. Signals to the broker's process group do
not reach it, and it ignores others, because it has to convert the last segment.
"""

import logging
import subprocess
import threading
from pathlib import Path

from tidegate.child_python import module_command
from tidegate.clock import Clock
from tidegate.log_format import TEXT

__all__ = ["EXIT_NO_PYARROW", "RETENTION_MS", "WriterProcess", "start_writer"]

EXIT_NO_PYARROW = 3
"""Exit code of a writer that found no pyarrow: it is not started again."""
RETENTION_MS = 7 * 24 * 3_600_000
"""Default of `usage.retention.ms`: a week, as `log.retention.hours` in Kafka."""
RESTART_MS = 5_000
"""Shortest time between two starts of a writer that ended by itself."""

_log = logging.getLogger(__name__)


class WriterProcess:
    """The writer of one node's spool, as the broker sees it."""

    def __init__(self, command: list[str], clock: Clock) -> None:
        self._command = command
        self._clock = clock
        self._process = self._start()

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return whether the process is there."""
        return self._process.poll() is None

    def keep_running(self) -> None:
        """Start the writer again if it ended by itself, unless pyarrow is missing."""
        code = self._process.poll()
        if code in (None, EXIT_NO_PYARROW):
            return
        if self._clock.monotonic_ns() - self._started_ns >= RESTART_MS * 1_000_000:
            self._restart(code)

    def stop(self, *, timeout_s: float = 0.0) -> bool:
        """Ask the writer to finish, wait at most `timeout_s`, and return whether it has ended.

        If it has not ended, it continues, and ends when all closed segments are converted. If it was killed, start it
        again to convert them.
        """
        code = self._process.poll()
        if code not in (None, 0, EXIT_NO_PYARROW):
            self._restart(code)
        self._close_input()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            threading.Thread(target=self._process.wait, daemon=True).start()  # avoids a zombie process
            return False
        return True

    def _restart(self, code: int | None) -> None:
        """Start the writer again. If that fails, the next `keep_running` tries it."""
        _log.warning("usage writer exited with code %s: starting it again", code)
        try:
            process = self._start()
        except OSError as error:
            _log.error("cannot start the usage writer, segments stay in the spool: %s", error)
            return
        self._close_input()
        self._process = process

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._started_ns = self._clock.monotonic_ns()
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0
        )


def start_writer(
    spool: Path,
    parquet: Path,
    *,
    node_id: int,
    clock: Clock,
    retention_ms: int = RETENTION_MS,
    engine_offset_ns: int | None = None,
    log_format: str = TEXT,
) -> WriterProcess:
    """Start the writer of the spool of `node_id`; Parquet goes under `parquet`. Raises `OSError`.

    engine_offset_ns: engine time less the monotonic clock, by which hours are over and expire; None: the wall clock.
    """
    command = module_command("tidegate.usage.writer", str(spool), str(parquet))
    command += ["--node-id", str(node_id), "--retention-ms", str(retention_ms), "--log-format", log_format]
    if engine_offset_ns is not None:
        command += ["--engine-offset-ns", str(engine_offset_ns)]
    return WriterProcess(command, clock)
