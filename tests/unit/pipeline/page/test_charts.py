"""The specs of the charts: bounded, plain data, and readable without colour."""

import json
import math

import pytest

from tidegate.pipeline.page.charts import Bar, Strip, UsedStep, bar_chart, limit_chart, strip_chart
from tidegate.pipeline.page.findings import MOST_STEPS

_MAX_POINTS = 2000


def _values(spec):
    """Return all points of a chart."""
    parts = [spec, *spec["layer"]]
    return [value for part in parts for value in part.get("data", {}).get("values", [])]


def _steps(count, *, limit=50.0, peak=10.0):
    return [UsedStep(start_ms=1000 * at, rate=float(at % 10), peak=peak, limit=limit) for at in range(count)]


def _limit_chart(steps):
    return limit_chart(steps, step_ms=1000, unit="KiB/s", limit_text="limit 50 KiB/s")


def test_no_chart_has_more_than_2000_points():
    """The most steps, the most strips, many bars."""
    strips = [Strip(name="n", waits=dict.fromkeys(range(90), 0.2)) for _ in range(20)]
    for spec in (
        _limit_chart(_steps(MOST_STEPS)),
        strip_chart(strips, first_ms=0, end_ms=100, step_ms=1),
        bar_chart([Bar(text="t", value=1.0, colour="used", heading="h")] * 50),
    ):
        assert 0 < len(_values(spec)) <= _MAX_POINTS
        assert json.loads(json.dumps(spec, allow_nan=False)) == spec
        assert spec["width"] == "container"


def test_a_bar_has_its_text_above_it():
    """Heading, text, bar, from above; bars of one chart share a scale."""
    spec = bar_chart(
        [
            Bar(text="recorded", value=1.0, colour="was", heading="loader"),
            Bar(text="plan", value=4.0, colour="plan"),
        ]
    )
    bars, *texts = spec["layer"]
    assert [bar["value"] for bar in bars["data"]["values"]] == [1.0, 4.0]
    assert bars["encoding"]["x"]["scale"]["domain"] == [0, 4.0]
    at = {text["text"].strip("\u2068\u2069"): text["at"] for text in _values({"layer": texts})}
    first, second = bars["data"]["values"]
    assert at["loader"] < at["recorded"] < first["top"] < first["bottom"] < at["plan"] < second["top"]


def test_the_limit_is_a_dashed_line_with_its_text():
    """Not by colour alone."""
    layers = _limit_chart(_steps(5, limit=12.0))["layer"]
    assert [layer["mark"].get("strokeDash") for layer in layers if layer["mark"]["type"] == "line"] == [
        None,
        [6, 3],
    ]
    assert layers[-1]["data"]["values"] == [{"text": "\u2068limit 50 KiB/s\u2069"}]


@pytest.mark.parametrize("limit", [1e9, math.inf])
def test_a_limit_far_above_does_not_flatten_the_chart(limit):
    """It is said instead, where it is a number."""
    spec = _limit_chart(_steps(5, limit=limit))
    assert spec["layer"][0]["encoding"]["y"]["scale"]["domain"] == [0, 10.0]
    assert all("limit" not in value for value in spec["data"]["values"])
    said = [value["text"] for value in _values({"layer": spec["layer"]})]
    assert said == (["\u2068limit 50 KiB/s, far above this chart\u2069"] if math.isfinite(limit) else [])


def test_no_limit_and_no_use_make_a_chart_too():
    """Nothing used, and a limit that is no number."""
    for limit in (None, math.nan):
        spec = _limit_chart(_steps(1, limit=limit, peak=0.0))
        assert "strokeDash" not in json.dumps(spec)
        json.dumps(spec, allow_nan=False)


def test_longer_waits_are_higher_and_stronger():
    """Four heights and four shades; no wait, no cell."""
    waits = {0: 0.0, 1: 0.05, 2: 0.3, 3: 0.8, 4: 7.0}
    spec = strip_chart([Strip(name="a", waits=waits)], first_ms=0, end_ms=5, step_ms=1)
    cells = [value for value in _values(spec) if value.get("colour", "none") != "none"]
    heights = [cell["bottom"] - cell["top"] for cell in cells]
    assert len(cells) == 4
    assert heights == sorted(set(heights))
    assert len({cell["colour"] for cell in cells}) == 4


def test_times_beyond_the_calendar_are_its_end():
    """A record may say anything; a browser has no time after the year 275760."""
    spec = strip_chart([Strip(name="a", waits={2**53: 1.0})], first_ms=2**53, end_ms=2**53 + 1, step_ms=1)
    assert max(value["t"] for value in _values(spec) if "t" in value) == 253_402_300_799_000
