"""Proof that a decision would be the same, whatever happened that is not in the record.

After lost events, or if a record begins in the middle of a node's life, the state of a sensor is not known. Rows still
charge the sensor. Its decisions are approximate until it can be proved that they do not depend on what is missing.

*A rate* (B§1.3) begins a sample with the first record that comes a window or more after the current sample began. The
records that begin samples therefore depend on the start of the first sample. That start is not known; it lies within a
window before the first record that is seen. The kernel follows the earliest and the latest possible start, record by
record. When both begin a sample at the same record, in the same lap, every start between them does too: from that
record on all samples are known. All samples are also known from a record that comes a window or more after the record
before it. Only known samples count once every older sample has expired, n windows later. If records never pause, that
may never happen.

*A rate far below its bound* cannot be throttled, whatever its samples: no sample is older than n + 1 windows, and
their sum is divided by n - 1 windows or more (B§1.4). The kernel keeps a sum over at least the last n + 1 windows.

*Rounding*: the samples are added in the order of their slots, which stays unknown. Bytes are whole numbers, and their
sum is the same in any order. A decision on request time counts as exact only if a billionth more or less would not
change it.

*A token bucket* (B§1.6) may be in debt by any amount. Only two events make it known: a start of the node, or a sweep
that removed the bucket after an hour without use (B§1.2).

*Fetches* (B§6.3) that may or may not have been throttled leave unknown bytes in their own sensor, because the bytes of
a throttled fetch are taken back.

Written for numba, as `row_decision`. Follows: B§1.2-1.4, 1.6, B§2.1, B§6.3.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import (
    CAP_MS,
    CLUSTER_WIDE,
    EARLIEST_MS,
    EXACT,
    FETCH,
    IS_CLUSTER_WIDE,
    LAPS,
    LAST_MS,
    LATEST_MS,
    PERIOD_MS,
    REASON,
    SAMPLES,
    SEEN_MS,
    SENSOR,
    SUM,
    SUM_BEFORE,
    SUMS_FROM_MS,
    SWEEP,
    SWEEPS_BEFORE,
    SWEPT,
    SYNCED_MS,
    UNKNOWN_MS,
    WINDOW_MS,
    State,
)
from tidegate.quota.managers.request import PERCENT_PER_NS
from tidegate.quota.measure.rate_kernel import rate_peek, rate_window_ms
from tidegate.quota.measure.sensors import EXPIRY_MS
from tidegate.quota.measure.throttle import (
    MAX_INT64,
    MS_PER_S,
    UNLIMITED,
    narrow_to_int32,
    rate_throttle_ms,
)

__all__ = [
    "CERTAINTY_KERNEL",
    "FOREVER",
    "begin_unknown",
    "bucket_reason",
    "follow_bucket",
    "follow_rate",
    "forget_swept",
    "lose_bytes",
    "make_stated",
    "make_unknown",
    "note_record",
]

FOREVER = MAX_INT64
"""`UNKNOWN_MS` of a sensor whose state nothing in the record can tell."""

_NEVER = -1  # `SEEN_MS`: no record yet; `SYNCED_MS`: not yet
_ROUNDING = 1e-9  # more than the rounding errors of any sum over samples

Use = npt.NDArray[np.int64]


def make_unknown(use: npt.NDArray[Any], reason: int, since_ms: int) -> None:
    """Mark sensors, rows of `use`, as not known: up to `since_ms` anything may have been recorded."""
    use[:, REASON] = reason
    use[:, UNKNOWN_MS] = since_ms
    use[:, SEEN_MS] = _NEVER
    use[:, SYNCED_MS] = _NEVER
    use[:, SUMS_FROM_MS] = use[:, PERIOD_MS] = since_ms
    use[:, SUM] = use[:, SUM_BEFORE] = 0


def begin_unknown(use: Use, now_ms: int) -> None:
    """Restart the tracking of an unknown sensor that begins anew: up to `now_ms` anything may have been recorded."""
    use[UNKNOWN_MS] = max(use[UNKNOWN_MS], now_ms)
    use[SEEN_MS] = use[SYNCED_MS] = _NEVER
    use[SUMS_FROM_MS] = use[PERIOD_MS] = now_ms
    use[SUM] = use[SUM_BEFORE] = 0


def make_stated(use: npt.NDArray[Any]) -> None:
    """Mark as known the sensors whose `UNKNOWN_MS` is `FOREVER`, except for what fetches may have left in them.

    Such a sensor was a new one. After a fetch that left unknown bytes, it stays unknown up to that fetch.
    """
    is_new = (use[:, REASON] != EXACT) & (use[:, UNKNOWN_MS] == FOREVER)
    has_lost = is_new & (use[:, SEEN_MS] != _NEVER)
    use[is_new & ~has_lost, REASON] = EXACT
    lost_ms = use[has_lost, SEEN_MS]
    for column in (UNKNOWN_MS, SYNCED_MS, SUMS_FROM_MS, PERIOD_MS):
        use[has_lost, column] = lost_ms


def follow_rate(state: State, account: int, rate: int, amount: int, is_time: bool, now_ms: int) -> int:
    """Track a record in a rate that is not known; return why its decision is not exact, `EXACT` if it is.

    Call it right after the decision. amount: at most what was recorded, in bytes, or in ns if `is_time`.
    """
    note_record(state, rate, amount, now_ms)
    use, bound = state.rate_use[rate], state.bounds[account]
    samples, window_ms = state.settings[SAMPLES], state.settings[WINDOW_MS]
    # Only now: the record was tracked above because the sensor may get a bound later.
    if bound == UNLIMITED:
        return EXACT
    if use[UNKNOWN_MS] == FOREVER:
        return int(use[REASON])
    if now_ms - use[SUMS_FROM_MS] >= (samples + 1) * window_ms:
        most = (float(use[SUM]) + float(use[SUM_BEFORE])) * (PERCENT_PER_NS if is_time else 1.0)
        if most * (1.0 + _ROUNDING) <= bound * (max(1, (samples - 1) * window_ms) / MS_PER_S):
            return EXACT
    is_known = (
        use[SYNCED_MS] != _NEVER
        and now_ms - use[SYNCED_MS] >= samples * window_ms
        and now_ms - use[UNKNOWN_MS] >= (samples + 1) * window_ms
    )
    if not is_known:
        return int(use[REASON])
    if is_time:
        return EXACT if _rounds_alike(state, account, rate, now_ms) else int(use[REASON])
    use[REASON] = EXACT
    return EXACT


def note_record(state: State, rate: int, amount: int, now_ms: int) -> None:
    """Track a record in a rate that is not known, if no decision follows the record."""
    use, samples, window_ms = state.rate_use[rate], state.settings[SAMPLES], state.settings[WINDOW_MS]
    _follow_samples(use, window_ms, now_ms)
    _add_up(use, (samples + 1) * window_ms, amount, now_ms)


def follow_bucket(use: Use, now_ms: int) -> None:
    """Track the use of a bucket that is not known: it may have been charged, or may have refused."""
    use[UNKNOWN_MS] = max(use[UNKNOWN_MS], now_ms)


def bucket_reason(state: State, account: int) -> int:
    """Return why what a bucket decides is not exact; `EXACT`: it is."""
    if state.bounds[account] == UNLIMITED:
        return EXACT
    if state.accounts[account, IS_CLUSTER_WIDE] != 0:
        return CLUSTER_WIDE
    return int(state.bucket_use[state.accounts[account, SENSOR], REASON])


def lose_bytes(state: State, account: int, reason: int, now_ms: int) -> None:
    """Mark the sensor of a fetch as holding unknown bytes: it is not known whether or how many were taken back."""
    use = state.rate_use[state.accounts[account, SENSOR]]
    # `make_stated` may still declare this sensor known. It needs the time of the last fetch that left unknown bytes.
    if use[REASON] != EXACT and use[UNKNOWN_MS] == FOREVER:
        use[SEEN_MS] = now_ms
        return
    if use[REASON] == EXACT:
        use[REASON] = reason
        use[SEEN_MS] = use[SYNCED_MS] = now_ms
        use[SUMS_FROM_MS] = use[PERIOD_MS] = now_ms
        use[SUM] = use[SUM_BEFORE] = use[UNKNOWN_MS] = 0
    use[UNKNOWN_MS] = max(use[UNKNOWN_MS], now_ms)
    if not state.settings[FETCH]:  # there was a record only if it was throttled
        use[SEEN_MS] = use[SYNCED_MS] = _NEVER


def forget_swept(settings: Use, use: Use, sweeps: Use) -> None:
    """Mark a sensor that a sweep has found idle as known, if the sweep came late enough.

    The sweep must come more than an hour after the last use and after the time up to which the sensor is not known.
    """
    unknown_ms = max(use[UNKNOWN_MS], use[LAST_MS])
    use[UNKNOWN_MS] = unknown_ms
    use[SEEN_MS] = use[SYNCED_MS] = _NEVER
    if unknown_ms == FOREVER:
        return
    for sweep in range(max(use[SWEPT], settings[SWEEPS_BEFORE]), settings[SWEEP]):
        if sweeps[sweep, 1] - unknown_ms > EXPIRY_MS:
            use[REASON] = EXACT


def _follow_samples(use: Use, window_ms: int, now_ms: int) -> None:
    """Follow the earliest and the latest start that the current sample may have, through a record at `now_ms`."""
    if now_ms < use[UNKNOWN_MS] or now_ms < use[SEEN_MS]:  # time stepped back: samples may begin in any order
        use[UNKNOWN_MS] = FOREVER
    if use[UNKNOWN_MS] == FOREVER:
        return
    if use[SEEN_MS] == _NEVER:
        use[LAPS] = 0
        # The current sample begins with this record, or began less than a window before it (B§1.3).
        use[EARLIEST_MS] = now_ms - window_ms + 1
        use[LATEST_MS] = now_ms
        if now_ms - use[UNKNOWN_MS] >= window_ms:
            use[EARLIEST_MS] = use[SYNCED_MS] = now_ms
    elif use[SYNCED_MS] == _NEVER and now_ms - use[SEEN_MS] >= window_ms:
        use[SYNCED_MS] = now_ms
    elif use[SYNCED_MS] == _NEVER:
        if now_ms - use[EARLIEST_MS] >= window_ms:
            use[EARLIEST_MS] = now_ms
            use[LAPS] += 1
        if now_ms - use[LATEST_MS] >= window_ms:
            use[LATEST_MS] = now_ms
            use[LAPS] -= 1
        if use[LAPS] == 0 and use[EARLIEST_MS] == use[LATEST_MS]:
            use[SYNCED_MS] = now_ms
    use[SEEN_MS] = now_ms


def _add_up(use: Use, period_ms: int, amount: int, now_ms: int) -> None:
    """Add to the sum of this period; it and the one before are at least what the last `period_ms` had."""
    if now_ms - use[PERIOD_MS] >= period_ms:
        use[SUM_BEFORE] = use[SUM] if now_ms - use[PERIOD_MS] < 2 * period_ms else 0
        use[SUM] = 0
        use[PERIOD_MS] = now_ms
    before = use[SUM]
    use[SUM] = MAX_INT64 if before > MAX_INT64 - amount else before + amount


def _rounds_alike(state: State, account: int, rate: int, now_ms: int) -> bool:
    """Return whether the decision just made does not depend on the last bits of the rate."""
    floats, ints, bound = state.rate_floats[rate], state.rate_ints[rate], state.bounds[account]
    value, window_ms = rate_peek(floats, ints, now_ms), rate_window_ms(floats, ints, now_ms)
    cap_ms = state.accounts[account, CAP_MS]
    least = _verdict(value * (1.0 - _ROUNDING), bound, window_ms, cap_ms)
    most = _verdict(value * (1.0 + _ROUNDING), bound, window_ms, cap_ms)
    return least == most


def _verdict(value: float, bound: float, window_ms: int, cap_ms: int) -> int:
    """Return the throttle time of a rate."""
    if value <= bound:
        return 0
    return narrow_to_int32(min(rate_throttle_ms(value, bound, window_ms), cap_ms))


CERTAINTY_KERNEL = (
    _verdict,
    _rounds_alike,
    _add_up,
    _follow_samples,
    note_record,
    follow_rate,
    follow_bucket,
    bucket_reason,
    lose_bytes,
    forget_swept,
    begin_unknown,
)
