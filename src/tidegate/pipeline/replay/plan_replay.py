"""Replay of the rows of one node against one plan.

A `PlanReplay` composes the state that a plan keeps between rows (`replay.state`), the steps of the timeline that change
it, and the kernel. Memory grows with the number of clients, not of rows.

Steps (starts, changed quotas, gaps and other breaks) are applied between the rows, in the order of `seq`. Sweeps of
idle sensors are many and cheap, and the kernel passes them by itself.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.layout import (
    EXACT,
    FORECAST_COLUMNS,
    MISSING_ROWS,
    QUOTAS_REASON,
    Int32s,
    Int64s,
    Rows,
    State,
)
from tidegate.pipeline.read.steps import Step
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.carried import Carried, End, StateRow, following, restore_state
from tidegate.pipeline.replay.kernel.beyond_kafka import replay_kernel_beyond_kafka
from tidegate.pipeline.replay.kernel.open_loop import replay_kernel
from tidegate.pipeline.replay.names import ClientNames
from tidegate.pipeline.replay.plan import Definitions, Plan
from tidegate.pipeline.replay.state.accounts import Limits, Used
from tidegate.pipeline.replay.state.lookup import SharedWanted
from tidegate.pipeline.replay.state.plan_state import PlanState
from tidegate.pipeline.replay.state.searched import SearchedSensors
from tidegate.pipeline.replay.state.steps import apply_step, steps_of
from tidegate.pipeline.replay.state_rows import rows_left, unused_rows

__all__ = ["PlanReplay"]


class PlanReplay:
    """The replay of a plan for one node, or for those of its clients that are in a partition."""

    def __init__(
        self,
        plan: Plan,
        *,
        names: ClientNames,
        timeline: Timeline,
        carried: Carried | None = None,
        definitions: Definitions | None = None,
        wanted: SharedWanted | None = None,
        searched: SearchedSensors | None = None,
    ) -> None:
        """carried: the state of the node after a replay of the hours before. definitions: those of the plan, if they
        never change. wanted: the accounts that a batch needs, shared with other plans. searched: the sensors of a plan
        with a rung.
        """
        self._plan = plan
        self._names = names
        self._timeline = timeline if carried is None else following(timeline, carried.end)
        self._steps = steps_of(self._timeline, is_in_force=plan.is_in_force)
        self._next_step = 0
        self._state = PlanState(
            plan,
            names=names,
            is_imported=timeline.is_imported,
            is_merged=timeline.is_merged,
            definitions=definitions,
            wanted=wanted,
            searched=searched,
        )
        self._accounts = self._state.lookup.accounts
        if carried is not None:
            restore_state(carried, self._state, names, is_imported=timeline.is_imported)

    def replay(self, rows: Rows, decisions: Int32s) -> None:
        """Replay one batch; its rows follow those of the batch before. `rows.client` counts from 0."""
        first = 0
        while self._next_step < len(self._steps) and self._steps.seq[self._next_step] <= rows.seq[-1]:
            step = self._steps[self._next_step]
            # Left side: a `break` has the `seq` of the first row behind the missing rows, which is decided after it.
            end = int(np.searchsorted(rows.seq, step.seq))
            self._run(rows, decisions, first, end)
            self._take(step)
            self._next_step += 1
            first = end
        self._run(rows, decisions, first, len(rows.seq))

    def finish(self) -> None:
        """Finish the replay after the last row. In open loop no request waits."""

    def continue_with(self, timeline: Timeline) -> None:
        """Continue with the next part of a record, whose timeline is `timeline`; the names may have new clients.

        Call `finish_steps` first: it applies the steps after the last row of the previous timeline.
        """
        # Sensors store places in the array of sweeps (`READY`, `SWEPT`), so earlier sweeps must keep theirs.
        sweeps = np.concatenate([self._timeline.sweeps, timeline.sweeps])
        self._timeline = replace(timeline, sweeps=sweeps)
        self._steps = steps_of(self._timeline, is_in_force=self._plan.is_in_force)
        self._next_step = 0
        self._state.lookup.add_clients()

    def finish_steps(self) -> bool:
        """Apply the steps after the last row; return whether the state of the sensors is known from here on."""
        for step in self._steps[self._next_step :]:
            self._take(step)
        self._next_step = len(self._steps)
        return self._state.sensors.reason == EXACT

    def left(self, node_id: int) -> Iterator[StateRow]:
        """Apply the remaining steps, then yield the states of used sensors and the throttles of waiting permits."""
        self.finish_steps()
        yield from rows_left(self._plan, node_id, self._state, self._names, self._timeline.sweeps)

    def left_unused(self, node_id: int, end: End) -> Iterator[StateRow]:
        """Yield the unused part of the state that was carried over to a node, then the node's own row.

        Call it on a replay without rows. Other replays have the rows of the node, if there are any.
        """
        self._state.sensors.stated.use_all()
        yield from self.left(node_id)
        yield from unused_rows(self._plan, node_id, self._state, end, self._timeline.sweeps)

    # --- results --------------------------------------------------------------------------------------------------

    def forget_tallies(self) -> None:
        """Reset all tallies to 0."""
        self._accounts.tallies.fill(0)

    def forecasts(self, numbers: Int64s) -> dict[str, pa.Array]:
        """Return the forecasts of some accounts, by the columns of `FORECAST_COLUMNS`; nulls in open loop."""
        return dict.fromkeys(FORECAST_COLUMNS, pa.nulls(len(numbers), pa.int64()))

    def used(self) -> Used:
        """Return the accounts that were used, with their limits and tallies."""
        return self._accounts.used()

    @property
    def tallies(self) -> Int64s:
        """Return the tallies by account."""
        return self._accounts.tallies

    def latest_limits(self, numbers: Int64s) -> Limits:
        """Return the limit that each of some accounts has now."""
        return self._accounts.latest_limits(numbers)

    def peaks(self, numbers: Int64s) -> npt.NDArray[np.float64]:
        """Return the peaks of some accounts of a plan that measures, a row each."""
        found: npt.NDArray[np.float64] = self._accounts.peaks[numbers]
        return found

    def state(self) -> State:
        """Return the current state of the kernel, which changes with every row."""
        return self._state.arrays(self._timeline.sweeps)

    # --- steps and rows -------------------------------------------------------------------------------------------

    def _take(self, step: Step) -> None:
        apply_step(self._state, step, self._timeline)

    def _run(self, rows: Rows, decisions: Int32s, first: int, end: int) -> None:
        if first == end:
            return
        lookup, sensors, permits = self._state.lookup, self._state.sensors, self._state.permits
        permits.make_room(lookup.open_accounts(rows, first, end))
        certain = lookup.certain_from(rows, first, end)
        if first < certain:
            reason = sensors.reason or MISSING_ROWS
            state = self.state()
            state.settings[QUOTAS_REASON] = reason
            self._run_kernel(state, rows, decisions, first, certain)
            sensors.lose(reason, since_ms=int(rows.ts_ms[first:certain].max()))
            permits.lose(reason)  # kept as a guess, which must not depend on where batches end
        if certain < end:
            self._run_kernel(self.state(), rows, decisions, certain, end)

    def _run_kernel(self, state: State, rows: Rows, decisions: Int32s, first: int, end: int) -> None:
        beyond = self._state.sensors.beyond
        kernel = replay_kernel_beyond_kafka() if beyond.is_needed else replay_kernel()
        kernel(beyond.extended(state), rows, decisions, first, end)
