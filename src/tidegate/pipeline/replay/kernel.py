"""The replay kernel: what the live engine does with a request, row by row, compiled by numba.

Rates and token buckets are the engine's own functions (`quota.measure.engine_kernel`), compiled. What is written
here is the order in which a broker asks them (B§5.2, 6.2-6.4), the forgetting of idle sensors, and the tallies.

The functions take their arguments by position and touch nothing but numbers and arrays. Those with a single caller
are inlined: handing all arrays of a `State` on costs more than what is done with them.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from tidegate.pipeline import layout
from tidegate.pipeline.layout import (
    AMOUNT,
    BUCKET_SAMPLES,
    BUCKET_WINDOW_MS,
    BYTE_MS,
    CAP_BYTES,
    CAP_MS,
    CAPPED,
    CHARGE_BITS,
    DELAYED_AMOUNT,
    DIFFERENT,
    EXEMPT,
    FETCH,
    FETCH_CHARGE,
    FIRST_TS_MS,
    IS_CAPPED,
    IS_COUNTED,
    IS_REJECTED,
    KIND_BITS,
    LAST_MS,
    LONGEST_MS,
    MUTATION,
    MUTATION_ROW,
    PRODUCE,
    PRODUCE_CHARGE,
    READY,
    RECORDED,
    REJECTED,
    REJECTED_PERMITS,
    REQUEST,
    REQUEST_MS,
    REQUEST_ROW,
    REQUESTS,
    SAMPLES,
    SENSOR,
    STRICT,
    SWEEP,
    SWEPT,
    THROTTLED,
    TOTAL_MS,
    WARM_AT_MS,
    WARMING_UP,
    WINDOW_MS,
    Floats,
    Int32s,
    Int64s,
    Rows,
    State,
)
from tidegate.pipeline.replay import pending
from tidegate.pipeline.replay.compiled import compile_cached, compile_together, compiled
from tidegate.pipeline.replay.pending import PENDING_KERNEL, pending_put, pending_take
from tidegate.quota.managers.request import PERCENT_PER_NS
from tidegate.quota.measure import bucket_kernel, rate_kernel, throttle
from tidegate.quota.measure.bucket_kernel import bucket_configure, bucket_record, bucket_tokens
from tidegate.quota.measure.engine_kernel import compile_kernel
from tidegate.quota.measure.rate_kernel import rate_configure, rate_decide, rate_record
from tidegate.quota.measure.sensors import EXPIRY_MS
from tidegate.quota.measure.throttle import MAX_INT64, narrow_to_int32, tokens_throttle_ms

__all__ = ["KERNEL_MODULES", "replay_kernel"]


@functools.cache
def replay_kernel() -> Callable[[State, Rows, Int32s, int, int], None]:
    """Return `replay` compiled."""
    names = {
        **globals(),
        **vars(compile_kernel(compiled)),
        **compile_together(PENDING_KERNEL, vars(pending)),
    }
    names |= compile_together(_KERNEL, names)
    return compile_cached(replay, names, modules=KERNEL_MODULES)


def replay(state: State, rows: Rows, decisions: Int32s, first: int, end: int) -> None:
    """Feed the rows `first` to `end` (not included) to the sensors, in order, and tally what is decided.

    Follows: B§6.2 (produce), B§6.3 (fetch), B§5.2, 5.4 (mutations), B§6.4 (others), B§4.2 (network time).
    """
    settings, account_of, accounts, bounds, tallies = state[:5]
    floats, ints, use, bucket_floats, bucket_ints, bucket_use, sweeps, pending_table = state[5:]
    seq, ts_ms, amounts, handler_ns, network_ns, connection_id = rows[:6]
    client, recorded_ms, recorded_request_ms, what = rows[6:]
    warm_at_ms = settings[WARM_AT_MS]
    for at in range(first, end):
        now_ms = ts_ms[at]
        amount = amounts[at]
        flags = what[at]
        charge = flags & CHARGE_BITS
        is_counted = now_ms >= warm_at_ms
        byte_ms = request_ms = 0
        is_capped = is_rejected = False
        _pass_sweeps(settings, sweeps, seq[at])

        if flags & KIND_BITS == MUTATION_ROW:
            account = account_of[MUTATION, client[at]]
            if settings[MUTATION]:
                bucket = accounts[account, SENSOR]
                if bucket_use[bucket, READY] != settings[SWEEP]:
                    _prepare_bucket(
                        settings, bounds, bucket_floats, bucket_ints, bucket_use, sweeps, account, bucket
                    )
                last_ms, at_ms, _ = pending_take(pending_table, connection_id[at])
                tokens, is_rejected = _take_permits(
                    bucket_floats[bucket], bucket_ints[bucket], flags & STRICT != 0, amount, now_ms
                )
                if not is_rejected:
                    bucket_use[bucket, LAST_MS] = now_ms
                if tokens < 0.0:
                    last_ms, at_ms = tokens_throttle_ms(tokens, bounds[account]), now_ms
                pending_put(pending_table, connection_id[at], last_ms, at_ms, account)
            if is_counted:
                _tally_permits(tallies, account, amount, is_rejected, flags & REJECTED != 0)

        if charge == PRODUCE_CHARGE:
            account = account_of[PRODUCE, client[at]]
            if settings[PRODUCE]:
                rate = accounts[account, SENSOR]
                if use[rate, READY] != settings[SWEEP]:
                    _prepare_rate(settings, accounts, bounds, floats, ints, use, sweeps, account, rate)
                use[rate, LAST_MS] = now_ms
                byte_ms = rate_decide(floats[rate], ints[rate], float(amount), now_ms)
            _tally(tallies, account, is_counted, now_ms, amount, byte_ms, recorded_ms[at])
        elif flags & (KIND_BITS | CHARGE_BITS) == REQUEST_ROW:
            last_ms, at_ms, account = pending_take(pending_table, connection_id[at])
            if account >= 0:
                if last_ms != 0:
                    byte_ms = max(0, narrow_to_int32(last_ms - (now_ms - at_ms)))
                _tally(tallies, account, is_counted, now_ms, 0, byte_ms, recorded_ms[at])

        if flags & (MUTATION_ROW | EXEMPT) == 0:
            account = account_of[REQUEST, client[at]]
            is_request = flags & KIND_BITS == REQUEST_ROW
            if settings[REQUEST]:
                rate = accounts[account, SENSOR]
                if use[rate, READY] != settings[SWEEP]:
                    _prepare_rate(settings, accounts, bounds, floats, ints, use, sweeps, account, rate)
                use[rate, LAST_MS] = now_ms
                rate_floats, rate_ints = floats[rate], ints[rate]
                rate_record(rate_floats, rate_ints, network_ns[at] * PERCENT_PER_NS, now_ms)
                if is_request:
                    request_ms = rate_decide(rate_floats, rate_ints, handler_ns[at] * PERCENT_PER_NS, now_ms)
            if is_request:
                spent_ns = handler_ns[at] + network_ns[at]
                _tally(tallies, account, is_counted, now_ms, spent_ns, request_ms, recorded_request_ms[at])
            elif is_counted:
                _add(tallies, account, AMOUNT, network_ns[at])

        if charge == FETCH_CHARGE:
            account = account_of[FETCH, client[at]]
            is_capped = amount > accounts[account, CAP_BYTES]
            amount = min(amount, accounts[account, CAP_BYTES])
            if settings[FETCH] or request_ms > 0:
                rate = accounts[account, SENSOR]
                if use[rate, READY] != settings[SWEEP]:
                    _prepare_rate(settings, accounts, bounds, floats, ints, use, sweeps, account, rate)
                use[rate, LAST_MS] = now_ms
                rate_floats, rate_ints = floats[rate], ints[rate]
                if settings[FETCH]:
                    byte_ms = rate_decide(rate_floats, rate_ints, float(amount), now_ms)
                if byte_ms > 0 or request_ms > 0:
                    rate_record(rate_floats, rate_ints, -float(amount), now_ms)
            _tally(tallies, account, is_counted, now_ms, amount, byte_ms, recorded_ms[at])
            if is_capped and is_counted:
                tallies[account, CAPPED] += 1

        if len(decisions) > 0:
            decisions[at, BYTE_MS] = byte_ms
            decisions[at, REQUEST_MS] = request_ms
            decisions[at, IS_REJECTED] = is_rejected
            decisions[at, IS_CAPPED] = is_capped
            decisions[at, IS_COUNTED] = is_counted


def _pass_sweeps(settings: Int64s, sweeps: Int64s, seq: int) -> None:
    """Count the sweeps of idle sensors that came before `seq`."""
    sweep = settings[SWEEP]
    while sweep < len(sweeps) and sweeps[sweep, 0] < seq:
        sweep += 1
    settings[SWEEP] = sweep


def _take_permits(floats: Any, ints: Any, is_strict: bool, permits: int, now_ms: int) -> tuple[float, bool]:
    """Take permits from the bucket; return the tokens that the throttle is reckoned from, and whether it refused."""
    if is_strict:
        tokens = bucket_tokens(floats, ints, now_ms)
        if tokens < 0.0:
            return tokens, True
        bucket_record(floats, ints, float(permits), now_ms)
        return tokens, False
    bucket_record(floats, ints, float(permits), now_ms)
    return bucket_tokens(floats, ints, now_ms), False


# --- sensors ----------------------------------------------------------------------------------------------------------


def _prepare_rate(
    settings: Int64s, accounts: Int64s, bounds: Floats, floats: Floats, ints: Int64s, use: Int64s, sweeps: Int64s,
    account: int, rate: int,
) -> None:  # fmt: skip
    """Make the account's rate ready: forgotten if a sweep found it idle, configured, and marked with the sweep."""
    if _is_new(settings, use, sweeps, rate):
        floats[rate, :] = 0.0
        ints[rate, :] = 0
    cap_ms = accounts[account, CAP_MS]
    rate_configure(floats[rate], ints[rate], bounds[account], settings[SAMPLES], settings[WINDOW_MS], cap_ms)
    use[rate, READY] = settings[SWEEP]
    use[rate, SWEPT] = settings[SWEEP]


