"""The sensor of smooth mode: burst, waiting, debt, taking back, and what an observed client is decided."""

import pytest

from tidegate.quota.measure.smooth import SmoothMode, SmoothSensor
from tidegate.quota.measure.throttle import MAX_INT32, UNLIMITED
from tidegate.quota.measure.window import QuotaWindow

NOW_MS = 1_700_000_000_000
RATE = 1000.0


def _sensor(*, burst_s=1, debt_max_s=0, observed=False, fetches=False, bound=RATE):
    mode = SmoothMode(burst_s=burst_s, debt_max_s=debt_max_s, observed=observed)
    window = QuotaWindow()
    return SmoothSensor("s", {}, window=window, bound=bound, mode=mode, checks_first=fetches, now_ms=NOW_MS)


def test_what_is_produced_is_waited_for():
    """After the burst each request waits for its own bytes; idle time fills the bucket, up to the burst."""
    sensor = _sensor(burst_s=2)
    assert sensor.decide(2000.0, NOW_MS) == 0
    assert not sensor.is_over(NOW_MS)
    assert sensor.decide(300.0, NOW_MS) == 300
    assert sensor.is_over(NOW_MS + 299)
    assert sensor.decide(300.0, NOW_MS + 300) == 300
    assert sensor.decide(2000.0, NOW_MS + 60_000) == 0
    assert sensor.decide(1.0, NOW_MS + 60_000) == 1


def test_what_is_fetched_waits_for_what_was_fetched_before():
    """A fetch with tokens left has its data; the next is answered empty, and its bytes are taken back."""
    sensor = _sensor(fetches=True)
    assert sensor.decide(1500.0, NOW_MS) == 0
    assert sensor.decide(700.0, NOW_MS) == 500
    sensor.record(-700.0, NOW_MS)
    assert sensor.decide(700.0, NOW_MS + 500) == 0


def test_debt_is_bounded():
    """One huge request costs no more than the bound."""
    assert _sensor().decide(1e6, NOW_MS) == 999_000
    assert _sensor(debt_max_s=5).decide(1e6, NOW_MS) == 5000
    assert _sensor(bound=1e-3).decide(1e9, NOW_MS) == MAX_INT32


def test_taking_back_gives_no_more_than_was_taken():
    """What the bound forgave of a charge is not given back with it."""
    sensor = _sensor(fetches=True, debt_max_s=5)
    sensor.decide(1000.0, NOW_MS)
    assert sensor.decide(1e6, NOW_MS) == 0
    sensor.record(-1e6, NOW_MS)
    assert sensor.decide(1.0, NOW_MS) == 0
    assert sensor.decide(1.0, NOW_MS) == 1


@pytest.mark.parametrize("fetches", [False, True])
def test_an_observed_client_is_decided_as_if_it_waited(fetches):
    """It does not wait, so each request is reported with its own bytes' time; no debt grows."""
    sensor = _sensor(observed=True, fetches=fetches)
    sensor.decide(1000.0, NOW_MS)
    assert [sensor.decide(200.0, NOW_MS) for _ in range(3)] == [200, 200, 200]


def test_a_bound_changes_and_the_tokens_stay():
    """Half the rate takes twice the time."""
    sensor = _sensor()
    sensor.decide(1000.0, NOW_MS)
    sensor.set_bound(500.0)
    assert sensor.bound == 500.0
    assert sensor.decide(100.0, NOW_MS) == 200


def test_the_rate_is_measured_beside_it():
    """The metric `byte-rate` is what it is without smooth mode."""
    sensor = _sensor()
    sensor.decide(1000.0, NOW_MS)
    assert sensor.peek(NOW_MS + 1000) == 1000.0 / 10
    assert sensor.last_record_ms() == NOW_MS


def test_what_is_unlimited_is_never_waited_for():
    """Also where time steps back, which takes tokens away: in a forecast it may."""
    sensor = _sensor(bound=UNLIMITED)
    assert sensor.decide(1.0, NOW_MS) == 0
    assert sensor.decide(1.0, NOW_MS - 60_000) == 0
