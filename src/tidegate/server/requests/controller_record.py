"""The controller's record of mutations that other nodes forward to it."""

from dataclasses import replace

from tidegate.quota import MutationQuota
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Connection
from tidegate.server.requests.recorder import Recorder
from tidegate.usage.columns import FORWARDED
from tidegate.wire import RequestHeader

__all__ = ["ControllerRecord"]


class ControllerRecord:
    """The controller's record, as a node that forwards uses it (B§5.4).

    The controller's engine decides the mutations of such a node, so the controller's record contains the permits, and a
    row with their throttle time. The request's own row, in the record of the node that answers it, is marked with
    `FORWARDED`. So each record contains all that its node's engine did, and can be replayed by itself.

    recorder: the controller's; None: it records nothing.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._uncommitted = False

    def mutation(
        self,
        connection: Connection,
        header: RequestHeader,
        permits: int,
        quota: MutationQuota,
        granted: bool,
        now_ms: int,
    ) -> None:
        """Record at the controller that a handler asked for permits."""
        if self._recorder is None:
            return
        if connection.at_controller is None:
            # Each record numbers its connections by itself: this node's id may be another connection's there.
            number = self._recorder.next_connection_id()
            connection.at_controller = replace(connection, id=number, recorded=None)
        self._uncommitted = True
        self._recorder.mutation(connection.at_controller, header, permits, quota, granted, now_ms)

    def request(self, exchange: Exchange) -> None:
        """Record at the controller what was decided of the permits of a request, and mark the request's own row."""
        connection = exchange.channel.connection.at_controller
        if self._recorder is not None and connection is not None:
            self._uncommitted = True
            self._recorder.forwarded(exchange, connection)
        exchange.row_flags |= FORWARDED

    def commit(self) -> None:
        """Write the rows that are not written yet."""
        if self._uncommitted and self._recorder is not None:
            self._uncommitted = False
            self._recorder.commit()
