"""State that the replay of a plan leaves behind, from which a replay of later hours continues (decision 0073).

The state is a table, `REPLAY_STATE`. For each plan and node it has a row of kind `node`, one of kind `sensor` for each
sensor that is not empty, and one of kind `permits` for each unanswered request that has asked for permits. A state is
JSON. Times in it are engine time. The state of a sensor is a snapshot at time 0 (`tidegate.quota.measure.snapshot`); in
smooth mode, `smooth` contains its bucket. The state of a group's sensor has `group` in place of a user and client id.
"""

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from tidegate.errors import ConfigError
from tidegate.pipeline.layout import (
    COLD_START,
    EXACT,
    MISSING_ROWS,
    MUTATION,
    REASON,
    REASON_NAMES,
    USE_COLUMNS,
)
from tidegate.pipeline.read.snapshots import is_bucket_state, is_sensor_state
from tidegate.pipeline.read.steps import SensorState
from tidegate.pipeline.read.timeline import Run, Timeline
from tidegate.pipeline.replay.names import ClientNames
from tidegate.pipeline.replay.plan import INDEX_BY_KEY, Plan
from tidegate.pipeline.replay.state.permits import Permits
from tidegate.pipeline.replay.state.plan_state import PlanState
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.entity import Tags
from tidegate.quota.managers.extensions import CLUSTER_WIDE, MUTATIONS_SHARED

__all__ = [
    "Carried",
    "End",
    "StateRow",
    "carried_states",
    "ends_of",
    "following",
    "plan_digest",
    "restore_state",
    "sensor_key",
]

STATE_FORMAT = 1
MAX_STATES = 4_000_000
"""Most rows of one state. Each names a client or an entity."""

NODE, SENSOR_ROW, PERMITS = "node", "sensor", "permits"
_INT64 = 2**63
_DAMAGED = "was it written by `tidegate replay --out`?"

StateRow = dict[str, Any]
"""A row of `REPLAY_STATE`."""

Key = tuple[int, Tags | str]
"""Place in `QUOTA_TYPES`, and the tags that a sensor counts under, or the name of its group."""


class End(NamedTuple):
    """The end of a node's record. gap_reason: `EXACT`, or the reason of the gap of `lost_events` that it ends with."""

    first_seq: int
    last_seq: int
    gap_reason: int = EXACT
    lost_events: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The state of one node after the replay of a plan.

    reason: why permits without a row are not exact. sensors_reason, since_ms: the same for sensors without a row.
    cluster_wide: the quotas that were shared with other brokers, or other gateways.
    """

    end: End
    reason: int
    sensors_reason: int
    since_ms: int
    sensors: Mapping[Key, SensorState] = field(default_factory=dict)
    permits: Sequence[Permits] = ()
    cluster_wide: Sequence[QuotaRecord] = ()

    def without(self, sensors: Container[Key], clients: Container[tuple[str, str]]) -> "Carried":
        """Return the state without these sensors, and without the permits of these clients."""
        return replace(
            self,
            sensors={key: state for key, state in self.sensors.items() if key not in sensors},
            permits=[each for each in self.permits if (each.user, each.client_id) not in clients],
        )


def plan_digest(plan: Plan) -> str:
    """Return a digest of a plan's definitions, settings, groups and windows."""
    assert plan.records is not None, "states are of plans from files"
    records = sorted(repr((record.entity, record.key, record.value)) for record in plan.records)
    groups = [sorted(map(repr, of_groups.items())) for of_groups in (plan.groups.members, plan.groups.limits)]
    told_apart = (records, plan.windows, *groups) if any(groups) else (records, plan.windows)
    return hashlib.sha256(repr(told_apart).encode()).hexdigest()[:32]


