"""Processes that the kill tests of the usage record start and end: `python -m tests.e2e.usage_process MODE ...`.

record DIR FIRST      record requests with `request_bytes` FIRST, FIRST + 1, ... and acknowledge each by a line
record-until DIR FIRST COUNT KILL_AT
                      record COUNT of them, and kill this process at the KILL_AT-th change to the file system
convert DIR...        turn the spool of each into Parquet and compact it, in a process of its own; the first is
                      killed at its first change, the second at its second; print how each ended
compact DIR...        likewise, by `compact_record`
serve DIR             record a few requests with a writer beside, print its id, and wait
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.unit.usage.recording import START_MS, Decided, record_requests

from tidegate.clock import SystemClock
from tidegate.server.requests.recorder import Recorder
from tidegate.server.requests.request_rows import Client
from tidegate.usage.directory import parquet_directory, spool_directory
from tidegate.usage.segment import PRODUCED
from tidegate.usage.writer_process import start_writer

ROWS = 40
CHANGES = ("os.rename", "os.remove", "os.truncate", "os.mkdir")


def open_recorder(directory: Path) -> Recorder:
    """Return the recorder of node 1, with small segments, so that kills hit every step of their lives."""
    spool = spool_directory(directory, 1)
    return Recorder(spool, node_id=1, clock=SystemClock(), segment_bytes=128 + 128 * ROWS)


def record(recorder: Recorder, number: int) -> None:
    """Record a request of one of a few clients on a connection of its own."""
    client = Client(("L", f"user-{number % 5}", f"client-{number % 7}", "127.0.0.1", "", ""))
    request = Decided(
        connection_id=recorder.next_connection_id(),
        frame_bytes=number,
        row_flags=PRODUCED,
        response_bytes=0,
    )
    record_requests(recorder, client, request)
    recorder.commit()


def record_and_acknowledge(directory: Path, first: int, count: int) -> None:
    """Record `count` requests; each line that comes out says how many are recorded."""
    recorder = open_recorder(directory)
    for number in range(first, first + count):
        record(recorder, number)
        os.write(1, b"%d\n" % (number - first + 1))
    recorder.close()


def convert(directory: Path) -> None:
    """Do what the writer does, a day later."""
    from tidegate.usage.convert import compact, drain

    parquet = parquet_directory(directory)
    drain(spool_directory(directory, 1), parquet)
    for _ in compact(parquet, node_id=1, now_ms=START_MS + 86_400_000):
        pass
    for _ in compact(parquet, node_id=1, now_ms=SystemClock().now_ms() + 86_400_000):
        pass


def compact(directory: Path) -> None:
    """Do what `tidegate compact` does, and again when what was merged is no longer kept for readers."""
    from tidegate.usage.compaction import compact_record
    from tidegate.usage.convert import SUPERSEDED_KEEP_MS

    compact_record(directory)
    for path in parquet_directory(directory).rglob("*.parquet"):
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - SUPERSEDED_KEEP_MS * 1_000_000))
    compact_record(directory)


def serve(directory: Path) -> None:
    """Record with a writer beside, as the broker does, until killed."""
    recorder = open_recorder(directory)
    writer = start_writer(
        spool_directory(directory, 1), parquet_directory(directory), node_id=1, clock=SystemClock(),
        retention_ms=10**13,
    )  # fmt: skip
    for number in range(2 * ROWS + 5):
        record(recorder, number)
    os.write(1, b"%d\n" % writer.pid)
    signal.pause()


def kill_at(change: int) -> None:
    """Kill this process when it is about to make the `change`-th change to the file system."""
    left = [change]

    def count(name: str, arguments: tuple) -> None:
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if name in CHANGES or writes:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def _record_until(directory: Path, first: str, count: str, change: str) -> None:
    kill_at(int(change))
    record_and_acknowledge(directory, int(first), int(count))


def _kill_each(work: Callable[[Path], None], *directories: str) -> None:
    import tidegate.usage.compaction
    import tidegate.usage.segment_table  # noqa: F401  # imported once, for all the processes

    for change, directory in enumerate(directories, 1):
        pid = os.fork()
        if pid == 0:
            kill_at(change)
            work(Path(directory))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))


MODES: dict[str, Callable] = {
    "record": lambda directory, first: record_and_acknowledge(directory, int(first), 10**9),
    "record-until": _record_until,
    "convert": partial(_kill_each, convert),
    "compact": partial(_kill_each, compact),
    "serve": serve,
}

if __name__ == "__main__":
    MODES[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
