"""What a fuzzed node may not do: log a traceback."""

import contextlib
import logging
from collections.abc import Iterator

__all__ = ["no_tracebacks"]


class _Tracebacks(logging.Handler):
    """Keeps what was logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        if record.exc_info:
            self.seen.append(self.format(record))


@contextlib.contextmanager
def no_tracebacks(seed: int, *, level: int) -> Iterator[None]:
    """Fail where the block, at this level of the server's log, logs something with a traceback."""
    log, tracebacks = logging.getLogger("tidegate.server"), _Tracebacks()
    before = log.level
    log.addHandler(tracebacks)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(tracebacks)
        log.setLevel(before)
    assert not tracebacks.seen, f"seed {seed}: {tracebacks.seen[0]}"
