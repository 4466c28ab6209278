"""The replay kernel: rows in, tallies out, compiled by numba.

What is decided of a row is `row_decision`; written here is the way through the rows, and what is counted of them.
"""

import sys
from collections.abc import Callable
from typing import Any

from tidegate.pipeline import layout
from tidegate.pipeline.layout import (
    AMOUNT,
    APPROXIMATE,
    APPROXIMATE_DIFFERENT,
    BEFORE_RANGE,
    BYTE_MS,
    BYTE_REASON,
    CAPPED,
    CHARGE_BITS,
    CUT_AMOUNT,
    DELAYED_AMOUNT,
    DIFFERENT,
    EXACT,
    EXEMPT,
    FETCH,
    FETCH_CHARGE,
    FIRST_TS_MS,
    IS_CAPPED,
    IS_REJECTED,
    KIND_BITS,
    LARGEST,
    LONGEST_MS,
    MEASURES,
    MUTATION,
    MUTATION_ROW,
    PRODUCE,
    PRODUCE_CHARGE,
    RATE,
    RECORDED,
    REJECTED,
    REJECTED_PERMITS,
    REQUEST,
    REQUEST_MS,
    REQUEST_REASON,
    REQUEST_ROW,
    REQUESTS,
    SENSOR,
    THROTTLED,
    TOTAL_MS,
    Int16s,
    Int32s,
    Int64s,
    Rows,
    State,
)
from tidegate.pipeline.replay.kernel import certainty, pending, row_decision
from tidegate.pipeline.replay.kernel.certainty import CERTAINTY_KERNEL
from tidegate.pipeline.replay.kernel.compiled import compile_cached, compile_together, compiled, made_once
from tidegate.pipeline.replay.kernel.pending import PENDING_KERNEL
from tidegate.pipeline.replay.kernel.row_decision import (
    INLINED,
    ROW_KERNEL,
    Decided,
    decide_row,
    pass_sweeps,
    was_taken_back,
)
from tidegate.quota.measure import bucket_kernel, rate_kernel, throttle
from tidegate.quota.measure.engine_kernel import compile_kernel
from tidegate.quota.measure.rate_kernel import rate_decide, rate_measure, rate_record
from tidegate.quota.measure.throttle import MAX_INT64

__all__ = ["KERNEL_MODULES", "Kernel", "driver_names", "replay", "replay_kernel", "wanted_kernel"]


Kernel = Callable[[State, Rows, Int32s, int, int], None]
"""`replay` compiled."""


@made_once
def replay_kernel() -> Kernel:
    """Return `replay` compiled."""
    return compile_cached(replay, driver_names(), modules=KERNEL_MODULES)


@made_once
def wanted_kernel() -> Callable[[Int16s, Int32s, Int64s, Int64s, Int64s], tuple[int, int]]:
    """Return `find_wanted` compiled."""
    names = {**globals(), **compile_together((), globals(), inlined=(_want,))}
    return compile_cached(find_wanted, names, modules=KERNEL_MODULES)


@made_once
def driver_names() -> dict[str, Any]:
    """Return what a function sees that goes through the rows: `decide_row` and all else of this module, compiled."""
    engine = vars(compile_kernel(compiled))
    # Later entries win: compiled functions replace the Python functions of the same name.
    names = {
        **vars(certainty),
        **vars(row_decision),
        **globals(),
        **engine,
        **compile_together((), {**vars(rate_kernel), **engine}, inlined=_ENGINE_INLINED),
        **compile_together(PENDING_KERNEL, vars(pending)),
    }
    inlined = (*CERTAINTY_KERNEL, *INLINED, _tally_row)
    return names | compile_together((*ROW_KERNEL, *_TALLY_KERNEL), names, inlined=inlined)


