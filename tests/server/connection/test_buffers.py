"""Receive buffers: which are used again, and how long ones are given back to the kernel."""

from collections.abc import Callable

from tidegate.server.connection.buffers import (
    FIRST_FRAME_BYTES,
    FREED_AT_ONCE_BYTES,
    KEPT_FRAMES,
    FrameBuffers,
)

LONG_BYTES = 5 * FREED_AT_ONCE_BYTES


def with_later() -> tuple[FrameBuffers, list[Callable[[], bool]]]:
    """Return buffers, and what they want to be called later."""
    later: list[Callable[[], bool]] = []
    return FrameBuffers(later.append), later


def test_usual_frames_are_used_again() -> None:
    """A few of them."""
    buffers, later = with_later()
    frames = [buffers.acquire(1) for _ in range(KEPT_FRAMES + 1)]
    for frame in frames:
        buffers.recycle(frame)
    again = [buffers.acquire(FIRST_FRAME_BYTES) for _ in frames]
    assert sum(frame in frames for frame in again) == KEPT_FRAMES
    assert not later


def test_long_frames_are_freed_a_part_at_a_time() -> None:
    """One after the other; what nobody filled is nothing to be freed."""
    buffers, later = with_later()
    first, second, empty = (buffers.acquire(LONG_BYTES) for _ in range(3))
    buffers.recycle(first)
    buffers.free(second, LONG_BYTES)
    buffers.free(empty, FREED_AT_ONCE_BYTES)
    (free_some,) = later
    sizes = []
    while not free_some():
        sizes.append(len(first) + len(second))
    assert sizes == [size * FREED_AT_ONCE_BYTES for size in (9, 8, 7, 6, 5, 4, 3)]
    assert len(empty) == LONG_BYTES
    buffers.recycle(buffers.acquire(LONG_BYTES))
    assert len(later) == 2


def test_what_is_looked_into_stays() -> None:
    """It goes with the last view of it; the next one is freed."""
    buffers, later = with_later()
    seen, free = buffers.acquire(LONG_BYTES), buffers.acquire(LONG_BYTES)
    seen[:4] = b"here"
    view = memoryview(seen)[:4]
    buffers.free(seen, LONG_BYTES)
    buffers.free(free, LONG_BYTES)
    while not later[0]():
        pass
    assert (len(seen), len(free), bytes(view)) == (LONG_BYTES, FREED_AT_ONCE_BYTES, b"here")
