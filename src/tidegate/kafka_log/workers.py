"""The processes that make columns of the lines of a log, block by block and side by side."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.resource_tracker import ensure_running
from threading import Thread, current_thread, main_thread
from zoneinfo import ZoneInfo

import pyarrow as pa

from tidegate.child_python import safe_path
from tidegate.errors import TidegateError
from tidegate.kafka_log.log_files import Source, bytes_on_disk
from tidegate.kafka_log.requests import LoggedExchange, RequestColumns

__all__ = ["ReadBlock", "WorkerError", "read_block", "worker_processes", "workers_for"]

IN_PROCESS_BYTES = 16 << 20
"""Smaller input is not worth other processes."""


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


class WorkerError(TidegateError):
    """Raise when one of the processes has ended before its time."""


@contextmanager
def worker_processes(count: int) -> Iterator[Executor]:
    """Run `count` processes during the block; all of them end with it. Raises `WorkerError`."""
    with ExitStack() as started:
        with safe_path():
            ensure_running()  # else the tracker starts below, and unblocks the signal
            with _held_back(signal.SIGINT):
                pool = started.enter_context(
                    ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin)
                )
                for _ in range(count):  # each task starts one process
                    pool.submit(os.getpid)
        try:
            yield pool
        except BrokenProcessPool:
            raise WorkerError(
                "a process that parsed lines ended unexpectedly, possibly out of memory",
                hint="run the command with --processes 1",
            ) from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


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


def _begin() -> None:
    """End this process when its parent ends."""
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def workers_for(files: Sequence[Source], processes: int | None) -> AbstractContextManager[Executor | None]:
    """Return an executor for the blocks of the files, or None in its place if this process reads them itself."""
    is_little = sum(bytes_on_disk(source.path) for source in files) < IN_PROCESS_BYTES
    count = processes or (1 if is_little else os.cpu_count() or 1)
    return nullcontext(None) if count == 1 else worker_processes(count)
