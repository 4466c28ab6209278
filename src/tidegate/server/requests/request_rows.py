"""Rows of requests: their flags, the fields that the rows of a connection share, and the loop that makes the rows.

Rows of requests are packed by position, as they delay answers; all other rows by name (`tidegate.usage.appender`).
Requests wait in a list until the next event of another kind, or `commit`: their rows are made in one loop, before the
row of that event.
"""

from collections.abc import Iterable
from pathlib import Path

from tidegate.api_keys import FETCH
from tidegate.clock import Clock
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Connection
from tidegate.usage.appender import Appender
from tidegate.usage.columns import EXEMPT, FORWARDED, OBSERVED_ONLY
from tidegate.usage.open_segment import OpenSegment
from tidegate.usage.segment import (
    END_FIELDS,
    PRODUCED,
    ROW_BYTES,
    Names,
    row_end_struct,
    row_struct,
    row_tail,
    topic_names,
)
from tidegate.wire import RequestHeader

__all__ = ["FETCHED", "LONGEST_KEPT_CLIENT_ID_CHARS", "NONE", "THROTTLED", "Client", "RequestRecorder"]

LONGEST_KEPT_CLIENT_ID_CHARS = 255
"""Longer client ids are not kept between requests: the names kept for a connection take 2 KB at most."""
THROTTLED = 512
"""For `row_flags`: one of the four throttle times is not 0. The flag itself is in no row."""
FETCHED = 256
"""For `row_flags`: it is charged for `fetch_bytes`, and has `lag` and `lag_bytes`. The flag itself is in no row."""
NONE = -1
"""For `network_ns`, `early_ms`, `lag` and `lag_bytes`: the column is null."""

_LAST_WITH_TOPICS = FETCH  # Produce and Fetch have the lowest api keys
_END, _FETCH_END = END_FIELDS
_REQUEST_TAIL = row_tail("request")
_pack_request = row_struct("request").pack_into
_pack_plain_request = row_struct("request", zero=("lag", "lag_bytes"), end=_END).pack_into
_pack_plain_fetch = row_struct("request", end=_FETCH_END).pack_into
_pack_end = row_end_struct("request", _END).pack
_pack_fetch_end = row_end_struct("request", _FETCH_END).pack
_FLAGS_IN_ROWS = PRODUCED | EXEMPT | OBSERVED_ONLY | FORWARDED
_PLAIN_FLAGS = (0, PRODUCED, FETCHED)  # flags of rows whose end is the same for the requests of a connection
_NO_FLAGS = -1  # a plain row's flags


class Client:
    """The six names in the rows of a connection's requests, and their number in the segment being written.

    row_end: the end of the row of its last plain request, shared by all requests with the same API, version and flags.
    A plain request was not throttled, exempted or sent too early.
    """

    __slots__ = ("api", "client_id", "names", "number", "row_end", "row_flags", "segment")

    def __init__(self, names: Names) -> None:
        self.names = names
        self.client_id = names[2]
        self.number = 0
        self.segment: OpenSegment | None = None
        self.api: tuple[int, int] | None = None
        self.row_flags = _NO_FLAGS
        self.row_end = b""

    def end_row(self, connection_id: int, api: tuple[int, int], row_flags: int) -> None:
        """Make the end of plain rows with this API, its version, and these flags."""
        self.api, self.row_flags = api, row_flags
        end = (
            connection_id, 0, 0, 0, 0, NONE, self.number, *api,
            _REQUEST_TAIL | (row_flags & _FLAGS_IN_ROWS),
        )  # fmt: skip
        self.row_end = _pack_fetch_end(*end) if row_flags == FETCHED else _pack_end(NONE, *end)


