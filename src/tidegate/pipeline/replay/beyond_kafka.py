"""The kernel's decisions with features beyond Kafka: smooth mode, bounds on debt, observed clients.

These are separate kernels: the same `replay` of open loop and `run` of closed loop, compiled with another decision of
a row. A replay without these features therefore runs code that knows nothing of them.

A sensor has a place among the rates and, in the same row of `State.smooth_floats`, a bucket. As in the engine, a sensor
whose mode has changed is replaced on its next use (`tidegate.quota.managers.client_quota`).
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from tidegate.pipeline.layout import (
    BURST_S,
    CAP_BYTES,
    CAPPED_FETCH,
    CHARGE_BITS,
    CHECKS_FIRST,
    DEBT_MAX_S,
    EXACT,
    EXEMPT,
    FETCH,
    FETCH_CHARGE,
    HELD,
    IS_OBSERVED,
    KIND_BITS,
    LAST_MS,
    MODE_DEBT_S,
    MUTATION,
    MUTATION_ROW,
    OBSERVED,
    OBSERVES,
    PERMITS_REASON,
    PRODUCE,
    PRODUCE_CHARGE,
    QUOTAS_REASON,
    READY,
    REASON,
    REQUEST,
    REQUEST_ROW,
    SENSOR,
    STRICT,
    SWEEP,
    WANTED,
    Rows,
)
from tidegate.pipeline.replay.certainty import (
    begin_unknown,
    bucket_reason,
    follow_bucket,
    follow_rate,
    forget_swept,
    lose_bytes,
    note_record,
)
from tidegate.pipeline.replay.closed_loop_kernel import CLOSED_LOOP_MODULES, ClosedLoop, loop_names, run
from tidegate.pipeline.replay.compiled import compile_cached, compile_together
from tidegate.pipeline.replay.kernel import KERNEL_MODULES, Kernel, driver_names, replay
from tidegate.pipeline.replay.pending import pending_put, pending_take
from tidegate.pipeline.replay.row_decision import Decided, is_forgotten, ready_bucket, ready_rate
from tidegate.quota.managers.request import PERCENT_PER_NS
from tidegate.quota.measure.bucket_kernel import (
    BUCKET_FLOATS,
    bucket_configure,
    bucket_forgive,
    bucket_record,
    bucket_throttle_ms,
    bucket_tokens,
)
from tidegate.quota.measure.rate_kernel import rate_decide, rate_record
from tidegate.quota.measure.smooth import BURST_WINDOW_MS
from tidegate.quota.measure.throttle import MAX_INT32, UNLIMITED, narrow_to_int32, tokens_throttle_ms

__all__ = ["SMOOTH_FLOATS", "replay_kernel_beyond_kafka", "run_kernel_beyond_kafka"]

MOST_ATTEMPTS = 1000
"""So often a fetch is tried in closed loop: a part of it is a tenth of a quota, and every other one brings nothing."""

FORGIVEN = BUCKET_FLOATS
"""Column of `State.smooth_floats` beside those of a bucket: what was forgiven of the last charge."""
SMOOTH_FLOATS = BUCKET_FLOATS + 1


@functools.cache
def replay_kernel_beyond_kafka() -> Kernel:
    """Return `replay` compiled so that it knows all that goes beyond Kafka."""
    return compile_cached(replay, driver_names() | _decision(), modules=REPLAY_MODULES)


@functools.cache
def run_kernel_beyond_kafka() -> Callable[[Any, ClosedLoop, int, int], bool]:
    """Return `run` of the closed loop compiled so."""
    names = loop_names(MOST_ATTEMPTS=MOST_ATTEMPTS) | _decision()
    return compile_cached(run, names, modules=RUN_MODULES)


@functools.cache
def _decision() -> dict[str, Any]:
    """Return what decides a row in place of `row_decision.decide_row`, by its name."""
    names = {**globals(), **driver_names()}
    return {"decide_row": compile_together(_KERNEL, names)["_decide_row"]}


def _decide_row(state: Any, rows: Rows, at: int, now_ms: int) -> Decided:
    """Decide a row as `row_decision.decide_row` does, in the same order."""
    settings, flags, client = state.settings, rows.flags[at], rows.client[at]
    account = -1
    byte_ms = request_ms = amount = 0
    is_rejected = is_capped = False
    byte_reason = request_reason = settings[QUOTAS_REASON]

    if flags & KIND_BITS == MUTATION_ROW:
        account, amount = state.account_of[MUTATION, client], rows.amount[at]
        if settings[MUTATION]:
            is_rejected = _take_permits(state, account, rows.connection_id[at], flags, amount, now_ms)
            if byte_reason == EXACT:
                byte_reason = bucket_reason(state, account)
        elif byte_reason != EXACT:
            pending_put(state.pending, rows.connection_id[at], 0, now_ms, account, byte_reason)
    elif flags & CHARGE_BITS == PRODUCE_CHARGE:
        account, amount = state.account_of[PRODUCE, client], rows.amount[at]
        if settings[PRODUCE]:
            byte_ms, reason = _decide_bytes(state, account, amount, amount, now_ms)
            byte_reason = reason if byte_reason == EXACT else byte_reason
    elif flags & (KIND_BITS | CHARGE_BITS) == REQUEST_ROW:
        last_ms, at_ms, account, reason = pending_take(state.pending, rows.connection_id[at])
        if last_ms != 0:
            byte_ms = max(0, narrow_to_int32(last_ms - (now_ms - at_ms)))
        if byte_reason == EXACT:
            if account >= 0:
                byte_reason = reason
            elif flags & STRICT != 0:
                byte_reason = settings[PERMITS_REASON]

    if flags & (MUTATION_ROW | EXEMPT) == 0 and settings[REQUEST]:
        time_account = state.account_of[REQUEST, client]
        rate = ready_rate(state, time_account, now_ms)
        floats, ints = state.rate_floats[rate], state.rate_ints[rate]
        rate_record(floats, ints, rows.network_ns[at] * PERCENT_PER_NS, now_ms)
        is_request = flags & KIND_BITS == REQUEST_ROW
        if is_request:
            request_ms = rate_decide(floats, ints, rows.handler_ns[at] * PERCENT_PER_NS, now_ms)
        if state.rate_use[rate, REASON] != EXACT and is_request:
            spent_ns = rows.network_ns[at] + rows.handler_ns[at]
            reason = follow_rate(state, time_account, rate, spent_ns, True, now_ms)
            request_reason = reason if request_reason == EXACT else request_reason
        elif state.rate_use[rate, REASON] != EXACT:
            note_record(state, rate, rows.network_ns[at], now_ms)

    is_observed = _is_observed(state, flags) and flags & KIND_BITS != MUTATION_ROW
    if flags & CHARGE_BITS == FETCH_CHARGE:
        account, most = state.account_of[FETCH, client], rows.amount[at]
        is_capped = most > state.accounts[account, CAP_BYTES]
        amount = min(most, state.accounts[account, CAP_BYTES])
        if settings[FETCH]:
            byte_ms, reason = _decide_bytes(state, account, amount, most, now_ms)
            byte_reason = reason if byte_reason == EXACT else byte_reason
        if (byte_ms > 0 or request_ms > 0) and not is_observed:  # one who is observed was sent them
            _take_back(state, account, amount, most, now_ms)
        if is_capped and byte_reason == EXACT:
            byte_reason = CAPPED_FETCH
        if byte_reason != EXACT or request_reason != EXACT:
            lose_bytes(state, account, max(byte_reason, request_reason), now_ms)

    if is_observed and (byte_ms > 0 or request_ms > 0):  # nothing was done of it
        byte_ms = request_ms = 0
    return Decided(byte_ms, request_ms, is_rejected, is_capped, account, amount, byte_reason, request_reason)


def _is_observed(state: Any, flags: int) -> bool:
    """Return whether a row is of a client that was observed, under the quotas that it was observed under."""
    return state.settings[OBSERVES] != 0 and flags & OBSERVED != 0


def _decide_bytes(state: Any, account: int, amount: int, most: int, now_ms: int) -> tuple[int, int]:
    """Charge bytes to the account's bucket, or to its rate where it is in no smooth mode.

    most: what it might have been charged. Return the throttle time, and why it is not exact.
    """
    rate = _fitting(state, account, now_ms)
    use, reason = state.rate_use[rate], EXACT
    if state.modes[rate, HELD] == 0:
        byte_ms = rate_decide(state.rate_floats[rate], state.rate_ints[rate], float(amount), now_ms)
        if use[REASON] != EXACT:
            reason = follow_rate(state, account, rate, most, False, now_ms)
        return byte_ms, reason
    byte_ms = _decide_smooth(state, rate, amount, now_ms)
    if state.bounds[account] == UNLIMITED:
        byte_ms = 0
    if use[REASON] != EXACT:
        follow_bucket(use, now_ms)
        if state.bounds[account] != UNLIMITED:
            reason = use[REASON]
    return byte_ms, reason


def _decide_smooth(state: Any, rate: int, amount: int, now_ms: int) -> int:
    """Charge a bucket. Follows: `tidegate.quota.measure.smooth.SmoothSensor.decide`."""
    floats, ints, mode = state.smooth_floats[rate], state.smooth_ints[rate], state.modes[rate]
    before_ms = bucket_throttle_ms(floats, ints, now_ms)
    bucket_record(floats, ints, float(amount), now_ms)
    forgiven = 0.0
    if mode[MODE_DEBT_S] > 0:
        forgiven = bucket_forgive(floats, ints, mode[MODE_DEBT_S], now_ms)
    throttle_ms = before_ms if mode[CHECKS_FIRST] else bucket_throttle_ms(floats, ints, now_ms)
    if mode[IS_OBSERVED]:
        forgiven += bucket_forgive(floats, ints, 0, now_ms)
    floats[FORGIVEN] = forgiven
    return min(throttle_ms, MAX_INT32)


def _take_back(state: Any, account: int, amount: int, most: int, now_ms: int) -> None:
    """Subtract the bytes of a fetch that is answered empty, whether or not they were charged (B§6.3).

    Follows: `tidegate.quota.measure.smooth.SmoothSensor.record`.
    """
    rate = _fitting(state, account, now_ms)
    is_followed = not state.settings[FETCH] and state.rate_use[rate, REASON] != EXACT
    if state.modes[rate, HELD] == 0:
        if is_followed:
            follow_rate(state, account, rate, most, False, now_ms)
        rate_record(state.rate_floats[rate], state.rate_ints[rate], -float(amount), now_ms)
        return
    floats, value = state.smooth_floats[rate], -float(amount)
    if value < 0.0:
        value += floats[FORGIVEN]
        if value > 0.0:
            value = 0.0
    bucket_record(floats, state.smooth_ints[rate], value, now_ms)
    floats[FORGIVEN] = 0.0
    if is_followed:
        follow_bucket(state.rate_use[rate], now_ms)


def _take_permits(
    state: Any, account: int, connection_id: int, flags: int, permits: int, now_ms: int
) -> bool:
    """Charge permits as `row_decision` does, and return whether they are refused.

    A debt may have a bound, and the permits of an observed client are not refused.
    """
    bucket = ready_bucket(state, account)
    floats, ints, use = state.bucket_floats[bucket], state.bucket_ints[bucket], state.bucket_use[bucket]
    last_ms, at_ms, _, reason = pending_take(state.pending, connection_id)
    if use[REASON] != EXACT:
        follow_bucket(use, now_ms)
    is_strict = flags & STRICT != 0 and not _is_observed(state, flags)
    is_rejected = is_strict and bucket_tokens(floats, ints, now_ms) < 0.0
    if not is_rejected:
        bucket_record(floats, ints, float(permits), now_ms)
        if state.settings[DEBT_MAX_S] > 0:
            bucket_forgive(floats, ints, state.settings[DEBT_MAX_S], now_ms)
        use[LAST_MS] = now_ms
    tokens = bucket_tokens(floats, ints, now_ms)
    if tokens < 0.0 and (is_rejected or not is_strict):
        last_ms, at_ms = tokens_throttle_ms(tokens, state.bounds[account]), now_ms
        reason = EXACT
    if reason == EXACT:
        reason = bucket_reason(state, account)
    pending_put(state.pending, connection_id, last_ms, at_ms, account, reason)
    return is_rejected


def _fitting(state: Any, account: int, now_ms: int) -> int:
    """Return the account's sensor, in the mode that it is to be in, ready for a record at `now_ms`."""
    rate: int = state.accounts[account, SENSOR]
    mode, use = state.modes[rate], state.rate_use[rate]
    is_other = mode[HELD] != mode[WANTED]
    is_swept = use[READY] != state.settings[SWEEP] and is_forgotten(
        state.settings, state.rate_use, state.sweeps, rate
    )
    if (
        is_swept and use[REASON] != EXACT
    ):  # before its mode is another, which makes what is not known begin now
        forget_swept(state.settings, use, state.sweeps)
    if is_other:
        mode[HELD] = mode[WANTED]
        state.rate_floats[rate, :] = 0.0
        state.rate_ints[rate, :] = 0
        if use[REASON] != EXACT:
            begin_unknown(use, now_ms)
    if is_other or is_swept:
        state.smooth_floats[rate, :] = 0.0
        state.smooth_ints[rate, :] = 0
    if is_other:
        use[READY] = -1
    ready_rate(state, account, now_ms)
    bucket_configure(
        state.smooth_floats[rate],
        state.smooth_ints[rate],
        state.bounds[account],
        mode[BURST_S],
        BURST_WINDOW_MS,
    )
    return rate


REPLAY_MODULES = (*KERNEL_MODULES, sys.modules[__name__])
"""The modules that go into `replay` here."""
RUN_MODULES = (*CLOSED_LOOP_MODULES, sys.modules[__name__])
"""Those that go into `run`."""

_KERNEL = (_is_observed, _fitting, _decide_smooth, _decide_bytes, _take_back, _take_permits, _decide_row)
