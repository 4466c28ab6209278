"""The source of metrics that a caller names: a Prometheus server, or saved answers of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.pipeline.prometheus.server import MetricsServer, basic_auth, bearer_token, checked_url
from tidegate.pipeline.prometheus.spellings import KNOWN, Spellings, load_spellings

__all__ = ["MAX_DAYS", "MetricsSource", "range_s"]

MAX_DAYS = 366
"""Longest time that metrics are asked for, in days."""

_DAYS = 7  # that are read by default
_DAY_S = 24 * 3600
_MOST_FILES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSource:
    """A Prometheus server, or saved answers of one. sources: its URL, or the paths of the files.

    match: label matchers, such as `job="kafka"`. metric_names: a file with names of metrics and labels. The credential
    is in one of the two files. is_command: errors name the options of the command line.
    """

    sources: Sequence[str]
    match: str | None = None
    metric_names: Path | None = None
    bearer_token_file: Path | None = None
    basic_auth_file: Path | None = None
    is_command: bool = False

    def spellings(self) -> Spellings:
        """Return the names of metrics and labels. Raises `ConfigError`."""
        return KNOWN if self.metric_names is None else load_spellings(self.metric_names)

    def server(self) -> MetricsServer | None:
        """Return the server; None: the source is files. Raises `ConfigError`."""
        if not any("://" in source for source in self.sources):
            return None
        if len(self.sources) > 1:
            raise ConfigError(
                f"{self.name('prometheus')} with a URL is given with another source",
                hint="give one URL, or files",
            )
        credential = None
        if self.bearer_token_file is not None:
            credential = bearer_token(self.bearer_token_file)
        elif self.basic_auth_file is not None:
            credential = basic_auth(self.basic_auth_file)
        return MetricsServer(checked_url(self.sources[0]), credential)

    def files(self) -> list[Path]:
        """Return the saved answers. Raises `ConfigError` where a parameter is for a server only."""
        for name in ("match", "bearer_token_file", "basic_auth_file"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{self.name(name)} is for the URL of a server, not for a saved answer",
                    hint=f"leave out {self.name(name)}, or give {self.name('prometheus')} a URL",
                )
        if len(self.sources) > _MOST_FILES:
            raise ConfigError(
                f"{self.name('prometheus')} is given {len(self.sources)} times, expected at most {_MOST_FILES}",
                hint="save the answers of a longer time in each file",
            )
        return [Path(source) for source in self.sources]

    def name(self, parameter: str) -> str:
        """Return the name of a parameter as the caller writes it."""
        return f"--{parameter.replace('_', '-')}" if self.is_command else parameter


def range_s(from_ms: int | None, to_ms: int | None, last_ms: int | None, *, now_s: int) -> tuple[int, int]:
    """Return the first and the last second to ask a server for: by default the last 7 days. Raises `ConfigError`."""
    to_s = now_s if to_ms is None else to_ms // 1000
    from_s = to_s - (_DAYS * _DAY_S if last_ms is None else -(-last_ms // 1000))
    if from_ms is not None:
        from_s = from_ms // 1000
    if from_s >= to_s:
        raise ConfigError("the end of the time must be later than its start", hint="give an earlier start")
    if to_s - from_s > MAX_DAYS * _DAY_S:
        raise ConfigError(f"metrics are asked for at most {MAX_DAYS} days", hint="give a later start")
    return from_s, to_s
