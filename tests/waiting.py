"""Waiting in tests for what other processes and threads bring about."""

import time
from collections.abc import Callable

__all__ = ["wait_until"]

TIMEOUT_S = 30.0
_STEP_S = 0.01


def wait_until(
    is_true: Callable[[], object], timeout_s: float = TIMEOUT_S, *, told: Callable[[], object] = str
) -> None:
    """Wait until something is true; fail after `timeout_s` with what `told` returns."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, told()
        time.sleep(_STEP_S)
