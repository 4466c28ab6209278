"""What a forecast says of clients whose load is known: ends, waits, retries; and that its memory is bounded."""

import errno
import os
from dataclasses import replace

import numpy as np
import pytest
from tests.oracles.sampled_rate import PortedRate
from tests.replaying.kernel import closed_loop_of, decisions_of, forecast_events, kernel_rows
from tests.replaying.node import RecordingNode

from tidegate.pipeline import layout
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.steps import Step, Steps
from tidegate.pipeline.read.timeline import empty_timeline
from tidegate.pipeline.replay import closed_loop
from tidegate.pipeline.replay.closed_loop import ClosedLoopReplay
from tidegate.pipeline.replay.kernel import loop_state
from tidegate.pipeline.replay.plan import Plan
from tidegate.quota.admin.definitions import QuotaRecord

_T0 = 1_700_000_000_000
_MB = 1_000_000


def _plan(key, value):
    record = QuotaRecord(entity=(("client-id", "c1"),), key=key, value=float(value))
    return Plan(name="p", records=(record,), is_closed=True)


def _node(requests, *, software="", step_ms=10, size=100_000, api="produce", connections=1):
    """Return the events of connections that take turns, a request each `step_ms`."""
    node = RecordingNode()
    node.start(_T0)
    for number in range(requests):
        event = getattr(node, api)("alice", "c1", size, _T0 + number * step_ms)
        event |= {"connection_id": number % connections, "client_software": software}
    return node.events


def _late_ms(event, attempt=1):
    """Return how late the mute after an attempt is over: 1 and 2 ms by turns."""
    return 1 + (event["seq"] + attempt) % 2


def _result(forecast, quota_type="Produce"):
    (found,) = [result for result in forecast.results if result["quota_type"] == quota_type]
    return found


def test_half_the_rate_takes_twice_the_time():
    """60 s at 10 MB/s under 5 MB/s: 600 MB take 120 s, less the quotas that the window lets through at first."""
    requests, limit = 6000, 5 * _MB
    forecast = forecast_events(_node(requests), _plan("producer_byte_rate", limit), batch_rows=100)
    took_ms = forecast.decisions[-1][1] - _T0
    at_the_limit_ms = requests * 100_000 * 1000 / limit
    assert at_the_limit_ms - 11_000 <= took_ms <= at_the_limit_ms
    result = _result(forecast)
    assert result["last_ts_ms"] == _T0 + took_ms
    assert result["recorded_last_ts_ms"] == _T0 + 59_990
    assert took_ms - 59_990 <= result["waited_ms"] <= result["throttle_ms"]


def test_a_producer_that_waits_for_each_answer_goes_by_the_ported_rate():
    """To the millisecond: what is decided at a time, and the next request at the end of the longer of two waits."""
    rate, now_ms, expected = PortedRate(bound=float(_MB), samples=11, window_ms=1000), _T0, []
    events = _node(500, step_ms=7, size=30_000)
    for _ in range(500):
        throttle_ms = rate.decide(30_000.0, now_ms)
        expected.append((now_ms, throttle_ms))
        now_ms += max(7, throttle_ms + _late_ms(events[len(expected)]) if throttle_ms else 0)
    forecast = forecast_events(events, _plan("producer_byte_rate", _MB))
    assert [row[1:3] for row in forecast.decisions] == expected
    assert any(throttle_ms for _, throttle_ms in expected)


def test_a_client_with_several_in_flight_works_on_until_five_wait():
    """Those sent meanwhile are read when the throttle is over; the sixth is sent then, the next as recorded."""
    events = _node(9, size=20 * _MB, step_ms=100, software="apache-kafka-java")
    for event in events[-8:]:
        event["client_id"] = "without a limit"
    forecast = forecast_events(events, _plan("producer_byte_rate", _MB))
    assert [row[1] - _T0 for row in forecast.decisions] == [0, *[10_002] * 6, 10_102, 10_202]


def test_a_throttled_fetch_is_asked_again_and_a_large_one_comes_in_parts():
    """25 MB under 1 MB/s: two times the cap of ten, then the rest, each when it fits into the window.

    An answer is charged 49 bytes beside its records.
    """
    forecast = forecast_events(
        _node(1, api="fetch", size=25 * _MB, software="librdkafka"), _plan("consumer_byte_rate", _MB)
    )
    delivered = [row[5] for row in forecast.decisions if row[2] == 0]
    assert delivered == [10 * _MB + 49, 10 * _MB + 49, 5 * _MB - 98]
    result = _result(forecast, "Fetch")
    assert result["requests"] == len(forecast.decisions) > 3
    assert result["waited_ms"] == result["longest_wait_ms"] == forecast.decisions[-1][1] - _T0


