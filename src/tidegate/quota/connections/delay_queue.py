"""Throttled channels in the order in which their throttle ends.

One queue per quota type holds every connection that is muted for its sake. Starting a throttle and ending one
cost O(log n); taking a closed connection out costs O(1), and now and then a sweep that the removals before it
have paid for. A connection is throttled at most once at a time, so the queue is never longer than there are
connections.

>>> queue = DelayQueue()
>>> channel = queue.throttle(20, now_ns=0, on_end=lambda: print("unmute"))
>>> queue.reap(now_ns=19_999_999), queue.size
(0, 1)
>>> queue.reap(now_ns=20_000_000), queue.size
unmute
(1, 0)

Time is the monotonic clock, in nanoseconds: a wall clock that is set back does not keep a client waiting.

Follows: Kafka `ThrottledChannel`, `ClientQuotaManager.ThrottledChannelReaper`, B§3.8. Different here: the
throttle of a connection that went away leaves the queue at once, not when it ends; shutting down puts in no
dummy.
"""

import heapq
from collections.abc import Callable

from tidegate.clock import NS_PER_MS

__all__ = ["MAX_ENDED_PER_REAP", "DelayQueue", "ThrottledChannel"]

MAX_ENDED_PER_REAP = 1000
"""Throttles ended by one call of `reap`, so that a mass expiry does not hold up an event loop."""

_SWEEP_ABOVE = 64  # below this many cancelled entries a sweep is not worth its while

Callback = Callable[[], object]


class ThrottledChannel:
    """One throttle of one connection: how long it is, when it ends, and what is called then."""

    __slots__ = ("_on_end", "end_ns", "throttle_time_ms")

    def __init__(self, *, throttle_time_ms: int, end_ns: int, on_end: Callback) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.end_ns = end_ns
        self._on_end: Callback | None = on_end

    @property
    def waiting(self) -> bool:
        """Return whether the throttle has neither ended nor been cancelled."""
        return self._on_end is not None

    def _take_callback(self) -> Callback | None:
        on_end, self._on_end = self._on_end, None
        return on_end


class DelayQueue:
    """The throttled channels of one quota type. `size` is Kafka's `queue-size` metric."""

    __slots__ = ("_cancelled", "_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ThrottledChannel]] = []
        self._sequence = 0
        self._cancelled = 0

    @property
    def size(self) -> int:
        """Return how many channels are throttled."""
        return len(self._heap) - self._cancelled

    @property
    def next_end_ns(self) -> int | None:
        """Return when the next throttle ends, None when nothing is throttled. Call `reap` then."""
        self._drop_cancelled_head()
        return self._heap[0][0] if self._heap else None

    def throttle(
        self, throttle_time_ms: int, *, now_ns: int, on_end: Callback, on_start: Callback | None = None
    ) -> ThrottledChannel:
        """Call `on_start`, then queue a throttle that calls `on_end` when it is over."""
        if on_start is not None:
            on_start()
        end_ns = now_ns + throttle_time_ms * NS_PER_MS
        channel = ThrottledChannel(throttle_time_ms=throttle_time_ms, end_ns=end_ns, on_end=on_end)
        self._sequence += 1
        heapq.heappush(self._heap, (end_ns, self._sequence, channel))
        return channel

    def cancel(self, channel: ThrottledChannel) -> bool:
        """Cancel the throttle of a closed connection. Return False if it is already over. Calls no callback."""
        if channel._take_callback() is None:
            return False
        self._cancelled += 1
        if self._cancelled > _SWEEP_ABOVE and self._cancelled * 2 > len(self._heap):
            self._sweep()
        return True

    def reap(self, *, now_ns: int, limit: int = MAX_ENDED_PER_REAP) -> int:
        """End the throttles that are due, at most `limit` of them, oldest end first, and return how many.

        When `limit` came back, call again soon. An error that a callback raises passes through; that throttle
        counts as ended and the others stay queued.
        """
        ended = 0
        while ended < limit and self._heap and self._heap[0][0] <= now_ns:
            on_end = heapq.heappop(self._heap)[2]._take_callback()
            if on_end is None:
                self._cancelled -= 1
                continue
            ended += 1
            on_end()
        return ended

    def _drop_cancelled_head(self) -> None:
        while self._heap and not self._heap[0][2].waiting:
            heapq.heappop(self._heap)
            self._cancelled -= 1

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].waiting]
        heapq.heapify(self._heap)
        self._cancelled = 0
