"""Ranges of forecasts beside clients that are played: what comes lies within them, and they are not too wide.

`tests/e2e/long_forecast_of_kinds.py` does the same with real clients.
"""

from random import Random
from statistics import median

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.test_closed_loop import sent
from tests.replaying.clients import (
    by_the_clock,
    consumes_as_it_comes,
    consumes_backlog,
    creates_topics,
    flushes_bursts,
    limit_of,
    play,
    sends_on,
    waits_for_each,
)
from tests.replaying.kernel import closed_loop_of, forecast_events
from tests.replaying.logs import random_records

from tidegate.pipeline import layout
from tidegate.pipeline.replay.kernel import loop_state
from tidegate.pipeline.replay.plan import Plan

_JAVA, _LIBRDKAFKA, _KAFKA_PYTHON, _OTHER = "apache-kafka-java", "librdkafka", "kafka-python", ""
_SHARES = (0.3, 0.5, 0.8, 0.95)
_WITHIN = 1.2
"""What really came is not below the range by more than this factor, nor above it."""
_WIDEST = {0.3: 1.9, 0.5: 2.0, 0.8: 5.0}
"""A range is no wider than this factor; nearer to the rate it may begin at almost nothing."""

_PRODUCERS = {
    "one by one": ([waits_for_each()], _OTHER),
    "one by one, where several may be on their way": ([waits_for_each()], _KAFKA_PYTHON),
    "one by one, small and fast": ([waits_for_each(2000, size=5000, think_ms=10)], _JAVA),
    "sends on": ([sends_on()], _LIBRDKAFKA),
    "sends on, small and fast": ([sends_on(4000, size=5000, think_ms=5)], _LIBRDKAFKA),
    "burst, flush, sleep": ([flushes_bursts()], _LIBRDKAFKA),
    "burst, flush, sleep, small": ([flushes_bursts(50, records=10, size=10_000, pause_ms=500)], _JAVA),
    "burst, flush, sleep, large": ([flushes_bursts(records=100, size=10_000)], _KAFKA_PYTHON),
    "burst, flush, by the clock": ([flushes_bursts(by_the_clock=True)], _KAFKA_PYTHON),
    "by the clock, batches of 16 KiB": ([by_the_clock(rate=1000, size=1000)], _JAVA),
    "by the clock, few records": ([by_the_clock(rate=100, size=10_000)], _JAVA),
    "by the clock, batches of 1 MB": (
        [by_the_clock(rate=1000, size=1000, batch_bytes=1_000_000, is_told=False)],
        _LIBRDKAFKA,
    ),
    "two connections by the clock": ([by_the_clock(rate=100, size=10_000)] * 2, _JAVA),
    "two connections one by one": ([waits_for_each()] * 2, _OTHER),
    "four connections that send on": ([sends_on(300)] * 4, _LIBRDKAFKA),
    "four connections, each another": (
        [sends_on(300), waits_for_each(300), by_the_clock(rate=20, size=50_000), flushes_bursts(15)],
        _JAVA,
    ),
}
_CONSUMERS = {
    "at the end": ([consumes_as_it_comes()], _JAVA),
    "group of two at the end": ([consumes_as_it_comes(place, of=2) for place in (0, 1)], _JAVA),
    "group of two at the end, often": (
        [consumes_as_it_comes(place, of=2, rate=100, size=10_000) for place in (0, 1)],
        _LIBRDKAFKA,
    ),
    "group of two at the end, in steps": (
        [consumes_as_it_comes(place, of=2, in_steps=True) for place in (0, 1)],
        _KAFKA_PYTHON,
    ),
    "group of two behind": ([consumes_backlog()] * 2, _LIBRDKAFKA),
    "group of two behind, in steps": (
        [consumes_backlog(reads_ahead=False, in_steps=True)] * 2,
        _KAFKA_PYTHON,
    ),
}


def _forecast(events, limit, quota_type):
    plan = Plan(name="p", records=(limit,), is_closed=True)
    (row,) = [
        row
        for row in forecast_events(events, plan, batch_rows=1000).results
        if row["quota_type"] == quota_type
    ]
    return row


def _of_share(events, api, share):
    column = {"produce": "produce_bytes", "fetch": "fetch_bytes", "create": "mutations"}[api]
    rows = [event for event in events if event[column]]
    span_ms = rows[-1]["ts_ms"] - rows[0]["ts_ms"]
    return limit_of(api, share * sum(row[column] for row in rows) * 1000 / span_ms)


