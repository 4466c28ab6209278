"""The receive buffers that all channels of a node share.

Most requests fit into one receive: they are served straight from `scratch` without a copy. A longer one is
collected in a frame buffer of its own; a few of those are kept and used again, because fresh memory costs
page faults. A client that announces a huge frame gets memory as its bytes arrive, not before.
"""

__all__ = ["FIRST_FRAME_BYTES", "KEPT_FRAMES", "SCRATCH_BYTES", "FrameBuffers"]

SCRATCH_BYTES = 256 * 1024
FIRST_FRAME_BYTES = 1_114_112  # a request with one batch of Kafka's default largest size fits: 1 MiB + 64 KiB
KEPT_FRAMES = 8


class FrameBuffers:
    """The scratch buffer and a small stock of frame buffers."""

    __slots__ = ("_kept", "scratch")

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._kept: list[bytearray] = []

    def renew_scratch(self) -> None:
        """Leave the scratch buffer to who uses it, and go on with another."""
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))

    def take(self, size: int) -> bytearray:
        """Return a buffer for a frame of `size` bytes: of `FIRST_FRAME_BYTES`, which may be more or less than that."""
        if self._kept:
            return self._kept.pop()
        return bytearray(FIRST_FRAME_BYTES if size > SCRATCH_BYTES else max(size, 1))

    @staticmethod
    def grown(frame: bytearray, size: int) -> bytearray:
        """Return a larger buffer that begins with the bytes of `frame`: twice as large, at most `size`."""
        larger = bytearray(min(2 * len(frame), size))
        larger[: len(frame)] = frame
        return larger

    def give_back(self, frame: bytearray) -> None:
        """Keep the buffer for the next long frame, if it is of the usual size and few are kept."""
        if len(frame) == FIRST_FRAME_BYTES and len(self._kept) < KEPT_FRAMES:
            self._kept.append(frame)
