"""Rows of requests as bytes: their flags, the packers, and what the rows of one connection share.

Rows of requests are packed by position, as they delay answers; all other rows by name (`tidegate.usage.appender`).
"""

from tidegate.usage.columns import EXEMPT, FORWARDED, OBSERVED_ONLY
from tidegate.usage.open_segment import OpenSegment
from tidegate.usage.segment import END_FIELDS, PRODUCED, Names, row_end_struct, row_struct, row_tail

__all__ = [
    "FETCHED",
    "FLAGS_IN_ROWS",
    "NONE",
    "NO_FLAGS",
    "PLAIN_FLAGS",
    "REQUEST_TAIL",
    "THROTTLED",
    "Client",
    "pack_plain_fetch",
    "pack_plain_request",
    "pack_request",
]

THROTTLED = 512
"""For `row_flags`: one of the four throttle times is not 0. The flag itself is in no row."""
FETCHED = 256
"""For `row_flags`: it is charged for `fetch_bytes`, and has `lag` and `lag_bytes`. The flag itself is in no row."""
NONE = -1
"""For `network_ns`, `early_ms`, `lag` and `lag_bytes`: the column is null."""

_END, _FETCH_END = END_FIELDS
REQUEST_TAIL = row_tail("request")
pack_request = row_struct("request").pack_into
pack_plain_request = row_struct("request", zero=("lag", "lag_bytes"), end=_END).pack_into
pack_plain_fetch = row_struct("request", end=_FETCH_END).pack_into
_pack_end = row_end_struct("request", _END).pack
_pack_fetch_end = row_end_struct("request", _FETCH_END).pack
FLAGS_IN_ROWS = PRODUCED | EXEMPT | OBSERVED_ONLY | FORWARDED
PLAIN_FLAGS = (0, PRODUCED, FETCHED)  # flags of rows whose end is the same for the requests of a connection
NO_FLAGS = -1  # a plain row's flags


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
        self.row_flags = NO_FLAGS
        self.row_end = b""

    def end_row(self, connection_id: int, api: tuple[int, int], row_flags: int) -> None:
        """Make the end of plain rows with this API, its version, and these flags."""
        self.api, self.row_flags = api, row_flags
        end = (
            connection_id, 0, 0, 0, 0, NONE, self.number, *api,
            REQUEST_TAIL | (row_flags & FLAGS_IN_ROWS),
        )  # fmt: skip
        self.row_end = _pack_fetch_end(*end) if row_flags == FETCHED else _pack_end(NONE, *end)
