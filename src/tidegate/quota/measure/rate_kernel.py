"""The sampled rate as functions over flat state: one source for the live engine and the replay kernel.

A rate is two rows, `floats` and `ints`. The live engine keeps them in Python lists; the replay kernel
compiles these very functions with numba (see `tidegate.quota.measure.engine_kernel`) and keeps them in the rows of
two-dimensional arrays, float64 and int64. So they are written for both: arguments by position, no exceptions,
no None, no number beyond 64 bits, no division by zero.

`floats`, at least `FLOAT_SLOTS + n + 1` long:

| index | holds |
|---|---|
| `SUM` | value of the current sample |
| `ROOM` | while `SUM` is at most this, the rate is within its bound for certain; -infinity: look closer |
| `OTHERS` | sum of the other samples; used only where it cannot differ from adding in slot order |
| `EXACT` | while `SUM` is whole and of at most this size, every order of adding gives equal bits; -1: never |
| `BOUND` | the quota, per second |
| `CALM` | a total of values that is within the bound in every window |
| `FLOAT_SLOTS + k` | value of sample k, out of date for the current one |

`ints`, at least `INT_SLOTS + 2 * (n + 1)` long, times in ms:

| index | holds |
|---|---|
| `DUE` | before this time no sample begins and none but the current one expires |
| `LAST` | last event of the current sample |
| `START` | start of the current sample |
| `SLOT` | index k of the current sample |
| `USED` | how many samples exist; 0: nothing was recorded or measured yet |
| `OLDEST` | smallest start of all samples |
| `SAMPLES`, `WINDOW_MS` | configured number of samples n, and the span w of one |
| `CAP_MS` | most that a throttle time may be, applied before narrowing; `MAX_INT64`: no cap |
| `EMPTIED` | 1: the current sample was emptied by measuring, and nothing was recorded since |
| `RECORDED` | when the last value was recorded, valid while `EMPTIED` (otherwise that is `LAST`) |
| `INT_SLOTS + 2k`, `+ 2k + 1` | start and last event of sample k, out of date for the current one |

All zeros is a rate without samples; `rate_configure` makes it ready.

Kafka keeps n + 1 samples, opens the next when the current one is w old, and forgets a sample whose *last
event* is n * w ago by restarting it at the time of asking (B§1.3). Here the samples are looked through only
when `DUE` has come, and a record within the quota is one addition and two comparisons.

>>> floats, ints = rate_state(11)
>>> rate_configure(floats, ints, 2.0, 11, 1000, MAX_INT64)
>>> rate_decide(floats, ints, 30.0, 0)
5000
>>> rate_measure(floats, ints, 999), rate_measure(floats, ints, 1000)
(2.727520683698518, 3.0)

Follows: Kafka `SampledStat`, `Rate` (with the extra sample, 3.8 and later), `QuotaUtils.throttleTime`.
Differs: nothing, as long as the clock does not step back by 2**31 windows.
"""

import math

from tidegate.quota.measure.throttle import MAX_INT64, MS_PER_S, narrow_to_int32, rate_throttle_ms

__all__ = [
    "BOUND",
    "CERTAINTY",
    "FLOAT_SLOTS",
    "INT_SLOTS",
    "OLDEST",
    "OTHERS",
    "RATE_KERNEL",
    "ROOM",
    "SUM",
    "rate_configure",
    "rate_decide",
    "rate_last_record_ms",
    "rate_measure",
    "rate_peek",
    "rate_record",
    "rate_state",
    "rate_verdict",
    "rate_window_ms",
]

SUM, ROOM, OTHERS, EXACT, BOUND, CALM = range(6)
FLOAT_SLOTS = 6
DUE, LAST, START, SLOT, USED, OLDEST, SAMPLES, WINDOW_MS, CAP_MS, EMPTIED, RECORDED = range(11)
INT_SLOTS = 11

