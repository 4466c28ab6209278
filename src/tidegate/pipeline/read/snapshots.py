"""The state of a node's engine from the usage record, for a replay that does not know it.

A node writes it each hour and after a gap (docs/usage-record.md, *Snapshots*). A replay that begins with the start of
the node knows the state without it. A replay needs a snapshot if its record begins later, and after missing rows. The
driver therefore reads only the first complete snapshot after each such place; decisions before it are approximate.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.steps import SensorState, Step
from tidegate.pipeline.read.timeline import Timeline
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.measure.window import MAX_SAMPLES
from tidegate.usage.texts import rows_between

__all__ = ["SENSOR_COLUMNS", "ReadSensors", "is_bucket_state", "is_sensor_state", "with_snapshots"]

SENSOR_COLUMNS = ("seq", "ts_ms", "quota_user", "quota_client_id", "snapshot")

Row = Mapping[str, Any]
ReadSensors = Callable[[int, int], Sequence[Row]]
"""Returns the rows of kind `snapshot` of a node between two `seq`, both not included, in order: `SENSOR_COLUMNS`."""

_BREAKS = ("start", "gap", "break", "callback")  # a snapshot with one of these inside is incomplete
_KEYS = {quota_type.key for quota_type in QuotaType}


def with_snapshots(timeline: Timeline, read: ReadSensors, *, is_known: bool = False) -> Timeline:
    """Return the timeline with the states of sensors that a replay needs, and without other snapshots.

    is_known: the state is known at the beginning of the timeline. Raises `UsageFilesError` for an invalid state.
    """
    steps = timeline.steps
    stated: list[Step] = []
    found = list(steps.only(steps.where(lambda step: step.kind in (*_BREAKS, "snapshot"))))
    for step, after in zip(found, [*found[1:], None], strict=False):
        if step.kind != "snapshot":
            is_known = step.kind == "start" or (is_known and step.is_exchange)
        elif not is_known and after is not None and _is_whole(step, after):
            rows = read(step.seq, after.seq)
            # A sensor without a row counts as a new one (decision 0059), so an incomplete snapshot proves nothing.
            if len(rows) == rows_between(after.text):
                begins, ends = replace(step, kind="begins", states_all=True), replace(after, kind="ends")
                stated += [begins, *_states(rows), ends]
                is_known = True
    return replace(timeline, steps=steps.replaced(steps.where(lambda step: step.kind == "snapshot"), stated))


def _is_whole(step: Step, after: Step) -> bool:
    """Return whether a step begins a snapshot that the one after it ends."""
    return (
        rows_between(step.text) is None and after.kind == "snapshot" and rows_between(after.text) is not None
    )


def _states(rows: Sequence[Row]) -> Iterator[Step]:
    """Yield a step for each run of sensors with no other row in between; all of them hold at the last sensor's row."""
    run: list[tuple[Row, SensorState]] = []
    for row, state in _whole(rows):
        if run and row["seq"] != run[-1][0]["seq"] + 1:
            yield _step(run)
            run = []
        run.append((row, state))
    if run:
        yield _step(run)


def _step(run: Sequence[tuple[Row, SensorState]]) -> Step:
    last, _ = run[-1]
    return Step(seq=last["seq"], ts_ms=last["ts_ms"], kind="sensors", states=tuple(state for _, state in run))


def _whole(rows: Sequence[Row]) -> Iterator[tuple[Row, SensorState]]:
    """Yield each sensor's last row, and its state from the joined text of its rows. Raises `UsageFilesError`."""
    by_sensor = groupby(rows, key=lambda row: (row["quota_user"], row["quota_client_id"]))
    for tags, group in by_sensor:
        text, state = "", None
        for row in group:
            text += row["snapshot"] or ""
            state = _parsed(text)
            if state is not None:
                yield row, _sensor(row, tags, state, text)
                text = ""
        if state is None:
            raise _error(row, "the state of the sensor is incomplete")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _sensor(row: Row, tags: tuple[str | None, str | None], state: Any, text: str) -> SensorState:
    if not is_sensor_state(state):
        raise _error(row, "the state of the sensor is not valid")
    user, client_id = tags
    return SensorState(state["quota_key"], (user or "", client_id or ""), row["ts_ms"], text)


def is_sensor_state(state: Any) -> bool:
    """Return whether it is what a broker writes, and fits into the kernel's arrays."""
    if (
        not isinstance(state, dict)
        or state.get("quota_key") not in _KEYS
        or not _is_time(state.get("recorded_ms"))
    ):
        return False
    if state["quota_key"] == QuotaType.CONTROLLER_MUTATION.key:
        return is_bucket_state(state)
    samples, current = state.get("samples"), state.get("current")
    return (
        isinstance(samples, list)
        and len(samples) <= MAX_SAMPLES + 1
        and all(_is_sample(sample) for sample in samples)
        and type(current) is int
        and 0 <= current < max(1, len(samples))
        and _is_time(state.get("emptied_ms", 0))
    )


def is_bucket_state(state: Any) -> bool:
    """Return whether it has the tokens of a bucket, and when they were counted."""
    return isinstance(state, dict) and _is_number(state.get("tokens")) and _is_time(state.get("updated_ms"))


def _is_sample(sample: Any) -> bool:
    return (
        isinstance(sample, list)
        and len(sample) == 3
        and _is_number(sample[0])
        and all(map(_is_time, sample[1:]))
    )


def _is_number(value: Any) -> bool:
    return type(value) is float


def _is_time(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**53


def _error(row: Row, reason: str) -> UsageFilesError:
    return UsageFilesError(
        f"snapshot row seq={row['seq']}: {reason}", hint="check that Tidegate wrote the file"
    )