def replay(state: State, rows: Rows, decisions: Int32s, first: int, end: int) -> None:
    """Feed the rows `first` to `end` (not included) to the sensors, in order, and tally what is decided."""
    for at in range(first, end):
        now_ms = rows.ts_ms[at]
        pass_sweeps(state, rows.seq[at])
        decided = decide_row(state, rows, at, now_ms)
        is_fetch = rows.flags[at] & CHARGE_BITS == FETCH_CHARGE
        if rows.flags[at] & BEFORE_RANGE == 0:
            _tally_row(state, rows, at, now_ms, decided, not (is_fetch and was_taken_back(rows, at)))
        if state.settings[MEASURES] and rows.flags[at] & BEFORE_RANGE == 0:
            _measure_row(state, rows, at, now_ms, decided)
        if len(decisions) > 0:
            decisions[at, BYTE_MS] = decided.byte_ms
            decisions[at, REQUEST_MS] = decided.request_ms
            decisions[at, IS_REJECTED] = decided.is_rejected
            decisions[at, IS_CAPPED] = decided.is_capped
            decisions[at, BYTE_REASON] = decided.byte_reason
            decisions[at, REQUEST_REASON] = decided.request_reason


def find_wanted(
    flags: Int16s, client: Int32s, looked_up: Int64s, versions: Int64s, wanted: Int64s
) -> tuple[int, int]:
    """Find the accounts that rows need and that were not looked up under the definitions as they are.

    looked_up: the version of the definitions, by quota type and client; set for what is found. versions: as they are.
    wanted: takes quota type * clients + client of each, in no order; two for each row are enough.
    Returns how many these are, and how many rows ask for permits.
    """
    found = mutations = 0
    for at in range(len(flags)):
        number = client[at]
        charge = flags[at] & CHARGE_BITS
        if charge == PRODUCE_CHARGE:
            found = _want(PRODUCE, number, looked_up, versions, wanted, found)
        elif charge == FETCH_CHARGE:
            found = _want(FETCH, number, looked_up, versions, wanted, found)
        if flags[at] & KIND_BITS == MUTATION_ROW:
            mutations += 1
            found = _want(MUTATION, number, looked_up, versions, wanted, found)
        elif flags[at] & EXEMPT == 0:
            found = _want(REQUEST, number, looked_up, versions, wanted, found)
    return found, mutations


def _want(index: int, client: int, looked_up: Int64s, versions: Int64s, wanted: Int64s, found: int) -> int:
    """Add the account to those that are wanted, unless it is known; return how many there are."""
    if looked_up[index, client] == versions[index]:
        return found
    # Marked at once, so that a client with many rows in the batch is listed once.
    looked_up[index, client] = versions[index]
    wanted[found] = index * looked_up.shape[1] + client
    return found + 1


def _tally_row(state: State, rows: Rows, at: int, now_ms: int, decided: Decided, brings_bytes: bool) -> None:
    """Count what was decided of the row `at` at `now_ms`, next to what was recorded of it.

    brings_bytes: False for an attempt of a fetch that was answered empty. What a client wanted counts once.
    """
    tallies, flags, account = state.tallies, rows.flags[at], decided.account
    if flags & KIND_BITS == MUTATION_ROW:
        was_rejected = flags & REJECTED != 0
        _tally_permits(
            tallies, account, decided.byte_reason, decided.amount, decided.is_rejected, was_rejected
        )
    elif account >= 0:
        recorded_ms = rows.throttle_ms[at]
        _tally(tallies, account, decided.byte_reason, now_ms, decided.amount, decided.byte_ms, recorded_ms)
        if brings_bytes:
            _add(tallies, account, AMOUNT, decided.amount)
        if recorded_ms > 0:
            _tally_throttle(tallies, account, RECORDED, rows.ts_ms[at], rows.amount[at], recorded_ms)
        if decided.is_capped:
            tallies[account, CAPPED] += 1
        if decided.is_capped and brings_bytes:
            _add(tallies, account, CUT_AMOUNT, rows.amount[at] - decided.amount)
    if flags & (MUTATION_ROW | EXEMPT) == 0:
        account, spent_ns = state.account_of[REQUEST, rows.client[at]], rows.network_ns[at]
        if flags & KIND_BITS == REQUEST_ROW:
            spent_ns += rows.handler_ns[at]
            recorded_ms = rows.request_throttle_ms[at]
            reason = decided.request_reason
            _add(tallies, account, AMOUNT, spent_ns)
            _tally(tallies, account, reason, now_ms, spent_ns, decided.request_ms, recorded_ms)
            if recorded_ms > 0:
                _tally_throttle(tallies, account, RECORDED, rows.ts_ms[at], spent_ns, recorded_ms)
        else:
            _add(tallies, account, AMOUNT, spent_ns)


