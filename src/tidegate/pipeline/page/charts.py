"""The charts, as Vega-Lite specs of plain data.

They are as wide as the page and readable at 300 pixels. Text, height or dashes repeat what colours show. Names are
above their marks, and need no margin. Colours are variables of `page.css`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["WAIT_CLASSES", "Bar", "Strip", "UsedStep", "bar_chart", "limit_chart", "strip_chart"]

Spec = dict[str, Any]

_LINE_PX = 18  # of text
_BAR_PX = 12
_STRIP_PX = 28
_BETWEEN_PX = 10
_LIMIT_CHART_PX = 180
_THROTTLED_PX = 8  # height of the marks of throttled steps
_FAR = 4  # times the usage: a limit above that is not drawn
_WHOLE_WIDTH = {"limit": {"expr": "width"}}  # longer texts end in …
_MAX_TIME_MS = 253_402_300_799_000  # the year 9999; charts have no later times

_TIMES = ((900_000, "%H:%M:%S"), (86_400_000, "%H:%M"), (20 * 86_400_000, "%d %b %H:%M"))

WAIT_CLASSES = (0.1, 0.5, 1.0)
"""The bounds of the shades of a strip: seconds of throttle time per second."""

_WAIT_COLOURS = [f"var(--wait-{number})" for number in range(1, len(WAIT_CLASSES) + 2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar with a text above it. colour: a variable of the style sheet. heading: a line above the text."""

    text: str
    value: float
    colour: str
    heading: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedStep:
    """The usage in a step of time, in the unit of the chart; limit: at the end of the step, None if there is none.

    throttle_ms: throttle time of the requests of the step, on all brokers.
    """

    start_ms: int
    rate: float
    peak: float
    limit: float | None
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The waits of an entity over time: seconds of throttle time per second, by the step's first ms."""

    name: str
    waits: Mapping[int, float]


def bar_chart(bars: Sequence[Bar]) -> Spec:
    """Return bars one below another, each under its own text, from a common zero."""
    texts: list[dict[str, Any]] = []
    boxes: list[dict[str, Any]] = []
    at = 0
    for bar in bars:
        if bar.heading is not None:
            at += _BETWEEN_PX if at else 0
            texts.append({"at": at + _LINE_PX / 2, "text": _isolated(bar.heading), "weight": "bold"})
            at += _LINE_PX
        texts.append({"at": at + _LINE_PX / 2, "text": _isolated(bar.text), "weight": "normal"})
        at += _LINE_PX
        boxes.append(
            {
                "top": at,
                "bottom": at + _BAR_PX,
                "zero": 0,
                "value": bar.value,
                "colour": f"var(--{bar.colour})",
            }
        )
        at += _BAR_PX
    largest = max((bar.value for bar in bars), default=0) or 1
    length = {"field": "value", "type": "quantitative", "axis": None, "scale": {"domain": [0, largest]}}
    marks = {
        "data": {"values": boxes},
        "mark": {"type": "rect"},
        "encoding": {
            **_down(at, "top", "bottom"),
            "x": length,
            "x2": {"field": "zero"},
            "color": {"field": "colour", "type": "nominal", "scale": None},
        },
    }
    return _sized(at, [marks, *_texts(texts, at)])


def limit_chart(
    steps: Sequence[UsedStep],
    *,
    step_ms: int,
    unit: str,
    limit_text: str,
    plan_limits: Sequence[float] = (),
) -> Spec:
    """Return usage over time as an area, its busiest seconds as a line, and the limit as a dashed line with its text.

    Marks at the bottom show steps with throttled requests. plan_limits: of other plans, as dotted lines.
    A limit far above the usage is not drawn, and the text of the limit in force states that.
    """
    largest = max((max(step.rate, step.peak) for step in steps), default=0) or 1
    planned = [limit for limit in plan_limits if limit <= _FAR * largest]
    limits = [step.limit for step in steps if step.limit is not None and math.isfinite(step.limit)]
    is_shown = bool(limits) and min(limits) <= _FAR * largest
    top = max([largest, *planned, *(limit for limit in limits if is_shown and limit <= _FAR * largest)])
    values = [
        {
            "t": _time(step.start_ms),
            "end": _time(step.start_ms + step_ms),
            "rate": _short(step.rate),
            "peak": _short(step.peak),
            **({"limit": _short(step.limit)} if is_shown and step.limit in limits else {}),
        }
        for step in steps
    ]
    amount = {"type": "quantitative", "title": unit, "scale": {"domain": [0, _short(top)], "nice": True}}
    over_time = _over_time(len(steps) * step_ms)
    bars = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "t", **over_time},
            "x2": {"field": "end"},
            "y": {"field": "rate", **amount},
            "y2": {"datum": 0},
            "color": {"value": "var(--used)"},
        },
    }
    layers: list[Spec] = [bars]
    if any(step.peak > step.rate for step in steps):
        layers.append(_stepped("peak", {**amount}, over_time, "var(--peak)", {"strokeWidth": 1.5}))
    if is_shown:
        dashes = {"strokeDash": [6, 3], "strokeWidth": 2}
        layers.append(_stepped("limit", {**amount}, over_time, "var(--limit)", dashes))
    if planned:
        layers.append(_rules(planned, amount))
    throttled = [
        {"t": _time(step.start_ms), "end": _time(step.start_ms + step_ms)}
        for step in steps
        if step.throttle_ms
    ]
    if throttled:
        layers.append(_throttled_marks(throttled, over_time))
    if limits:
        note = limit_text if is_shown else f"{limit_text}, far above this chart"
        layers.append(_corner_text(note))
    return {"width": "container", "height": _LIMIT_CHART_PX, "data": {"values": values}, "layer": layers}