def ends_of(
    runs: Iterable[Run], timelines: Mapping[int, Timeline], lost_events: Mapping[tuple[int, int], int | None]
) -> dict[int, End]:
    """Return where the record of each node begins and ends. lost_events: of each gap, by node and `seq`."""
    found: dict[int, End] = {}
    for run in runs:
        end = found.get(run.node_id, End(run.first_seq, run.last_seq))
        found[run.node_id] = End(min(end.first_seq, run.first_seq), max(end.last_seq, run.last_seq))
    for node_id, end in found.items():
        steps = timelines[node_id].steps if node_id in timelines else ()
        if steps and steps[-1].seq == end.last_seq and steps[-1].kind == "gap":
            lost = lost_events[node_id, end.last_seq]
            found[node_id] = end._replace(gap_reason=steps[-1].reason, lost_events=lost)
    return found


def following(timeline: Timeline, before: End) -> Timeline:
    """Return the timeline as it is after an earlier part of the record: a cold start only if rows are missing."""
    begins = timeline.steps.where(lambda step: step.kind == "break" and step.reason == COLD_START)
    steps = []
    for step in timeline.steps.only(begins):
        has_holes = timeline.is_imported or timeline.is_merged
        reason = _reason_between(before, step.seq, has_holes=has_holes)
        if reason != EXACT:
            steps.append(replace(step, reason=reason))
    return replace(timeline, steps=timeline.steps.replaced(begins, steps))


def _reason_between(before: End, first_seq: int, *, has_holes: bool) -> int:
    """Return why decisions from `first_seq` on are not exact. Follows: `timeline._breaks`."""
    if has_holes:
        return EXACT
    lost = 0 if before.gap_reason == EXACT else before.lost_events
    if lost is not None and first_seq - before.last_seq > max(lost, 1):
        return MISSING_ROWS
    return before.gap_reason


def restore_state(carried: Carried, state: PlanState, names: ClientNames, *, is_imported: bool) -> None:
    """Restore the state after the hours before. Raises `UsageFilesError`."""
    if not is_imported:
        state.sensors.begin_continued(
            carried.reason, sensors_reason=carried.sensors_reason, since_ms=carried.since_ms
        )
    for record in carried.cluster_wide:
        state.lookup.apply(record)
    state.sensors.stated.set_states(carried.sensors.values(), sweep=0)
    numbers = {names[client]: client for client in range(len(names))} if carried.permits else {}
    state.permits.make_room(len(carried.permits))
    for permits in carried.permits:
        client = numbers.get((permits.user, permits.client_id))
        if client is None:
            state.permits.elsewhere.append(permits)
        else:
            state.lookup.look_up(MUTATION, np.array([client]))
            state.permits.put(permits, int(state.lookup.account_of[MUTATION, client]))


def carried_states(
    rows: Iterable[Mapping[str, Any]], plans: Iterable[Plan], *, of: str
) -> dict[tuple[str, int], Carried]:
    """Return the saved state of each plan, by plan name and node. of: the source of the rows, for errors.

    Raises `ConfigError` if a plan has no state in the rows, if it has changed since, or if a row is invalid.
    """
    wanted = {plan.name: plan for plan in plans}
    nodes: dict[tuple[str, int], Mapping[str, Any]] = {}
    sensors: dict[tuple[str, int], dict[Key, SensorState]] = {}
    permits: dict[tuple[str, int], list[Permits]] = {}
    for number, row in enumerate(rows):
        if number >= MAX_STATES:
            raise ConfigError(
                f"{of} has more than {MAX_STATES} states", hint="replay all hours at once, without --continue"
            )
        if row["plan"] not in wanted:
            continue
        key = row["plan"], row["node_id"]
        try:
            state = json.loads(row["state"])
            if not isinstance(state, dict):
                raise ValueError("not a JSON object")
            if row["kind"] == NODE:
                nodes[key] = _checked_node(state, wanted[row["plan"]], of)
            elif row["kind"] == SENSOR_ROW:
                sensor = sensor_key(row, state)
                sensors.setdefault(key, {})[sensor] = _sensor(state, sensor[1], row["state"])
            elif row["kind"] == PERMITS:
                permits.setdefault(key, []).append(_permits(state, row["user"] or "", row["client_id"] or ""))
            else:
                raise ValueError(f"kind {row['kind']!r} is not known")
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"row {number} of {of} is not the state of a replay", hint=_DAMAGED) from error
    for name in wanted:
        if name not in {plan for plan, _ in nodes}:
            others = sorted({plan for plan, _ in nodes})
            raise ConfigError(
                f"{of} has no state of plan {name!r}", hint=f"it has: {', '.join(others)}" if others else None
            )
    return {
        key: Carried(
            end=End(
                _int(node["first_seq"]),
                _int(node["last_seq"]),
                REASON_NAMES.index(node["gap_reason"]),
                None if node["lost_events"] is None else _int(node["lost_events"]),
            ),
            reason=REASON_NAMES.index(node["reason"]),
            sensors_reason=REASON_NAMES.index(node["sensors_reason"]),
            since_ms=_int(node["since_ms"]),
            sensors=sensors.get(key, {}),
            permits=permits.get(key, ()),
            cluster_wide=_cluster_wide(node),
        )
        for key, node in nodes.items()
    }


