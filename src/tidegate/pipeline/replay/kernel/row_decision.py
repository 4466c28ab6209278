"""The decision of one row: what a broker charges, and what it decides, when the request comes at `now_ms`.

The order in which it charges is that of `tidegate.server.requests.decision`; a property test holds the two together
(decision 0042). Rates and token buckets are the engine's own functions (`tidegate.quota.measure.engine_kernel`).

`decide_row` reads its row and the sensors of its state, and no other row. A caller may decide a row at another time
than the recorded one, and against several states. All functions are written for numba: arguments by position, nothing
but numbers and arrays, no array made. Functions in `INLINED` are inlined into their callers: passing a `State` costs
more than what they do.

The functions in `EXCHANGED` follow Kafka's own rules. `beyond_kafka` compiles `decide_row` and `take_permits` again
with other functions of these names, so a replay without extensions runs no code of them (decision 0080).
"""

from typing import NamedTuple

from tidegate.pipeline.layout import (
    BUCKET_SAMPLES,
    BUCKET_WINDOW_MS,
    CAP_BYTES,
    CAP_MS,
    CAPPED_FETCH,
    CHARGE_BITS,
    CLUSTER_WIDE,
    EXACT,
    EXEMPT,
    FETCH,
    FETCH_CHARGE,
    FINDS_LIMITS,
    IS_CLUSTER_WIDE,
    KIND_BITS,
    LAST_MS,
    MUTATION,
    MUTATION_ROW,
    PERMITS_REASON,
    PRODUCE,
    PRODUCE_CHARGE,
    QUOTAS_REASON,
    READY,
    REASON,
    REQUEST,
    REQUEST_ROW,
    SAMPLES,
    SENSOR,
    STRICT,
    SWEEP,
    SWEPT,
    WINDOW_MS,
    Int64s,
    Rows,
    State,
)
from tidegate.pipeline.replay.kernel.certainty import (
    bucket_reason,
    follow_bucket,
    follow_rate,
    forget_swept,
    lose_bytes,
    note_record,
)
from tidegate.pipeline.replay.kernel.pending import pending_put, pending_take
from tidegate.quota.managers.request import PERCENT_PER_NS
from tidegate.quota.measure.bucket_kernel import bucket_configure, bucket_record, bucket_tokens
from tidegate.quota.measure.rate_kernel import rate_configure, rate_decide, rate_record
from tidegate.quota.measure.sensors import EXPIRY_MS
from tidegate.quota.measure.throttle import narrow_to_int32, tokens_throttle_ms

__all__ = [
    "EXCHANGED",
    "INLINED",
    "ROW_KERNEL",
    "Decided",
    "decide_row",
    "note_swept",
    "pass_sweeps",
    "ready_rate",
    "take_permits",
    "was_taken_back",
]


class Decided(NamedTuple):
    """The decision of one row, and what the row is charged."""

    byte_ms: int
    """Throttle time of the byte quota, or of the mutation quota where no bytes are charged."""
    request_ms: int
    """Throttle time of the request quota."""
    is_rejected: bool
    """The permits are refused."""
    is_capped: bool
    """The fetch asked for more than its quota lets it have at once."""
    account: int
    """The account of that byte or mutation quota; -1: it has no part in this row."""
    amount: int
    """The bytes or permits that it is charged, or refuses."""
    byte_reason: int
    """Reason why the decision of the byte or mutation quota is not exact, or `EXACT`."""
    request_reason: int
    """The same for the request quota."""