def _is_within(real_ms, row, *, of="throttle_ms"):
    return row[f"{of}_low"] / _WITHIN <= real_ms <= row[f"{of}_high"] * _WITHIN


@pytest.mark.parametrize("share", _SHARES)
@pytest.mark.parametrize(
    ("kind", "api", "quota_type"),
    [
        *((kind, "produce", "Produce") for kind in _PRODUCERS),
        *((kind, "fetch", "Fetch") for kind in _CONSUMERS),
    ],
)
def test_what_comes_lies_within_the_range(kind, api, quota_type, share):
    """For each kind of client, near its rate and well below it; the range is no wider than the kinds differ."""
    clients, software = (_PRODUCERS | _CONSUMERS)[kind]
    events, _ = play(clients, seed=1, software=software)
    limit = _of_share(events, api, share)
    runs = [sum(play(clients, seed=seed, software=software, limit=limit)[1]) for seed in (2, 3, 4)]
    row = _forecast(events, limit, quota_type)
    assert row["throttle_ms_low"] <= row["throttle_ms"] <= row["throttle_ms_high"]
    assert _is_within(median(runs), row), (runs, row)
    assert row["throttle_ms_high"] <= _WIDEST.get(share, 99) * row["throttle_ms_low"]


@pytest.mark.parametrize("share", [0.15, 0.3])
@pytest.mark.parametrize("refused", ["gives up", "goes on", "asks again"])
def test_what_comes_of_refused_permits_lies_within_the_range(refused, share):
    """Whatever the application does about an error 89."""
    clients = [creates_topics(refused=refused)]
    events, _ = play(clients, seed=1, software=_KAFKA_PYTHON)
    limit = _of_share(events, "create", share)
    _, throttles = play(clients, seed=2, software=_KAFKA_PYTHON, limit=limit)
    row = _forecast(events, limit, "ControllerMutation")
    assert _is_within(sum(throttles), row), (sum(throttles), row)


def test_a_client_that_never_pauses_has_one_number():
    """Whether it waits for answers makes no difference to when its data is there."""
    clients = [waits_for_each(2000, size=100_000, think_ms=0)]
    events, _ = play(clients, seed=1, software=_OTHER)
    row = _forecast(events, _of_share(events, "produce", 0.02), "Produce")
    assert 0 < row["throttle_ms_high"] <= 1.1 * row["throttle_ms_low"]


def test_what_is_not_throttled_has_one_number():
    """Up to the first throttle all clients are the same."""
    events, _ = play([waits_for_each()], seed=1, software=_JAVA)
    row = _forecast(events, _of_share(events, "produce", 2), "Produce")
    assert row["throttle_ms_low"] == row["throttle_ms_high"] == row["throttled_requests_high"] == 0
    assert row["last_ts_ms_low"] == row["last_ts_ms_high"] == row["recorded_last_ts_ms"]


def _accounts_of(replay):
    """Return the quota type, the client and the tags of each account, in the order of their numbers."""
    table = replay._accounts
    return table._of[: table._count, :3].tolist(), list(table._other_tags)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.booleans())
def test_ranges_are_those_of_clients_of_one_kind_from_the_beginning(seed, batch_rows, is_throttled):
    """Of any log: to begin with the first throttle, as a copy, changes nothing."""
    rng = Random(seed)
    events = sent(rng, records=random_records(rng, at_most=8) if is_throttled else ())
    plan = Plan(name="p", records=random_records(rng, at_most=8), is_closed=True)
    found = closed_loop_of(events, plan, batch_rows=batch_rows)
    used = found.used()
    tallies = [used.tallies]
    for clients in (loop_state.ONE_BY_ONE, loop_state.BY_THE_CLOCK):
        alone = closed_loop_of(events, plan, batch_rows=batch_rows, clients=clients)
        assert _accounts_of(alone) == _accounts_of(found)
        tallies.append(alone._accounts.tallies[used.numbers])
    ranges = found.forecasts(used.numbers)
    for name, column in (("throttle_ms", layout.TOTAL_MS), ("throttled_requests", layout.THROTTLED)):
        columns = np.array([tally[:, column] for tally in tallies])
        assert ranges[f"{name}_low"].to_pylist() == columns.min(axis=0).tolist()
        assert ranges[f"{name}_high"].to_pylist() == columns.max(axis=0).tolist()