def sensor_key(row: Mapping[str, Any], state: Mapping[str, Any]) -> Key:
    """Return the key of the sensor of a row. Raises `ValueError`."""
    tags = row["user"] or "", row["client_id"] or ""
    group = state.get("group")
    if group is not None and (type(group) is not str or tags != ("", "")):
        raise ValueError("it is of no group")
    return INDEX_BY_KEY[state["quota_key"]], tags if group is None else group


def _checked_node(state: Any, plan: Plan, of: str) -> Mapping[str, Any]:
    if state["format"] != STATE_FORMAT:
        raise ConfigError(
            f"{of} has states of format {state['format']!r}, expected {STATE_FORMAT}",
            hint="replay the record from its first hour, without --continue",
        )
    if state["plan"] != plan_digest(plan):
        raise ConfigError(
            f"{of} has the state of another plan {plan.name!r}: its quotas or windows differ from the given plan",
            hint="give the plan of the earlier replay, or replay from the first hour without --continue",
        )
    for name in ("gap_reason", "reason", "sensors_reason"):
        REASON_NAMES.index(state[name])
    _int(state["since_ms"]), _int(state["first_seq"]), _int(state["last_seq"])
    _cluster_wide(state)
    return state  # type: ignore[no-any-return]


def _cluster_wide(state: Mapping[str, Any]) -> list[QuotaRecord]:
    entities = [tuple((kind, name) for kind, name in entity) for entity in state.get("cluster_wide", ())]
    parts = [part for entity in entities for part in entity]
    if any(kind not in ("user", "client-id") or not isinstance(name, str | None) for kind, name in parts):
        raise ValueError("it names no quotas")
    records = [QuotaRecord(entity=entity, key=CLUSTER_WIDE, value=1.0) for entity in entities]
    if state.get("mutations_shared"):
        records.append(QuotaRecord(entity=(), key=MUTATIONS_SHARED, value=1.0))
    return records


def _sensor(state: Any, tags: Tags | str, text: str) -> SensorState:
    unknown = state.get("unknown", [])
    if not is_sensor_state(state) or (unknown and len(unknown) != USE_COLUMNS - REASON):
        raise ValueError("not the state of a sensor")
    if "smooth" in state and not is_bucket_state(state["smooth"]):
        raise ValueError("not the state of a bucket")
    if unknown:
        REASON_NAMES[_int(unknown[0])]
        [_int(value) for value in unknown]
    return SensorState(state["quota_key"], tags, 0, text)


def _permits(state: Any, user: str, client_id: str) -> Permits:
    connection_id, last_ms, at_ms = (_int(state[name]) for name in ("connection_id", "last_ms", "at_ms"))
    return Permits(user, client_id, connection_id, last_ms, at_ms, REASON_NAMES.index(state["reason"]))


def _int(value: Any) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise ValueError("not a 64-bit integer")
    return value
