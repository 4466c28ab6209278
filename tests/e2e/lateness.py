"""How busy the machine is: how long this process was kept waiting when it wanted to run."""

import threading
import time
from collections import deque

_PERIOD_S = 0.005
_KEPT = 20_000  # wake-ups remembered: some 100 s


class Lateness:
    """Watches, on a thread, by how much it wakes up late: others were kept waiting as long and could not help it."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Lateness":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def ms_since(self, since: float) -> float:
        """Return the milliseconds, in all, that it woke up late from `since` (monotonic) on."""
        return 1000 * sum(late for at, late in tuple(self._late) if at >= since)

    def _watch(self) -> None:
        while not self._stop.is_set():
            due = time.monotonic() + _PERIOD_S
            time.sleep(_PERIOD_S)
            now = time.monotonic()
            if now - due > _PERIOD_S:
                self._late.append((now, now - due))
