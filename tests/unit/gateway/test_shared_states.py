"""Buckets and rates that several processes charge: real processes, real memory, a virtual clock."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidegate.gateway import shared_states
from tidegate.gateway.shared_states import IDLE_MS, MAX_BYTES, PROBES, SharedBuckets, SharedRates
from tidegate.quota.managers.mutation import own_bucket
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.token_bucket import TokenBucket
from tidegate.quota.measure.window import MAX_SAMPLES, QuotaWindow

START_MS = 1_700_000_000_000
WINDOW = QuotaWindow(samples=10, window_ms=1000)
RATE = 100.0
PROCESSES, CHARGES = 4, 2000
HELD_S = 0.1
PATIENCE_S = 60.0  # a host that stalls stops no process here, where no charge may be lost
NewBucket = Callable[[str], TokenBucket]


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        """Return the time."""
        return self.ms


def process_of(table: SharedBuckets, clock: Clock) -> NewBucket:
    """Return what makes buckets, as one process does."""
    new_bucket = table.buckets(clock)
    return lambda name: new_bucket(name, WINDOW, RATE)


def rate_of(
    rates: SharedRates,
    clock: Clock,
    *,
    broker_id: int = 1,
    bound: float = RATE,
    samples: int = WINDOW.samples,
) -> SampledRate:
    """Return a rate, as one process has it."""
    settings = {"window_ms": WINDOW.window_ms, "bound": bound, "cap_ms": WINDOW.window_ms}
    return rates.rate(broker_id, clock, "listener EXTERNAL", samples=samples, **settings)


@contextmanager
def forked(work: Callable[[], None]) -> Iterator[int]:
    """Run work in a process of its own; wait for its end, which must be a good one unless it was killed."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    yield pid
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)


def test_processes_charge_one_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    """No charge is lost, however many are made at once; another broker's rate is another one."""
    monkeypatch.setattr(shared_states, "_LONGEST_S", PATIENCE_S)
    clock = Clock()
    table, rates = SharedBuckets(), SharedRates(WINDOW.samples)
    mine, rate = process_of(table, clock)("alice"), rate_of(rates, clock)

    def charge() -> None:
        bucket, rate = process_of(table, clock)("alice"), rate_of(rates, clock)
        for _ in range(CHARGES):
            bucket.record(1.0, clock())
            rate.decide(1.0, clock())

    children = [forked(charge) for _ in range(PROCESSES)]
    for child in children:
        child.__enter__()
    for child in children:
        child.__exit__(None, None, None)
    charged = PROCESSES * CHARGES
    assert 1000 - mine.peek(clock()) == charged
    assert rate.peek(clock()) * 9 == pytest.approx(charged)  # in ten samples, of which the first is not over
    assert rate_of(rates, clock, broker_id=2).peek(clock()) == 0


def test_it_decides_as_a_bucket_of_one_process() -> None:
    """Charged in turn by two processes, at any times: the same tokens and throttle times."""
    clock = Clock()
    table = SharedBuckets()
    shared = [process_of(table, clock)("alice") for _ in range(2)]
    own = own_bucket("alice", WINDOW, RATE)
    for step in range(200):
        clock.ms += step * 37 % 900 - 50  # the clock also steps back
        value = step * 71 % 1300
        bucket = shared[step % 2]
        bucket.record(value, clock.ms)
        own.record(value, clock.ms)
        for each in (*shared, own):
            assert each.tokens(clock.ms) == own.peek(clock.ms)
            assert each.throttle_ms(clock.ms) == own.peek_throttle_ms(clock.ms)
            assert each.peek_used(clock.ms) == own.peek_used(clock.ms)
            assert each.snapshot(clock.ms) == own.snapshot(clock.ms)
        if step % 9 == 0:
            assert shared[0].forgive(1.0, clock.ms) == own.forgive(1.0, clock.ms)


def test_each_process_keeps_the_rate_that_it_knows() -> None:
    """A changed quota reaches the processes one after the other; the balance is one."""
    clock = Clock()
    table = SharedBuckets()
    first, second = (process_of(table, clock)("alice") for _ in range(2))
    first.record(1500.0, clock.ms)
    second.configure(samples=10, window_ms=1000, rate=50.0)
    assert (first.throttle_ms(clock.ms), second.throttle_ms(clock.ms)) == (5000, 10_000)


def test_a_killed_process_leaves_no_lock() -> None:
    """The kernel ends its lock with it."""
    clock = Clock()
    table = SharedBuckets()
    bucket = process_of(table, clock)("alice")
    at = table.find(bucket.place._key, clock.ms)
    locked, tells = os.pipe()

    def hold() -> None:
        with table.locked(at):
            os.write(tells, b".")
            signal.pause()

    with forked(hold) as pid:
        assert os.read(locked, 1) == b"."
        # It goes on without the lock: a stopped process delays the others only shortly.
        bucket.record(1.0, clock.ms)
        os.kill(pid, signal.SIGKILL)
    bucket.record(1.0, clock.ms)
    assert process_of(table, clock)("alice").peek(clock.ms) == 998
    os.close(locked)
    os.close(tells)


