"""Rows of many requests made in one loop are those that `Recorder.request` makes of each."""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.usage.recording import START_MS, client, closed_events, no_room, open_recorder, segment_of

from tidegate.testing import ManualClock
from tidegate.usage.appender import RETRY_MS
from tidegate.usage.spool import BELOW_ZERO, EXEMPT, FORWARDED, NONE, OBSERVED_ONLY, Client, Recorder

NAMES = ("app", "loader", "")
INT64 = st.integers(min_value=0, max_value=2**63 - 1)
BYTES = st.none() | INT64
MS = st.just(0) | st.integers(min_value=1, max_value=2**31 - 1)


@dataclass
class Connection:
    """What a row says of a connection."""

    id: int = 7
    recorded: dict[str, Client] | None = None


@dataclass
class Channel:
    """A connection, and how early its request came."""

    early_ms: int | None
    connection: Connection = field(default_factory=Connection)


@dataclass
class Response:
    """An answer of some size."""

    size: int


@dataclass
class Decided:
    """A decided request, as the front has it."""

    channel: Channel
    header: tuple[int, int, int, str, int]
    response: Response | None
    exempt: bool
    now_ms: int
    frame_bytes: int
    produce_bytes: int
    fetch_bytes: int
    handler_ns: int
    network_ns: int
    produce_ms: int
    fetch_ms: int
    request_ms: int
    mutation_ms: int
    throttle_ms: int
    row_flags: int


@st.composite
def decided(draw: st.DrawFn) -> Decided:
    """Make up a request: throttled, observed only, or neither."""
    throttles = draw(st.just((0, 0, 0, 0)) | st.tuples(MS, MS, MS, MS))
    below_zero = draw(st.booleans())
    if below_zero:
        throttles = tuple(-ms for ms in throttles)
    row_flags = draw(st.sampled_from((0, OBSERVED_ONLY, FORWARDED, OBSERVED_ONLY | FORWARDED)))
    if below_zero:
        row_flags = BELOW_ZERO
    numbers = [NONE if number is None else number for number in draw(st.tuples(BYTES, BYTES))]
    return Decided(
        Channel(draw(st.none() | MS)),
        (draw(st.integers(0, 90)), draw(st.integers(0, 20)), 5, draw(st.sampled_from(NAMES)), 20),
        draw(st.none() | st.builds(Response, INT64)),
        draw(st.booleans()),
        START_MS + draw(st.integers(0, 1000)),
        draw(INT64),
        *numbers,
        draw(INT64),
        draw(INT64),
        *throttles,
        0 if row_flags & OBSERVED_ONLY else max(*throttles, 0),
        row_flags,
    )


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.lists(decided(), max_size=20)), max_size=5))
def test_one_loop_writes_what_one_by_one_is_written(turns: list[tuple[bool, list[Decided]]]) -> None:
    """Whatever they hold, over the ends of segments, and where the spool has no room."""
    with tempfile.TemporaryDirectory() as name:
        clock = ManualClock(start_ms=START_MS)
        directories = [Path(name) / part for part in "ab"]
        one_by_one, in_one_loop = (
            open_recorder(path, clock, segment_bytes=segment_of(8)) for path in directories
        )
        who = {client_id: client(one_by_one, client_id) for client_id in NAMES}
        for has_room, turn in turns:
            clock.advance(RETRY_MS)
            with ExitStack() as stack:
                for recorder, path in zip((one_by_one, in_one_loop), directories, strict=True):
                    if not has_room:
                        stack.enter_context(no_room(recorder, path))
                for request in turn:
                    _record_alone(one_by_one, who[request.header[3]], request)
                one_by_one.commit()
                in_one_loop.requests(turn, lambda request: client(in_one_loop, request.header[3]))
                in_one_loop.commit()
            assert not [request for request in turn if request.channel.early_ms is not None]
        assert in_one_loop.lost_events == one_by_one.lost_events
        one_by_one.close()
        in_one_loop.close()
        assert closed_events(directories[1]) == closed_events(directories[0])


def _record_alone(recorder: Recorder, who: Client, request: Decided) -> None:
    api_key, api_version, _, _, _ = request.header
    early_ms = request.channel.early_ms
    recorder.request(
        who, request.now_ms, 7, api_key, api_version, request.frame_bytes,
        0 if request.response is None else request.response.size, request.produce_bytes, request.fetch_bytes,
        request.handler_ns, request.network_ns, request.produce_ms, request.fetch_ms, request.request_ms,
        request.mutation_ms, NONE if early_ms is None else early_ms,
        (EXEMPT if request.exempt else 0) | (request.row_flags & (OBSERVED_ONLY | FORWARDED)),
    )  # fmt: skip
