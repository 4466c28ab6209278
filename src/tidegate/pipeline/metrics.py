"""Quotas out of Kafka's own metrics: `tidegate.pipeline.recommend_from_prometheus`.

It needs the base installation only.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tidegate.config.quotas_file import QuotasFile
from tidegate.errors import ArgumentError, ConfigError
from tidegate.pipeline.arguments import Path_, Time, local_path, range_ms
from tidegate.pipeline.prometheus.measured import Measured, measured_from_files, measured_from_server
from tidegate.pipeline.prometheus.proposal import (
    MetricsProposal,
    metrics_document,
    metrics_notes,
    recommend_from_metrics,
)
from tidegate.pipeline.prometheus.server import MetricsSource, range_s
from tidegate.pipeline.proposals.notes import text_of
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.replay.levels import check_level

__all__ = ["RecommendedFromMetrics", "measured_of", "recommend_from_prometheus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedFromMetrics:
    """The result of `recommend_from_prometheus`: quotas and their reasons. There is no forecast."""

    found: MetricsProposal = field(repr=False)
    wanted: Wanted = field(repr=False)

    @property
    def quotas(self) -> QuotasFile:
        """Return the proposed quotas, to be given to `replay` or `limits`."""
        return self.found.quotas

    @property
    def by(self) -> str:
        """Return the level of the entities: `both`, `user` or `client-id`."""
        return self.found.by

    def notes(self) -> list[str]:
        """Return the reasons, and what metrics cannot show, as sentences."""
        return metrics_notes(self.found, self.wanted)

    def document(self) -> dict[str, Any]:
        """Return the proposal as a JSON document."""
        return metrics_document(self.found, self.wanted)

    def text(self, form: str = "quotas.yaml") -> str:
        """Return the quotas as text. form: `quotas.yaml`, or `kafka-configs` for a script with Kafka's own tool."""
        return text_of(self.quotas, self.notes(), form)


def recommend_from_prometheus(
    sources: Path_ | Sequence[Path_],
    *,
    match: str | None = None,
    metric_names: Path_ | None = None,
    bearer_token_file: Path_ | None = None,
    basic_auth_file: Path_ | None = None,
    by: str | None = None,
    headroom: float = 1.5,
    budgets: Mapping[str, float] | None = None,
    protect: Sequence[tuple[str, str]] = (),
    force: bool = False,
    with_default: bool = True,
    start: Time | None = None,
    end: Time | None = None,
    last: timedelta | str | None = None,
) -> RecommendedFromMetrics:
    """Return quotas to set, from Kafka's metrics of clients in Prometheus (docs/metrics-as-a-source.md).

    sources: the URL of a server, or paths of saved answers. match: labels of the series, such as `job="kafka"`.
    metric_names: a file with other names of metrics and labels. bearer_token_file: a file with the token for the
    server; basic_auth_file: with USER:PASSWORD. by, headroom, budgets, protect, force, with_default: as in `recommend`.
    start, end, last: by default the last 7 days. Raises `TidegateError`.
    """
    check_level(by)
    if match is not None and not isinstance(match, str):
        raise ArgumentError(f"match must be a text such as 'job=\"kafka\"', got {match!r}")
    several = [sources] if isinstance(sources, str) or not isinstance(sources, Sequence) else sources
    source = MetricsSource(
        sources=[_source(given) for given in several],
        match=match,
        metric_names=None if metric_names is None else local_path(metric_names, "metric_names"),
        bearer_token_file=None
        if bearer_token_file is None
        else local_path(bearer_token_file, "bearer_token_file"),
        basic_auth_file=None if basic_auth_file is None else local_path(basic_auth_file, "basic_auth_file"),
    )
    if not source.sources:
        raise ArgumentError("sources must be a URL or a path, got none")
    wanted = Wanted(
        headroom=headroom,
        budgets={} if budgets is None else budgets,
        protect=protect,
        force=force,
        with_default=with_default,
    )
    found = recommend_from_metrics(measured_of(source, *range_ms(start, end, last)), by, wanted)
    return RecommendedFromMetrics(found=found, wanted=wanted)


def measured_of(
    source: MetricsSource, from_ms: int | None, to_ms: int | None, last_ms: int | None
) -> Measured:
    """Return what the metrics of a source say of each client in a range of time. Raises `TidegateError`."""
    spellings, server = source.spellings(), source.server()
    if server is None:
        if last_ms is not None:
            start, end = ("--from", "--to") if source.is_command else ("start", "end")
            raise ConfigError(
                f"{source.name('last')} is for a server, not for a saved answer",
                hint=f"give {start} and {end}",
            )
        return measured_from_files(source.files(), spellings, from_s=_s(from_ms), to_s=_s(to_ms))
    from_s, to_s = range_s(from_ms, to_ms, last_ms, now_s=int(time.time()))
    return measured_from_server(server, spellings, from_s=from_s, to_s=to_s, match=source.match or "")


def _s(time_ms: int | None) -> int | None:
    return None if time_ms is None else time_ms // 1000


def _source(given: Path_) -> str:
    """Return a URL as it is, and the path of a file. Raises `ArgumentError`."""
    return given if isinstance(given, str) and "://" in given else str(local_path(given, "sources"))
