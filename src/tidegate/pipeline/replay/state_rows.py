"""The rows of `REPLAY_STATE` that the replay of a plan leaves: its state, for a replay of later hours (`carried`)."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tidegate.pipeline.layout import (
    EXACT,
    LAST_MS,
    MUTATION,
    REASON,
    REASON_NAMES,
    SWEEP,
    SWEPT,
    USE_COLUMNS,
    Int64s,
)
from tidegate.pipeline.replay.carried import (
    NODE,
    PERMITS,
    SENSOR_ROW,
    STATE_FORMAT,
    End,
    Key,
    StateRow,
    plan_digest,
    sensor_key,
)
from tidegate.pipeline.replay.kernel.certainty import forget_swept, make_unknown
from tidegate.pipeline.replay.names import ClientNames
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.replay.state.permits import Permits
from tidegate.pipeline.replay.state.plan_state import PlanState
from tidegate.quota.managers.extensions import CLUSTER_WIDE
from tidegate.quota.measure.sensors import EXPIRY_MS
from tidegate.quota.measure.snapshot import bucket_snapshot, rate_snapshot

__all__ = ["rows_left", "sensors_of", "unused_rows", "without_new"]

_HOLDS = {"unknown", "smooth"}  # fields that make a sensor different from a new one, whatever its samples


def rows_left(
    plan: Plan, node_id: int, state: PlanState, names: ClientNames, sweeps: Int64s
) -> Iterator[StateRow]:
    """Yield the states of used sensors, after all sweeps, and the throttles of requests that wait for an answer."""
    state.settings[SWEEP] = len(sweeps)
    yield from _sensor_rows(plan, node_id, state, sweeps)
    for connection_id, last_ms, at_ms, number, reason in state.permits.waiting():
        client = names[state.lookup.accounts.client(number)]
        yield _permits_row(plan, node_id, Permits(*client, connection_id, last_ms, at_ms, reason))


def unused_rows(plan: Plan, node_id: int, state: PlanState, end: End, sweeps: Int64s) -> Iterator[StateRow]:
    """Yield the throttles of clients that no replay has, then the node's own row. Call it after `rows_left`."""
    yield from (_permits_row(plan, node_id, permits) for permits in state.permits.elsewhere)
    rates = state.sensors.rates
    found = _new_sensors_reason(rates.reason, rates.since_ms, state.settings, sweeps)
    reason, since_ms = state.sensors.reason, rates.since_ms
    records = state.sensors.beyond.cluster_wide_records()
    wide = [record.entity for record in records if record.key == CLUSTER_WIDE]
    known = {"reason": REASON_NAMES[reason], "sensors_reason": REASON_NAMES[found], "since_ms": since_ms}
    shared: dict[str, Any] = {"cluster_wide": wide} if wide else {}
    if len(records) > len(wide):
        shared["mutations_shared"] = True
    yield _node_row(plan, node_id, end, known | shared)


def sensors_of(rows: Iterable[StateRow]) -> set[Key]:
    """Return the keys of the rows' sensors."""
    return {sensor_key(row, json.loads(row["state"])) for row in rows if row["kind"] == SENSOR_ROW}


def without_new(rows: Iterable[StateRow]) -> Iterator[StateRow]:
    """Yield the rows of one plan and node, without the rows of sensors that are like new ones."""
    states = [(row, json.loads(row["state"])) for row in rows]
    (node,) = [state for row, state in states if row["kind"] == NODE]
    for row, state in states:
        is_new = not state.get("samples") and not state.get("updated_ms") and not state.keys() & _HOLDS
        if row["kind"] != SENSOR_ROW or not is_new or node["sensors_reason"] != REASON_NAMES[EXACT]:
            yield row


def _node_row(plan: Plan, node_id: int, end: End, known: Mapping[str, Any]) -> StateRow:
    state = {
        "format": STATE_FORMAT,
        "plan": plan_digest(plan),
        "first_seq": end.first_seq,
        "last_seq": end.last_seq,
        "gap_reason": REASON_NAMES[end.gap_reason],
        "lost_events": end.lost_events,
        **known,
    }
    return _row(plan, node_id, NODE, None, None, state)


def _permits_row(plan: Plan, node_id: int, permits: Permits) -> StateRow:
    state = {
        "connection_id": permits.connection_id,
        "last_ms": permits.last_ms,
        "at_ms": permits.at_ms,
        "reason": REASON_NAMES[permits.reason],
    }
    return _row(plan, node_id, PERMITS, permits.user, permits.client_id, state)


def _sensor_rows(plan: Plan, node_id: int, state: PlanState, sweeps: Int64s) -> Iterator[StateRow]:
    sensors = state.sensors
    latest_ms = np.append(np.maximum.accumulate(sweeps[::-1, 1])[::-1], np.iinfo(np.int64).min)
    numbers = {**dict(sensors.rates), **dict(sensors.buckets)}
    for (index, tags), number in zip(sensors.keys.named(numbers), numbers.values(), strict=True):
        table = sensors.buckets if index == MUTATION else sensors.rates
        use, floats, ints = table.use[number], table.floats[number], table.ints[number]
        smooth = None if index == MUTATION else sensors.beyond.snapshot(number)
        if latest_ms[use[SWEPT]] > use[LAST_MS] + EXPIRY_MS:  # as `row_decision` finds it at the next use
            floats, ints, smooth = np.zeros_like(floats), np.zeros_like(ints), None
            if use[REASON] != EXACT:
                forget_swept(state.settings, use, sweeps)
        take = bucket_snapshot if index == MUTATION else rate_snapshot
        found = {"quota_key": QUOTA_TYPES[index].key, "recorded_ms": int(use[LAST_MS])}
        found |= take(floats.tolist(), ints.tolist(), 0)
        if use[REASON] != EXACT:
            found["unknown"] = use[REASON:].tolist()
        if smooth is not None:
            found["smooth"] = smooth
        if isinstance(tags, str):
            found["group"] = tags
        user, client_id = (None, None) if isinstance(tags, str) else tags
        yield _row(plan, node_id, SENSOR_ROW, user, client_id, found)


def _new_sensors_reason(reason: int, since_ms: int, settings: Int64s, sweeps: Int64s) -> int:
    """Return why a sensor that is made after all sweeps is not known, where one was made before for this reason."""
    use = np.zeros((1, USE_COLUMNS), np.int64)
    make_unknown(use, reason, since_ms)
    if reason != EXACT and len(sweeps):
        forget_swept(settings, use[0], sweeps)
    return int(use[0, REASON])


def _row(
    plan: Plan, node_id: int, kind: str, user: str | None, client_id: str | None, state: Mapping[str, Any]
) -> StateRow:
    return {
        "plan": plan.name,
        "node_id": node_id,
        "kind": kind,
        "user": user,
        "client_id": client_id,
        "state": json.dumps(state, separators=(",", ":")),
    }
