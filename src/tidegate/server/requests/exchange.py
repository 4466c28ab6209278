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
    """The work failed: `Answer.if_turn_fails` returns the answer to send."""
    BROKEN = "broken"
    """An internal error ended the work at an unknown point: the requests that take part in it get no answer."""


@dataclass(slots=True)
class SlicedWork:
    """The work of a handler that needs more than its first slice: its steps, its request, and its quotas."""

    steps: Work
    request: Request
    quotas: EngineQuotas


class Exchange:
    """One request in progress. Its fields are set in this order; times are in ms, those that end in `_ns` in ns.

    channel, header, frame_bytes: the request; the size of its frame does not include the length prefix.
    started_ns, remote_ns: when the request was complete, and how long its handler waited for an event (a long poll).
    answer, handler_ns, mutation: the handler's answer, its time, and the permits that it asked for.
    work: the rest of the handler's work, if the handler works in slices and needs more than one.
    exempt, network_ns, fetch_bytes, now_ms: the charges, and their time; `fetch_bytes` is -1 if none are charged.
    lag, lag_bytes: how far behind the end of the log a Fetch reads, if it has `fetch_bytes`.
    produce_ms, fetch_ms, request_ms, mutation_ms, throttle_ms, muted_by: the decisions; the largest one mutes.
    row_flags: flags of the row in the usage record, see `recorder`: `PRODUCED` and `FETCHED` if bytes are charged,
    `THROTTLED`, `EXEMPT`, `OBSERVED_ONLY` if the throttle is not applied, `FORWARDED` if another node decided
    mutations.
    response: the bytes to send: the answer's, or the empty form for a throttled fetch; None: nothing is sent.
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
