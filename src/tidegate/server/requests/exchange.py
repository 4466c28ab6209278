"""One request and what becomes of it: from its frame to the row of the usage record and the answer that leaves."""

from dataclasses import dataclass
from enum import Enum

from tidegate.quota import MutationQuota, QuotaType
from tidegate.server.connection.channel import Channel
from tidegate.server.requests.engine_quotas import EngineQuotas
from tidegate.server.requests.handler import Answer, Request, Work
from tidegate.wire import Encoded, RequestHeader

__all__ = ["Exchange", "SlicedWork", "TurnEnd"]


class TurnEnd(Enum):
    """Outcome of the work that the requests of a turn put off to its end (`tidegate.server.requests.handler.Turn`)."""

    DONE = "done"
    FAILED = "failed"
    """It was not done: answers are asked for what to send then."""
    BROKEN = "broken"
    """An error of ours ended it at an unknown point: requests that have a part in it get no answer."""


@dataclass(slots=True)
class SlicedWork:
    """A handler that needs more than its first slice: its steps, its request, and the quotas that it asks."""

    steps: Work
    request: Request
    quotas: EngineQuotas


class Exchange:
    """One request under way. Its parts are set as they become known, in this order; times in ms but for `_ns`.

    channel, header, frame_bytes: the request; its frame is counted without the length prefix.
    started_ns, remote_ns: when it was whole, and how long its handler waited for others (a long poll).
    answer, handler_ns, mutation: what the handler returned, how long it took, and the permits that it asked for.
    work: where the handler works in slices and needs more than the first.
    exempt, network_ns, fetch_bytes, now_ms: what is charged, and when; -1 for bytes: none.
    lag, lag_bytes: how far behind the end a Fetch reads, where it has `fetch_bytes`.
    produce_ms, fetch_ms, request_ms, mutation_ms, throttle_ms, muted_by: what is decided; the largest one mutes.
    row_flags: what is special about the row, see `recorder`: `PRODUCED`, `FETCHED` where it is charged,
    `THROTTLED`, `EXEMPT`, `OBSERVED_ONLY` where what is decided is not done, `FORWARDED` where another node was asked.
    response: what is sent: the answer's, or its empty form for a fetch that is throttled; None: nothing.
    """

    __slots__ = (
        "answer",
        "channel",
        "exempt",
        "fetch_bytes",
        "fetch_ms",
        "frame_bytes",
        "handler_ns",
        "header",
        "lag",
        "lag_bytes",
        "mutation",
        "mutation_ms",
        "muted_by",
        "network_ns",
        "now_ms",
        "produce_ms",
        "remote_ns",
        "request_ms",
        "response",
        "row_flags",
        "started_ns",
        "throttle_ms",
        "work",
    )

    answer: Answer
    work: SlicedWork
    exempt: bool
    network_ns: int
    now_ms: int
    throttle_ms: int
    row_flags: int
    produce_ms: int
    fetch_ms: int
    request_ms: int
    mutation_ms: int
    fetch_bytes: int
    lag: int
    lag_bytes: int
    muted_by: QuotaType
    response: Encoded | None

    def __init__(self, channel: Channel, header: RequestHeader, frame_bytes: int, started_ns: int) -> None:
        self.channel = channel
        self.header = header
        self.frame_bytes = frame_bytes
        self.started_ns = started_ns
        self.handler_ns = 0
        self.remote_ns = 0
        self.mutation: MutationQuota | None = None
