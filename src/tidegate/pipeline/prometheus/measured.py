"""Facts from metrics about each client: its largest and its latest value, its throttles, and windows of use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from tidegate.errors import ConfigError
from tidegate.pipeline.prometheus.answers import Series, read_answer_file
from tidegate.pipeline.prometheus.server import MetricsServer
from tidegate.pipeline.prometheus.spellings import (
    KNOWN_NAMES,
    VALID_LABEL,
    Client,
    Spelling,
    Spellings,
    is_mangled,
)
from tidegate.pipeline.proposals.evidence import ENOUGH_WINDOWS, WINDOW_MS
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "RECENT_S",
    "THROTTLE",
    "Measured",
    "NoMetricsError",
    "Use",
    "Uses",
    "latest_from_files",
    "latest_from_server",
    "measured_from_files",
    "measured_from_server",
    "no_metrics_error",
]

_WINDOW_S = WINDOW_MS // 1000
_PIECE_S = 24 * 3600  # of a query for the largest value: a server's memory is bounded, too
_MOST_STEPS = 10_000  # of a query; a server answers at most 11,000
_RAW_S = 3600  # of one series, to find how far apart scrapes are
THROTTLE = "throttle-time"
"""The one of the `MEASURES` that does not measure use."""
_CLUSTER_LABELS = ("job", "cluster", "kafka_cluster", "strimzi_io_cluster", "namespace")
_MOST_NAMED = 5  # names in an error
_NO_QUOTA_HINT = (
    "Kafka measures clients only while a quota of the type is set: set a very large default, and export "
    "type=Produce, Fetch, Request and ControllerMutation of kafka.server (docs/metrics-as-a-source.md)"
)
RECENT_S = 300
"""Time in s after which a value is not the latest any more: as long as Prometheus looks back."""


class NoMetricsError(ConfigError):
    """Raise when a source has no metrics of clients."""


@dataclass(slots=True)
class Measured:
    """Facts out of metrics. Rates are per second and broker, request time in percent of a thread, throttles in ms.

    peaks: the largest value by client and node. throttled: the largest mean throttle time by client.
    windows: the numbers of windows of ten seconds in which any client used a quota type. from_s, to_s: first and last
    time. interval_s: distance of points, None if unknown; is_raw: points are scrapes. clusters: labels that suggest
    several clusters. skipped: series that are not of a client.
    """

    from_s: int
    to_s: int
    peaks: dict[tuple[Client, str], float] = field(default_factory=dict)
    throttled: dict[Client, float] = field(default_factory=dict)
    windows: dict[QuotaType, set[int]] = field(default_factory=dict)
    interval_s: float | None = None
    is_raw: bool = False
    clusters: list[str] = field(default_factory=list)
    skipped: int = 0

    def add(self, spellings: Spellings, spelling: Spelling, series: Series) -> Client | None:
        """Add the largest value of a series, and return its client; None if it is of no client."""
        client = spellings.client(spelling, series.labels)
        if client is None:
            self.skipped += 1
            return None
        largest = max((value for _, value in series.points), default=None)
        if largest is None:
            return client
        if spelling.measure == THROTTLE:
            if largest > 0:
                self.throttled[client] = max(largest, self.throttled.get(client, 0.0))
        else:
            node = series.labels.get(spellings.label("node", series.labels) or "", "")
            key = client, node
            self.peaks[key] = max(largest, self.peaks.get(key, 0.0))
        return client

    def add_windows(self, quota_type: QuotaType, points: Iterable[tuple[float, float]]) -> None:
        """Add the windows of points with use."""
        found = self.windows.setdefault(quota_type, set())
        found.update(int(time_s) // _WINDOW_S for time_s, value in points if value > 0)


def measured_from_server(
    server: MetricsServer, spellings: Spellings, *, from_s: int, to_s: int, match: str = ""
) -> Measured:
    """Return the metrics of a server in a range of time. match: label matchers, such as `job="kafka"`.

    The server computes the largest values, so that an answer has one point a day for each series.
    Raises `NoMetricsError`, and what `MetricsServer` raises.
    """
    spelled = _spelled(server, spellings, from_s=from_s, to_s=to_s)
    measured = Measured(from_s=from_s, to_s=to_s, is_raw=True)
    pieces = -(-(to_s - from_s) // _PIECE_S)
    step_s = -(-(to_s - from_s) // pieces)
    labels: list[Mapping[str, str]] = []
    busiest: tuple[float, str] = (0.0, "")
    for spelling in spelled:
        selector = f"{spelling.name}{{{match}}}"
        largest = f"max_over_time({selector}[{step_s}s])"
        found = server.query_range(
            largest, from_s=from_s + step_s, to_s=from_s + pieces * step_s, step_s=step_s
        )
        for series in found:
            client = measured.add(spellings, spelling, series)
            if client is not None and series.points:
                labels.append(series.labels)
                if spelling.measure != THROTTLE:
                    busiest = max(busiest, (max(v for _, v in series.points), _selector(spelling, series)))
        if spelling.measure != THROTTLE:
            _ask_windows(server, spellings, spelling, match, found, measured)
    measured.clusters = _clusters(labels)
    used = [number for numbers in measured.windows.values() for number in numbers]
    if used:
        at_s = min(to_s, (max(used) + 1) * _WINDOW_S)
        raw = server.query(f"{busiest[1]}[{_RAW_S}s]", at_s=at_s)
        measured.interval_s = _interval(raw)
    return measured


def _spelled(server: MetricsServer, spellings: Spellings, *, from_s: int, to_s: int) -> list[Spelling]:
    """Return the metrics of clients that a server knows of a time. Raises `NoMetricsError` for throttles alone."""
    names = server.names(from_s=from_s, to_s=to_s)
    spelled = [spelling for name in names if (spelling := spellings.spelling(name)) is not None]
    if not any(spelling.measure != THROTTLE for spelling in spelled):
        raise no_metrics_error(names, spellings, server.url)
    return spelled


def _ask_windows(
    server: MetricsServer,
    spellings: Spellings,
    spelling: Spelling,
    match: str,
    found: Iterable[Series],
    measured: Measured,
) -> None:
    """Add the windows in which any client of each quota type of a metric had use."""
    matchers: dict[QuotaType, str] = {}
    for series in found:
        client = spellings.client(spelling, series.labels)
        label = spellings.label("quota", series.labels)
        if client is not None:
            of_type = f'{label}=~"(?i:{client[0].value})(, .*)?"' if spelling.quota_type is None else ""
            matchers[client[0]] = ",".join(filter(None, (match.strip().rstrip(","), of_type)))
    for quota_type, matcher in matchers.items():
        used = _used(server, f"{spelling.name}{{{matcher}}}", measured.from_s, measured.to_s)
        measured.add_windows(quota_type, used)


def _used(server: MetricsServer, selector: str, from_s: int, to_s: int) -> list[tuple[float, float]]:
    """Return the largest value of all series in each step, with a value above 0: times and values.

    A long time has steps of more than ten seconds. Where few of them have use, that part is asked for again.
    """
    step_s = max(_WINDOW_S, -(-(to_s - from_s) // _MOST_STEPS))
    steps = max(1, (to_s - from_s) // step_s)
    found = server.query_range(
        f"max(max_over_time({selector}[{step_s}s]))",
        from_s=to_s - (steps - 1) * step_s,
        to_s=to_s,
        step_s=step_s,
    )
    used = [point for series in found for point in series.points if point[1] > 0]
    if not used or len(used) >= ENOUGH_WINDOWS or step_s == _WINDOW_S:
        return used
    first_s, last_s = int(used[0][0]) - step_s, int(used[-1][0])
    if 2 * (last_s - first_s) > to_s - from_s:
        return used
    return _used(server, selector, first_s, last_s)


def _selector(spelling: Spelling, series: Series) -> str:
    """Return the selector of one series."""
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for name, value in series.labels.items()
        if VALID_LABEL.fullmatch(name) and name != "__name__"
    }
    matchers = ",".join(f'{name}="{value}"' for name, value in escaped.items())
    return f"{spelling.name}{{{matchers}}}"


def measured_from_files(
    paths: Iterable[Path], spellings: Spellings, *, from_s: int | None = None, to_s: int | None = None
) -> Measured:
    """Return the metrics in saved answers, with the points from `from_s` on and before `to_s`.

    Raises `NoMetricsError`, `AnswerError`.
    """
    measured = Measured(from_s=0, to_s=0)
    times: set[float] = set()
    names: set[str] = set()
    labels: list[Mapping[str, str]] = []
    densest: list[Series] = []
    source = ""
    for path in paths:
        source = repr(str(path))
        for whole in read_answer_file(path):
            name = whole.labels.get("__name__", "")
            names.add(name)
            spelling = spellings.spelling(name)
            points = [
                (time_s, value)
                for time_s, value in whole.points
                if (from_s is None or time_s >= from_s) and (to_s is None or time_s < to_s)
            ]
            if spelling is None or not points:
                continue
            series = Series(whole.labels, points, len(points))
            client = measured.add(spellings, spelling, series)
            if client is None:
                continue
            labels.append(series.labels)
            times.update((points[0][0], points[-1][0]))
            if spelling.measure != THROTTLE:
                measured.add_windows(client[0], points)
                densest = max(densest, [series], key=lambda some: len(some[0].points) if some else 0)
    if not measured.peaks:
        raise no_metrics_error(names, spellings, source)
    measured.from_s, measured.to_s = int(min(times)), int(max(times))
    measured.interval_s = _interval(densest)
    measured.clusters = _clusters(labels)
    return measured


def _interval(series: Iterable[Series]) -> float | None:
    """Return the distance of points in s: the median."""
    distances = [later - earlier for one in series for (earlier, _), (later, _) in pairwise(one.points)]
    return median(distances) if distances else None


def _clusters(labels: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the labels that tell clusters apart, where they have several values."""
    values: dict[str, set[str]] = {}
    for one in labels:
        for name in _CLUSTER_LABELS:
            values.setdefault(name, set()).add(one.get(name, ""))
    return [
        f"{name}={value!r}"
        for name, found in values.items()
        if len(found) > 1
        for value in sorted(found)[:_MOST_NAMED]
    ]


