"""The receive buffers that all channels of a node share.

Most requests fit into one receive, and are served from `scratch` without a copy. A longer request is collected in a
frame buffer of its own. The kernel allocates the pages of a new buffer as bytes arrive, so a client that announces a
large request and sends little of it takes little memory. A few buffers of the usual size are kept and used again,
because new memory costs page faults. A large buffer is freed in parts: to free 100 MB at once takes 6 ms.
"""

import mmap
from collections import deque
from collections.abc import Callable

__all__ = [
    "FIRST_FRAME_BYTES",
    "FREED_AT_ONCE_BYTES",
    "KEPT_FRAMES",
    "SCRATCH_BYTES",
    "FrameBuffer",
    "FrameBuffers",
]

SCRATCH_BYTES = 256 * 1024
FIRST_FRAME_BYTES = 1_114_112  # a request with one batch of Kafka's default largest size fits: 1 MiB + 64 KiB
KEPT_FRAMES = 8
FREED_AT_ONCE_BYTES = 4 * 1024 * 1024  # a quarter of a millisecond

FrameBuffer = mmap.mmap


class FrameBuffers:
    """The scratch buffer and a small stock of frame buffers.

    later: calls a function in later turns of the loop until it returns True.
    """

    __slots__ = ("_freeing", "_kept", "_later", "scratch")

    def __init__(self, later: Callable[[Callable[[], bool]], object]) -> None:
        self._later = later
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._kept: list[FrameBuffer] = []
        self._freeing: deque[FrameBuffer] = deque()

    def renew_scratch(self) -> None:
        """Leave the scratch buffer to its current user, and make another."""
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))

    def acquire(self, size: int) -> FrameBuffer:
        """Return a buffer for a frame of `size` bytes; it may be longer. Raises `OSError` where there is no memory."""
        if size > FIRST_FRAME_BYTES:
            return _fresh(size)
        return self._kept.pop() if self._kept else _fresh(FIRST_FRAME_BYTES)

    def recycle(self, frame: FrameBuffer) -> None:
        """Keep the buffer for the next long frame, if it is of the usual size and few are kept."""
        if len(frame) == FIRST_FRAME_BYTES and len(self._kept) < KEPT_FRAMES:
            self._kept.append(frame)
        else:
            self.free(frame, len(frame))

    def free(self, frame: FrameBuffer, filled_bytes: int) -> None:
        """Free a buffer, in later turns if much of it was filled. Memory with views is freed with the last view."""
        if filled_bytes > FREED_AT_ONCE_BYTES:
            self._freeing.append(frame)
            if len(self._freeing) == 1:
                self._later(self._free_some)

    def _free_some(self) -> bool:
        """Free the end of a buffer; return whether there is no more to free."""
        frame = self._freeing[0]
        try:
            frame.resize(max(len(frame) - FREED_AT_ONCE_BYTES, 1))
        except (BufferError, SystemError):  # the buffer has a view, or the system cannot shrink it
            self._freeing.popleft()
        else:
            if len(frame) <= FREED_AT_ONCE_BYTES:
                self._freeing.popleft()
        return not self._freeing


def _fresh(size: int) -> FrameBuffer:
    """Return memory whose pages the kernel makes when they are first touched."""
    if hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)