WHOLE = 1.5 * 2.0**52  # x + WHOLE - WHOLE is x rounded to a whole number, while abs(x) is at most 2**51
LARGEST_EXACT = 2.0**51  # sums of whole numbers up to here are exact (they are up to 2**53) and WHOLE works
LONG_AGO_MS = -(2**62)  # before every clock, and far enough from the limits to subtract from
CERTAINTY = 1.0 - 1e-9  # more than the rounding errors of any sum over samples

Floats = list[float]
Ints = list[int]


def rate_state(samples: int) -> tuple[Floats, Ints]:
    """Return the two rows of a rate without samples, with room for `samples` + 1."""
    return [0.0] * (FLOAT_SLOTS + samples + 1), [0] * (INT_SLOTS + 2 * (samples + 1))


def rate_configure(
    floats: Floats, ints: Ints, bound: float, samples: int, window_ms: int, cap_ms: int
) -> None:
    """Set bound and windows; what was recorded stays, and counts under the new ones from the next call on.

    The rows must have room for `samples` + 1, however many there were before.
    """
    floats[BOUND] = bound
    floats[ROOM] = -math.inf
    floats[CALM] = -math.inf
    if bound >= 0.0 and samples > 2:
        # The shortest window a rate is divided by, even when the clock steps back (B§1.4).
        floats[CALM] = bound * ((samples - 2) * window_ms / MS_PER_S) * CERTAINTY
    ints[SAMPLES] = samples
    ints[WINDOW_MS] = window_ms
    ints[CAP_MS] = cap_ms
    ints[DUE] = LONG_AGO_MS


def rate_record(floats: Floats, ints: Ints, value: float, now_ms: int) -> None:
    """Record `value`, unchecked."""
    if now_ms >= ints[0]:  # DUE
        _begin_sample(floats, ints, now_ms)
        # An unchecked record is not measured, and only measuring restarts expired samples (B§1.3).
        _look_through(floats, ints, now_ms, LONG_AGO_MS)
    ints[1] = now_ms  # LAST
    floats[0] += value  # SUM


def rate_decide(floats: Floats, ints: Ints, value: float, now_ms: int) -> int:
    """Record `value`, then check: return the throttle time in ms as the 32-bit number that Kafka makes of it.

    0: within the quota, or over it by less than half a millisecond. May be negative (B§2.1): not throttled.
    """
    # Numbers for names: looking up the five names would take as long as all the rest.
    if now_ms >= ints[0]:  # DUE
        _begin_sample(floats, ints, now_ms)
        # A checked record is measured (B§1.2), which restarts expired samples.
        _look_through(floats, ints, now_ms, now_ms - ints[SAMPLES] * ints[WINDOW_MS])
    ints[1] = now_ms  # LAST
    total = floats[0] + value
    floats[0] = total  # SUM
    if total <= floats[1]:  # ROOM
        return 0
    return rate_verdict(floats, ints, now_ms)


def rate_measure(floats: Floats, ints: Ints, now_ms: int) -> float:
    """Return the rate per second as Kafka measures it: this forgets and restarts samples (B§1.3)."""
    _forget(floats, ints, now_ms)
    return _total(floats, ints) / (_window_ms(ints, now_ms) / MS_PER_S)


def rate_window_ms(floats: Floats, ints: Ints, now_ms: int) -> int:
    """Return the window in ms that a rate is divided by; forgets samples as `rate_measure` does."""
    _forget(floats, ints, now_ms)
    return _window_ms(ints, now_ms)


def rate_last_record_ms(ints: Ints) -> int:
    """Return when a value was last recorded; `LONG_AGO_MS` if never."""
    if ints[USED] == 0:
        return LONG_AGO_MS
    # Measuring has set `LAST` to its own time, as in Kafka (B§1.3). Expiry counts from the last record (B§1.2).
    if ints[EMPTIED]:
        return ints[RECORDED]
    return ints[LAST]