def _measure_row(state: State, rows: Rows, at: int, now_ms: int, decided: Decided) -> None:
    """Keep the largest of the rates that the row `at` was decided by; permits have none."""
    flags = rows.flags[at]
    if flags & KIND_BITS != REQUEST_ROW:
        return
    is_fetch = flags & CHARGE_BITS == FETCH_CHARGE
    is_charged = flags & CHARGE_BITS != 0 and not (is_fetch and was_taken_back(rows, at))
    is_byte_rate = state.settings[PRODUCE if flags & CHARGE_BITS == PRODUCE_CHARGE else FETCH]
    if is_charged and is_byte_rate:
        _measure(state, decided.account, float(rows.amount[at]), now_ms)
    if flags & EXEMPT == 0 and state.settings[REQUEST]:
        account = state.account_of[REQUEST, rows.client[at]]
        _measure(state, account, float(rows.handler_ns[at]), now_ms)


def _measure(state: State, account: int, amount: float, now_ms: int) -> None:
    rate = state.accounts[account, SENSOR]
    measured = rate_measure(state.rate_floats[rate], state.rate_ints[rate], now_ms)
    state.peaks[account, RATE] = max(state.peaks[account, RATE], measured)
    state.peaks[account, LARGEST] = max(state.peaks[account, LARGEST], amount)


def _tally(
    tallies: Int64s,
    account: int,
    reason: int,
    now_ms: int,
    amount: int,
    throttle_ms: int,
    recorded_ms: int,
) -> None:
    """Count one decision of one quota, and whether it is as recorded."""
    tallies[account, REQUESTS] += 1
    if reason != EXACT:
        tallies[account, APPROXIMATE + reason] += 1
    if throttle_ms != recorded_ms:
        tallies[account, DIFFERENT if reason == EXACT else APPROXIMATE_DIFFERENT] += 1
    if throttle_ms > 0:
        _tally_throttle(tallies, account, 0, now_ms, amount, throttle_ms)


def _tally_throttle(
    tallies: Int64s, account: int, offset: int, now_ms: int, amount: int, throttle_ms: int
) -> None:
    """Count one throttled request, as decided (`offset` 0) or as recorded."""
    if tallies[account, offset + THROTTLED] == 0 or now_ms < tallies[account, offset + FIRST_TS_MS]:
        tallies[account, offset + FIRST_TS_MS] = now_ms
    tallies[account, offset + THROTTLED] += 1
    tallies[account, offset + TOTAL_MS] += throttle_ms
    tallies[account, offset + LONGEST_MS] = max(tallies[account, offset + LONGEST_MS], throttle_ms)
    _add(tallies, account, offset + DELAYED_AMOUNT, amount)


def _tally_permits(
    tallies: Int64s, account: int, reason: int, permits: int, is_rejected: bool, was_rejected: bool
) -> None:
    """Count the permits that one topic asked for."""
    _add(tallies, account, AMOUNT, permits)
    if is_rejected != was_rejected:
        tallies[account, DIFFERENT if reason == EXACT else APPROXIMATE_DIFFERENT] += 1
    if is_rejected:
        _add(tallies, account, REJECTED_PERMITS, permits)
    if was_rejected:
        _add(tallies, account, RECORDED + REJECTED_PERMITS, permits)


def _add(tallies: Int64s, account: int, column: int, amount: int) -> None:
    """Add to a sum; a sum that would not fit into 64 bits stays at the largest number."""
    before = tallies[account, column]
    tallies[account, column] = MAX_INT64 if before > MAX_INT64 - amount else before + amount


_ENGINE_INLINED = (rate_record, rate_decide)  # handing on the views of a sensor costs more than what they do
_TALLY_KERNEL = (_add, _tally_throttle, _tally, _tally_permits, _measure, _measure_row)
KERNEL_MODULES = (
    throttle,
    rate_kernel,
    bucket_kernel,
    pending,
    layout,
    certainty,
    row_decision,
    sys.modules[__name__],
)
