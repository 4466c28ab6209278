"""Clients that run beside each other, each in a process of its own: none waits for another's interpreter lock."""

import multiprocessing
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import Any


def processes_of(clients: Collection[Callable[..., Any]]) -> ProcessPoolExecutor:
    """Return a pool with a process for each client; all begin when the last has imported what the clients need."""
    processes = multiprocessing.get_context("spawn")
    all_there = processes.Barrier(len(clients))
    return ProcessPoolExecutor(
        len(clients), processes, initializer=_begin, initargs=(all_there, list(clients))
    )


def _begin(all_there: Barrier, _imported: list[Callable[..., Any]]) -> None:
    all_there.wait()