def strip_chart(strips: Sequence[Strip], *, first_ms: int, end_ms: int, step_ms: int) -> Spec:
    """Return a strip of cells for each entity: the longer the waits, the higher and stronger the cell."""
    texts, cells, lines = [], [], []
    at = 0
    for strip in strips:
        texts.append({"at": at + _LINE_PX / 2, "text": _isolated(strip.name), "weight": "normal"})
        at += _LINE_PX
        lines.append({"at": at + _STRIP_PX})
        for start_ms, wait in strip.waits.items():
            if wait > 0:
                level = sum(wait > limit for limit in WAIT_CLASSES)
                height = _STRIP_PX * (level + 1) / len(_WAIT_COLOURS)
                floor = at + _STRIP_PX
                cells.append(_cell(start_ms, start_ms + step_ms, floor - height, floor, _WAIT_COLOURS[level]))
        at += _STRIP_PX + _BETWEEN_PX
    cells += [
        _cell(ts_ms, ts_ms, 0, 0, "none") for ts_ms in (first_ms, end_ms)
    ]  # so that the axis covers all of the time
    marks = {
        "data": {"values": cells},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "t", **_over_time(end_ms - first_ms)},
            "x2": {"field": "end"},
            **_down(at, "top", "bottom"),
            "color": {"field": "colour", "type": "nominal", "scale": None},
        },
    }
    floors = {
        "data": {"values": lines},
        "mark": {"type": "rule"},
        "encoding": {**_down(at, "at"), "color": {"value": "var(--grid)"}},
    }
    return _sized(at, [floors, marks, *_texts(texts, at)])


def _sized(height: int, layers: Sequence[Spec]) -> Spec:
    return {"width": "container", "height": max(height, _LINE_PX), "layer": list(layers)}


def _down(height: int, top: str, bottom: str | None = None) -> Spec:
    """Return positions in pixels from above."""
    scale = {"domain": [0, max(height, 1)], "reverse": True, "nice": False, "zero": False}
    channels: Spec = {"y": {"field": top, "type": "quantitative", "axis": None, "scale": scale}}
    if bottom is not None:
        channels["y2"] = {"field": bottom}
    return channels


def _texts(texts: Sequence[Mapping[str, Any]], height: int) -> list[Spec]:
    """Return a layer for each weight, because the weight of a text cannot come from its data."""
    return [
        {
            "data": {"values": [text for text in texts if text["weight"] == weight]},
            "mark": {
                "type": "text",
                "align": "left",
                "baseline": "middle",
                "fontWeight": weight,
                **_WHOLE_WIDTH,
            },
            "encoding": {
                **_down(height, "at"),
                "x": {"value": 0},
                "text": {"field": "text", "type": "nominal"},
                "color": {"value": "var(--text)"},
            },
        }
        for weight in ("normal", "bold")
        if any(text["weight"] == weight for text in texts)
    ]


def _cell(start_ms: int, end_ms: int, top: float, bottom: float, colour: str) -> Spec:
    return {"t": _time(start_ms), "end": _time(end_ms), "top": top, "bottom": bottom, "colour": colour}


def _over_time(span_ms: int) -> Spec:
    """Return the axis of a span of time, with labels of a suitable precision."""
    time = next((text for longest_ms, text in _TIMES if span_ms <= longest_ms), "%Y-%m-%d")
    axis = {"title": None, "grid": False, "labelFlush": True, "labelSeparation": 8, "format": time}
    return {"type": "temporal", "scale": {"type": "utc"}, "axis": axis}


def _stepped(field: str, amount: Spec, over_time: Spec, colour: str, style: Mapping[str, Any]) -> Spec:
    return {
        "mark": {"type": "line", "interpolate": "step-after", **style},
        "encoding": {
            "x": {"field": "t", **over_time},
            "y": {"field": field, **amount},
            "color": {"value": colour},
        },
    }


def _rules(limits: Sequence[float], amount: Spec) -> Spec:
    return {
        "data": {"values": [{"plan": _short(limit)} for limit in limits]},
        "mark": {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 2},
        "encoding": {"y": {"field": "plan", **amount}, "color": {"value": "var(--plan)"}},
    }


def _throttled_marks(throttled: Sequence[Mapping[str, int]], over_time: Spec) -> Spec:
    return {
        "data": {"values": throttled},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "t", **over_time},
            "x2": {"field": "end"},
            "y": {"value": _LIMIT_CHART_PX},
            "y2": {"value": _LIMIT_CHART_PX - _THROTTLED_PX},
            "color": {"value": "var(--wait-3)"},
        },
    }


def _corner_text(text: str) -> Spec:
    return {
        "data": {"values": [{"text": _isolated(text)}]},
        "mark": {"type": "text", "align": "right", "baseline": "bottom", "dy": -4},
        "encoding": {
            "x": {"value": "width"},
            "y": {"value": 0},
            "text": {"field": "text", "type": "nominal"},
            "color": {"value": "var(--limit)"},
        },
    }


def _isolated(text: str) -> str:
    """Return the text between marks that isolate its direction of writing."""
    return f"\u2068{text}\u2069"


def _time(ts_ms: int) -> int:
    return min(ts_ms, _MAX_TIME_MS)


def _short(number: float) -> float:
    """Return a number with four digits, which are enough for a picture."""
    return float(f"{number:.4g}")
