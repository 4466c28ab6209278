"""Throttle times: how long a client over its quota must wait, with Java's rounding and narrowing.

With observed rate O, bound T and window W, the delay X solves O * W / (W + X) = T, so X = (O - T) / T * W.

>>> rate_throttle_ms(5.6, 5.0, 100_000)
12000
>>> tokens_throttle_ms(-80.0, 10.0)
8000
>>> narrow_to_int32(rate_throttle_ms(300_000_000.0, 1000.0, 10_000))
-1294977296

The functions take their arguments by position and use nothing but 64-bit arithmetic, because the replay
kernel compiles them (see `tidegate.quota.measure.engine_kernel`).

Follows: Kafka `QuotaUtils.throttleTime`, `ControllerMutationQuotaManager.throttleTimeMs`, Java `Math.round`
and the narrowing of a long to an int (B§2).
"""

import math
from math import floor

__all__ = [
    "MAX_INT32",
    "MAX_INT64",
    "MIN_INT32",
    "MIN_INT64",
    "MS_PER_S",
    "UNLIMITED",
    "narrow_to_int32",
    "rate_throttle_ms",
    "round_half_up",
    "saturate_to_int32",
    "share_used",
    "tokens_throttle_ms",
]

MAX_INT64 = 2**63 - 1  # Java Long.MAX_VALUE
MIN_INT64 = -(2**63)  # Java Long.MIN_VALUE
MAX_INT32 = 2**31 - 1  # Java Integer.MAX_VALUE
MIN_INT32 = -(2**31)  # Java Integer.MIN_VALUE
TWO_TO_63 = 9.223372036854775807e18  # the double nearest to MAX_INT64
TWO_TO_51 = 2.0**51  # from one half up to here, adding one half is exact enough to round by
UNLIMITED = TWO_TO_63  # the bound of a client without a quota (B§3.4)
MS_PER_S = 1000.0


def round_half_up(value: float) -> int:
    """Return the nearest 64-bit integer, ties towards +infinity; NaN is 0, what is too large saturates.

    >>> round_half_up(2.5), round_half_up(-0.5), round_half_up(0.49999999999999994)
    (3, 0, 0)

    Follows: Java `Math.round(double)`.
    """
    if value != value:
        return 0
    if value >= TWO_TO_63:
        return MAX_INT64
    if value <= -TWO_TO_63:
        return MIN_INT64
    whole = floor(value)
    if value - whole >= 0.5:
        return whole + 1
    return whole


def narrow_to_int32(value: int) -> int:
    """Return the low 32 bits of `value` as a signed number: it wraps.

    >>> narrow_to_int32(2**31), narrow_to_int32(2**63 - 1)
    (-2147483648, -1)

    Follows: Java's narrowing of a long to an int.
    """
    if -0x80000000 <= value <= 0x7FFFFFFF:
        return value
    low = value & 0xFFFFFFFF
    if low >= 0x80000000:
        return low - 0x100000000
    return low


def saturate_to_int32(value: float) -> int:
    """Return `value` without its fraction; what is too large saturates, NaN is 0.

    >>> saturate_to_int32(-2.5), saturate_to_int32(1e300), saturate_to_int32(math.nan)
    (-2, 2147483647, 0)

    Follows: Java's narrowing of a double to an int.
    """
    if MIN_INT32 <= value <= MAX_INT32:
        return int(value)
    if value != value:
        return 0
    return MAX_INT32 if value > 0.0 else MIN_INT32


def rate_throttle_ms(rate: float, bound: float, window_ms: int) -> int:
    """Return the delay in ms that brings `rate` back to `bound`; negative where it is below."""
    if bound == 0.0:
        return _divided_by_zero(rate, bound)
    delay_ms = (rate - bound) / bound * window_ms
    if 0.5 <= delay_ms < TWO_TO_51:
        return floor(delay_ms + 0.5)  # what `round_half_up` does, without a call
    return round_half_up(delay_ms)


def tokens_throttle_ms(tokens: float, rate: float) -> int:
    """Return the time in ms until a bucket with `tokens`, a negative number, is back at zero."""
    if rate == 0.0:
        return _divided_by_zero(-tokens, rate)
    return round_half_up(-tokens / rate * MS_PER_S)


def share_used(used: float, bound: float) -> float:
    """Return which part of `bound` was used; infinity where the bound is 0 and something was used.

    >>> share_used(50.0, 200.0), share_used(1.0, 0.0), share_used(0.0, 0.0)
    (0.25, inf, 0.0)
    """
    if bound > 0.0:
        return used / bound
    return math.inf if used > 0.0 else 0.0


def _divided_by_zero(dividend: float, zero: float) -> int:
    """Return what Java's `dividend / zero` rounds to; Python would raise."""
    if dividend == 0.0 or dividend != dividend:
        return 0
    if (dividend > 0.0) == (math.copysign(1.0, zero) > 0.0):
        return MAX_INT64
    return MIN_INT64


THROTTLE_KERNEL = (round_half_up, narrow_to_int32, rate_throttle_ms, tokens_throttle_ms, _divided_by_zero)
