"""Closed loop against a plain simulation with the live engine, and against open loop where nothing is throttled."""

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.oracles.closed_loop import simulated
from tests.replaying.kernel import forecast_events, replay_events
from tests.replaying.logs import START_MS, random_records, random_traffic, random_window
from tests.replaying.node import RecordingNode

from tidegate.config.windows import Windows
from tidegate.pipeline import layout
from tidegate.pipeline.replay.plan import Plan

_SEEDS = st.integers(0, 2**32 - 1)
_MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_SOFTWARE = ("", "librdkafka", "apache-kafka-java", "kafka-python")
_EVENTS = 200


def sent(rng: Random, *, records: Any) -> list[dict[str, Any]]:
    """Return a log of one node in which times do not fall: some connections, of which some have two clients."""
    node = RecordingNode(first_seq=rng.randrange(1, 100))
    node.start(START_MS, records=records)
    now_ms = START_MS
    for _ in range(_EVENTS):
        pause = rng.random()
        if pause < 0.01:
            now_ms += rng.choice((3_600_001, 599_999, 600_001))
        elif pause < 0.05:
            now_ms += rng.randrange(20_000)
        elif pause < 0.6:
            now_ms += rng.randrange(300)
        before = len(node.events)
        number = rng.randrange(6)
        _ask(node, rng, number, now_ms)
        for event in node.events[before:]:
            event["connection_id"] = number
            event["client_software"] = _SOFTWARE[number % len(_SOFTWARE)]
    return node.events


def _ask(node: RecordingNode, rng: Random, number: int, now_ms: int) -> None:
    user, client_id = ("alice", "bob")[number % 2], f"c{(number + (rng.random() < 0.1)) % 4}"
    times = {"handler_ns": rng.randrange(10**7), "network_ns": rng.randrange(10**6)}
    size = rng.choice((1, 200, 30_000, 600_000))
    match rng.randrange(12):
        case 0 | 1 | 2 | 3:
            node.produce(user, client_id, size, now_ms, exempt=rng.random() < 0.1, **times)
        case 4 | 5 | 6 | 7:
            node.fetch(user, client_id, rng.choice((100, 1000, 9000)), now_ms, **times)
        case 8:
            strict = rng.random() < 0.7
            for _ in range(rng.randrange(1, 3)):
                node.mutate(user, client_id, rng.randrange(9), now_ms, strict=strict, connection_id=number)
            node.other(user, client_id, now_ms, connection_id=number, api_key=19, **times)
        case 9:
            node.expire(now_ms)
        case 10:
            node.network(user, client_id, times["network_ns"], now_ms)
        case 11:
            node.auto_create(user, client_id, 3, now_ms)
            node.other(user, client_id, now_ms, connection_id=number, api_key=3, **times)


@_MANY
@given(_SEEDS, st.integers(1, 50), st.booleans())
def test_every_decision_is_that_of_a_plain_simulation(seed, batch_rows, is_throttled):
    """When each request is taken, and what is decided then; of logs that were recorded with quotas, too."""
    rng = Random(seed)
    window, controller_window = random_window(rng), random_window(rng)
    in_force = random_records(rng, at_most=8) if is_throttled else ()
    records = random_records(rng, at_most=8)
    events = sent(rng, records=in_force)
    plan = Plan(
        name="p", records=records, windows=Windows(rate=window, mutation=controller_window), is_closed=True
    )
    expected = simulated(events, records, window=window, controller_window=controller_window)
    forecast = forecast_events(events, plan, batch_rows=batch_rows)
    assert forecast.decisions == expected


@_MANY
@given(_SEEDS)
def test_without_limits_nothing_comes_later(seed):
    """Any log without throttles, whatever its times: closed loop is open loop is the record, to the millisecond."""
    rng = Random(seed)
    node = RecordingNode()
    node.start(START_MS)
    random_traffic(node, rng, events=_EVENTS, quotas_change=False)
    decided = [event for event in node.events if event["kind"] in ("request", "mutation", "network")]
    closed = forecast_events(
        node.events, Plan(name="p", records=(), is_closed=True), batch_rows=rng.randint(1, 99)
    )
    opened = replay_events(node.events, Plan(name="p", records=()))
    assert [row[:2] for row in closed.decisions] == [(event["seq"], event["ts_ms"]) for event in decided]
    assert [row[2:5] for row in closed.decisions] == [
        tuple(row) for row in opened.decisions[:, : layout.IS_CAPPED].tolist()
    ]
    not_forecast = dict.fromkeys(set(layout.FORECAST_COLUMNS) - {"recorded_requests", "recorded_amount"})
    assert sorted(repr(result | not_forecast) for result in closed.results) == sorted(
        map(repr, opened.results)
    )
    assert all(result["waited_ms"] == 0 for result in closed.results)


@_MANY
@given(_SEEDS, st.booleans())
@example(18910, True)  # what is left out is the rest of a fetch that came in parts
def test_what_was_recorded_is_counted_once(seed, is_throttled):
    """However often a fetch is tried, and where it is left out: as open loop counts it, uncut.

    Who had nothing but fetches that are left out has no row.
    """
    rng = Random(seed)
    events = sent(rng, records=random_records(rng, at_most=8) if is_throttled else ())
    plan = Plan(name="p", records=random_records(rng, at_most=8))
    found = forecast_events(events, replace(plan, is_closed=True), batch_rows=rng.randint(1, 99)).results
    uncut = replay_events(events, Plan(name="p", records=())).results
    opened = replay_events(events, plan).results
    assert _by_client(found, "recorded_amount").items() <= _by_client(uncut, "amount").items()
    assert _by_client(found, "recorded_requests").items() <= _by_client(opened, "requests").items()


def _by_client(results, column):
    return {(row["quota_type"], row["user"], row["client_id"]): row[column] for row in results if row[column]}
