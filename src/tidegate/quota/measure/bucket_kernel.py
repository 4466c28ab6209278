"""The token bucket as functions over flat state, for the live engine and the replay kernel alike.

As in `tidegate.quota.measure.rate_kernel`, a bucket is two rows: Python lists, or rows of numba's arrays.

| `floats[...]` | holds |
|---|---|
| `TOKENS` | tokens at the last touch; below zero: exhausted |
| `RATE` | the quota Q: tokens per second |

| `ints[...]` | holds |
|---|---|
| `UPDATED` | time of the last touch in ms; 0 at first, so that a new bucket is full on any real clock |
| `BUCKET_SAMPLES`, `BUCKET_WINDOW_MS` | n and w: the bucket holds n * w * Q at most |

Reading refills too. A burst is charged all or nothing: tokens may go far below zero. All zeros is a new
bucket; `bucket_configure` makes it ready.

>>> floats, ints = bucket_state()
>>> bucket_configure(floats, ints, 2.0, 10, 1000)
>>> bucket_tokens(floats, ints, 2500)
5.0
>>> bucket_record(floats, ints, 6.0, 2500)
>>> bucket_throttle_ms(floats, ints, 2500)
500

Follows: Kafka `TokenBucket` (KIP-599, B§1.6), `ControllerMutationQuotaManager` (B§2.2).
"""

from tidegate.quota.measure.throttle import MS_PER_S, tokens_throttle_ms

__all__ = [
    "BUCKET_FLOATS",
    "BUCKET_INTS",
    "BUCKET_KERNEL",
    "bucket_configure",
    "bucket_forgive",
    "bucket_peek",
    "bucket_record",
    "bucket_state",
    "bucket_throttle_ms",
    "bucket_tokens",
]

TOKENS, RATE = range(2)
BUCKET_FLOATS = 2
UPDATED, BUCKET_SAMPLES, BUCKET_WINDOW_MS = range(3)
BUCKET_INTS = 3

Floats = list[float]
Ints = list[int]


def bucket_state() -> tuple[Floats, Ints]:
    """Return the two rows of a new bucket."""
    return [0.0] * BUCKET_FLOATS, [0] * BUCKET_INTS


def bucket_configure(floats: Floats, ints: Ints, rate: float, samples: int, window_ms: int) -> None:
    """Set rate and windows; time since the last touch is credited under the new ones."""
    floats[RATE] = rate
    ints[BUCKET_SAMPLES] = samples
    ints[BUCKET_WINDOW_MS] = window_ms


def bucket_record(floats: Floats, ints: Ints, value: float, now_ms: int) -> None:
    """Subtract `value` tokens, even below 0. A negative value adds tokens, up to the burst."""
    floats[TOKENS] = _smaller(_burst(floats, ints), bucket_tokens(floats, ints, now_ms) - value)


def bucket_tokens(floats: Floats, ints: Ints, now_ms: int) -> float:
    """Refill and return the tokens. A clock that stepped back takes tokens away."""
    tokens = bucket_peek(floats, ints, now_ms)
    floats[TOKENS] = tokens
    ints[UPDATED] = now_ms
    return tokens


def bucket_peek(floats: Floats, ints: Ints, now_ms: int) -> float:
    """Return what `bucket_tokens` would return, without any effect."""
    refilled = floats[TOKENS] + floats[RATE] * ((now_ms - ints[UPDATED]) / MS_PER_S)
    return _smaller(_burst(floats, ints), refilled)


def bucket_throttle_ms(floats: Floats, ints: Ints, now_ms: int) -> int:
    """Refill and return the ms until the bucket is at zero again: 0 while it is not exhausted."""
    tokens = bucket_tokens(floats, ints, now_ms)
    if tokens < 0.0:
        return tokens_throttle_ms(tokens, floats[RATE])
    return 0


def bucket_forgive(floats: Floats, ints: Ints, debt_max_s: float, now_ms: int) -> float:
    """Leave a debt of so many seconds of the rate at most; return how many tokens that takes. Not Kafka's."""
    tokens, least = bucket_tokens(floats, ints, now_ms), -debt_max_s * floats[RATE]
    if not tokens < least:
        return 0.0
    floats[TOKENS] = least
    return least - tokens


def _burst(floats: Floats, ints: Ints) -> float:
    """Return the most tokens that the bucket holds."""
    return ints[BUCKET_SAMPLES] * (ints[BUCKET_WINDOW_MS] / MS_PER_S) * floats[RATE]


def _smaller(left: float, right: float) -> float:
    """Return the smaller number, NaN if either is. Follows: Java `Math.min`."""
    if left != left or left < right:
        return left
    return right


BUCKET_KERNEL = (
    bucket_configure,
    bucket_record,
    bucket_tokens,
    bucket_peek,
    bucket_throttle_ms,
    bucket_forgive,
    _burst,
    _smaller,
)
