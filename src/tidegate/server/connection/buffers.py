"""The receive buffers that all channels of a node share.

Most requests fit into one receive: they are served straight from `scratch` without a copy. A longer one is
collected in a frame buffer of its own. The pages of a fresh one are made as bytes arrive, so that a client that
announces much and sends little makes us hold little, and nothing is copied as it fills. A few of the usual size are
kept and used again, because fresh memory costs page faults.
"""

import mmap

__all__ = ["FIRST_FRAME_BYTES", "KEPT_FRAMES", "SCRATCH_BYTES", "FrameBuffer", "FrameBuffers"]

SCRATCH_BYTES = 256 * 1024
FIRST_FRAME_BYTES = 1_114_112  # a request with one batch of Kafka's default largest size fits: 1 MiB + 64 KiB
KEPT_FRAMES = 8

FrameBuffer = mmap.mmap


class FrameBuffers:
    """The scratch buffer and a small stock of frame buffers."""

    __slots__ = ("_kept", "scratch")

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._kept: list[FrameBuffer] = []

    def renew_scratch(self) -> None:
        """Leave the scratch buffer to who uses it, and go on with another."""
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))

    def take(self, size: int) -> FrameBuffer:
        """Return a buffer for a frame of `size` bytes; it may be longer. Raises `OSError` where there is no memory."""
        if size > FIRST_FRAME_BYTES:
            return _fresh(size)
        return self._kept.pop() if self._kept else _fresh(FIRST_FRAME_BYTES)

    def give_back(self, frame: FrameBuffer) -> None:
        """Keep the buffer for the next long frame, if it is of the usual size and few are kept."""
        if len(frame) == FIRST_FRAME_BYTES and len(self._kept) < KEPT_FRAMES:
            self._kept.append(frame)


def _fresh(size: int) -> FrameBuffer:
    """Return memory whose pages the kernel makes when they are first touched."""
    if hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)