class RequestRecorder(Appender):
    """Append the requests of one node to its spool directory; see `Appender` for `limits`.

    request: record a request; its row is made at the next event or `commit`.
    """

    def __init__(self, directory: Path, *, node_id: int, clock: Clock, **limits: int) -> None:
        super().__init__(directory, node_id=node_id, clock=clock, **limits)
        self._requests: list[Exchange] = []  # whose rows are not made yet
        self.request = self._requests.append
        self._topics: dict[
            str, int
        ] = {}  # topic → its number in the segment; no more than its table of names has

    def commit(self) -> None:
        """Make the rows of all requests since the last time, in one loop, and write what is not written yet."""
        self._record_requests()
        self._write_rows()

    def requests(self, requests: Iterable[Exchange]) -> None:
        """Record requests in the order of their decisions. One loop makes all rows, because answers wait for it.

        Move `early_ms` from the channel of each request to its row.
        """
        rows, at, end, segment, topics = self._rows, self._at, self._end, self._segment, self._topics
        for request in requests:
            channel = request.channel
            connection = channel.connection
            header = request.header
            client = connection.recorded
            # Headers share one string for each client id, so that identity settles the usual case; `_client` compares.
            if client is None or client.client_id is not header.client_id:
                client = self._client(connection, header)
            now_ms = request.now_ms
            if at == end or client.segment is not segment:
                self._at = at
                placed = self._place(client, now_ms)
                at, end, segment = self._at, self._end, self._segment
                if not placed:
                    channel.early_ms = None
                    continue
            topic, other_topics, answer = 0, 0, request.answer
            if answer.topic is not None:
                number = topics.get(answer.topic)
                if number is None:
                    self._at = at
                    number = self._topic_number(answer.topic, client, now_ms)
                    at, end, segment = self._at, self._end, self._segment
                    if number is None:
                        channel.early_ms = None
                        continue
                topic, other_topics = number, answer.other_topics + 1
            elif header.api_key <= _LAST_WITH_TOPICS:
                other_topics = answer.other_topics + 1
            response = request.response
            response_bytes = 0 if response is None else response.size
            row_flags = request.row_flags
            if row_flags != client.row_flags or header.api is not client.api or channel.early_ms is not None:
                if row_flags not in _PLAIN_FLAGS or channel.early_ms is not None:
                    self._write_request(at, request, client, response_bytes, topic, other_topics)
                    at += ROW_BYTES
                    continue
                client.end_row(connection.id, header.api, row_flags)
            if row_flags == FETCHED:
                _pack_plain_fetch(
                    rows, at, topic, now_ms, request.frame_bytes, response_bytes, request.handler_ns,
                    request.network_ns, request.lag + 1, request.lag_bytes + 1, other_topics,
                    request.fetch_bytes, client.row_end,
                )  # fmt: skip
            else:
                _pack_plain_request(
                    rows, at, topic, now_ms, request.frame_bytes, response_bytes, request.handler_ns,
                    request.network_ns, other_topics, client.row_end,
                )  # fmt: skip
            at += ROW_BYTES
        self._at = at

    def _write_request(
        self,
        at: int,
        request: Exchange,
        client: Client,
        response_bytes: int,
        topic: int,
        other_topics: int,
    ) -> None:
        """Write the row of a request that is not plain. topic, other_topics: as the spool has them."""
        channel, header, row_flags = request.channel, request.header, request.row_flags
        early_ms, channel.early_ms = channel.early_ms, None
        lag, lag_bytes, fetch_bytes = 0, 0, NONE
        if row_flags & FETCHED:
            lag, lag_bytes, fetch_bytes = request.lag + 1, request.lag_bytes + 1, request.fetch_bytes
        _pack_request(
            self._rows, at, topic, request.now_ms, request.frame_bytes, response_bytes, request.handler_ns,
            request.network_ns, lag, lag_bytes, other_topics, fetch_bytes, channel.connection.id,
            request.produce_ms, request.fetch_ms, request.request_ms, request.mutation_ms,
            NONE if early_ms is None else early_ms, client.number, header.api_key, header.api_version,
            _REQUEST_TAIL | (row_flags & _FLAGS_IN_ROWS),
        )  # fmt: skip

    def _record_requests(self) -> None:
        """Make the rows of the requests that have none yet, before the row of the next event."""
        if self._requests:
            try:
                self.requests(self._requests)
            finally:
                self._requests.clear()

    def _client(self, connection: Connection, header: RequestHeader) -> Client:
        """Return the names of this connection and client id. The connection keeps those of its last client id."""
        client: Client | None = connection.recorded
        if client is not None and client.client_id == header.client_id:
            return client
        client = Client(
            (
                connection.listener, connection.user, header.client_id, connection.client_host,
                *connection.software,
            )
        )  # fmt: skip
        if len(header.client_id) <= LONGEST_KEPT_CLIENT_ID_CHARS:
            connection.recorded = client
        return client

    def _place(self, client: Client, now_ms: int) -> bool:
        """Make room for a row and number its client in the segment; False: no room, counted as lost."""
        if self._at != self._end and client.segment is self._segment:
            return True
        number = self._number(client.names, now_ms)
        if number is None:
            return False
        client.number = number
        client.segment = self._segment
        client.row_flags = _NO_FLAGS
        return True

    def _topic_number(self, topic: str, client: Client, now_ms: int) -> int | None:
        """Return the number of a topic in the segment of the next row, and number the client in it, too.

        None: no room, counted as lost. A full table of names begins the next segment, without loss.
        """
        while (number := self._topics.get(topic)) is None or client.segment is not self._segment:
            if number is not None:
                if not self._place(client, now_ms):
                    return None
                continue
            number = self._number(topic_names(topic), now_ms)
            if number is None:
                return None
            self._topics[topic] = number
        return number

    def _open_segment(self, now_ms: int) -> None:
        self._topics.clear()
        super()._open_segment(now_ms)

    def _write_client_row(
        self,
        kind: str,
        connection: Connection,
        header: RequestHeader,
        now_ms: int,
        flags: int,
        **values: float,
    ) -> None:
        """Write a row that belongs to the request with this header."""
        self._record_requests()
        client = self._client(connection, header)
        if self._place(client, now_ms):
            values["names"], values["connection_id"] = client.number, connection.id
            values["api_key"], values["api_version"] = header.api
            self._pack(kind, now_ms, flags, values)
