"""The processes that make columns of the lines of a log, side by side."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.resource_tracker import ensure_running
from threading import Thread, current_thread, main_thread

from tidegate.child_python import safe_path
from tidegate.errors import TidegateError

__all__ = ["WorkerError", "worker_processes"]


class WorkerError(TidegateError):
    """Raise when one of the processes has ended before its time."""


@contextmanager
def worker_processes(count: int) -> Iterator[Executor]:
    """Keep `count` processes for the block, none of which outlives it. Raises `WorkerError`."""
    with ExitStack() as started:
        with safe_path():
            ensure_running()  # or it starts below, and lets go of the signal
            with _held_back(signal.SIGINT):
                pool = started.enter_context(
                    ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin)
                )
                for _ in range(count):  # each is started by what it is given
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
    """End with the process that began this one."""
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
