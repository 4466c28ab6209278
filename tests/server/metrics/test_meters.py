"""Meters and histograms, as Kafka's Yammer metrics have them."""

import json
import math
from pathlib import Path

import pytest

from tidegate.server.metrics.meters import HISTOGRAM_NUMBERS, METER_NUMBERS, Meter, summary

RECORDED = json.loads((Path(__file__).parents[2] / "vectors" / "metrics.json").read_text("utf-8"))
RATES = METER_NUMBERS[2:]
THROTTLES = {
    "FetchConsumer": [0, 1290],
    "Heartbeat": [0, 0, 1000],
    "Produce": [0, 0, 0, 0, 1040, 12180],
}
"""Throttle times of each request of the recording's fifth stage, as its counts, means and maxima give them."""


def stage(number: int) -> dict[str, dict[str, float]]:
    """Return what was recorded at one stage, by the end of the bean's name."""
    beans = RECORDED["stages"][number]["mbeans"]
    return {name.partition("type=")[2]: values for name, values in beans.items()}


@pytest.mark.parametrize("request_name", THROTTLES)
def test_numbers_of_a_histogram_are_kafkas(request_name: str) -> None:
    """To the last bit: minimum, maximum, mean, deviation and percentiles."""
    recorded = stage(4)[f"RequestMetrics,name=ThrottleTimeMs,request={request_name}"]
    values = THROTTLES[request_name]
    assert {"Count": len(values), **dict(summary(values))} == recorded
    assert set(recorded) == set(HISTOGRAM_NUMBERS)


def test_one_more_request_moves_them_as_in_kafka() -> None:
    """The last stage has one more Produce, which was not throttled."""
    recorded = stage(5)["RequestMetrics,name=ThrottleTimeMs,request=Produce"]
    assert {"Count": 7, **dict(summary([0, *THROTTLES["Produce"]]))} == recorded


def test_an_empty_histogram_is_all_zeros() -> None:
    """As on a broker that nobody has asked anything."""
    recorded = stage(0)["RequestMetrics,name=ThrottleTimeMs,request=Produce"]
    assert {"Count": 0, **dict(summary([]))} == recorded


def test_percentiles_lie_between_two_values() -> None:
    """The share of the number of values and one more, counted from one."""
    numbers = dict(summary(range(1, 101)))
    assert (numbers["50thPercentile"], numbers["98thPercentile"]) == (50.5, 98.98)
    assert numbers["999thPercentile"] == 100.0
    assert dict(summary([7]))["StdDev"] == 0.0


@pytest.mark.parametrize(
    ("number", "name", "counts"),
    [
        (3, "Produce,version=9", [3]),
        (4, "FetchConsumer,version=12", [2, 2]),
        (4, "Produce,version=9", [3, 6]),
    ],
)
def test_rates_of_a_meter_are_kafkas(number: int, name: str, counts: list[int]) -> None:
    """To the last bit, ticked every five seconds; `counts` is what each tick of the recording found."""
    recorded = stage(number)[f"RequestMetrics,name=RequestsPerSec,request={name}"]
    meter = Meter(now_ns=0)
    for count in counts:
        meter.tick(count)
    numbers = dict(meter.numbers(counts[-1], now_ns=10**9))
    assert {rate: numbers[rate] for rate in RATES} == {rate: recorded[rate] for rate in RATES}


def test_a_meter_forgets() -> None:
    """A minute without anything leaves 1/e of the rate over one minute, after the first tick's."""
    meter = Meter(now_ns=0)
    meter.tick(600)
    for _ in range(12):
        meter.tick(600)
    numbers = dict(meter.numbers(600, now_ns=65 * 10**9))
    assert numbers["OneMinuteRate"] == pytest.approx(120.0 / math.e)
    assert numbers["MeanRate"] == pytest.approx(600 / 65)


def test_a_fresh_meter_is_zero() -> None:
    """Nothing is divided by nothing."""
    assert set(dict(Meter(now_ns=5).numbers(0, now_ns=5)).values()) == {0.0}
    assert dict(Meter(now_ns=5).numbers(3, now_ns=5))["MeanRate"] == 0.0
