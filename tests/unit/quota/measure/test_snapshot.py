"""A sensor's state taken out and put in elsewhere decides as the sensor itself."""

import json
from random import Random

import pytest

from tidegate.quota.managers.mutation import MutationSensor, own_bucket
from tidegate.quota.measure.bucket_kernel import bucket_configure, bucket_state
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.rate_kernel import rate_configure, rate_last_record_ms, rate_state
from tidegate.quota.measure.sensors import RateSensor
from tidegate.quota.measure.snapshot import rate_snapshot, restore_bucket, restore_rate
from tidegate.quota.measure.throttle import MAX_INT64
from tidegate.quota.measure.token_bucket import TokenBucket
from tidegate.quota.measure.window import QuotaWindow

START_MS = 1_700_000_000_000
STEPS_MS = (0, 1, 30, 700, 1500, 4000, 12_000, -900, 40_000)


def _restored_rate(state: dict, window: QuotaWindow, bound: float, now_ms: int) -> SampledRate:
    rate = SampledRate(samples=window.samples, window_ms=window.window_ms)
    restore_rate(json.loads(json.dumps(state)), rate._floats, rate._ints, now_ms)
    rate._take()
    rate.configure(samples=window.samples, window_ms=window.window_ms, bound=bound)
    return rate


def _use(rate: SampledRate, rng: Random, now_ms: int) -> object:
    value = rng.choice([rng.random() * 1000, float(rng.randrange(100_000)), -5.0])
    match rng.randrange(4):
        case 0:
            return rate.record(value, now_ms)
        case 1:
            return rate.measure(now_ms)
    return rate.decide(value, now_ms)


@pytest.mark.parametrize("seed", range(300))
def test_a_restored_rate_goes_on_as_the_rate(seed):
    """Whenever it is taken and whatever follows, also where time steps back."""
    rng = Random(seed)
    window = QuotaWindow(samples=rng.choice([1, 2, 11]), window_ms=1000)
    bound = rng.choice([100.0, 5000.0])
    rate = RateSensor("s", {}, window=window, bound=bound, cap_ms=MAX_INT64, now_ms=START_MS)
    now_ms = START_MS
    for _ in range(rng.randrange(60)):
        now_ms += rng.choice(STEPS_MS)
        _use(rate, rng, now_ms)
    before = rate_snapshot(*rate._give(), now_ms)
    restored = _restored_rate(rate.snapshot(now_ms), window, bound, now_ms)
    assert rate_snapshot(*rate._give(), now_ms) == before, "it was changed by looking at it"
    for _ in range(60):
        now_ms += rng.choice(STEPS_MS)
        follows = rng.random()
        assert _use(rate, Random(follows), now_ms) == _use(restored, Random(follows), now_ms)
        assert rate.peek(now_ms) == restored.peek(now_ms)
        assert rate_last_record_ms(rate._give()[1]) == rate_last_record_ms(restored._give()[1])


def test_a_rate_that_was_never_used_is_restored_as_one():
    """It has no samples."""
    floats, ints = rate_state(11)
    rate_configure(floats, ints, 2.0, 11, 1000, MAX_INT64)
    state = rate_snapshot(floats, ints, START_MS)
    assert state == {"samples": [], "current": 0}
    assert _restored_rate(state, QuotaWindow(), 2.0, START_MS).decide(30.0, START_MS) == 5000


@pytest.mark.parametrize("seed", range(50))
def test_a_restored_bucket_goes_on_as_the_bucket(seed):
    """Its debts too."""
    rng = Random(seed)
    window = QuotaWindow(samples=10, window_ms=1000)
    sensor = MutationSensor("s", {}, window=window, bucket=own_bucket("s", window, 2.5), now_ms=START_MS)
    now_ms = START_MS
    for _ in range(rng.randrange(20)):
        now_ms += rng.choice(STEPS_MS)
        sensor.record(float(rng.randrange(20)), now_ms)
    floats, ints = bucket_state()
    restore_bucket(json.loads(json.dumps(sensor.snapshot(now_ms))), floats, ints, now_ms)
    bucket_configure(floats, ints, 2.5, 10, 1000)
    restored = TokenBucket(samples=10, window_ms=1000, rate=2.5)
    restored.floats[:], restored.ints[:] = floats, ints
    for _ in range(20):
        now_ms += rng.choice(STEPS_MS)
        assert sensor.bucket.throttle_ms(now_ms) == restored.throttle_ms(now_ms)
        permits = float(rng.randrange(20))
        sensor.record(permits, now_ms)
        restored.record(permits, now_ms)
        assert sensor.bucket.tokens(now_ms) == restored.tokens(now_ms)