def test_a_process_waits_for_one_that_has_the_lock_and_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine that takes longer than it waits for one that was stopped; no charge is lost."""
    assert shared_states._LONGEST_S > HELD_S
    monkeypatch.setattr(shared_states, "_LONGEST_S", PATIENCE_S)
    clock = Clock()
    table = SharedBuckets()
    bucket = process_of(table, clock)("alice")
    at, key = bucket.place._at, bucket.place._key
    locked, tells = os.pipe()

    def charge_slowly() -> None:
        with table.locked(at):
            tokens, *others = table.load(at)
            os.write(tells, b".")
            until_s = time.monotonic() + HELD_S
            while time.monotonic() < until_s:
                pass
            table.store(at, key, (tokens - 1.0, *others), clock.ms)

    bucket.record(1.0, clock.ms)
    with forked(charge_slowly):
        assert os.read(locked, 1) == b"."
        bucket.record(1.0, clock.ms)
    assert bucket.peek(clock.ms) == 997
    os.close(locked)
    os.close(tells)


def test_an_idle_bucket_is_full_again() -> None:
    """As a sensor that has expired; a bucket that was charged within the hour keeps what it owes."""
    clock = Clock()
    table = SharedBuckets()
    new_bucket = process_of(table, clock)
    new_bucket("alice").record(1e6, clock.ms)
    clock.ms += IDLE_MS
    assert new_bucket("alice").peek(clock.ms) < 0
    clock.ms += 1
    assert new_bucket("alice").peek(clock.ms) == 1000


def test_a_full_table_loses_what_was_charged_least_recently() -> None:
    """A new bucket takes its place, and is shared, too; the others keep theirs."""
    clock = Clock()
    new_bucket = process_of(SharedBuckets(places=PROBES + 1), clock)
    shared = [new_bucket(f"client {number}") for number in range(PROBES)]
    for number, bucket in enumerate(shared):
        clock.ms += number != 5
        bucket.record(500.0, START_MS if number == 5 else clock.ms)
    late = new_bucket("late"), new_bucket("late")
    for bucket in late:
        bucket.record(1.0, clock.ms)
    assert [bucket.peek(clock.ms) for bucket in late] == [998, 998]
    assert [number for number, bucket in enumerate(shared) if bucket.peek(clock.ms) > 600] == [5]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5.0, 0.0])
def test_odd_values_are_charged_as_by_one_process(value: float) -> None:
    """Whatever is charged, both agree, also with what is not a number."""
    clock = Clock()
    shared, own = process_of(SharedBuckets(), clock)("alice"), own_bucket("alice", WINDOW, RATE)
    for bucket in (shared, own):
        bucket.record(value, clock.ms)
    assert repr(shared.peek(clock.ms + 10)) == repr(own.peek(clock.ms + 10))


@pytest.mark.parametrize("seed", range(20))
def test_a_rate_decides_as_that_of_one_process(seed: int) -> None:
    """Recorded by processes in any order, at any times and with any values: bit by bit what one process measures."""
    chosen = random.Random(seed)
    clock = Clock()
    rates = SharedRates(WINDOW.samples)
    shared = [rate_of(rates, clock) for _ in range(3)]
    own = SampledRate(samples=WINDOW.samples, window_ms=WINDOW.window_ms, bound=RATE, cap_ms=WINDOW.window_ms)
    for _ in range(500):
        clock.ms += chosen.choice((0, 1, 30, 400, 1000, 9999, -50))  # the clock also steps back
        value = chosen.choice((1.0, -1.0, 0.1, 40.0, 700.0))
        each = chosen.choice(shared)
        if chosen.random() < 0.2:
            each.record(value, clock.ms)
            own.record(value, clock.ms)
        else:
            assert each.decide(value, clock.ms) == own.decide(value, clock.ms), f"seed {seed}"
        assert chosen.choice(shared).peek(clock.ms + 700) == own.peek(clock.ms + 700), f"seed {seed}"


def test_each_process_keeps_the_bound_that_it_knows() -> None:
    """A changed limit reaches the processes one after the other; what was recorded is one."""
    clock = Clock()
    rates = SharedRates(WINDOW.samples)
    first, second = rate_of(rates, clock), rate_of(rates, clock, bound=2 * RATE)
    first.record(RATE * 9 + 90, clock.ms)
    assert (first.decide(0.0, clock.ms), second.decide(0.0, clock.ms)) == (900, 0)
    second.set_bound(RATE)
    assert second.decide(0.0, clock.ms) == 900


def test_a_rate_with_other_samples_is_that_of_its_process() -> None:
    """The settings were changed before its process was started again: its samples do not fit into the table."""
    clock = Clock()
    rates = SharedRates(WINDOW.samples)
    rate, other = rate_of(rates, clock), rate_of(rates, clock, samples=4)
    other.record(RATE, clock.ms)
    assert (other.peek(clock.ms) > 0, rate.peek(clock.ms)) == (True, 0)


def test_many_samples_leave_room_for_fewer_rates() -> None:
    """The table has a bound in bytes, and every rate a place."""
    clock = Clock()
    rates = SharedRates(MAX_SAMPLES)
    assert 1000 * rates._size < rates._end <= MAX_BYTES
    rate = rate_of(rates, clock, samples=MAX_SAMPLES)
    rate.record(7.0, clock.ms)
    assert rate_of(rates, clock, samples=MAX_SAMPLES).peek(clock.ms) == rate.peek(clock.ms) > 0
