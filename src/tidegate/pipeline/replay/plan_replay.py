"""Replays the rows of one node against one plan: who has which sensor, and how it went.

The kernel sees arrays only. This is where names become numbers: a client's account under a quota type is opened
when its first row comes, by asking the engine's own rules for tags and bound, and looked up again when the
definitions of that type have changed since. Memory grows with the number of clients, not of rows.

Steps (starts, changed quotas, gaps and other breaks) are taken between the rows, in the order of `seq`; sweeps of idle
sensors are many and cheap, and the kernel passes them by itself.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.config.windows import Windows
from tidegate.pipeline.layout import (
    BUCKET_SAMPLES,
    BUCKET_WINDOW_MS,
    CHARGE_BITS,
    COLD_START,
    DEBT_MAX_S,
    EXACT,
    EXEMPT,
    FELT_COLUMNS,
    FETCH,
    FETCH_ANSWER_BYTES,
    FETCH_CHARGE,
    FINDS_LIMITS,
    IMPORTED,
    KIND_BITS,
    MEASURES,
    MISSING_ROWS,
    MUTATION,
    MUTATION_ROW,
    OBSERVES,
    PERMITS_REASON,
    PRODUCE,
    PRODUCE_CHARGE,
    QUOTAS_REASON,
    REQUEST,
    SAMPLES,
    SETTINGS,
    SWEEP,
    SWEEPS_BEFORE,
    WINDOW_MS,
    Int32s,
    Rows,
    State,
    StateBeyondKafka,
)
from tidegate.pipeline.read.answers import Answers
from tidegate.pipeline.read.steps import Step, Steps
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.beyond_kafka import replay_kernel_beyond_kafka
from tidegate.pipeline.replay.carried import (
    Carried,
    End,
    Permits,
    StateRow,
    following,
    new_sensors_reason,
    node_row,
    permits_row,
    sensor_rows,
)
from tidegate.pipeline.replay.certainty import FOREVER
from tidegate.pipeline.replay.kernel import replay_kernel
from tidegate.pipeline.replay.names import ClientNames, columns_of
from tidegate.pipeline.replay.pending import TAKEN, empty_pending, lose_pending, pending_put, roomy_pending
from tidegate.pipeline.replay.plan import (
    INDEX_BY_KEY,
    QUOTA_TYPES,
    Definitions,
    Plan,
    Resolved,
    resolved_answer,
)
from tidegate.pipeline.replay.settings import SettingsBeyondKafka
from tidegate.pipeline.replay.stated import StatedSensors
from tidegate.pipeline.replay.tables import Account, AccountTable, Found, Limit, SensorTable, Used
from tidegate.pipeline.replay.wanted import SharedWanted, wanted_of
from tidegate.quota.measure.bucket_kernel import BUCKET_FLOATS, BUCKET_INTS
from tidegate.quota.measure.rate_kernel import FLOAT_SLOTS, INT_SLOTS
from tidegate.quota.measure.smooth import smooth_max_value
from tidegate.quota.measure.throttle import MAX_INT64, UNLIMITED, saturate_to_int32
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["PlanReplay"]

_ALWAYS = ("start", "gap", "break")  # steps that change what sensors hold, whichever plan


class PlanReplay:
    """One plan on one node, or on those of its clients that a partition has."""

    def __init__(
        self,
        plan: Plan,
        *,
        names: ClientNames,
        timeline: Timeline,
        carried: Carried | None = None,
        definitions: Definitions | None = None,
        wanted: SharedWanted | None = None,
    ) -> None:
        """carried: what a replay of the hours before has left of the node. definitions: those of the plan, if they
        were made before and never change. wanted: tells what a batch wants, other plans too.
        """
        self._plan = plan
        self._wanted = None if plan.is_in_force else wanted
        self._names = names
        self._timeline = timeline if carried is None else following(timeline, carried.end)
        self._steps = self._taken_steps()
        self._next_step = 0
        self._definitions = definitions or Definitions.of(plan)
        self._windows = plan.windows
        self._rates = SensorTable(**_rate_widths(plan.windows.rate))
        self._buckets = SensorTable(floats=BUCKET_FLOATS, ints=BUCKET_INTS)
        self._beyond = SettingsBeyondKafka(plan.records or ())
        self._stated = StatedSensors(self._rates, self._buckets, self._beyond)
        self._answers = Answers()
        self._asks_callback = False
        self._uncertain: set[tuple[int, int]] = set()
        self._accounts = AccountTable()
        self._account_of = np.zeros((len(QUOTA_TYPES), len(names)), np.int32)
        self._looked_up = np.zeros((len(QUOTA_TYPES), len(names)), np.int64)
        self._versions = [1] * len(QUOTA_TYPES)
        self._pending = empty_pending()
        self._settings = np.zeros(SETTINGS, np.int64)
        self._settings[MEASURES] = plan.measures
        self._settings[OBSERVES] = plan.is_in_force
        self._settings[FINDS_LIMITS] = plan.measures or plan.rung is not None
        self._reason = EXACT
        self._quotas_reason = EXACT
        if plan.is_in_force:  # until the first start nobody knows which quotas are
            self._quotas_reason = IMPORTED if timeline.is_imported else COLD_START
        if timeline.is_imported:
            self._lose_sensors(IMPORTED, since_ms=FOREVER)
        self._kernel = replay_kernel()
        self._permits_elsewhere: list[Permits] = []
        if carried is not None:
            self._go_on_from(carried)

    def replay(self, rows: Rows, decisions: Int32s) -> None:
        """Replay one batch; its rows follow those of the batch before. `rows.client` counts from 0."""
        first = 0
        while self._next_step < len(self._steps) and self._steps.seq[self._next_step] <= rows.seq[-1]:
            step = self._steps[self._next_step]
            end = int(np.searchsorted(rows.seq, step.seq))
            self._run(rows, decisions, first, end)
            self._take(step)
            self._next_step += 1
            first = end
        self._run(rows, decisions, first, len(rows.seq))

    def left(self, node_id: int) -> Iterator[StateRow]:
        """Apply the remaining steps, then yield the states of used sensors and the throttles of waiting permits."""
        self.take_rest()
        self._settings[SWEEP] = len(self._timeline.sweeps)
        for table, beyond in ((self._rates, self._beyond), (self._buckets, None)):
            yield from sensor_rows(
                self._plan, node_id, table, self._settings, self._timeline.sweeps, beyond=beyond
            )
        accounts = [account for account, _, _ in self._accounts]
        waiting = self._pending[self._pending[:, TAKEN] == 1, :TAKEN].tolist()
        for connection_id, last_ms, at_ms, number, reason in waiting:
            client = self._names[accounts[number].client]
            yield permits_row(self._plan, node_id, Permits(*client, connection_id, last_ms, at_ms, reason))

    def left_unused(self, node_id: int, end: End) -> Iterator[StateRow]:
        """Yield the state that was carried to a node and not used, then the node's own row.

        Call it on a replay without rows: other replays have the rows of the node, or there are none.
        """
        for key in self._stated.waiting():
            table = self._buckets if key[0] == MUTATION else self._rates
            self._stated.note_used(key, table.number(key, bound=UNLIMITED))
        yield from self.left(node_id)
        yield from (permits_row(self._plan, node_id, permits) for permits in self._permits_elsewhere)
        reason, since_ms = self._rates.reason, self._rates.since_ms
        found = new_sensors_reason(reason, since_ms, self._settings, self._timeline.sweeps)
        yield node_row(self._plan, node_id, end, reason=self._reason, sensors_reason=found, since_ms=since_ms)

    def finish(self) -> None:
        """Finish the replay after the last row. In open loop no request waits."""

    def go_on(self, timeline: Timeline) -> None:
        """Continue with the next part of a record, whose timeline is `timeline`; the names may have new clients.

        Call `take_rest` first: it applies the steps after the last row of the previous timeline.
        """
        sweeps = np.concatenate([self._timeline.sweeps, timeline.sweeps])
        self._timeline = replace(timeline, sweeps=sweeps)
        self._steps = self._taken_steps()
        self._next_step = 0
        more = ((0, 0), (0, len(self._names) - self._account_of.shape[1]))
        self._account_of = np.pad(self._account_of, more)
        self._looked_up = np.pad(self._looked_up, more)

    def take_rest(self) -> bool:
        """Apply the steps after the last row; return whether the state of the sensors is known from here on."""
        for step in self._steps[self._next_step :]:
            self._take(step)
        self._next_step = len(self._steps)
        return self._reason == EXACT

    def forget_tallies(self) -> None:
        """Tally anew, from 0."""
        self._accounts.tallies.fill(0)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but what is compiled."""
        return {name: value for name, value in vars(self).items() if name != "_kernel"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state that another process has pickled."""
        vars(self).update(state)
        self._kernel = replay_kernel()

    def felt(self, numbers: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        """Return what is forecast of some accounts, by the columns of `FELT_COLUMNS`; nulls in open loop."""
        return dict.fromkeys(FELT_COLUMNS, pa.nulls(len(numbers), pa.int64()))

    def used(self) -> Used:
        """Return the accounts that were used, with what limited them and their tallies."""
        return self._accounts.used()

    def latest_limits(self, numbers: npt.NDArray[np.int64]) -> list[Limit]:
        """Return the limit that each of some accounts has now."""
        return self._accounts.latest_limits(numbers)

    def peaks(self) -> Iterator[tuple[Account, npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Yield every account that has a quota with its tallies and, of a plan that measures, its peaks."""
        for (account, limit, tally), peaks in zip(self._accounts, self._accounts.peaks, strict=False):
            if not limit.is_unlimited:
                yield account, tally, peaks

    # --- between the rows -----------------------------------------------------------------------------------------

    def _taken_steps(self) -> Steps:
        """Return the steps that change something under this plan."""
        steps = self._timeline.steps
        return steps if self._plan.is_in_force else steps.only(steps.where(lambda step: step.kind in _ALWAYS))

    def _take(self, step: Step) -> None:
        if step.states_all and self._plan.is_in_force:
            self._definitions.clear()
            self._beyond.clear()
            self._look_up_again()
        match step.kind:
            case "start":
                self._start()
            case "gap" | "break":
                self._break(step)
            case "quota" if self._plan.is_in_force:
                self._change_quota(step)
            case "callback" if self._plan.is_in_force:
                self._exchange_callback(step)
            case "tags" if self._plan.is_in_force:
                self._take_answer(step)
            case "begins" if self._plan.is_in_force:
                self._forget_answers()  # under a callback there are no snapshots
                self._forget_sensors()
                self._lose_sensors(self._reason or COLD_START, since_ms=FOREVER)
                self._lose_permits(self._reason)
                self._quotas_reason = self._reason
            case "sensors" if self._plan.is_in_force:
                self._know_quotas()  # they are stated before the sensors
                sweep = int(np.searchsorted(self._timeline.sweeps[:, 0], step.seq))
                self._stated.take(step.states, sweep=sweep)
            case "ends" if self._plan.is_in_force:
                self._know_quotas()
                self._reason = EXACT
                self._rates.make_stated()
                self._buckets.make_stated()

    def _start(self) -> None:
        if not self._timeline.is_imported:
            self._reason = EXACT
            self._rates.make_known()
            self._buckets.make_known()
        self._forget_sensors()
        self._forget_permits()
        if self._plan.is_in_force:
            self._quotas_reason = EXACT
            self._forget_answers()
            self._set_windows(Windows())

    def _break(self, step: Step) -> None:
        """Apply a break: keep the sensors as the best guess. Decisions that depend on them are approximate."""
        if self._plan.is_in_force:
            reason = IMPORTED if self._timeline.is_imported else step.reason
            self._quotas_reason = EXACT if step.states_all else reason
            self._answers.lose()
            self._look_up_again()
        if not self._timeline.is_imported:
            self._settings[SWEEPS_BEFORE] = np.searchsorted(self._timeline.sweeps[:, 0], step.seq)
            self._lose_sensors(step.reason, since_ms=step.ts_ms)
            self._forget_permits()

    def _exchange_callback(self, step: Step) -> None:
        """Follow another callback, or Kafka's own rules, with empty sensors; or know which one after a gap."""
        self._forget_answers()
        self._asks_callback = step.callback is not None
        self._look_up_again()
        if step.is_exchange and not self._timeline.is_imported:
            self._rates.make_known()
            self._buckets.make_known()
            self._forget_sensors()

    def _take_answer(self, step: Step) -> None:
        """Count a client as a callback said."""
        assert step.answer is not None, "they are read for quotas in force"
        if not self._asks_callback:  # the row that says so is not there, so window settings may not be either
            self._asks_callback = True
            self._quotas_reason = self._quotas_reason or MISSING_ROWS
            self._look_up_again()
        if self._answers.store_answer(step.answer):
            self._versions[INDEX_BY_KEY[step.answer.quota_key]] += 1

    def _forget_answers(self) -> None:
        self._answers.forget()
        self._asks_callback = False
        self._uncertain.clear()

    def _lose_sensors(self, reason: int, *, since_ms: int) -> None:
        """Mark all sensors as not known: anything may have been recorded up to `since_ms`."""
        self._reason = reason
        self._rates.make_unknown(reason, since_ms)
        self._buckets.make_unknown(reason, since_ms)
        self._stated.lose(reason, since_ms)

    def _know_quotas(self) -> None:
        """From here on it is known which quotas are in force: a snapshot has stated them all.

        Until then rows were charged by those that it had come to, some to sensors of other clients or of none. So what
        sensors hold is let go: it is stated now of each that there is.
        """
        if self._quotas_reason != EXACT:
            self._quotas_reason = EXACT
            self._look_up_again()
            self._forget_sensors()
            self._lose_permits(self._reason)

    def _look_up_again(self) -> None:
        """Ask the definitions again for each client that comes."""
        self._versions = [version + 1 for version in self._versions]

    def _change_quota(self, step: Step) -> None:
        if step.setting is not None:
            self._set_windows(self._windows.replaced(*step.setting))
        if step.record is None:
            return
        if self._beyond.apply(step.record):
            self._versions[PRODUCE] += 1
            self._versions[FETCH] += 1
        elif (changed := self._definitions.apply(step.record)) is not None:
            self._versions[changed] += 1

    def _set_windows(self, windows: Windows) -> None:
        """Measure in other windows from here on; the sensors begin anew."""
        if windows == self._windows:
            return
        self._windows = windows
        self._rates.resize(**_rate_widths(windows.rate))
        self._forget_sensors()
        self._look_up_again()

    def _forget_sensors(self) -> None:
        """Reset all sensors to new ones. Requests in progress keep the throttle that they already have."""
        self._rates.forget()
        self._buckets.forget()
        self._beyond.forget()
        self._stated.forget()

    def _lose_permits(self, reason: int) -> None:
        """Mark the throttles of requests in progress as not known.

        Such a request may end when everything else is known.
        """
        lose_pending(self._pending, reason)
        self._permits_elsewhere = [permits._replace(reason=reason) for permits in self._permits_elsewhere]

    def _forget_permits(self) -> None:
        self._pending = empty_pending()
        self._permits_elsewhere = []

    def _go_on_from(self, carried: Carried) -> None:
        """Begin with what was left."""
        if not self._timeline.is_imported:
            self._reason = carried.reason
            if carried.sensors_reason != EXACT:
                self._rates.make_unknown(carried.sensors_reason, carried.since_ms)
                self._buckets.make_unknown(carried.sensors_reason, carried.since_ms)
        self._stated.take(carried.sensors.values(), sweep=0)
        if not carried.permits:
            return
        numbers = {self._names[client]: client for client in range(len(self._names))}
        self._pending = roomy_pending(self._pending, len(carried.permits))
        for permits in carried.permits:
            client = numbers.get((permits.user, permits.client_id))
            if client is None:
                self._permits_elsewhere.append(permits)
                continue
            self._look_up(MUTATION, np.array([client]))
            account = int(self._account_of[MUTATION, client])
            pending_put(
                self._pending, permits.connection_id, permits.last_ms, permits.at_ms, account, permits.reason
            )

    # --- the rows -------------------------------------------------------------------------------------------------

    def _run(self, rows: Rows, decisions: Int32s, first: int, end: int) -> None:
        if first == end:
            return
        mutations = self._open_accounts(rows, first, end)
        self._pending = roomy_pending(self._pending, mutations)
        if self._uncertain:
            first = self._run_uncertain(rows, decisions, first, end)
        if first < end:
            self._run_kernel(self.state(), rows, decisions, first, end)

    def _run_kernel(self, state: State, rows: Rows, decisions: Int32s, first: int, end: int) -> None:
        kernel = replay_kernel_beyond_kafka() if self._beyond.is_needed else self._kernel
        kernel(self._whole(state), rows, decisions, first, end)

    def _whole(self, state: State) -> Any:
        """Return the state with what goes beyond Kafka, where its kernel is needed."""
        beyond = self._beyond
        if not beyond.is_needed:
            return state
        return StateBeyondKafka(*state, beyond.floats, beyond.ints, beyond.modes)

    def _run_uncertain(self, rows: Rows, decisions: Int32s, first: int, end: int) -> int:
        """Replay the rows up to the last whose client shares a limit with nobody knows whom; return where it ends.

        It may have been counted in any sensor.
        """
        needs = _needed(rows.flags[first:end])
        uncertain = np.zeros(end - first, bool)
        for index, needed in enumerate(needs):
            clients = [client for quota_type, client in self._uncertain if quota_type == index]
            uncertain |= needed & np.isin(rows.client[first:end], clients)
        places = np.flatnonzero(uncertain)
        if not len(places):
            return first
        certain = first + int(places[-1]) + 1
        state = self.state()
        reason = self._reason or MISSING_ROWS
        state.settings[QUOTAS_REASON] = reason
        self._run_kernel(state, rows, decisions, first, certain)
        self._lose_sensors(reason, since_ms=int(rows.ts_ms[first:certain].max()))
        self._lose_permits(reason)  # not forgotten: wherever a batch ends, the guess is the same
        return certain

    def _open_accounts(self, rows: Rows, first: int, end: int) -> int:
        """Look up the accounts that rows need; return how many of these ask for permits."""
        if self._wanted is not None and end - first == len(rows.seq):
            wanted = self._wanted.of(rows)
        else:
            versions = np.array(self._versions, np.int64)
            wanted = wanted_of(rows.flags[first:end], rows.client[first:end], self._looked_up, versions)
        for index, clients in wanted.clients.items():
            self._look_up(index, clients)
        return wanted.mutations

    def _look_up(self, index: int, clients: npt.NDArray[np.integer[Any]]) -> None:
        """Find the accounts and sensors of clients under the definitions as they are now."""
        sensors = self._buckets if index == MUTATION else self._rates
        cap_ms = self._windows.rate.window_ms if index == REQUEST else MAX_INT64  # B§2.1
        are_known = self._quotas_reason == EXACT
        limit: Limit | None = None
        found = Found([], [], [], [])
        for client, resolved in zip(clients.tolist(), self._resolved(index, clients), strict=True):
            key = index, resolved.sensor
            sensor = sensors.number(key, bound=resolved.bound)
            is_smooth = False
            if self._beyond.is_needed and index in (PRODUCE, FETCH):
                is_smooth = self._beyond.choose(index, sensor, resolved.tags, rates=len(self._rates.use))
            self._stated.note_used(key, sensor)
            cap_bytes = MAX_INT64  # what was recorded had its cap
            if not self._plan.is_in_force and resolved.cap_bytes != MAX_INT64:
                most = (
                    saturate_to_int32(smooth_max_value(resolved.bound)) if is_smooth else resolved.cap_bytes
                )
                cap_bytes = most + FETCH_ANSWER_BYTES
            is_known = are_known and (index, client) not in self._uncertain
            if (
                limit is None
                or limit.bound is not resolved.bound
                or limit.entity is not resolved.entity
                or limit.is_known is not is_known
            ):
                limit = Limit(resolved.bound, resolved.entity, is_known)
            number = self._accounts.number(Account(index, client, resolved.tags), limit)
            found.add(number, sensor, resolved.bound, cap_bytes)
        self._account_of[index, clients] = self._accounts.lead(found, cap_ms=cap_ms)
        self._looked_up[index, clients] = self._versions[index]

    def _resolved(self, index: int, clients: npt.NDArray[np.integer[Any]]) -> Iterator[Resolved]:
        """Yield where each client is counted, by the definitions or as the callback said."""
        users, client_ids = columns_of(self._names, clients)
        if not self._asks_callback:
            yield from self._definitions.resolved(index, users, client_ids, self._windows)
            return
        for client, *names in zip(clients.tolist(), users.to_pylist(), client_ids.to_pylist(), strict=True):
            of_client = QUOTA_TYPES[index].key, *names
            if self._answers.is_certain(*of_client):
                self._uncertain.discard((index, client))
            else:
                self._uncertain.add((index, client))
            yield resolved_answer(self._answers.last_answer(*of_client), *names)

    def state(self) -> State:
        """Return what the kernel works on as it is now; it changes with every row."""
        rate, mutation = self._windows.rate, self._windows.mutation
        self._settings[: len(QUOTA_TYPES)] = [
            self._asks_callback or self._definitions.is_enabled(index) for index in range(len(QUOTA_TYPES))
        ]
        self._settings[QUOTAS_REASON] = self._quotas_reason
        self._settings[DEBT_MAX_S] = self._beyond.debt_max_s
        asks = self._plan.is_in_force or self._definitions.is_enabled(MUTATION)
        self._settings[PERMITS_REASON] = self._reason if asks else EXACT
        self._settings[SAMPLES], self._settings[WINDOW_MS] = rate.samples, rate.window_ms
        self._settings[BUCKET_SAMPLES], self._settings[BUCKET_WINDOW_MS] = (
            mutation.samples,
            mutation.window_ms,
        )
        return State(
            settings=self._settings,
            account_of=self._account_of,
            accounts=self._accounts.accounts,
            bounds=self._accounts.bounds,
            tallies=self._accounts.tallies,
            peaks=self._accounts.peaks,
            rate_floats=self._rates.floats,
            rate_ints=self._rates.ints,
            rate_use=self._rates.use,
            bucket_floats=self._buckets.floats,
            bucket_ints=self._buckets.ints,
            bucket_use=self._buckets.use,
            sweeps=self._timeline.sweeps,
            pending=self._pending,
        )


def _rate_widths(window: QuotaWindow) -> dict[str, int]:
    slots = window.samples + 1
    return {"floats": FLOAT_SLOTS + slots, "ints": INT_SLOTS + 2 * slots}


def _needed(flags: npt.NDArray[np.int16]) -> tuple[npt.NDArray[np.bool_], ...]:
    """Return for each quota type, in the order of `QUOTA_TYPES`, which rows may be charged to it."""
    is_mutation = (flags & KIND_BITS) == MUTATION_ROW
    charge = flags & CHARGE_BITS
    is_timed = ~is_mutation & ((flags & EXEMPT) == 0)
    return charge == PRODUCE_CHARGE, charge == FETCH_CHARGE, is_timed, is_mutation
