"""Elapsed time without the time in which the machine stood still: a virtual machine's host stops it for seconds.

    with Stopwatch() as watch:
        client.ask(...)  # a broker of another process answers
    assert watch.took_s < 1.0

A thread wakes up every 5 ms. If it is late by more than 20 ms, nothing else ran in time either, and its delay is taken
off. So what is measured must happen in another process: this one's own work can keep the thread from waking up.
"""

import threading
import time
from types import TracebackType

__all__ = ["Stopwatch"]

_EVERY_S = 0.005
_LATE_S = 0.02


class Stopwatch:
    """Measures what happens in a `with` block. took_s: its time; stalled_s: the time that was taken off."""

    def __init__(self) -> None:
        self.took_s = self.stalled_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._notice_stalls, daemon=True)

    def __enter__(self) -> "Stopwatch":
        self._begun_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        elapsed_s = time.monotonic() - self._begun_s
        self._over.set()
        self._thread.join()
        self.took_s = elapsed_s - min(self.stalled_s, elapsed_s)

    def _notice_stalls(self) -> None:
        due_s = self._begun_s
        while not self._over.wait(max(0.0, due_s - time.monotonic())):
            now_s = time.monotonic()
            if now_s - due_s > _LATE_S:
                self.stalled_s += now_s - due_s
            due_s = now_s + _EVERY_S
