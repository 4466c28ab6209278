"""Rules that close connections: too many, idle, late, stalled, slow, or holding what others need. One method per rule.

| Rule | Connections that it closes |
|---|---|
| `excess` | those above `max.connections`, the longest unused first (B§6.9.5) |
| `idle` | those unused for `connections.max.idle.ms` |
| `late_logins` | those whose login is not over in time |
| `stalled` | those whose clients have taken no byte of an answer for a minute |
| `slow` | those whose requests come in too slowly while others wait for memory |
| `revoke` | the slowest incoming request of the principal that holds most memory, if another principal needs it |
| `displaced` | the longest unused connection of the principal that has most, if another client connects |
| `unread` | the longest unread answer of the principal that holds most memory, if the memory is needed |

If the client is at fault, the log gives the reason in one line. Closing takes time: many connections are closed in
slices.
"""

from collections.abc import Callable, Generator, Sequence
from heapq import nsmallest

from tidegate.quota import ConnectionQuotas
from tidegate.server.authentication.logins import MAX_LOGIN_S, Logins
from tidegate.server.connection.channel import Channel
from tidegate.server.connection.request_memory import RequestMemory
from tidegate.server.requests.front import Front
from tidegate.server.requests.slices import Slices
from tidegate.server.settings.config import ServerConfig

__all__ = ["MAX_SEND_STALL_S", "Closing"]

MAX_SEND_STALL_S = 60.0
"""Longest time in which a client may receive no byte of its answer before its connection is closed."""


class Closing:
    """Closes connections of one node. settings: returns the node's settings as they are now."""

    def __init__(
        self,
        front: Front,
        logins: Logins,
        *,
        memory: RequestMemory,
        quotas: ConnectionQuotas,
        settings: Callable[[], ServerConfig],
        slices: Slices,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._front = front
        self._logins = logins
        self._memory = memory
        self._quotas = quotas
        self._settings = settings
        self._slices = slices
        self._monotonic_ns = monotonic_ns
        self._closes_excess = False

    def excess(self) -> None:
        """Close connections soon if there are more than `max.connections`.

        There are more after a connection through the protected listener, whose own are never closed here, and after
        the maximum was lowered.
        """
        if self._quotas.excess() > 0 and not self._closes_excess:
            self._closes_excess = True
            self._slices.schedule(self._close_excess)

    def _close_excess(self) -> bool:
        self._closes_excess = False
        is_protected = self._quotas.is_protected
        others = [c for c in self._front.channels if not is_protected(c.connection.listener)]
        self._close(nsmallest(self._quotas.excess(), others, key=lambda channel: channel.last_active_ns))
        return True

    def idle(self) -> None:
        """Close idle connections. A connection that waits for memory is not idle."""
        since_ns = self._monotonic_ns() - self._settings()["connections.max.idle.ms"] * 1_000_000
        idle = [c for c in self._front.channels if c.last_active_ns < since_ns and not c.wants_memory]
        self._close(idle)

    def late_logins(self) -> None:
        """Close connections that have not logged in within `MAX_LOGIN_S`."""
        self._close(self._logins.late(), f"login not completed within {MAX_LOGIN_S:.0f} s")

    def stalled(self) -> None:
        """Close connections whose clients do not read: each holds an answer, and maybe a deleted file."""
        since_ns = self._monotonic_ns() - int(MAX_SEND_STALL_S * 1e9)
        stalled = [c for c in self._front.channels if c.sending and c.last_active_ns < since_ns]
        self._close(stalled, f"client did not read its response for {MAX_SEND_STALL_S:.0f} s")

    def slow(self) -> None:
        """Close connections whose incomplete requests hold memory that others wait for, and arrive too slowly."""
        slow = [holder for holder in self._memory.slow() if isinstance(holder, Channel)]
        self._close(
            slow,
            "request arrived too slowly while other clients waited for memory; see queued.max.request.bytes",
        )

    def displaced(self, channel: Channel) -> None:
        """Close a connection of the principal that has most, so that a client of one with fewer can connect."""
        self._front.on_bad_frame(
            channel,
            "all connections are in use, and its principal has the most; another principal needed one; "
            "see max.connections, and ulimit -n for file descriptors",
        )
        channel.close()

    def revoke(self, channel: Channel) -> None:
        """Close a connection of the principal that holds most request memory, because another principal needs it."""
        self._front.on_bad_frame(
            channel,
            "request dropped: another principal, with less memory, was waiting for memory; "
            "see queued.max.request.bytes; hint: the client can send the request again",
        )
        channel.close()

    def unread(self, channel: Channel) -> None:
        """Close a connection with an unread answer, of the principal whose answers hold most memory, to free it."""
        self._front.on_bad_frame(
            channel, "response not read while other clients waited for memory; see queued.max.request.bytes"
        )
        channel.close()

    def _close(self, channels: Sequence[Channel], reason: str = "") -> None:
        """Close channels in slices. reason: logged for each channel; empty: nothing is logged."""

        def work() -> Generator[None, None, None]:
            for channel in channels:
                if not channel.closed:
                    if reason:
                        self._front.on_bad_frame(channel, reason)
                    channel.close()
                    yield

        self._slices.start(work(), self._monotonic_ns)
