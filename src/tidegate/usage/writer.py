"""The process that turns a node's spool into Parquet: `python -m tidegate.usage.writer SPOOL PARQUET --node-id N`.

The broker starts it (`writer_process.start_writer`) and keeps its standard input open. When the input ends, also if the
broker was killed, the writer converts the closed segments and exits; it ignores signals. Only this process loads
pyarrow, so that the broker needs less memory. Exit codes: 0 done; 1 an error, which is logged; 2 wrong arguments;
3 pyarrow is not installed, the segments stay in the spool.
"""

import argparse
import importlib.util
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tidegate.clock import Clock, SystemClock
from tidegate.errors import TidegateError, install_hint
from tidegate.log_format import LOG_FORMATS, TEXT, formatter
from tidegate.usage.convert import compact, convert_all, delete_expired
from tidegate.usage.directory import WRITER_LOCK, holds_lock, lock_file
from tidegate.usage.files import remove_temporary_files
from tidegate.usage.spare import keeping_spare
from tidegate.usage.writer_process import EXIT_NO_PYARROW, RETENTION_MS

__all__ = ["Writer", "main"]

POLL_S = 0.25
"""Interval at which the spool is searched for closed segments."""
IDLE_S = 60.0
"""Idle time after which the writer replaces its process, to free the memory that pyarrow keeps."""
TIDY_MS = 30_000
"""Interval of compaction and retention."""
NICENESS = 10
"""Niceness of the writer: the broker has precedence on a busy machine."""

_log = logging.getLogger(__name__)


class Writer:
    """A loop that turns closed segments of one spool into Parquet; a spool has one writer at a time."""

    def __init__(self, spool: Path, parquet: Path, *, node_id: int, retention_ms: int, clock: Clock) -> None:
        self._spool = spool
        self._parquet = parquet
        self._node_id = node_id
        self._retention_ms = retention_ms
        self._clock = clock
        self._tidied_ms: int | None = None
        self._failing = False
        self._unreadable: set[Path] = set()

    def step(self) -> bool:
        """Convert closed segments, compact and delete hours when that is due; return whether there was any work.

        On a full disk, log it once and try again later.
        """
        busy = True
        try:
            busy = self._convert() > 0
            self._tidy()
        except OSError as error:
            if not self._failing:
                _log.error("cannot write the usage record, segments stay in the spool: %s", error)
            self._failing = True
        else:
            self._failing = False
        return busy

    def _convert(self) -> int:
        return convert_all(self._spool, self._parquet, node_id=self._node_id)

    def _tidy(self) -> None:
        now_ms = self._clock.now_ms()
        if self._tidied_ms is None:
            remove_temporary_files(self._parquet, self._node_id)
        elif abs(now_ms - self._tidied_ms) < TIDY_MS:
            return
        self._tidied_ms = now_ms
        wall_ms = self._clock.wall_ms()
        delete_expired(self._parquet, retention_ms=self._retention_ms, now_ms=now_ms, wall_ms=wall_ms)
        for _ in compact(self._parquet, node_id=self._node_id, now_ms=now_ms, unreadable=self._unreadable):
            self._convert()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until standard input ends and return the exit code."""
    arguments = _parse(argv)
    # The broker gets these signals, too, and then closes the input of this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(arguments.log_format, "tidegate usage writer: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    if importlib.util.find_spec("pyarrow") is None:
        _log.error(
            "pyarrow is not installed: recorded events stay in %s; hint: %s",
            arguments.spool,
            install_hint("pipeline"),
        )
        return EXIT_NO_PYARROW
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    try:
        _run(arguments)
    except (TidegateError, OSError) as error:
        _log.error("%s", error)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    writer = Writer(
        arguments.spool,
        arguments.parquet,
        node_id=arguments.node_id,
        retention_ms=arguments.retention_ms,
        clock=SystemClock(engine_offset_ns=arguments.engine_offset_ns),
    )
    lock = _wait_for_lock(arguments.spool / WRITER_LOCK)
    with keeping_spare(arguments.spool, POLL_S):
        _work(arguments.spool, writer, lock)


def _work(spool: Path, writer: Writer, lock: int) -> None:
    """Convert until standard input ends."""
    lock_path = spool / WRITER_LOCK
    busy_s = time.monotonic()
    while not _input_ended(POLL_S):
        now_s = time.monotonic()
        if not holds_lock(lock, lock_path) and spool.is_dir():  # the broker has made the directory again
            os.close(lock)
            lock = _wait_for_lock(lock_path)
        if writer.step():
            busy_s = now_s
        elif "pyarrow" in sys.modules and now_s - busy_s >= IDLE_S:
            os.execv(sys.executable, sys.orig_argv)  # the same arguments, input and process id
    writer.step()


def _input_ended(wait_s: float) -> bool:
    readable, _, _ = select.select([0], [], [], wait_s)
    return bool(readable) and os.read(0, 4096) == b""


def _wait_for_lock(path: Path) -> int:
    while (lock := lock_file(path)) is None:  # an earlier broker's writer is finishing
        time.sleep(POLL_S)
    return lock


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tidegate.usage.writer",
        description="Turn a node's usage spool into Parquet until standard input ends.",
    )
    parser.add_argument("spool", type=Path, help="spool directory of the node")
    parser.add_argument("parquet", type=Path, help="directory in which date=YYYY-MM-DD/hour=HH/ is created")
    parser.add_argument("--node-id", type=int, required=True, help="node id of the spool")
    parser.add_argument(
        "--retention-ms",
        type=int,
        default=RETENTION_MS,
        help="age at which hours are deleted, in ms (default: %(default)s)",
    )
    parser.add_argument(
        "--engine-offset-ns",
        type=int,
        help="engine time minus the monotonic clock, in ns (default: engine time is the wall clock)",
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=TEXT,
        help="format of log lines (default: %(default)s)",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
