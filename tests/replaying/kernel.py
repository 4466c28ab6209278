"""The replay kernel without Spark: events in, decisions and tallies out."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tidegate.pipeline import layout
from tidegate.pipeline.read.control_events import CONTROL_KINDS, NEXT_TS_MS, control_events
from tidegate.pipeline.read.rows import client_bits
from tidegate.pipeline.read.snapshots import with_snapshots
from tidegate.pipeline.read.timeline import (
    SWEEP_COLUMNS,
    SWEEP_KIND,
    Run,
    Sweeps,
    empty_timeline,
    timelines,
)
from tidegate.pipeline.replay.closed_loop import ClosedLoopReplay
from tidegate.pipeline.replay.kernel import loop_state
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.results import client_results, counted
from tidegate.quota.managers.mutation import STRICT_SINCE
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.usage.columns import SEQ_PER_US

__all__ = [
    "Forecast",
    "Replayed",
    "closed_loop_of",
    "decisions_of",
    "differences",
    "forecast_events",
    "kernel_rows",
    "replay_events",
    "sweeps_of",
]

Event = dict[str, Any]
Sensors = dict[tuple[QuotaType, str, str], tuple[list[float], list[int]]]

_KINDS = {
    "request": layout.REQUEST_ROW,
    "network": layout.NETWORK_ROW,
    "mutation": layout.MUTATION_ROW,
    "forwarded": layout.REQUEST_ROW,
}
_LOG_ROWS = 1 << 20  # zeros take no memory before they are written
_FLAGS = {"exempt": layout.EXEMPT, "rejected": layout.REJECTED}


class Forecast(NamedTuple):
    """Decisions (seq, when, throttle of bytes or permits, of the request quota, refused, amount), tallies by client."""

    decisions: list[tuple[int, ...]]
    results: list[dict[str, Any]]


class Replayed:
    """What came out: the events that were decided, a row of decisions for each, the tallies by client, the sensors."""

    def __init__(
        self, events: list[Event], decisions: np.ndarray, results: list[dict[str, Any]], sensors: Sensors
    ) -> None:
        self.events = events
        self.decisions = decisions
        self.results = results
        self.sensors = sensors


def replay_events(events: Sequence[Event], plan: Plan, *, batch_rows: int = 7) -> Replayed:
    """Replay the events of one node, some rows at a time."""
    control = [event for event in events if event["kind"] in (*CONTROL_KINDS, "tags") or _is_end(event)]
    decided = [event for event in events if event["kind"] in _KINDS]
    names = sorted({(event["user"], event["client_id"]) for event in decided})
    runs = _runs(events)
    found = timelines(control_events(control), runs, sweeps_of(events))
    timeline = next(iter(found.values()), empty_timeline())
    if plan.is_in_force:
        timeline = with_snapshots(timeline, lambda after, before: _sensor_rows(events, after, before))
    replay = PlanReplay(plan, names=names, timeline=timeline)
    rows = kernel_rows(decided, {name: number for number, name in enumerate(names)}.__getitem__)
    decisions = np.zeros((len(decided), layout.DECISIONS), np.int32)
    for first in range(0, len(decided), batch_rows):
        batch = layout.Rows(*(column[first : first + batch_rows] for column in rows))
        replay.replay(batch, decisions[first : first + batch_rows])
    return Replayed(
        decided,
        decisions,
        client_results([counted(plan, 1, names, replay)]).to_pylist(),
        _sensors(replay, names),
    )


def sweeps_of(events: Sequence[Event]) -> Sweeps:
    """Return the sweeps among the events."""
    found = [[event[name] for name in SWEEP_COLUMNS] for event in events if event["kind"] == SWEEP_KIND]
    return np.array(found, np.int64).reshape(-1, len(SWEEP_COLUMNS))


def _is_end(event: Event) -> bool:
    return event["kind"] == "snapshot" and event["quota_user"] is None


def _sensor_rows(events: Sequence[Event], after_seq: int, before_seq: int) -> list[Event]:
    return [e for e in events if e["kind"] == "snapshot" and after_seq < e["seq"] < before_seq]


def forecast_events(events: Sequence[Event], plan: Plan, *, batch_rows: int = 7) -> Forecast:
    """Forecast the requests of one node under a plan, some rows at a time."""
    replay = closed_loop_of(events, plan, batch_rows=batch_rows)
    return Forecast(
        decisions_of(replay),
        client_results([counted(plan, 1, _names(events), replay)]).to_pylist(),
    )


def decisions_of(replay: ClosedLoopReplay) -> list[tuple[int, ...]]:
    """Return what a replay in closed loop decided, columns `LOG_SEQ` and following, in order of time."""
    log, logged = replay._loop.log, int(replay._loop.counts[loop_state.LOGGED])
    assert logged < len(log), "more decisions than the log has rows"
    return [tuple(row) for row in log[:logged].tolist()]


def closed_loop_of(
    events: Sequence[Event], plan: Plan, *, batch_rows: int = 7, clients: int | None = None
) -> ClosedLoopReplay:
    """Return what has replayed the events of one node in closed loop; clients: all of this kind, from the beginning."""
    control = [event for event in events if event["kind"] in CONTROL_KINDS]
    decided = [event for event in events if event["kind"] in _KINDS]
    names = _names(events)
    runs = _runs(events)
    found = timelines(control_events(control), runs, sweeps_of(events))
    timeline = next(iter(found.values()), empty_timeline())
    replay = ClosedLoopReplay(plan, names=names, timeline=timeline, log_rows=_LOG_ROWS)
    if clients is not None:
        replay.begin_as(clients)
    rows = kernel_rows(decided, {name: number for number, name in enumerate(names)}.__getitem__)
    for first in range(0, len(decided), batch_rows):
        batch = layout.Rows(*(column[first : first + batch_rows] for column in rows))
        replay.replay(batch, np.zeros((0, layout.DECISIONS), np.int32))
    replay.finish()
    return replay


def _names(events: Sequence[Event]) -> list[tuple[str, str]]:
    return sorted({(event["user"], event["client_id"]) for event in events if event["kind"] in _KINDS})


def _runs(events: Sequence[Event]) -> list[Run]:
    """Return the runs of `seq` without a hole, and tell each gap the time of the row after it."""
    runs: list[Run] = []
    for event in events:
        seq, ts_ms = event["seq"], event["ts_ms"]
        is_imported = abs(seq // (1000 * SEQ_PER_US) - ts_ms) <= 1000
        if runs and (is_imported or runs[-1].last_seq == seq - 1):
            runs[-1] = runs[-1]._replace(last_seq=seq)
        else:
            runs.append(Run(event["node_id"], seq, seq, ts_ms, is_imported))
    for event, after in pairwise(events):
        if event["kind"] == "gap":
            event[NEXT_TS_MS] = after["ts_ms"]
    return runs


def _sensors(replay: PlanReplay, names: Sequence[tuple[str, str]]) -> Sensors:
    """Return the flat state of all sensors that were used, by quota type and client."""
    state, used, found = replay.state(), replay.used(), {}
    columns = (used.quota_types, used.clients, used.numbers)
    for index, client, number in zip(*(column.tolist() for column in columns), strict=True):
        if number != state.account_of[index, client]:
            continue
        floats, ints, use = (
            (state.bucket_floats, state.bucket_ints, state.bucket_use)
            if index == layout.MUTATION
            else (state.rate_floats, state.rate_ints, state.rate_use)
        )
        sensor = state.accounts[number, layout.SENSOR]
        if use[sensor, layout.READY] >= 0:
            found[QUOTA_TYPES[index], *names[client]] = (floats[sensor].tolist(), ints[sensor].tolist())
    return found


def differences(replayed: Replayed, expected: list[Event]) -> list[tuple[Event, list[int]]]:
    """Return every event that was decided otherwise than expected, with the decision."""
    return [
        (event, decision)
        for event, decision in zip(expected, replayed.decisions.tolist(), strict=True)
        if event["kind"] != "network" and decision[: layout.IS_CAPPED] != _recorded(event)
    ]


def _recorded(event: Event) -> list[int]:
    mutation_ms = 0 if event["forwarded"] else event["mutation_throttle_ms"]
    byte_ms = event["produce_throttle_ms"] or event["fetch_throttle_ms"] or mutation_ms
    return [byte_ms, event["request_throttle_ms"], int(event["rejected"])]


def kernel_rows(events: Sequence[Event], number: Callable[[tuple[str, str]], int]) -> layout.Rows:
    """Return what the kernel takes. Written apart from `read.rows`, which does the same with whole columns."""
    rows = [_row(event, number((event["user"], event["client_id"]))) for event in events]
    types = layout.ROW_TYPES
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    return layout.Rows(*(np.array(column, dtype) for column, dtype in zip(columns, types, strict=True)))


def _row(event: Event, client: int) -> tuple[int, ...]:
    if event["observed_only"]:  # what was decided was not done
        event = event | {name: 0 for name in event if name.endswith("throttle_ms")}
    charge, amount, throttle_ms = 0, 0, 0 if event["forwarded"] else event["mutation_throttle_ms"]
    if event["produce_bytes"] is not None:
        charge, amount, throttle_ms = (
            layout.PRODUCE_CHARGE,
            event["produce_bytes"],
            event["produce_throttle_ms"],
        )
    elif event["fetch_bytes"] is not None:
        charge, amount, throttle_ms = layout.FETCH_CHARGE, event["fetch_bytes"], event["fetch_throttle_ms"]
    elif event["mutations"] is not None:
        amount = event["mutations"]
    flags = _KINDS[event["kind"]] + charge + sum(bit for name, bit in _FLAGS.items() if event[name])
    flags += client_bits(event["client_software"])
    is_asking = event["kind"] in ("request", "forwarded") and event["api_key"] in STRICT_SINCE
    is_strict = event["kind"] == "mutation" and event["api_version"] >= STRICT_SINCE.get(event["api_key"], 0)
    if is_asking or is_strict:
        flags += layout.STRICT
    if event["observed_only"] or (is_strict and not event["strict"]):
        flags += layout.OBSERVED
    is_untold = event["kind"] == "mutation" and event["api_key"] not in STRICT_SINCE
    connection_id = -1 if is_untold else event["connection_id"]
    return (
        event["seq"], event["ts_ms"], amount, event["handler_ns"], event["network_ns"] or 0, connection_id,
        client, throttle_ms, event["request_throttle_ms"], flags,
    )  # fmt: skip
