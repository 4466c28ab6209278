"""A thread that runs calls one after another: an executor without futures, which take as long as a transaction."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["WorkerThread"]

_logger = logging.getLogger(__name__)


class WorkerThread:
    """One thread, started with the first call. A call that raises is logged, and the next one is run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call` after all that were submitted before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put((call, args))

    def wait(self) -> None:
        """Wait until all that was submitted has been run."""
        done = threading.Event()
        self.submit(done.set)
        done.wait()

    def close(self) -> None:
        """Run what was submitted, and end the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (submitted := self._calls.get()) is not None:
            call, args = submitted
            try:
                call(*args)
            except Exception:
                _logger.exception("internal error in a call on thread %s", self._name)