def _prepare_bucket(
    settings: Int64s, bounds: Floats, floats: Floats, ints: Int64s, use: Int64s, sweeps: Int64s,
    account: int, bucket: int,
) -> None:  # fmt: skip
    """Make the account's bucket ready, likewise."""
    if _is_new(settings, use, sweeps, bucket):
        floats[bucket, :] = 0.0
        ints[bucket, :] = 0
    samples, window_ms = settings[BUCKET_SAMPLES], settings[BUCKET_WINDOW_MS]
    bucket_configure(floats[bucket], ints[bucket], bounds[account], samples, window_ms)
    use[bucket, READY] = settings[SWEEP]
    use[bucket, SWEPT] = settings[SWEEP]


def _is_new(settings: Int64s, use: Int64s, sweeps: Int64s, sensor: int) -> bool:
    """Return whether a sweep since its last use found the sensor idle. Follows: B§1.2 (expiry)."""
    for sweep in range(use[sensor, SWEPT], settings[SWEEP]):
        if sweeps[sweep, 1] - use[sensor, LAST_MS] > EXPIRY_MS:
            return True
    return False


# --- tallies ----------------------------------------------------------------------------------------------------------


def _tally(
    tallies: Int64s,
    account: int,
    is_counted: bool,
    now_ms: int,
    amount: int,
    throttle_ms: int,
    recorded_ms: int,
) -> None:
    """Count one decision of one quota, next to what was recorded of it."""
    if not is_counted:
        tallies[account, WARMING_UP] += 1
        return
    tallies[account, REQUESTS] += 1
    _add(tallies, account, AMOUNT, amount)
    if throttle_ms != recorded_ms:
        tallies[account, DIFFERENT] += 1
    if throttle_ms > 0:
        _tally_throttle(tallies, account, 0, now_ms, amount, throttle_ms)
    if recorded_ms > 0:
        _tally_throttle(tallies, account, RECORDED, now_ms, amount, recorded_ms)