def no_metrics_error(names: Iterable[str], spellings: Spellings, source: str) -> NoMetricsError:
    """Return the error for a source without client metrics; it names the expected metrics and similar existing ones."""
    looked_for = list(spellings.names) or list(KNOWN_NAMES)
    shown = ", ".join(looked_for)
    if mangled := [name for name in names if is_mangled(name)]:
        return NoMetricsError(
            f"{source} has metrics of clients only in names such as {min(mangled)!r}",
            hint="move the exporter's quota rules before the rule 'kafka.server<type=(.+)><>([a-z-]+)'",
        )
    near = sorted(name for name in names if _is_near(name))[:_MOST_NAMED]
    if "" in names:
        hint = "save series with their names: query a selector, without functions such as max_over_time"
    elif near:
        hint = f"near: {', '.join(near)}; --metric-names FILE gives other names. {_NO_QUOTA_HINT}"
    else:
        hint = _NO_QUOTA_HINT
    return NoMetricsError(f"{source} has no metrics of Kafka's clients: looked for {shown}", hint=hint)


def _is_near(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return any(measure in plain for measure in ("byte_rate", "request_time", "mutation_rate", "_quota_"))


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
    """Return the use that a server shows at one time. match: label matchers, such as `job="kafka"`.

    Raises `NoMetricsError`, and what `MetricsServer` raises.
    """
    found: dict[Client, dict[str, Use]] = {}
    for spelling in _spelled(server, spellings, from_s=at_s - RECENT_S, to_s=at_s):
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