def decide_row(state: State, rows: Rows, at: int, now_ms: int) -> Decided:
    """Charge the row `at` as if it came at `now_ms`, and return what is decided.

    Call `pass_sweeps` before. Follows: B§6.2 (produce), B§6.3 (fetch), B§5.2, 5.4 (mutations), B§6.4 (others),
    B§4.2 (network time).
    """
    settings, flags, client = state.settings, rows.flags[at], rows.client[at]
    account = -1
    byte_ms = request_ms = amount = 0
    is_rejected = is_capped = False
    byte_reason = request_reason = settings[QUOTAS_REASON]

    if flags & KIND_BITS == MUTATION_ROW:
        account, amount = state.account_of[MUTATION, client], rows.amount[at]
        if settings[MUTATION]:
            is_rejected = take_permits(state, account, rows.connection_id[at], flags, amount, now_ms)
            if byte_reason == EXACT:
                byte_reason = bucket_reason(state, account)
        elif byte_reason != EXACT:  # there may have been a quota, whose throttle the request is told
            pending_put(state.pending, rows.connection_id[at], 0, now_ms, account, byte_reason)
    elif flags & CHARGE_BITS == PRODUCE_CHARGE:
        account, amount = state.account_of[PRODUCE, client], rows.amount[at]
        if settings[PRODUCE]:
            byte_ms, reason = decide_bytes(state, account, amount, amount, now_ms)
            byte_reason = reason if byte_reason == EXACT else byte_reason
            byte_reason = cluster_reason(state, account, byte_reason)
    elif flags & (KIND_BITS | CHARGE_BITS) == REQUEST_ROW:
        last_ms, at_ms, account, reason = pending_take(state.pending, rows.connection_id[at])
        if last_ms != 0:
            byte_ms = max(0, narrow_to_int32(last_ms - (now_ms - at_ms)))
        if byte_reason == EXACT:
            if account >= 0:
                byte_reason = reason
            elif flags & STRICT != 0:
                byte_reason = settings[PERMITS_REASON]

    # Request time is charged after the bytes of a produce and before those of a fetch, as in Kafka (B§6.2, B§6.3).
    if flags & (MUTATION_ROW | EXEMPT) == 0 and settings[REQUEST]:
        time_account = state.account_of[REQUEST, client]
        rate = ready_rate(state, time_account, now_ms)
        floats, ints = state.rate_floats[rate], state.rate_ints[rate]
        # Network time is charged first and decides nothing (B§4.2). It includes sending the answer before this request
        # (decision 0040).
        rate_record(floats, ints, rows.network_ns[at] * PERCENT_PER_NS, now_ms)
        if flags & KIND_BITS == REQUEST_ROW:
            request_ms = rate_decide(floats, ints, rows.handler_ns[at] * PERCENT_PER_NS, now_ms)
        if state.rate_use[rate, REASON] != EXACT:
            if flags & KIND_BITS == REQUEST_ROW:
                spent_ns = rows.network_ns[at] + rows.handler_ns[at]
                reason = follow_rate(state, time_account, rate, spent_ns, True, now_ms)
                request_reason = reason if request_reason == EXACT else request_reason
            else:
                note_record(state, rate, rows.network_ns[at], now_ms)
        if flags & KIND_BITS == REQUEST_ROW:
            request_reason = cluster_reason(state, time_account, request_reason)

    # In a search for limits, a fetch that was answered empty and its retry want the same bytes. Only the retry counts.
    if flags & CHARGE_BITS == FETCH_CHARGE and settings[FINDS_LIMITS] and was_taken_back(rows, at):
        account = state.account_of[FETCH, client]
    elif flags & CHARGE_BITS == FETCH_CHARGE:
        account, most = state.account_of[FETCH, client], rows.amount[at]
        # The quota would have cut a larger fetch before reading (B§3.7, B§6.3.1).
        is_capped = most > state.accounts[account, CAP_BYTES]
        amount = min(most, state.accounts[account, CAP_BYTES])
        if settings[FETCH]:
            byte_ms, reason = decide_bytes(state, account, amount, most, now_ms)
            byte_reason = reason if byte_reason == EXACT else byte_reason
            byte_reason = cluster_reason(state, account, byte_reason)
        if (byte_ms > 0 or request_ms > 0) and not is_observed(state, flags):
            take_back(state, account, amount, most, now_ms)
        if is_capped and byte_reason == EXACT:
            byte_reason = CAPPED_FETCH
        if byte_reason != EXACT or request_reason != EXACT:
            lose_bytes(state, account, max(byte_reason, request_reason), now_ms)

    if is_observed(state, flags) and (byte_ms > 0 or request_ms > 0):
        byte_ms = request_ms = 0
    return Decided(byte_ms, request_ms, is_rejected, is_capped, account, amount, byte_reason, request_reason)


def cluster_reason(state: State, account: int, reason: int) -> int:
    """Return why a decision is not exact: for `reason`, or because usage that is not in the record shares the limit."""
    if reason == EXACT and state.accounts[account, IS_CLUSTER_WIDE] != 0:
        return CLUSTER_WIDE
    return reason


def take_permits(
    state: State, account: int, connection_id: int, flags: int, permits: int, now_ms: int
) -> bool:
    """Charge permits, store with the connection how long they throttle, and return whether they are refused."""
    bucket: int = state.accounts[account, SENSOR]
    if state.bucket_use[bucket, READY] != state.settings[SWEEP]:
        _prepare_bucket(state, account, bucket)
    floats, ints, use = state.bucket_floats[bucket], state.bucket_ints[bucket], state.bucket_use[bucket]
    last_ms, at_ms, _, reason = pending_take(state.pending, connection_id)
    if use[REASON] != EXACT:
        follow_bucket(use, now_ms)
    is_strict = flags & STRICT != 0 and not is_observed(state, flags)
    # Strict requests are checked before the charge, permissive ones after it (B§5.2).
    if is_strict:
        tokens = bucket_tokens(floats, ints, now_ms)
    is_rejected = is_strict and tokens < 0.0
    if not is_rejected:  # a refusal is no record
        charge_permits(state, bucket, permits, now_ms)
        use[LAST_MS] = now_ms
    if not is_strict:
        tokens = bucket_tokens(floats, ints, now_ms)
    if tokens < 0.0:
        last_ms, at_ms = tokens_throttle_ms(tokens, state.bounds[account]), now_ms
        reason = EXACT
    if reason == EXACT:
        reason = bucket_reason(state, account)
    pending_put(state.pending, connection_id, last_ms, at_ms, account, reason)
    return is_rejected


