"""Answers of Prometheus's HTTP API: JSON with series of points.

Sizes are bounded before and after parsing: the answer, its series, and their points.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigError

__all__ = [
    "MAX_ANSWER_BYTES",
    "MAX_POINTS",
    "MAX_SERIES",
    "AnswerError",
    "Series",
    "read_answer",
    "read_answer_file",
    "series_of",
]

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Bytes of one answer: a thousand series of a day, scraped every five minutes, take less than half of it."""

MAX_SERIES = 50_000
"""Series of one answer."""

MAX_POINTS = 2_000_000
"""Points of all series of one answer."""

_LONGEST_SAID = 300  # characters of an error of the server that are shown
_LATEST_S = 253_402_300_799.0  # the end of the year 9999
_HINT = "expected the JSON answer of /api/v1/query_range or /api/v1/query (docs/metrics-as-a-source.md)"


class AnswerError(ConfigError):
    """Raise when an answer is not one of Prometheus, or is too large."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series: its labels, and its points as (Unix time in s, value). Values that are not finite are left out.

    times: how many points it has in all, with those that are left out; last_s: time of the last of them.
    """

    labels: Mapping[str, str]
    points: list[tuple[float, float]]
    times: int
    last_s: float = 0.0


def read_answer_file(path: Path) -> list[Series]:
    """Return the series of a saved answer. Raises `AnswerError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_ANSWER_BYTES + 1)
    except OSError as error:
        raise AnswerError(
            f"cannot read {str(path)!r}: {error.strerror or error}",
            hint="give the path of a saved answer, or the URL of a server",
        ) from error
    return series_of(read_answer(content, source=repr(str(path))), source=repr(str(path)))


def read_answer(content: bytes, *, source: str) -> Any:
    """Return the data of a successful answer. source: names it in errors. Raises `AnswerError`."""
    if len(content) > MAX_ANSWER_BYTES:
        raise AnswerError(
            f"the answer of {source} is larger than {MAX_ANSWER_BYTES >> 20} MiB",
            hint="choose fewer series with --match, or a shorter time with --from",
        )
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"{source} is not JSON of Prometheus", hint=_HINT) from error
    if isinstance(answer, dict) and answer.get("status") == "error":
        raise AnswerError(
            f"{source} answers: {shown_answer(answer.get('error'))}",
            hint="correct the query, and save its answer again",
        )
    if not isinstance(answer, dict) or answer.get("status") != "success" or "data" not in answer:
        raise AnswerError(f"{source} is not an answer of Prometheus", hint=_HINT)
    return answer["data"]


def shown_answer(text: object) -> str:
    """Return what a server said, on one line and not too long."""
    shown = "".join(char if char.isprintable() else " " for char in str(text)[:_LONGEST_SAID])
    return " ".join(shown.split()) or "nothing"


def series_of(data: Any, *, source: str) -> list[Series]:
    """Return the series of the data of an answer, a matrix or a vector. Raises `AnswerError`."""
    kind = data.get("resultType") if isinstance(data, dict) else None
    found = data.get("result") if isinstance(data, dict) else None
    if kind not in ("matrix", "vector") or not isinstance(found, list):
        raise AnswerError(
            f"{source} has no series: expected a matrix, got {shown_answer(kind)!r}", hint=_HINT
        )
    if len(found) > MAX_SERIES:
        raise AnswerError(
            f"{source} has {len(found)} series, expected at most {MAX_SERIES}",
            hint="choose fewer with --match",
        )
    series: list[Series] = []
    left = MAX_POINTS
    for item in found:
        one = _series(item, kind, source)
        left -= one.times
        if left < 0:
            raise AnswerError(
                f"{source} has more than {MAX_POINTS} points",
                hint="save it with a larger step, or a shorter time",
            )
        series.append(one)
    return series


def _series(item: Any, kind: str, source: str) -> Series:
    try:
        labels = item["metric"]
        values = [item["value"]] if kind == "vector" else item.get("values", [])
        if not all(isinstance(text, str) for pair in labels.items() for text in pair):
            raise ValueError
        points = [(float(time_s), float(value)) for time_s, value in values]
        if not all(0 <= time_s <= _LATEST_S for time_s, _ in points):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise AnswerError(f"{source} has a series that is not one of Prometheus", hint=_HINT) from error
    last_s = points[-1][0] if points else 0.0
    return Series(labels, [point for point in points if math.isfinite(point[1])], len(points), last_s)
