"""Throttles that connections remember for the permits of requests in progress, which their `request` rows tell."""

from typing import NamedTuple

from tidegate.pipeline.replay.kernel.pending import (
    TAKEN,
    empty_pending,
    lose_pending,
    pending_put,
    roomy_pending,
)

__all__ = ["PendingPermits", "Permits"]


class Permits(NamedTuple):
    """The throttle that a connection remembers for the permits that its request has asked for."""

    user: str
    client_id: str
    connection_id: int
    last_ms: int
    at_ms: int
    reason: int


class PendingPermits:
    """The throttles of one node. table: what the kernel works on. elsewhere: of clients that are not in this replay."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Remove all: no request is in progress."""
        self.table = empty_pending()
        self.elsewhere: list[Permits] = []

    def lose(self, reason: int) -> None:
        """Mark the throttles as not known. Such a request may end when everything else is known."""
        lose_pending(self.table, reason)
        self.elsewhere = [permits._replace(reason=reason) for permits in self.elsewhere]

    def make_room(self, more: int) -> None:
        """Grow the table until `more` connections fit."""
        self.table = roomy_pending(self.table, more)

    def put(self, permits: Permits, account: int) -> None:
        """Store a throttle of an account; there must be room."""
        pending_put(
            self.table, permits.connection_id, permits.last_ms, permits.at_ms, account, permits.reason
        )

    def waiting(self) -> list[tuple[int, int, int, int, int]]:
        """Return connection, last throttle in ms, when, account and reason of each entry of the table."""
        return [tuple(entry) for entry in self.table[self.table[:, TAKEN] == 1, :TAKEN].tolist()]
