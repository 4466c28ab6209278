"""The token bucket of the controller mutation quota, as an object.

>>> bucket = TokenBucket(samples=10, window_ms=1000, rate=10.0)
>>> bucket.record(180.0, 1_700_000_000_000)
>>> bucket.tokens(1_700_000_000_000)
-80.0
>>> bucket.throttle_ms(1_700_000_000_000)
8000

Follows: Kafka `TokenBucket` (KIP-599, B§1.6); the rules are in `tidegate.quota.measure.bucket_kernel`.
"""

from tidegate.quota.measure.bucket_kernel import (
    BUCKET_SAMPLES,
    BUCKET_WINDOW_MS,
    RATE,
    bucket_configure,
    bucket_forgive,
    bucket_peek,
    bucket_record,
    bucket_state,
    bucket_throttle_ms,
    bucket_tokens,
)
from tidegate.quota.measure.snapshot import Snapshot, bucket_snapshot
from tidegate.quota.measure.throttle import MS_PER_S, UNLIMITED, share_used

__all__ = ["TokenBucket"]


class TokenBucket:
    """A balance that grows by `rate` tokens per second up to n * w * `rate`, and may be negative."""

    __slots__ = ("floats", "ints")

    def __init__(self, *, samples: int, window_ms: int, rate: float = UNLIMITED) -> None:
        self.floats, self.ints = bucket_state()
        self.configure(samples=samples, window_ms=window_ms, rate=rate)

    def configure(self, *, samples: int, window_ms: int, rate: float) -> None:
        """Set rate and burst; the time since the last touch is credited under the new ones."""
        bucket_configure(self.floats, self.ints, rate, samples, window_ms)

    @property
    def rate(self) -> float:
        """The quota: tokens per second."""
        return self.floats[RATE]

    def record(self, value: float, now_ms: int) -> None:
        """Subtract `value` tokens, even if there are fewer."""
        bucket_record(self.floats, self.ints, value, now_ms)

    def is_first(self, _offset: int, _now_ms: int, /) -> bool:
        """Return whether to charge what the record of a topic says: always, as this process alone has the bucket."""
        return True

    def tokens(self, now_ms: int) -> float:
        """Refill and return the tokens."""
        return bucket_tokens(self.floats, self.ints, now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """Refill and return the ms until the bucket is at zero again; 0 while it is not below."""
        return bucket_throttle_ms(self.floats, self.ints, now_ms)

    def forgive(self, debt_max_s: float, now_ms: int) -> float:
        """Leave a debt of so many seconds of the rate at most; return how many tokens that takes. Not Kafka's."""
        return bucket_forgive(self.floats, self.ints, debt_max_s, now_ms)

    def peek(self, now_ms: int) -> float:
        """Return what `tokens` would return, without any effect."""
        return bucket_peek(self.floats, self.ints, now_ms)

    def peek_throttle_ms(self, now_ms: int) -> int:
        """Return what `throttle_ms` would return, without any effect."""
        return bucket_throttle_ms([*self.floats], [*self.ints], now_ms)

    def snapshot(self, now_ms: int) -> Snapshot:
        """Return the tokens as of the last touch, without any effect."""
        return bucket_snapshot(self.floats, self.ints, now_ms)

    def peek_used(self, now_ms: int) -> float:
        """Return the share of a full bucket that was used, above 1 where tokens are owed, without any effect.

        >>> bucket = TokenBucket(samples=10, window_ms=1000, rate=10.0)
        >>> bucket.record(180.0, 1_700_000_000_000)
        >>> bucket.peek_used(1_700_000_000_000), bucket.peek_used(1_700_000_013_000)
        (1.8, 0.5)
        """
        full = self.rate * self.ints[BUCKET_SAMPLES] * self.ints[BUCKET_WINDOW_MS] / MS_PER_S
        return share_used(full - self.peek(now_ms), full)