def rate_peek(floats: Floats, ints: Ints, now_ms: int) -> float:
    """Return what `rate_measure` would return, without any effect on what follows."""
    _store_current(floats, ints)
    expired_ms = now_ms - ints[SAMPLES] * ints[WINDOW_MS]
    total = 0.0
    oldest_ms = MAX_INT64
    for slot in range(ints[USED]):
        start_ms = now_ms
        if ints[INT_SLOTS + 2 * slot + 1] > expired_ms:
            total += floats[FLOAT_SLOTS + slot]
            start_ms = ints[INT_SLOTS + 2 * slot]
        oldest_ms = min(oldest_ms, start_ms)
    if ints[USED] == 0:
        oldest_ms = now_ms
    return total / (_padded_ms(now_ms - oldest_ms, ints[SAMPLES], ints[WINDOW_MS]) / MS_PER_S)


def rate_verdict(floats: Floats, ints: Ints, now_ms: int) -> int:
    """Return the throttle time for the rate as it is, after a record at `now_ms`, which left nothing to forget."""
    # Numbers for names as in `rate_decide`; `_total`, `_window_ms` and `rate_throttle_ms` written out where usual.
    total = floats[0]  # SUM
    if -floats[3] <= total <= floats[3] and total + WHOLE - WHOLE == total:  # EXACT
        total += floats[2]  # OTHERS
    else:
        total = _total(floats, ints)
    window_ms = now_ms - ints[5]  # OLDEST
    if window_ms > 0:
        missing = ints[6] - 1 - window_ms // ints[7]  # SAMPLES, WINDOW_MS
        if missing > 0:
            window_ms += missing * ints[7]  # WINDOW_MS
    else:
        window_ms = _window_ms(ints, now_ms)
    rate = total / (window_ms / MS_PER_S)
    bound = floats[4]  # BOUND
    if rate <= bound:
        return 0
    throttle_ms = rate_throttle_ms(rate, bound, window_ms)
    # The cap comes before the narrowing, which may wrap (B§2.1).
    if throttle_ms > ints[8]:  # CAP_MS
        throttle_ms = ints[8]  # CAP_MS
    if -0x80000000 <= throttle_ms <= 0x7FFFFFFF:
        return throttle_ms
    return narrow_to_int32(throttle_ms)


def _total(floats: Floats, ints: Ints) -> float:
    """Return the sum of all samples, with the bits that adding them in slot order gives."""
    total = floats[SUM]
    if -floats[EXACT] <= total <= floats[EXACT] and total + WHOLE - WHOLE == total:
        return floats[OTHERS] + total
    floats[FLOAT_SLOTS + ints[SLOT]] = total
    total = 0.0
    for value in floats[FLOAT_SLOTS : FLOAT_SLOTS + ints[USED]]:
        total += value
    return total


def _window_ms(ints: Ints, now_ms: int) -> int:
    """Return the window in ms at `now_ms`, when nothing is left to forget."""
    return _padded_ms(now_ms - ints[OLDEST], ints[SAMPLES], ints[WINDOW_MS])


