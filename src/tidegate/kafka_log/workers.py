"""The processes that make columns of the lines of a log, block by block and side by side."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from subprocess import DEVNULL, Popen
from threading import current_thread, main_thread
from zoneinfo import ZoneInfo

import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.kafka_log.log_files import Source, bytes_on_disk
from tidegate.kafka_log.requests import LoggedExchange, RequestColumns

__all__ = [
    "ReadBlock",
    "SubmitBlock",
    "WorkerError",
    "read_block",
    "read_blocks",
    "worker_processes",
    "workers_for",
]

IN_PROCESS_BYTES = 16 << 20
"""Smaller input is not worth other processes."""

_WORKER = (  # with the modules that this process finds
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from tidegate.kafka_log.workers import read_blocks; read_blocks(int(sys.argv[1]))"
)


@dataclass(slots=True)
class ReadBlock:
    """The result of reading a block of lines."""

    table: pa.Table
    exchanges: list[LoggedExchange]
    has_zookeeper: bool
    lines: int
    requests: int
    bad_lines: int
    bad: list[tuple[int, str]]
    skipped: Counter[str]
    topic_names: dict[str, str]


def read_block(zone: str, block: bytes) -> ReadBlock:
    """Make columns of a block of whole lines, numbered from 1."""
    columns = RequestColumns(ZoneInfo(zone))
    lines = block.split(b"\n")
    for number, line in enumerate(lines, 1):
        columns.add_line(number, line)
    return ReadBlock(
        columns.table(),
        columns.exchanges,
        columns.has_zookeeper,
        len(lines) - 1,
        columns.requests,
        columns.bad_lines,
        columns.bad,
        columns.skipped,
        columns.topic_names,
    )


SubmitBlock = Callable[[str, bytes], Future[ReadBlock]]
"""Calls `read_block` in another process."""


class WorkerError(TidegateError):
    """Raise when one of the processes has ended before its time."""


def read_blocks(fd: int) -> None:
    """Read the blocks that arrive at a connection until its other end is closed."""
    with Connection(fd) as connection, suppress(EOFError, OSError):
        while True:
            zone, block = connection.recv()
            connection.send(_result(zone, block))


def _result(zone: str, block: bytes) -> ReadBlock | Exception:
    try:
        return read_block(zone, block)
    except Exception as error:  # `_read_elsewhere` raises it
        return error


@contextmanager
def worker_processes(count: int) -> Iterator[SubmitBlock]:
    """Run `count` processes during the block; all of them end with it. Yields `read_block` in one of them.

    Those of `multiprocessing` would run the caller's script again, unless it has a guard. The futures raise
    `WorkerError`.
    """
    idle: SimpleQueue[Connection] = SimpleQueue()
    with ExitStack() as processes, ExitStack() as connections:
        with _held_back(signal.SIGINT):
            for _ in range(count):
                mine, its = Pipe()
                idle.put(connections.enter_context(mine))
                command = [sys.executable, "-P", "-c", _WORKER, str(its.fileno()), *map(str, sys.path)]
                with its:
                    process = Popen(command, stdin=DEVNULL, pass_fds=[its.fileno()])
                processes.callback(process.wait)
                processes.callback(process.terminate)  # before it is waited for
        with ThreadPoolExecutor(count) as threads:
            try:
                yield lambda zone, block: threads.submit(_read_elsewhere, idle, zone, block)
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise


def _read_elsewhere(idle: "SimpleQueue[Connection]", zone: str, block: bytes) -> ReadBlock:
    connection = idle.get()
    try:
        connection.send((zone, block))
        found: ReadBlock | Exception = connection.recv()
    except (EOFError, OSError):
        raise WorkerError(
            "a process that parsed lines ended unexpectedly, possibly out of memory",
            hint="use one process: --processes 1, or processes=1 in Python",
        ) from None
    finally:
        idle.put(connection)
    if isinstance(found, Exception):
        raise found
    return found


@contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """Defer a signal to the end of the block, and block it in child processes that are started in the block.

    This process decides when its children end. Another thread may receive the signal although this thread blocks it,
    and Python would still act on it in the main thread.
    """
    taken: list[int] = []
    is_main = current_thread() is main_thread()
    acting = signal.signal(number, lambda *_: taken.append(number)) if is_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_main:
            signal.signal(number, signal.SIG_DFL if acting is None else acting)
        if taken:
            signal.raise_signal(number)


def workers_for(files: Sequence[Source], processes: int | None) -> AbstractContextManager[SubmitBlock | None]:
    """Return what reads the blocks of the files, or None in its place if this process reads them itself."""
    is_little = sum(bytes_on_disk(source.path) for source in files) < IN_PROCESS_BYTES
    count = processes or (1 if is_little else os.cpu_count() or 1)
    return nullcontext(None) if count == 1 else worker_processes(count)
