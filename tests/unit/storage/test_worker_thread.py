"""Tests of the thread that runs calls one after another."""

import threading

import pytest

from tidegate.storage.worker_thread import WorkerThread


def test_calls_are_run_in_order_on_one_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Also after one that raised, and after the thread was ended."""
    worker = WorkerThread("groups")
    ran: list[tuple[int, str]] = []

    def call(number: int) -> None:
        ran.append((number, threading.current_thread().name))
        if number == 1:
            raise ValueError(number)

    for number in range(3):
        worker.submit(call, number)
    worker.close()
    worker.close()
    worker.submit(call, 3)
    worker.wait()
    worker.close()
    assert ran == [(number, "groups") for number in range(4)]
    assert "internal error in a call on thread groups" in caplog.text