def _padded_ms(elapsed_ms: int, samples: int, window_ms: int) -> int:
    """Return the age of the oldest sample, padded to at least `samples` - 1 windows (B§1.4)."""
    full = elapsed_ms // window_ms
    if elapsed_ms < 0:
        full = narrow_to_int32(-(-elapsed_ms // window_ms))  # towards zero, as Java divides
    if full < samples - 1:
        elapsed_ms += narrow_to_int32(samples - 1 - full) * window_ms
    if elapsed_ms < 1:
        return 1
    return elapsed_ms


def _begin_sample(floats: Floats, ints: Ints, now_ms: int) -> None:
    """Begin the first sample, or the next one if the current one is a whole window old."""
    ints[EMPTIED] = 0
    if ints[USED] > 0:
        if now_ms - ints[START] < ints[WINDOW_MS]:
            return
        _store_current(floats, ints)
        ints[SLOT] = (ints[SLOT] + 1) % (ints[SAMPLES] + 1)
    if ints[SLOT] >= ints[USED]:
        ints[USED] = ints[SLOT] + 1
    ints[START] = now_ms
    floats[SUM] = 0.0


def _store_current(floats: Floats, ints: Ints) -> None:
    """Bring the current sample's entry in the list of samples up to date."""
    slot = ints[SLOT]
    floats[FLOAT_SLOTS + slot] = floats[SUM]
    ints[INT_SLOTS + 2 * slot] = ints[START]
    ints[INT_SLOTS + 2 * slot + 1] = ints[LAST]


def _forget(floats: Floats, ints: Ints, now_ms: int) -> None:
    """Restart every sample whose last event is n windows ago; make the first one if there is none."""
    expired_ms = now_ms - ints[SAMPLES] * ints[WINDOW_MS]
    if ints[USED] == 0:
        _begin_sample(floats, ints, now_ms)
        _empty_current(floats, ints, LONG_AGO_MS, now_ms)
    elif ints[LAST] <= expired_ms:
        _empty_current(floats, ints, rate_last_record_ms(ints), now_ms)
    elif now_ms < ints[DUE]:
        return
    _look_through(floats, ints, now_ms, expired_ms)


def _empty_current(floats: Floats, ints: Ints, recorded_ms: int, now_ms: int) -> None:
    """Restart the current sample, and keep in mind when a value was last recorded."""
    floats[SUM] = 0.0
    ints[START] = now_ms
    ints[LAST] = now_ms
    ints[EMPTIED] = 1
    ints[RECORDED] = recorded_ms


def _look_through(floats: Floats, ints: Ints, now_ms: int, expired_ms: int) -> None:
    """Restart the other samples with no event after `expired_ms`, and bring what is derived up to date."""
    # The one loop in the engine: comparisons instead of `min` and `abs`, which cost Python five times as much.
    others = size = 0.0
    whole = True
    oldest_ms, first_last_ms = ints[START], MAX_INT64
    current, at = ints[SLOT], INT_SLOTS
    for slot in range(ints[USED]):
        if slot != current:
            last_ms = ints[at + 1]
            if last_ms <= expired_ms:
                floats[FLOAT_SLOTS + slot] = 0.0
                ints[at] = ints[at + 1] = last_ms = now_ms
            if last_ms < first_last_ms:
                first_last_ms = last_ms
            if ints[at] < oldest_ms:
                oldest_ms = ints[at]
            value = floats[FLOAT_SLOTS + slot]
            others += value
            size += value if value >= 0.0 else -value
            whole = whole and value + WHOLE - WHOLE == value
        at += 2
    floats[OTHERS] = others
    floats[EXACT] = LARGEST_EXACT - size if whole else -1.0
    # By `size`, not `others`: values can be negative (B§3.6), and rounding errors grow with their size.
    room = floats[CALM] - size
    floats[ROOM] = room if room >= 0.0 else -math.inf
    ints[OLDEST] = oldest_ms
    ints[DUE] = _due_ms(ints, first_last_ms)


def _due_ms(ints: Ints, first_last_ms: int) -> int:
    """Return when the next sample begins, or the first of the others expires, whichever is earlier."""
    if ints[EMPTIED]:
        return LONG_AGO_MS  # so that the next record notes that it was one
    due_ms = ints[START] + ints[WINDOW_MS]
    if first_last_ms == MAX_INT64:
        return due_ms  # there are no others
    expiry_ms = first_last_ms + ints[SAMPLES] * ints[WINDOW_MS]
    return due_ms if due_ms < expiry_ms else expiry_ms


RATE_KERNEL = (
    rate_configure,
    rate_record,
    rate_decide,
    rate_measure,
    rate_window_ms,
    rate_last_record_ms,
    rate_peek,
    rate_verdict,
    _total,
    _window_ms,
    _padded_ms,
    _begin_sample,
    _store_current,
    _forget,
    _empty_current,
    _look_through,
    _due_ms,
)
