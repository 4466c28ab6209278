"""Rows of many requests made in one loop are those that are made of each by itself."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.usage.recording import (
    START_MS,
    Decided,
    client,
    closed_events,
    no_room,
    open_recorder,
    segment_of,
)

from tidegate.server.requests.recorder import Recorder
from tidegate.server.requests.request_rows import FETCHED, NONE, THROTTLED, Client
from tidegate.testing import ManualClock
from tidegate.usage.appender import RETRY_MS
from tidegate.usage.columns import EXEMPT, FORWARDED, OBSERVED_ONLY
from tidegate.usage.segment import PRODUCED

NAMES = ("app", "loader", "")
INT64 = st.integers(min_value=0, max_value=2**63 - 1)
LAG = st.none() | st.integers(min_value=0, max_value=2**63 - 2)
MS = st.just(0) | st.integers(min_value=1, max_value=2**31 - 1)


@st.composite
def decided(draw: st.DrawFn) -> Decided:
    """Make up a request: throttled, observed only, or neither."""
    throttles = draw(st.just((0, 0, 0, 0)) | st.tuples(MS, MS, MS, MS))
    if draw(st.booleans()):
        throttles = tuple(-ms for ms in throttles)
    row_flags = draw(st.sampled_from((0, 0, OBSERVED_ONLY, FORWARDED, EXEMPT)))
    row_flags |= draw(st.sampled_from((0, PRODUCED, FETCHED))) | (THROTTLED if any(throttles) else 0)
    return Decided(
        START_MS + draw(st.integers(0, 1000)),
        draw(st.integers(0, 2)),
        draw(st.integers(0, 2)),
        draw(st.sampled_from(NAMES)),
        draw(st.integers(1, 2) | INT64),
        draw(st.none() | MS),
        draw(st.none() | INT64),
        draw(INT64),
        draw(INT64),
        draw(INT64),
        draw(INT64),
        *throttles,
        0 if row_flags & OBSERVED_ONLY else max(*throttles, 0),
        row_flags,
        *(NONE if number is None else number for number in draw(st.tuples(LAG, LAG))),
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
        for has_room, turn in turns:
            clock.advance(RETRY_MS)
            with ExitStack() as stack:
                for recorder, path in zip((one_by_one, in_one_loop), directories, strict=True):
                    if not has_room:
                        stack.enter_context(no_room(recorder, path))
                for request in turn:
                    early_ms = request.channel.early_ms
                    _record(one_by_one, [request])
                    request.channel.early_ms = early_ms  # it is taken from the channel
                one_by_one.commit()
                _record(in_one_loop, turn)
                in_one_loop.commit()
            assert not [request for request in turn if request.channel.early_ms is not None]
        assert in_one_loop.lost_events == one_by_one.lost_events
        one_by_one.close()
        in_one_loop.close()
        assert closed_events(directories[1]) == closed_events(directories[0])


def _record(recorder: Recorder, turn: list[Decided]) -> None:
    known: dict[tuple[int, str], Client] = {}
    for request in turn:  # as the front knows them: of a connection the client that came last
        connection = request.channel.connection
        connection.recorded = known.setdefault((connection.id, request.client_id), client(request.client_id))
    recorder.requests(turn)
