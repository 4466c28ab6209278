"""How busy the machine is: how long this process was kept waiting when it wanted to run."""

import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest

__all__ = ["Lateness", "lateness"]

_PERIOD_S = 0.005
_KEPT = 20_000  # late wake-ups remembered: at least 100 s


class Lateness:
    """Watches, on a thread, by how much it wakes up late: others were kept waiting as long and could not help it."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._due = float("inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Lateness":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def ms_since(self, since: float) -> float:
        """Return the milliseconds, in all, that it woke up late from `since` (monotonic) on.

        A delay counts also while its thread has not woken up yet: the caller's thread may be the first to run again.
        """
        return 1000 * sum(self._delays(since))

    def elapsed_s(self, since: float) -> float:
        """Return the seconds from `since` (monotonic) until now, less those that it woke up late."""
        return time.monotonic() - since - self.ms_since(since) / 1000

    def has_stalled(self, longer_than_s: float) -> bool:
        """Return whether it once woke up late by more than that; timeouts of other processes may have expired."""
        return any(late > longer_than_s for late in self._delays(0.0))

    def _delays(self, since: float) -> list[float]:
        under_way = time.monotonic() - self._due
        late = [late for at, late in tuple(self._late) if at >= since]
        return [*late, under_way] if under_way > _PERIOD_S else late

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._due = due = time.monotonic() + _PERIOD_S
            time.sleep(_PERIOD_S)
            now = time.monotonic()
            self._due = float("inf")
            if now - due > _PERIOD_S:
                self._late.append((now, now - due))


@pytest.fixture
def lateness() -> Iterator[Lateness]:
    """Return how late the machine is during the test."""
    with Lateness() as lateness:
        yield lateness
