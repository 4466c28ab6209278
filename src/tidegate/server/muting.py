"""The throttled channels of one node, and the time until which each is muted.

A muted channel is not read. It is watched for closure and for bytes that come before its throttle ends. Requests that
the client had already sent are served when the throttle ends.
Follows: B§3.8 (delay queue, one per quota type), B§6.6, KIP-219.
"""

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidegate.clock import NS_PER_MS
from tidegate.quota import DelayQueue, Metric, QuotaType, ThrottledChannel
from tidegate.scheduling import Scheduler, Timer
from tidegate.server.connection.channel import Channel

__all__ = ["Muting", "Throttle"]

_log = logging.getLogger("tidegate.server")

REAP_NS = 5_000_000
"""Longest time to end expired throttles, oldest first, before the loop's other work gets a turn."""


class Throttle(NamedTuple):
    """A throttle of one channel. client_id: that of the throttled request; None: it was too long to keep."""

    quota_type: QuotaType
    throttled: ThrottledChannel
    client_id: str | None


class Muting:
    """Mutes channels, and unmutes each when its throttle is over."""

    def __init__(self, *, loop: Scheduler, monotonic_ns: Callable[[], int]) -> None:
        self.queues = {quota_type: DelayQueue() for quota_type in QuotaType}
        self._loop = loop
        self._monotonic_ns = monotonic_ns
        self._throttled: dict[Channel, Throttle] = {}
        self._timer: Timer | None = None
        self._timer_at_ns = 0

    def start(
        self,
        channel: Channel,
        throttle_ms: int,
        quota_type: QuotaType,
        client_id: str | None = None,
        *,
        since_ns: int | None = None,
    ) -> None:
        """Mute `channel`, because of a request of `client_id`, until `throttle_ms` after `since_ns`, or after now.

        since_ns: the time at which sending the answer began. The client may receive it long before `send` returns, and
        waits from then on. Follows: Kafka `RequestHandlerHelper.throttle`, which runs before the response is sent.
        """
        now_ns = self._monotonic_ns()
        queue = self.queues[quota_type]
        since_ns = now_ns if since_ns is None else since_ns
        throttled = queue.throttle(throttle_ms, now_ns=since_ns, on_end=lambda: self._end(channel))
        channel.mute(throttled.end_ns)
        channel.connection.throttled_ms += throttle_ms
        self._throttled[channel] = Throttle(quota_type, throttled, client_id)
        channel.transport.watch(
            lambda: self._on_early(channel), lambda is_broken: self._on_gone(channel, is_broken)
        )
        if channel.unread_bytes():
            # The watch does not report bytes that were received before.
            self._on_early(channel)
        self._wake_at(throttled.end_ns, now_ns)

    def forget(self, channel: Channel) -> None:
        """Remove a channel that is about to close, and cancel its throttle."""
        entry = self._throttled.pop(channel, None)
        if entry is not None:
            self.queues[entry.quota_type].cancel(entry.throttled)
            channel.transport.unwatch()

    def throttles(self) -> list[tuple[Channel, Throttle]]:
        """Return the channels that are throttled now."""
        return list(self._throttled.items())

    def metrics(self) -> Iterator[Metric]:
        """Yield the number of channels that are throttled by each quota type."""
        for quota_type, queue in self.queues.items():
            yield Metric(group=quota_type.value, name="queue-size", tags={}, value=float(queue.size))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, channel: Channel) -> None:
        """Unmute a channel. Requests that it has sent are served at once, and may throttle it again."""
        # Remove it first: unmuting may close the channel, and `forget` must not cancel a throttle that has ended.
        del self._throttled[channel]
        channel.transport.unwatch()
        try:
            channel.unmute()
        except Exception:
            _log.exception("closed connection %d: internal error after unmuting", channel.connection.id)
            channel.close()

    def _wake_at(self, at_ns: int, now_ns: int) -> None:
        """Set the timer to `at_ns`, unless it is set to an earlier time."""
        if self._timer is not None:
            if self._timer_at_ns <= at_ns:
                return
            self._timer.cancel()
        self._timer_at_ns = at_ns
        self._timer = self._loop.call_later(max(at_ns - now_ns, 0) / 1e9, self._reap)

    def _reap(self) -> None:
        """End expired throttles, the earliest first. If that takes too long, continue in the loop's next turn.

        During this, a channel may be throttled again, in any queue and for any time. So set the timer to the earliest
        end of all throttles, whatever it was set to.
        """
        self._timer = None
        now_ns = self._monotonic_ns()
        until_ns = now_ns + REAP_NS
        while True:
            first = self._first_to_end()
            if first is None:
                return
            end_ns, queue = first
            if end_ns > now_ns or now_ns >= until_ns:
                self._wake_at(end_ns, now_ns)
                return
            # One at a time, so that `REAP_NS` is checked in between.
            queue.reap(now_ns=now_ns, limit=1)
            now_ns = self._monotonic_ns()

    def _first_to_end(self) -> tuple[int, DelayQueue] | None:
        """Return the queue with the throttle that ends first, and the time of that end."""
        first = None
        for queue in self.queues.values():
            end_ns = queue.next_end_ns
            if end_ns is not None and (first is None or end_ns < first[0]):
                first = end_ns, queue
        return first

    def _on_early(self, channel: Channel) -> None:
        if channel.early_ms is None:
            left_ns = channel.throttle_ends_ns - self._monotonic_ns()
            channel.early_ms = max(left_ns, 0) // NS_PER_MS

    def _on_gone(self, channel: Channel, is_broken: bool) -> None:
        """Close a channel whose client has left, unless its requests or answers wait for the end of the throttle."""
        try:
            channel.broken = channel.broken or is_broken
            if not channel.waits_for_throttle():
                channel.close()
        except Exception:
            _log.exception("closed connection %d: internal error while muted", channel.connection.id)
            channel.close()
