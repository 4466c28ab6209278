"""The interfaces of pollers: how connections are watched, and the turns in which they are served.

Sockets are served in *turns*: those that are ready now, once each, between `begin_turn` and `finish_turn` of a `Turns`.
Before the next turn the poller asks for new ones, so that a client waits for at most one request of each other client.
"""

from collections.abc import Callable
from typing import Protocol

__all__ = ["BATCH", "SERVE_NS", "Client", "NoTurns", "Poller", "SocketPoller", "Turns"]

BATCH = 64
"""Most sockets of a turn; at most as many are answered together."""
SERVE_NS = 2_000_000
"""Time of turns in a row, in ns. Then the loop does its other work: timers, new connections, work in slices."""


class Client(Protocol):
    """The client of a connection."""

    @property
    def owner(self) -> str:
        """Return the principal whose share of turns the connection uses. It changes with a login."""


class Turns(Protocol):
    """The actions before and after the callbacks of a turn.

    at_ns: the start of the time that is not yet charged to a client. The poller sets it after each callback that has
        not set it itself.
    """

    at_ns: int

    def begin_turn(self, since_ns: int) -> None:
        """Begin a turn. The poller has looked for ready connections since `since_ns`."""

    def finish_turn(self, until_ns: int) -> bool:
        """End the turn; return whether a channel waits for the next one. No deferrable work begins after `until_ns`."""


class Poller(Protocol):
    """Calls back when a connection can be read or written, in turns."""

    def serve_in(self, turns: Turns) -> None:
        """Call `turns` for each turn: for all connections that are ready together, if the poller knows them."""

    def wake(self) -> None:
        """Schedule a turn soon, whether a connection is ready or not."""

    def call_in_turn(self, callback: Callable[[], None], owner: str) -> None:
        """Call `callback` once, in a turn soon, as if its connection were ready; in rounds over owners."""

    def call_late_in_turn(self, callback: Callable[[], None], owner: str) -> None:
        """Call `callback` once, in a turn soon, after other calls, so that a thousand such calls delay requests little.

        The calls run in rounds over owners, so that a thousand calls of one owner do not delay those of another.
        """

    def close(self) -> None:
        """Release all resources."""


class SocketPoller(Poller, Protocol):
    """A `Poller` of sockets, each known by its descriptor."""

    def set_client(self, fd: int, client: Client) -> None:
        """Set the client of a connection, until `forget`."""

    def add_reader(self, fd: int, callback: Callable[[], None]) -> object:
        """Call `callback` whenever `fd` can be read."""

    def pause_reader(self, fd: int, on_broken: Callable[[], None]) -> object:
        """Stop reading `fd` until `add_reader`. Call `on_broken`, once, if the poller learns that it is broken."""

    def add_writer(self, fd: int, callback: Callable[[], None]) -> object:
        """Call `callback` whenever `fd` can be written."""

    def remove_writer(self, fd: int) -> object:
        """Stop that."""

    def watch(self, fd: int, on_early: Callable[[], None], on_gone: Callable[[bool], None]) -> None:
        """Report events of a socket that is not read, if the poller can (`MuteWatch`)."""

    def unwatch(self, fd: int) -> None:
        """Stop that. Harmless where nothing is watched."""

    def forget(self, fd: int) -> None:
        """Stop everything else: the socket is closed next."""


class NoTurns:
    """The `Turns` of a poller without turns: every call is ignored."""

    at_ns = 0

    def begin_turn(self, since_ns: int) -> None:
        """Ignore the turn."""

    def finish_turn(self, until_ns: int) -> bool:
        """Return that no channel waits."""
        return False