@pytest.mark.parametrize(
    ("software", "works_on"),
    [("librdkafka", True), ("apache-kafka-java", True), ("kafka-python", False), ("", False)],
)
def test_who_reads_ahead_has_worked_on_when_a_throttled_fetch_brings_something(software, works_on):
    """It fetches again at once; who fetches when the work is done does that 100 ms later, as recorded."""
    events = _node(4, api="fetch", size=9 * _MB, step_ms=100, software=software)
    for event in events[-2:]:
        event["client_id"] = "without a limit"
    forecast = forecast_events(events, _plan("consumer_byte_rate", _MB))
    *_, brings, third, fourth = (row[1] for row in forecast.decisions)
    assert brings > _T0 + 100
    assert [third - brings, fourth - brings] == ([0, 100] if works_on else [100, 200])


@pytest.mark.parametrize(("software", "step_ms"), [("kafka-python", 100), ("apache-kafka-java", 1), ("", 1)])
def test_kafka_python_looks_in_steps_whether_a_throttle_is_over(software, step_ms):
    """It sleeps 100 ms at a time; others ask again at the end."""
    events = _node(2, api="fetch", size=9 * _MB, software=software)
    forecast = forecast_events(events, _plan("consumer_byte_rate", 1.07 * _MB))
    _, second, third = forecast.decisions[:3]
    assert second[2] % 100 > 0
    waits_ms = -(-second[2] // step_ms) * step_ms
    assert third[1] - second[1] == waits_ms + _late_ms(events[-1])


@pytest.mark.parametrize(("software", "comes_ms", "sent_again"), [("librdkafka", 60_110, 1), ("", 90_002, 0)])
def test_who_does_not_wait_sends_again_after_its_timeout(software, comes_ms, sent_again):
    """100 MB under 1 MB/s mute for 90 s: librdkafka gives its next request up after 60 s and connects again."""
    events = _node(2, size=100 * _MB, software=software)
    forecast = forecast_events(events, _plan("producer_byte_rate", _MB))
    assert [row[1] - _T0 for row in forecast.decisions] == [0, comes_ms]
    assert _result(forecast)["sent_again"] == sent_again


def test_one_throttle_mutes_whoever_shares_the_connection():
    """Of two clients on one connection the second waits too; the wait is the quota's that muted it."""
    events = _node(2, size=20 * _MB)
    events[-1]["client_id"] = "other"
    forecast = forecast_events(events, _plan("producer_byte_rate", _MB))
    assert [row[1:3] for row in forecast.decisions] == [(_T0, 10_000), (_T0 + 10_002, 0)]
    waited = {result["client_id"]: result["waited_ms"] for result in forecast.results if result["waited_ms"]}
    assert waited == {"c1": 9_992}


def test_waiting_rows_are_bounded(monkeypatch):
    """Past what memory holds they lie in a file, with the same result; past the bound it is said."""
    events, plan = _node(3000, connections=7), _plan("producer_byte_rate", _MB)
    expected = forecast_events(events, plan)
    monkeypatch.setattr(closed_loop, "MEMORY_ROWS", 1)
    assert forecast_events(events, plan) == expected
    monkeypatch.setattr(closed_loop, "MAX_WAITING_ROWS", 1024)
    with pytest.raises(UsageFilesError, match="more than 1024 requests would wait at once under plan 'p'"):
        forecast_events(events, plan)


def test_a_disk_without_room_for_what_waits_is_said(monkeypatch):
    """In words, before the file is written to: a hole that cannot be filled would end the process."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(closed_loop, "MEMORY_ROWS", 1)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UsageFilesError, match="No space left on device") as error:
        forecast_events(_node(3000, connections=7), _plan("producer_byte_rate", _MB))
    assert "TMPDIR" in error.value.hint


def test_idle_connections_are_forgotten(monkeypatch):
    """With the same result as if they were not."""
    node = RecordingNode()
    node.start(_T0)
    for number in range(400):
        event = node.produce("alice", "c1", 2 * _MB, _T0 + number * 20_000)
        event["connection_id"] = number // 5
    plan = _plan("producer_byte_rate", _MB / 20)
    expected = forecast_events(node.events, plan)
    monkeypatch.setattr(closed_loop, "_CROWD", 2)
    assert forecast_events(node.events, plan) == expected


def test_a_start_ends_what_waits():
    """It is decided before; the next run begins without a shift."""
    first, second = _node(2, size=100 * _MB), _node(2, size=1)
    for event in second:
        event["seq"] += first[-1]["seq"]
        event["ts_ms"] += 1000
    forecast = forecast_events(first + second, _plan("producer_byte_rate", _MB))
    assert [row[1] - _T0 for row in forecast.decisions] == [0, 90_002, 1000, 1010]


@pytest.mark.parametrize("kind", ["gap", "break"])
def test_what_waits_is_decided_before_lost_events(kind):
    """By the sensors that it belongs to; what comes after has others, and no shift."""
    events = [event for event in _node(3, size=100 * _MB, step_ms=1000) if event["kind"] == "request"]
    rows = kernel_rows(events, lambda name: 0)
    step = Step(seq=int(rows.seq[2]), ts_ms=_T0 + 1500, kind=kind)
    timeline = replace(empty_timeline(), steps=Steps.of([step]))
    replay = ClosedLoopReplay(
        _plan("producer_byte_rate", _MB), names=[("alice", "c1")], timeline=timeline, log_rows=9
    )
    replay.replay(rows, np.zeros((0, layout.DECISIONS), np.int32))
    replay.finish()
    assert [row[1] - _T0 for row in decisions_of(replay)] == [0, 90_002, 2000]


def _creating(software, *, permits=20, requests=4, step_ms=1000):
    """Return the events of an admin client that creates topics, one request a second."""
    node = RecordingNode()
    node.start(_T0)
    for number in range(requests):
        node.mutate("alice", "c1", permits, _T0 + number * step_ms)
        node.other("alice", "c1", _T0 + number * step_ms, api_key=19)
    for event in node.events:
        event |= {"client_software": software, "connection_id": 1}
    return node.events


@pytest.mark.parametrize("software", ["kafka-python", ""])
def test_refused_permits_are_asked_for_again_at_the_upper_end(software):
    """By the clock all 80 permits are taken in the end; one by one kafka-python's client gives two requests up."""
    plan, events = _plan("controller_mutation_rate", 2), _creating(software)
    again = closed_loop_of(events, plan, clients=loop_state.BY_THE_CLOCK)
    given_up = closed_loop_of(events, plan, clients=loop_state.ONE_BY_ONE)
    accepted = [row[-1] for row in decisions_of(again) if row[-1] and not row[4]]
    assert accepted == [20] * 4
    taken = {row[0] for row in decisions_of(given_up)}
    left_out = [event for event in events if event["kind"] == "mutation" and event["seq"] not in taken]
    assert bool(left_out) == (software == "kafka-python")


def test_a_request_that_is_refused_each_time_ends():
    """Where others take all permits it is left after so many attempts, and what waited is free again."""
    events = _creating("", requests=2)
    plan = _plan("controller_mutation_rate", 0)
    found = closed_loop_of(events, plan, clients=loop_state.BY_THE_CLOCK)
    loop = found._loop
    assert loop.counts[loop_state.MUTATIONS] == 0
    assert loop.counts[loop_state.FREE_SLOTS] == len(loop.links)


@pytest.mark.parametrize(("software", "together"), [("apache-kafka-java", 4), ("librdkafka", 262)])
def test_what_comes_meanwhile_goes_together_by_the_clock(software, together):
    """Up to a batch of 16 KiB, of librdkafka's producers 1 MiB; bytes stay the same."""
    events = _node(1001, step_ms=1, size=4000, software=software)
    events[-1001]["produce_bytes"] = 20 * _MB
    found = closed_loop_of(events, _plan("producer_byte_rate", _MB), clients=loop_state.BY_THE_CLOCK)
    amounts = [row[5] for row in decisions_of(found)]
    assert sum(amounts) == 20 * _MB + 1000 * 4000
    assert max(amounts[1:]) == together * 4000


def test_a_plan_that_throttles_nothing_is_replayed_once():
    """The other replays begin with the first throttle."""
    events = _node(100, size=1000)
    assert closed_loop_of(events, _plan("producer_byte_rate", _MB))._bounding == []
    assert len(closed_loop_of(events, _plan("producer_byte_rate", 10))._bounding) == 2
