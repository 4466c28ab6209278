"""Events of a node besides requests: starts, changed quotas, callbacks, breaks, and sweeps of idle sensors.

A *break* is a place where rows are missing: the node reports lost events (`gap`), a file is missing (`seq` jumps and
no `start` follows), or the record begins in the middle of the node's life (a cold start).

The driver collects all events as arrays and passes them to every partition of their node. The partition applies them
in the order of `seq` among the requests.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import AFTER_GAP, COLD_START, EXACT, MISSING_ROWS
from tidegate.pipeline.read.answers import Answers
from tidegate.pipeline.read.control_events import NEXT_TS_MS, NO_EVENTS, ControlEvents
from tidegate.pipeline.read.steps import Step, Steps

__all__ = [
    "MAX_CONTROL_BYTES",
    "MAX_SWEEP_BYTES",
    "NO_SWEEPS",
    "SWEEP_COLUMNS",
    "SWEEP_KIND",
    "Run",
    "Sweeps",
    "Timeline",
    "callback_in",
    "empty_timeline",
    "gaps_of",
    "timelines",
]

Sweeps = npt.NDArray[np.int64]
"""Sweeps of idle sensors: [sweep, `SWEEP_COLUMNS`], in any order."""

SWEEP_KIND = "expire"
SWEEP_COLUMNS = ("node_id", "seq", "ts_ms")
NO_SWEEPS: Sweeps = np.zeros((0, len(SWEEP_COLUMNS)), np.int64)

MAX_CONTROL_BYTES = 1 << 30
"""Most control events in one replay, by `ControlEvents.size_bytes`: twenty-nine million if most differ only in time and
value, otherwise a million."""

MAX_SWEEP_BYTES = 1 << 28
"""Most sweeps in one replay, 24 bytes each: eleven million, as twenty nodes make in half a year."""

_NO_SWEEPS_OF_NODE = NO_SWEEPS[:, 1:].copy()
_NO_STEPS = Steps.of(())

Mark = Mapping[str, Any]
"""A start or a gap, as `ControlEvents.of_kinds` has it."""


class Run(NamedTuple):
    """Rows of one node without a hole in `seq`; if holes mean nothing, the rows of one chunk.

    Holes mean nothing in an imported record, and in a merged one of several processes.
    """

    node_id: int
    first_seq: int
    last_seq: int
    first_ts_ms: int
    is_imported: bool
    is_merged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The steps and sweeps of one node, each sorted by `seq`."""

    steps: Steps = field(default=_NO_STEPS)
    sweeps: npt.NDArray[np.int64]  # [sweep, (seq, ts_ms)]
    is_imported: bool = False
    is_merged: bool = False


def timelines(
    events: ControlEvents = NO_EVENTS, runs: Iterable[Run] = (), sweeps: Sweeps = NO_SWEEPS
) -> dict[int, Timeline]:
    """Return the timeline of each node out of all control events, runs and sweeps, in any order.

    Without runs no hole shows. Raises `UsageFilesError` where a row makes no sense, or is there twice.
    """
    steps = Steps.of_events(events)
    marks: dict[int, list[Mark]] = {}
    for mark in events.of_kinds("start", "gap"):
        marks.setdefault(mark["node_id"], []).append(mark)
    runs_of: dict[int, list[Run]] = {}
    for run in sorted(runs):
        runs_of.setdefault(run.node_id, []).append(run)
    swept = _sweeps_by_node(sweeps)
    return {
        node_id: _timeline(
            steps.get(node_id, _NO_STEPS),
            marks.get(node_id, ()),
            runs_of.get(node_id, ()),
            swept.get(node_id, _NO_SWEEPS_OF_NODE),
        )
        for node_id in sorted(steps.keys() | marks.keys() | runs_of.keys() | swept.keys())
    }


def empty_timeline() -> Timeline:
    """Return the timeline of a node that nothing happened to."""
    return Timeline(sweeps=_NO_SWEEPS_OF_NODE)


def gaps_of(events: ControlEvents) -> dict[tuple[int, int], int | None]:
    """Return the number of lost events that each gap states, if it does, by node and `seq`."""
    return {(gap["node_id"], gap["seq"]): gap["lost_events"] for gap in events.of_kinds("gap")}


def callback_in(found: Mapping[int, Timeline]) -> str | None:
    """Return the setting of a quota callback that was in use on any node; None if only Kafka's own rules were."""
    for timeline in found.values():
        for place in timeline.steps.where(lambda step: step.kind in ("callback", "tags"))[:1]:
            step = timeline.steps[place]  # where one is taken away, there was one before
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
    steps: Steps, marks: Sequence[Mark], runs: Sequence[Run], sweeps: npt.NDArray[np.int64]
) -> Timeline:
    gaps = list(_gaps(marks, runs, steps))
    steps = _with_exchanges(steps, after={gap.seq for gap in gaps})
    return Timeline(
        steps=_without_repeats(steps.replaced((), [*gaps, *_breaks(marks, runs)])),
        sweeps=sweeps,
        is_imported=any(run.is_imported for run in runs),
        is_merged=any(run.is_merged for run in runs),
    )


