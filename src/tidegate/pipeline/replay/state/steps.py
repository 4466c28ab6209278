"""Steps of the timeline, applied to the state of a plan: the quotas in force, and what is known from there on.

Starts, gaps and other breaks concern every plan, and which quotas were cluster-wide: what the other gateway processes
used is not in the record. All other steps concern only the quotas in force.
"""

import numpy as np

from tidegate.config.windows import Windows
from tidegate.pipeline.layout import CLUSTER_WIDE, EXACT, IMPORTED, SWEEPS_BEFORE
from tidegate.pipeline.read.steps import Step, Steps
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.state.plan_state import PlanState
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.managers.extensions import CLUSTER_WIDE as CLUSTER_WIDE_QUOTAS
from tidegate.quota.managers.extensions import MUTATIONS_SHARED

__all__ = ["STOPS", "apply_step", "steps_of"]

STOPS = ("start", "gap", "break")
"""Kinds of steps that change what sensors hold, whichever plan. No connection is known to go on after them."""


def steps_of(timeline: Timeline, *, is_in_force: bool) -> Steps:
    """Return the steps that change something under a plan."""
    steps = timeline.steps
    return steps if is_in_force else steps.only(steps.where(_concerns_every_plan))


def apply_step(state: PlanState, step: Step, timeline: Timeline) -> None:
    """Apply a step of a timeline."""
    if step.states_all and state.is_in_force:
        state.lookup.clear()
        state.sensors.beyond.clear()
    elif step.states_all:
        state.lookup.clear_cluster_wide()
    if step.kind == "start":
        _start(state, is_exact=not (timeline.is_imported or timeline.is_merged))
    elif step.kind in STOPS:
        _break(state, step, timeline)
    elif state.is_in_force:
        _follow_quotas(state, step, timeline)
    elif step.record is not None:
        _apply_record(state, step.record, step.ts_ms)


def _concerns_every_plan(step: Step) -> bool:
    record = step.record
    return step.kind in STOPS or (
        record is not None and record.key in (CLUSTER_WIDE_QUOTAS, MUTATIONS_SHARED)
    )


def _start(state: PlanState, *, is_exact: bool) -> None:
    if is_exact:
        state.sensors.reason = EXACT
        state.sensors.reset_to_new()
    else:
        state.sensors.forget()
    state.permits.forget()
    if state.is_in_force:
        state.lookup.reason = EXACT
        state.lookup.forget_answers()
        _set_windows(state, Windows())


def _break(state: PlanState, step: Step, timeline: Timeline) -> None:
    """Apply a break: keep the sensors as the best guess. Decisions that depend on them are approximate."""
    if state.is_in_force:
        reason = IMPORTED if timeline.is_imported else step.reason
        state.lookup.lose(EXACT if step.states_all else reason)
    if not timeline.is_imported:
        state.settings[SWEEPS_BEFORE] = np.searchsorted(timeline.sweeps[:, 0], step.seq)
        state.sensors.lose(step.reason, since_ms=step.ts_ms)
        state.permits.forget()


def _follow_quotas(state: PlanState, step: Step, timeline: Timeline) -> None:
    lookup, sensors = state.lookup, state.sensors
    match step.kind:
        case "quota":
            if step.setting is not None:
                _set_windows(state, sensors.windows.replaced(*step.setting))
            if step.record is not None:
                _apply_record(state, step.record, step.ts_ms)
        case "callback":
            lookup.exchange_callback(asks_callback=step.callback is not None)
            if step.is_exchange and not timeline.is_imported:  # else it repeats which one is in use
                sensors.reset_to_new()
        case "tags":
            assert step.answer is not None, "they are read for quotas in force"
            lookup.take_answer(step.answer)
        case "begins":
            lookup.forget_answers()  # under a callback there are no snapshots
            sensors.begin_stating()
            state.permits.lose(sensors.reason)
            lookup.reason = sensors.reason
        case "sensors":
            _know_quotas(state)  # they are stated before the sensors
            sweep = int(np.searchsorted(timeline.sweeps[:, 0], step.seq))
            sensors.stated.set_states(step.states, sweep=sweep)
        case "ends":
            _know_quotas(state)
            sensors.end_stating()


def _apply_record(state: PlanState, record: QuotaRecord, now_ms: int) -> None:
    """Apply a definition or a setting. A quota that is cluster-wide no more has a new sensor, unlike here."""
    state.lookup.apply(record)
    if record.key == CLUSTER_WIDE_QUOTAS and record.value is None:
        state.sensors.lose_rates(CLUSTER_WIDE, since_ms=now_ms)


def _know_quotas(state: PlanState) -> None:
    """Mark the quotas in force as known from here on: a snapshot has stated them all.

    Until then rows were charged by the quotas that were stated so far, some to sensors of other clients or to none. So
    the sensors are reset: the snapshot states each sensor that holds something.
    """
    if state.lookup.reason != EXACT:
        state.lookup.reason = EXACT
        state.lookup.look_up_again()
        state.sensors.forget()
        state.permits.lose(state.sensors.reason)


def _set_windows(state: PlanState, windows: Windows) -> None:
    if windows != state.sensors.windows:
        state.sensors.set_windows(windows)
        state.lookup.look_up_again()