def _tally_throttle(
    tallies: Int64s, account: int, offset: int, now_ms: int, amount: int, throttle_ms: int
) -> None:
    """Count one throttled request, as decided (`offset` 0) or as recorded."""
    if tallies[account, offset + THROTTLED] == 0:
        tallies[account, offset + FIRST_TS_MS] = now_ms
    tallies[account, offset + THROTTLED] += 1
    tallies[account, offset + TOTAL_MS] += throttle_ms
    tallies[account, offset + LONGEST_MS] = max(tallies[account, offset + LONGEST_MS], throttle_ms)
    _add(tallies, account, offset + DELAYED_AMOUNT, amount)


def _tally_permits(
    tallies: Int64s, account: int, permits: int, is_rejected: bool, was_rejected: bool
) -> None:
    """Count the permits that one topic asked for."""
    _add(tallies, account, AMOUNT, permits)
    if is_rejected != was_rejected:
        tallies[account, DIFFERENT] += 1
    if is_rejected:
        _add(tallies, account, REJECTED_PERMITS, permits)
    if was_rejected:
        _add(tallies, account, RECORDED + REJECTED_PERMITS, permits)


def _add(tallies: Int64s, account: int, column: int, amount: int) -> None:
    """Add to a sum; a sum that would not fit into 64 bits stays at the largest number."""
    before = tallies[account, column]
    tallies[account, column] = MAX_INT64 if before > MAX_INT64 - amount else before + amount


_KERNEL = (
    _pass_sweeps,
    _take_permits,
    _is_new,
    _prepare_rate,
    _prepare_bucket,
    _add,
    _tally_throttle,
    _tally,
    _tally_permits,
)
KERNEL_MODULES = (throttle, rate_kernel, bucket_kernel, pending, layout, sys.modules[__name__])