def was_taken_back(rows: Rows, at: int) -> bool:
    """Return whether a recorded fetch was answered empty and its bytes taken back (B§6.3): its client asked again."""
    return bool(rows.throttle_ms[at] > 0 or rows.request_throttle_ms[at] > 0)


def pass_sweeps(state: State, seq: int) -> None:
    """Count the sweeps of idle sensors that came before `seq`: sensors that they found idle begin anew."""
    sweeps, sweep = state.sweeps, state.settings[SWEEP]
    while sweep < len(sweeps) and sweeps[sweep, 0] < seq:
        sweep += 1
    state.settings[SWEEP] = sweep


# --- exchanged by `beyond_kafka` --------------------------------------------------------------------------------------


def is_observed(state: State, flags: int) -> bool:
    """Return whether the decision was not applied to the client of the row: never, by Kafka's own rules."""
    return False


def decide_bytes(state: State, account: int, amount: int, most: int, now_ms: int) -> tuple[int, int]:
    """Charge bytes to the account; return the throttle time, and why it is not exact.

    most: the largest number of bytes that may have been charged.
    """
    rate = ready_rate(state, account, now_ms)
    byte_ms = rate_decide(state.rate_floats[rate], state.rate_ints[rate], float(amount), now_ms)
    if state.rate_use[rate, REASON] == EXACT:
        return byte_ms, EXACT
    return byte_ms, follow_rate(state, account, rate, most, False, now_ms)


def take_back(state: State, account: int, amount: int, most: int, now_ms: int) -> None:
    """Subtract the bytes of a fetch that is answered empty, whether or not they were charged (B§6.3)."""
    rate = ready_rate(state, account, now_ms)
    if not state.settings[FETCH] and state.rate_use[rate, REASON] != EXACT:
        follow_rate(state, account, rate, most, False, now_ms)
    rate_record(state.rate_floats[rate], state.rate_ints[rate], -float(amount), now_ms)


def charge_permits(state: State, bucket: int, permits: int, now_ms: int) -> None:
    """Charge permits to a bucket."""
    bucket_record(state.bucket_floats[bucket], state.bucket_ints[bucket], float(permits), now_ms)


# --- sensors ----------------------------------------------------------------------------------------------------------


def ready_rate(state: State, account: int, now_ms: int) -> int:
    """Return the account's rate, ready for a record at `now_ms`."""
    rate: int = state.accounts[account, SENSOR]
    # One comparison a row: a rate is prepared again only after a sweep, or if its bound has changed (`READY` is -1).
    if state.rate_use[rate, READY] != state.settings[SWEEP]:
        _prepare_rate(state, account, rate)
    state.rate_use[rate, LAST_MS] = now_ms
    return rate


def _prepare_rate(state: State, account: int, rate: int) -> None:
    """Make a rate ready: forgotten if a sweep found it idle, configured, and marked with the sweep."""
    floats, ints, settings = state.rate_floats[rate], state.rate_ints[rate], state.settings
    if note_swept(settings, state.rate_use, state.sweeps, rate):
        floats[:] = 0.0
        ints[:] = 0
    cap_ms = state.accounts[account, CAP_MS]
    rate_configure(floats, ints, state.bounds[account], settings[SAMPLES], settings[WINDOW_MS], cap_ms)
    state.rate_use[rate, READY] = state.rate_use[rate, SWEPT] = settings[SWEEP]


def _prepare_bucket(state: State, account: int, bucket: int) -> None:
    """Make a bucket ready, likewise."""
    floats, ints, settings = state.bucket_floats[bucket], state.bucket_ints[bucket], state.settings
    if note_swept(settings, state.bucket_use, state.sweeps, bucket):
        floats[:] = 0.0
        ints[:] = 0
    samples, window_ms = settings[BUCKET_SAMPLES], settings[BUCKET_WINDOW_MS]
    bucket_configure(floats, ints, state.bounds[account], samples, window_ms)
    state.bucket_use[bucket, READY] = state.bucket_use[bucket, SWEPT] = settings[SWEEP]


def note_swept(settings: Int64s, use: Int64s, sweeps: Int64s, sensor: int) -> bool:
    """Note a sweep that found the sensor idle since its last use; return whether there was one (B§1.2, expiry)."""
    for sweep in range(use[sensor, SWEPT], settings[SWEEP]):
        if sweeps[sweep, 1] - use[sensor, LAST_MS] > EXPIRY_MS:
            if use[sensor, REASON] != EXACT:
                forget_swept(settings, use[sensor], sweeps)
            return True
    return False


EXCHANGED = (is_observed, decide_bytes, take_back, charge_permits)
ROW_KERNEL = (was_taken_back, note_swept, _prepare_rate, _prepare_bucket, take_permits)
INLINED = (pass_sweeps, ready_rate, cluster_reason, decide_row, *EXCHANGED)