def _gaps(marks: Sequence[Mark], runs: Sequence[Run], steps: Steps) -> Iterator[Step]:
    """Yield the breaks that the node itself records. The gap right after the start of an import is a cold start."""
    first_ts_ms = {run.first_seq: run.first_ts_ms for run in runs}
    first_seqs = sorted(first_ts_ms)
    starts = {mark["seq"] for mark in marks if mark["kind"] == "start"}
    for mark in marks:
        if mark["kind"] == "gap":
            next_ts_ms = mark[NEXT_TS_MS]
            if next_ts_ms is None:  # the last row of its run
                place = int(np.searchsorted(first_seqs, mark["seq"], side="right"))
                next_ts_ms = first_ts_ms[first_seqs[place]] if place < len(first_seqs) else mark["ts_ms"]
            # An import begins with a `start` and a `gap` of unknown size (`kafka_log.exchanges.events_before`).
            is_first = mark["seq"] - 1 in starts and mark["lost_events"] is None
            yield Step(
                seq=mark["seq"],
                ts_ms=max(mark["ts_ms"], next_ts_ms),
                kind="gap",
                reason=COLD_START if is_first else AFTER_GAP,
                states_all=_states_all(mark, steps, is_first=is_first),
            )


def _breaks(marks: Sequence[Mark], runs: Sequence[Run]) -> Iterator[Step]:
    """Yield the breaks that no row records: `seq` jumps, and the next row is not a `start`."""
    begins = {mark["seq"] for mark in marks}
    lost = {mark["seq"]: mark["lost_events"] for mark in marks if mark["kind"] == "gap"}
    last_seq: int | None = None
    for run in runs:
        if last_seq is None:
            if run.first_seq not in begins:
                yield _break(run, COLD_START)
        elif run.is_imported or run.is_merged:
            # `seq` is made of the time, so holes mean nothing (decisions 0056, 0147).
            pass
        elif run.first_seq <= last_seq:
            raise _twice(run, last_seq)
        elif run.first_seq > last_seq + 1 and run.first_seq not in begins:
            # A `gap` in place of damaged rows has the `seq` of the first of them. The next row is as many numbers on as
            # rows were lost, and nothing else is missing.
            lost_events = lost.get(last_seq, 0)
            if lost_events is not None and run.first_seq - last_seq > max(lost_events, 1):
                yield _break(run, MISSING_ROWS)
        last_seq = run.last_seq if last_seq is None else max(last_seq, run.last_seq)


def _break(run: Run, reason: int) -> Step:
    return Step(seq=run.first_seq, ts_ms=run.first_ts_ms, kind="break", reason=reason)


def _twice(run: Run, last_seq: int) -> UsageFilesError:
    return UsageFilesError(
        f"seq {run.first_seq} to {min(run.last_seq, last_seq)} of node {run.node_id} occur twice",
        hint="remove the second copy of a file, or give each node its own id",
    )


def _states_all(gap: Mark, steps: Steps, *, is_first: bool) -> bool:
    """Return whether the steps after a gap state all definitions again.

    They do if the node noticed the gap itself, or in an import. They then begin with the callback in use, if any, and
    the window settings. They do not after damaged rows of the spool, even if a quota happens to change right after
    these, or if the statements of a start or a snapshot continue there. Damaged rows leave a hole in `seq` behind their
    gap. A single lost row leaves none, so its gap counts as one of damaged rows.
    """
    if not is_first and gap["lost_events"] == 1:
        return False
    for seq in (gap["seq"] + 1, gap["seq"] + 2):
        after = steps.at_seq(seq)
        if after is None or after.kind not in ("quota", "callback"):
            return False
        if after.kind == "quota":
            return after.setting is not None or is_first
    return False


def _with_exchanges(steps: Steps, *, after: Container[int]) -> Steps:
    """Return the steps with changes of the callback marked.

    after: `seq` of gaps. Right after a gap, a node states its callback again, which is no change.
    """
    places = steps.where(lambda step: step.kind == "callback")
    marked = [replace(step, is_exchange=step.seq - 1 not in after) for step in steps.only(places)]
    return steps.replaced(places, marked)


def _without_repeats(steps: Steps) -> Steps:
    """Return the steps without answers of a callback that repeat known ones."""
    if not steps.where(lambda step: step.answer is not None):
        return steps
    answers = Answers()
    repeated = []
    for place, step in enumerate(steps):
        if step.kind in ("start", "callback"):
            answers.forget()
        elif step.reason != EXACT:
            answers.lose()
        if step.answer is not None and not answers.store_answer(step.answer):
            repeated.append(place)
    return steps.replaced(repeated, ())
