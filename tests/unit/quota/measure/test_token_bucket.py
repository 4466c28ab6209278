"""The token bucket: refill, burst and exhaustion."""

import math

from tidegate.quota.measure.bucket_kernel import bucket_configure, bucket_record, bucket_state, bucket_tokens
from tidegate.quota.measure.token_bucket import TokenBucket

NOW_MS = 1_700_000_000_000


def test_a_new_bucket_is_full_on_a_real_clock() -> None:
    """Its last touch lies at the epoch (B§1.6)."""
    assert TokenBucket(samples=10, window_ms=1000, rate=2.0).tokens(NOW_MS) == 20.0


def test_zero_tokens_are_not_exhausted() -> None:
    """Only less than nothing throttles; a burst is charged all or nothing."""
    bucket = TokenBucket(samples=10, window_ms=1000, rate=10.0)
    bucket.record(100.0, NOW_MS)
    assert (bucket.tokens(NOW_MS), bucket.throttle_ms(NOW_MS)) == (0.0, 0)
    bucket.record(400.0, NOW_MS)
    assert (bucket.tokens(NOW_MS), bucket.throttle_ms(NOW_MS)) == (-400.0, 40_000)


def test_peeks_of_throttle_and_use_change_nothing() -> None:
    """Both are of the time that is asked for; the state stays, to the bit."""
    bucket = TokenBucket(samples=10, window_ms=1000, rate=10.0)
    bucket.record(180.0, NOW_MS)
    before = [*bucket.floats], [*bucket.ints]
    assert (bucket.peek_throttle_ms(NOW_MS + 1000), bucket.peek_used(NOW_MS + 1000)) == (7000, 1.7)
    assert (bucket.floats, bucket.ints) == before
    assert bucket.throttle_ms(NOW_MS) == 8000


def test_a_bucket_of_no_rate_is_used_up_by_anything() -> None:
    """Nothing of nothing is 0, more is infinitely much."""
    bucket = TokenBucket(samples=10, window_ms=1000, rate=0.0)
    assert bucket.peek_used(NOW_MS) == 0.0
    bucket.record(1.0, NOW_MS)
    assert bucket.peek_used(NOW_MS) == math.inf


def test_peeking_does_not_refill() -> None:
    """A peek gives the tokens of its time; a clock that steps back later takes none away for it."""
    bucket = TokenBucket(samples=10, window_ms=1000, rate=10.0)
    bucket.record(100.0, NOW_MS)
    assert bucket.peek(NOW_MS + 5000) == 50.0
    assert bucket.tokens(NOW_MS + 1000) == 10.0


def test_a_new_rate_credits_the_time_before_it() -> None:
    """Time since the last touch counts at the new rate, and a smaller burst cuts the tokens (B§1.6)."""
    bucket = TokenBucket(samples=10, window_ms=1000, rate=10.0)
    bucket.record(130.0, NOW_MS)
    bucket.configure(samples=10, window_ms=1000, rate=20.0)
    assert bucket.rate == 20.0
    assert bucket.tokens(NOW_MS + 500) == -20.0
    bucket.configure(samples=10, window_ms=1000, rate=1.0)
    assert bucket.tokens(NOW_MS + 1_000_000) == 10.0


def test_giving_back_is_cut_at_the_burst_and_nan_stays_nan() -> None:
    """A refund cannot overfill; a NaN quota (B§6.8) makes NaN tokens, which are not below zero."""
    floats, ints = bucket_state()
    bucket_configure(floats, ints, 2.0, 10, 1000)
    bucket_record(floats, ints, -5.0, NOW_MS)
    assert bucket_tokens(floats, ints, NOW_MS) == 20.0
    bucket_configure(floats, ints, math.nan, 10, 1000)
    assert math.isnan(bucket_tokens(floats, ints, NOW_MS))
