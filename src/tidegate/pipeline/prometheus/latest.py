"""The latest values of metrics of clients: rate and mean throttle time of each client, by broker."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.pipeline.prometheus.answers import Series, read_answer_file
from tidegate.pipeline.prometheus.measured import THROTTLE, no_metrics_error
from tidegate.pipeline.prometheus.server import MetricsServer
from tidegate.pipeline.prometheus.spellings import Client, Spelling, Spellings

__all__ = ["RECENT_S", "Use", "Uses", "latest_from_files", "latest_from_server"]

RECENT_S = 300
"""Time in s after which a value is not the latest any more: as long as Prometheus looks back."""


@dataclass(slots=True)
class Use:
    """The use of a quota by one client, or by all that share its entity, on one broker.

    rate: the metric that Kafka compares with the quota, in bytes or mutations per second, or percent of a thread; None
    if no series has it. throttle_ms: mean throttle time, which Kafka takes over the last 30 to 60 s; 0.0 without one.
    """

    rate: float | None = None
    throttle_ms: float = 0.0


Uses = Mapping[Client, Mapping[str, Use]]
"""Use by client, then by broker: the value of the label that names the broker, such as `instance`."""


def latest_from_server(server: MetricsServer, spellings: Spellings, *, at_s: int, match: str = "") -> Uses:
    """Return what a server knows at a time. match: label matchers, such as `job="kafka"`.

    Raises `NoMetricsError`, and what `MetricsServer` raises.
    """
    names = server.names(from_s=at_s - RECENT_S, to_s=at_s)
    spelled = [spelling for name in names if (spelling := spellings.spelling(name)) is not None]
    if not any(spelling.measure != THROTTLE for spelling in spelled):
        raise no_metrics_error(names, spellings, server.url)
    found: dict[Client, dict[str, Use]] = {}
    for spelling in spelled:
        for series in server.query(f"{spelling.name}{{{match}}}", at_s=at_s):
            _add(found, spellings, spelling, series, since_s=0.0)
    return found


def latest_from_files(paths: Iterable[Path], spellings: Spellings) -> Uses:
    """Return what saved answers say at their end. Raises `NoMetricsError`, `AnswerError`."""
    answers = {path: read_answer_file(path) for path in paths}
    every = [series for answer in answers.values() for series in answer]
    end_s = max((series.last_s for series in every), default=0.0)
    found: dict[Client, dict[str, Use]] = {}
    for series in every:
        spelling = spellings.spelling(series.labels.get("__name__", ""))
        if spelling is not None:
            _add(found, spellings, spelling, series, since_s=end_s - RECENT_S)
    if not found:
        names = [series.labels.get("__name__", "") for series in every]
        raise no_metrics_error(names, spellings, ", ".join(repr(str(path)) for path in answers))
    return found


def _add(
    found: dict[Client, dict[str, Use]],
    spellings: Spellings,
    spelling: Spelling,
    series: Series,
    *,
    since_s: float,
) -> None:
    """Add the last point of a series, if it is not older; of several series of a client and broker the largest.

    A throttle time that is not a number is none: there was no throttle.
    """
    client = spellings.client(spelling, series.labels)
    if client is None or not series.times or series.last_s < since_s:
        return
    time_s, value = series.points[-1] if series.points else (0.0, 0.0)
    node = series.labels.get(spellings.label("node", series.labels) or "", "")
    use = found.setdefault(client, {}).setdefault(node, Use())
    if time_s != series.last_s:
        return
    if spelling.measure == THROTTLE:
        use.throttle_ms = max(use.throttle_ms, value)
    else:
        use.rate = value if use.rate is None else max(use.rate, value)
