"""Log lines that are written without waiting for their reader.

A write to a full pipe blocks until its reader continues, for example a pager, or a log collector that hangs. The event
loop must not block. If the pipe has room, a line is written at once. Otherwise a thread writes it and the lines after
it. The characters that wait are bounded; further lines are dropped and counted. Lines that cannot be written, for
example to a file on a full disk, are counted, too. The count is written before the next line that can be written.
"""

import logging
import os
import select
import stat
import threading
import time
from collections import deque

__all__ = ["MAX_CHARS", "LogLines"]

MAX_CHARS = 4_000_000
"""Most characters of waiting lines: about 20,000 lines."""
_LAST_LINES_S = 1.0


class LogLines(logging.Handler):
    """Writes lines to a file descriptor. `close` waits a moment for the lines that are left."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._most_at_once = MAX_CHARS if stat.S_ISREG(os.fstat(fd).st_mode) else select.PIPE_BUF
        self._writable = select.poll()
        self._writable.register(fd, select.POLLOUT)
        self._lines: deque[str] = deque()
        self._chars = 0
        self._dropped = 0
        self._lost = 0
        self._lost_why = ""
        self._is_torn = False  # the last line was written only in part
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line if the pipe has room; otherwise queue it for the thread, or drop it if the queue is full."""
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if not self._chars and self._is_writable(data := _encoded(line)):
                self._write(data)
                return
            if self._chars + len(line) > MAX_CHARS:
                self._dropped += 1
                return
            self._lines.append(line)
            self._chars += len(line)
            self._changed.notify()

    def flush(self) -> None:
        """Wait a moment until all lines are written."""
        until_s = time.monotonic() + _LAST_LINES_S
        with self._changed:
            while self._chars and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)

    def close(self) -> None:
        """Write the lines that are left, if the reader continues, and stop the thread."""
        self.flush()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        super().close()

    def _write_all(self) -> None:
        while (text := self._next()) is not None:
            self._write(_encoded(text))
            with self._changed:
                self._chars -= len(text)
                self._changed.notify_all()

    def _is_writable(self, data: bytes) -> bool:
        """Return whether `data` can be written without blocking. A writable pipe accepts `PIPE_BUF` bytes."""
        if len(data) > self._most_at_once:
            return False
        return any(events & select.POLLOUT for _, events in self._writable.poll(0))

    def _write(self, data: bytes) -> None:
        """Write a line, after a line with the number of lost lines, if any."""
        if self._lost:
            note = _encoded(self._note(f"lost {self._lost} log lines: {self._lost_why}"))
            if not self._write_line(note):
                self._lost += 1  # count this line; the line about lost lines is tried again
                return
            self._lost = 0
        self._lost += not self._write_line(data)

    def _write_line(self, data: bytes) -> bool:
        """Write a line; return whether all of it was written. First end a line that was written in part."""
        left = memoryview(b"\n" + data if self._is_torn else data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
                self._is_torn = bool(left)
        except OSError as error:
            self._lost_why = error.strerror or str(error)
            return False
        return True

    def _note(self, text: str) -> str:
        """Return a line about lost lines, in the format of the log."""
        return self.format(logging.LogRecord("tidegate", logging.ERROR, "", 0, text, (), None)) + "\n"

    def _next(self) -> str | None:
        """Wait for a line and return it; None at the end."""
        with self._changed:
            while not self._lines:
                if self._closing:
                    return None
                self._changed.wait()
            if self._dropped:
                line = self._note(f"dropped {self._dropped} log lines: stderr is not being read")
                self._chars += len(line)
                self._dropped = 0
                return line
            return self._lines.popleft()


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
