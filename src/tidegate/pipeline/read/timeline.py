"""What happened to a node besides requests: starts, changed quotas, callbacks, breaks, and sweeps of idle sensors.

A *break* is where rows are missing: the node has lost events and says so (`gap`), a file is not there (`seq` jumps and
no `start` follows), or the record begins in the middle of the node's life (a cold start).

These events are few, but for the sweeps, which are arrays from the moment they are read. All are collected on the
driver and given to every partition of their node, which meets them in the order of `seq` among the requests.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.config.windows import Windows
from tidegate.errors import TidegateError
from tidegate.pipeline.errors import DAMAGED_HINT, UsageFilesError
from tidegate.pipeline.layout import AFTER_GAP, COLD_START, EXACT, MISSING_ROWS
from tidegate.pipeline.read.answers import Answer, Answers, parsed_answer
from tidegate.quota.admin.definitions import EntityParts, QuotaRecord, entity_parts
from tidegate.quota.admin.entity import Tags
from tidegate.quota.admin.keys import QUOTA_KEYS, WINDOW_SETTINGS
from tidegate.quota.admin.sanitizer import desanitize
from tidegate.quota.managers.extensions import EXTENSION_SETTINGS

__all__ = [
    "CONTROL_COLUMNS",
    "CONTROL_KINDS",
    "MAX_CONTROL_EVENTS",
    "MAX_SWEEP_BYTES",
    "NEXT_TS_MS",
    "NO_SWEEPS",
    "SWEEP_COLUMNS",
    "SWEEP_KIND",
    "TAGS_COLUMNS",
    "Run",
    "SensorState",
    "Step",
    "Sweeps",
    "Timeline",
    "callback_in",
    "empty_timeline",
    "timelines",
]

Sweeps = npt.NDArray[np.int64]
"""Sweeps of idle sensors: [sweep, `SWEEP_COLUMNS`], in any order."""

SWEEP_KIND = "expire"
SWEEP_COLUMNS = ("node_id", "seq", "ts_ms")
NO_SWEEPS: Sweeps = np.zeros((0, len(SWEEP_COLUMNS)), np.int64)

CONTROL_KINDS = ("start", "quota", "gap", "callback")
CONTROL_COLUMNS = (
    "kind",
    "ts_ms",
    "seq",
    "node_id",
    "quota_user",
    "quota_client_id",
    "quota_ip",
    "quota_key",
    "quota_value",
    "callback",
    "snapshot",
    "lost_events",
)
TAGS_COLUMNS = ("user", "client_id", "tags")
"""Of a `tags` row, beside `CONTROL_COLUMNS`: who is counted under which tags."""

NEXT_TS_MS = "next_ts_ms"
"""Of a `gap`, beside `CONTROL_COLUMNS`: the time of the row after it, up to which events may have been lost."""

MAX_CONTROL_EVENTS = 2_000_000
"""Events of these kinds, and ends of snapshots, in one replay: a node has two an hour, and its quotas at each start."""

MAX_SWEEP_BYTES = 1 << 28
"""Sweeps in one replay, 24 bytes each: eleven million, those of twenty nodes over half a year."""

_DEFAULT_NAME = "<default>"
_LARGEST_SETTING = 2**31 - 1
_NO_SWEEPS_OF_NODE = NO_SWEEPS[:, 1:].copy()
_PART_COLUMNS = {"user": "quota_user", "client-id": "quota_client_id", "ip": "quota_ip"}


class SensorState(NamedTuple):
    """The state of a sensor at a time, as text: see `tidegate.quota.measure.snapshot`. tags: or the name of a group."""

    quota_key: str
    tags: Tags | str
    ts_ms: int
    text: str


class Run(NamedTuple):
    """Rows of one node whose `seq` has no hole; of an imported record, where holes mean nothing, rows of one chunk."""

    node_id: int
    first_seq: int
    last_seq: int
    first_ts_ms: int
    is_imported: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A start, a changed definition (`record`) or window setting (`setting`), a break, what a quota callback says.

    kind: of a break `gap` where a row tells of it, else `break`.
    reason: of a break, why decisions after it are not exact; then `ts_ms` is the time up to which rows may be missing.
    record: a quota, or a setting beyond Kafka. callback: the class that is asked from here on; None: Kafka's own rules.
    answer: what it answered, None where that was not read. is_exchange: sensors are empty from here on.
    states_all: the steps after it state all definitions that are in force; what they do not state is not.
    text: what a `snapshot` row says that begins or ends one. With `with_snapshots` there are `begins`, `sensors` (their
    `states`) and `ends` instead, where a replay needs them.
    """

    seq: int
    ts_ms: int
    kind: str
    reason: int = EXACT
    record: QuotaRecord | None = None
    setting: tuple[str, int] | None = None
    callback: str | None = None
    answer: Answer | None = None
    is_exchange: bool = False
    states_all: bool = False
    text: str = ""
    states: tuple[SensorState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All steps and sweeps of one node, each sorted by `seq`."""

    steps: tuple[Step, ...] = ()
    sweeps: npt.NDArray[np.int64]  # [sweep, (seq, ts_ms)]
    is_imported: bool = False


def timelines(
    events: Iterable[Mapping[str, Any]], runs: Iterable[Run] = (), sweeps: Sweeps = NO_SWEEPS
) -> dict[int, Timeline]:
    """Return the timeline of each node out of all control events, runs and sweeps, in any order.

    Without runs no hole shows. events: rows of `CONTROL_COLUMNS`.
    Raises `UsageFilesError` where a row makes no sense, or is there twice.
    """
    by_node: dict[int, tuple[list[Mapping[str, Any]], list[Run]]] = {}
    for event in sorted(events, key=lambda event: (event["node_id"], event["seq"])):
        by_node.setdefault(event["node_id"], ([], []))[0].append(event)
    for run in sorted(runs):
        by_node.setdefault(run.node_id, ([], []))[1].append(run)
    swept = _sweeps_by_node(sweeps)
    return {
        node_id: _timeline(*by_node.get(node_id, ([], [])), swept.get(node_id, _NO_SWEEPS_OF_NODE))
        for node_id in sorted(by_node.keys() | swept.keys())
    }


def empty_timeline() -> Timeline:
    """Return the timeline of a node that nothing happened to."""
    return _timeline([], [], _NO_SWEEPS_OF_NODE)


def callback_in(found: Mapping[int, Timeline]) -> str | None:
    """Return the setting of a quota callback that was asked on any node; None: Kafka's own rules were, all the time."""
    for timeline in found.values():
        for step in timeline.steps:
            if step.kind in ("callback", "tags"):  # where one is taken away, there was one before
                name = "" if step.callback is None else f"={step.callback}"
                return f"client.quota.callback.class{name}"
    return None


def _sweeps_by_node(sweeps: Sweeps) -> dict[int, npt.NDArray[np.int64]]:
    """Return the sweeps of each node, (seq, ts_ms), in order."""
    node_id, seq, _ = sweeps.T
    ordered = sweeps[np.lexsort((seq, node_id))]
    nodes, first = np.unique(ordered[:, 0], return_index=True)
    pairs = np.ascontiguousarray(ordered[:, 1:])
    ends = pairwise([*first.tolist(), len(pairs)])
    return {node: pairs[begin:end] for node, (begin, end) in zip(nodes.tolist(), ends, strict=True)}


def _timeline(
    events: Sequence[Mapping[str, Any]], runs: Sequence[Run], sweeps: npt.NDArray[np.int64]
) -> Timeline:
    steps = [_step(event) for event in events if event["kind"] != "gap"]
    steps += [*_gaps(events, runs), *_breaks(events, runs)]
    steps.sort(key=lambda step: (step.seq, step.kind != "break"))  # a break is before the row where it shows
    return Timeline(
        steps=tuple(_without_repeats(_in_context(steps))),
        sweeps=sweeps,
        is_imported=any(run.is_imported for run in runs),
    )


def _gaps(events: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> Iterator[Step]:
    """Yield the breaks that the node itself tells of. What an import says right after its start is a cold start."""
    first_ts_ms = {run.first_seq: run.first_ts_ms for run in runs}
    first_seqs = sorted(first_ts_ms)
    starts = {event["seq"] for event in events if event["kind"] == "start"}
    for event in events:
        if event["kind"] == "gap":
            next_ts_ms = event.get(NEXT_TS_MS)
            if next_ts_ms is None:  # the last row of its run
                place = int(np.searchsorted(first_seqs, event["seq"], side="right"))
                next_ts_ms = first_ts_ms[first_seqs[place]] if place < len(first_seqs) else event["ts_ms"]
            is_first = event["seq"] - 1 in starts and event["lost_events"] is None
            yield Step(
                seq=event["seq"],
                ts_ms=max(event["ts_ms"], next_ts_ms),
                kind="gap",
                reason=COLD_START if is_first else AFTER_GAP,
            )


def _breaks(events: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> Iterator[Step]:
    """Yield the breaks that no row tells of, where `seq` jumps to what is no `start`."""
    begins = {event["seq"] for event in events if event["kind"] in ("start", "gap")}
    lost = {event["seq"]: event["lost_events"] for event in events if event["kind"] == "gap"}
    last_seq: int | None = None
    for run in runs:
        if last_seq is None:
            if run.first_seq not in begins:
                yield _break(run, COLD_START)
        elif run.is_imported:
            pass
        elif run.first_seq <= last_seq:
            raise _twice(run, last_seq)
        elif run.first_seq > last_seq + 1 and run.first_seq not in begins:
            lost_events = lost.get(last_seq, 0)
            if lost_events is not None and run.first_seq - last_seq > max(lost_events, 1):
                yield _break(run, MISSING_ROWS)
        last_seq = run.last_seq if last_seq is None else max(last_seq, run.last_seq)


def _break(run: Run, reason: int) -> Step:
    return Step(seq=run.first_seq, ts_ms=run.first_ts_ms, kind="break", reason=reason)


def _twice(run: Run, last_seq: int) -> UsageFilesError:
    return UsageFilesError(
        f"rows {run.first_seq} to {min(run.last_seq, last_seq)} (seq) of node {run.node_id} are there twice",
        hint="a file was given twice, or two nodes have one id",
    )


def _in_context(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps with what those beside them say of them."""
    for place, step in enumerate(steps):
        if step.kind in ("start", "gap"):
            yield replace(step, states_all=_states_all(step, steps[place + 1 : place + 3]))
        elif step.kind == "callback":
            before = steps[place - 1] if place else None
            is_said_again = before is not None and before.kind == "gap" and before.seq + 1 == step.seq
            yield replace(step, is_exchange=not is_said_again)
        else:
            yield step


def _without_repeats(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps but for answers of a callback that say what is known."""
    answers = Answers()
    for step in steps:
        if step.kind in ("start", "callback"):
            answers.forget()
        elif step.reason != EXACT:
            answers.lose()
        if step.answer is None or answers.take(step.answer):
            yield step


def _states_all(step: Step, following: Sequence[Step]) -> bool:
    """A start does. A gap does where the node noticed it itself, and states its window settings first; or an import.

    Before them it says which callback is asked. Not where a file of the spool was damaged, though a quota may happen to
    change right after it.
    """
    if step.kind == "start":
        return True
    seq = step.seq
    for after in following:
        seq += 1
        if after.seq != seq or after.kind not in ("quota", "callback"):
            return False
        if after.kind == "quota":
            return after.setting is not None or step.reason == COLD_START
    return False


def _step(event: Mapping[str, Any]) -> Step:
    seq, ts_ms, kind = event["seq"], event["ts_ms"], event["kind"]
    if kind == "callback":
        return Step(seq=seq, ts_ms=ts_ms, kind=kind, callback=event["callback"])
    if kind == "tags":
        answer = _answer(event) if "tags" in event else None
        return Step(seq=seq, ts_ms=ts_ms, kind=kind, callback=event["callback"], answer=answer)
    if kind == "snapshot":
        return Step(seq=seq, ts_ms=ts_ms, kind=kind, text=event["snapshot"] or "")
    if kind != "quota":
        return Step(seq=seq, ts_ms=ts_ms, kind=kind)
    key = event["quota_key"]
    if key in WINDOW_SETTINGS:
        return Step(seq=seq, ts_ms=ts_ms, kind=kind, setting=(key, _setting_value(event)))
    if key in EXTENSION_SETTINGS:
        return Step(seq=seq, ts_ms=ts_ms, kind=kind, record=_extension(event))
    if key not in QUOTA_KEYS:
        raise _error(event, f"quota_key must be a key of Kafka's or a setting, got {key!r}")
    record = QuotaRecord(entity=_entity(event), key=key, value=event["quota_value"])
    return Step(seq=seq, ts_ms=ts_ms, kind=kind, record=record)


def _answer(event: Mapping[str, Any]) -> Answer:
    try:
        return parsed_answer(event)
    except ValueError as error:
        raise _error(event, str(error)) from error


def _setting_value(event: Mapping[str, Any]) -> int:
    value = event["quota_value"]
    if value is None or not math.isfinite(value) or value != int(value):
        raise _error(event, f"{event['quota_key']} must be a whole number, got {value!r}")
    try:
        Windows().replaced(event["quota_key"], int(value))
    except ValueError as error:
        raise _error(event, str(error)) from error
    return int(value)


def _extension(event: Mapping[str, Any]) -> QuotaRecord:
    """Return a setting beyond Kafka: of an entity, or of all, or a number."""
    key, value = event["quota_key"], event["quota_value"]
    record = QuotaRecord(entity=_parts(event), key=key, value=value)
    if value is not None and not (0 <= value <= _LARGEST_SETTING and value == int(value)):
        raise _error(event, f"{key} must be a whole number from 0 to {_LARGEST_SETTING}, got {value!r}")
    return record


def _entity(event: Mapping[str, Any]) -> EntityParts:
    found = _parts(event)
    if not found:
        raise _error(event, f"{event['quota_key']} needs a user, a client id or an ip")
    return found


def _parts(event: Mapping[str, Any]) -> EntityParts:
    parts = {entity_type: event[column] for entity_type, column in _PART_COLUMNS.items()}
    try:
        return entity_parts(
            (entity_type, None if name == _DEFAULT_NAME else desanitize(name))
            for entity_type, name in parts.items()
            if name is not None
        )
    except TidegateError as error:
        raise _error(event, str(error)) from error


def _error(event: Mapping[str, Any], reason: str) -> UsageFilesError:
    return UsageFilesError(
        f"{event['kind']} event seq={event['seq']} of node {event['node_id']}: {reason}", hint=DAMAGED_HINT
    )
