"""The logins of a node: those under way, with their deadline, and failed ones that wait for their answer.

A failed login is answered, and its connection closed, after `connection.failed.authentication.delay.ms`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.clock import NS_PER_MS, Clock
from tidegate.scheduling import Scheduler, Timer
from tidegate.server.authentication.scram_credentials import ScramCredentials
from tidegate.server.connection.channel import Channel
from tidegate.server.connection.turns import Poller
from tidegate.server.metrics.request_metrics import ListenerCounts
from tidegate.server.requests.front import Front
from tidegate.server.settings.config import ServerConfig

__all__ = ["MAX_DELAYED", "MAX_LOGIN_S", "Logins"]

MAX_LOGIN_S = 30.0
"""Longest login. Kafka has only `connections.max.idle.ms`."""
MAX_DELAYED = 1000
"""Most failed logins that wait for their delay. When there are more, the oldest ends at once."""
_ENDED_AT_ONCE_NS = 1_000_000  # for so long others wait; one takes some 100 us


class Logins:
    """The logins of one node: their configuration, those in progress, and failed ones that wait for their delay."""

    def __init__(
        self,
        front: Front,
        config: ServerConfig,
        credentials: ScramCredentials | None,
        *,
        clock: Clock,
        loop: Scheduler,
        poller: Poller,
        on_user: Callable[[Channel], None],
    ) -> None:
        """on_user: called with each channel whose client has logged in, after its principal is set."""
        self.front = front
        self._on_user = on_user
        self._poller = poller
        self.credentials = credentials
        self._max_frame_bytes: int = config["socket.request.max.bytes"]
        self._max_token_bytes: int = config["sasl.server.max.receive.size"]
        self.monotonic_ns = clock.monotonic_ns
        self.wall_ms = clock.wall_ms
        self._delay_ns = config["connection.failed.authentication.delay.ms"] * NS_PER_MS
        self._loop = loop
        self._begun: dict[Channel, int] = {}  # when, in the order in which they began
        self._delayed: deque[tuple[int, Channel, Sequence[Any]]] = deque()
        self._timer: Timer | None = None

    def start_login(self, channel: Channel) -> None:
        """Start a login. Until it ends, the channel's requests must be short, and other channels are served first."""
        channel.max_frame_bytes = self._max_token_bytes
        channel.be_patient(self._poller.call_late_in_turn)
        self._begun[channel] = self.monotonic_ns()

    def end_login(self, channel: Channel) -> None:
        """Remove a login that has ended, or whose channel has closed."""
        if self._begun.pop(channel, None) is not None:
            channel.be_patient(None)
            channel.max_frame_bytes = self._max_frame_bytes

    def log_in(self, channel: Channel, user: str, *, knows_reauth: bool) -> None:
        """Set the user of a channel, and count it. knows_reauth: its client can log in again."""
        counts = self.counts(channel)
        counts.logins += 1
        counts.logins_without_relogin += not knows_reauth
        channel.connection.set_user(user)
        self._on_user(channel)

    def counts(self, channel: Channel) -> ListenerCounts:
        """Return the metrics of a channel's listener."""
        return self.front.requests.listeners[channel.connection.listener]

    def late(self) -> list[Channel]:
        """Return the channels that have not logged in in time."""
        since_ns = self.monotonic_ns() - int(MAX_LOGIN_S * 1e9)
        late = []
        for channel, begun_ns in self._begun.items():
            if begun_ns > since_ns:
                break
            late.append(channel)
        return late

    def end_later(self, channel: Channel, buffers: Sequence[Any]) -> None:
        """Send the answer to a failed login and close the channel, after the delay."""
        self.end_login(channel)
        channel.serve_no_more()
        if len(self._delayed) == MAX_DELAYED:
            self._end_first()
        self._delayed.append((self.monotonic_ns() + self._delay_ns, channel, buffers))
        if self._timer is None:
            self._wait()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        left_ns = self._delayed[0][0] - self.monotonic_ns()
        self._timer = self._loop.call_later(max(left_ns, 0) / 1e9, self._end_due)

    def _end_due(self) -> None:
        self._timer = None
        begun_ns = now_ns = self.monotonic_ns()
        while self._delayed and self._delayed[0][0] <= now_ns < begun_ns + _ENDED_AT_ONCE_NS:
            self._end_first()
            now_ns = self.monotonic_ns()
        if self._delayed:
            self._wait()

    def _end_first(self) -> None:
        _, channel, buffers = self._delayed.popleft()
        if channel.closed:
            return
        try:
            if buffers:
                channel.send(buffers)
            channel.close_when_sent()
        except Exception as error:
            self.front.on_failed(channel, error)
            channel.close()
