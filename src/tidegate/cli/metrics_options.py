"""Options of `tidegate recommend` and `tidegate explain` for Prometheus, and the functions that use them."""

import argparse
import time
from typing import TYPE_CHECKING

from tidegate.cli.job_options import check_range, path_type
from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.pipeline.prometheus.measured import Uses
    from tidegate.pipeline.prometheus.server import MetricsSource

__all__ = [
    "add_prometheus_options",
    "check_prometheus",
    "check_source",
    "latest_from",
    "source_of",
]

_ONLY_PROMETHEUS = ("match", "metric_names", "bearer_token_file", "basic_auth_file")


def add_prometheus_options(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the options for a Prometheus server, or for files with its answers. what: the data, for the help."""
    parser.add_argument(
        "--prometheus",
        metavar="URL|FILE",
        action="append",
        default=[],
        help=f"{what}; a Prometheus server, or saved JSON answers of it (repeatable)",
    )
    parser.add_argument(
        "--match", metavar="LABELS", help="only series with these labels, such as 'job=\"kafka\"'; for a URL"
    )
    parser.add_argument(
        "--metric-names",
        metavar="FILE",
        type=path_type,
        help="names of metrics and labels, where they are not the usual ones (docs/metrics-as-a-source.md)",
    )
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument(
        "--bearer-token-file",
        metavar="FILE",
        type=path_type,
        help="file with the token for the Prometheus server",
    )
    secret.add_argument(
        "--basic-auth-file",
        metavar="FILE",
        type=path_type,
        help="file with USER:PASSWORD for the Prometheus server",
    )


def check_source(args: argparse.Namespace) -> None:
    """Raise `ConfigError` unless the options name one source: a directory, or metrics."""
    if args.prometheus and args.directory is not None:
        raise ConfigError("DIR and --prometheus cannot be used together", hint="give one of them")
    if not args.prometheus and args.directory is None:
        raise ConfigError(
            "no source is given", hint="give the usage directory of a broker, or --prometheus URL|FILE"
        )
    check_prometheus(args)
    check_range(args.from_ms, args.to_ms, args.last_ms)
    if args.prometheus and args.master is not None:
        raise ConfigError("--master is for a usage record; metrics need no Spark", hint="leave it out")


def check_prometheus(args: argparse.Namespace) -> None:
    """Raise `ConfigError` if an option for Prometheus is given without `--prometheus`."""
    given = next((name for name in _ONLY_PROMETHEUS if getattr(args, name) is not None), None)
    if not args.prometheus and given is not None:
        raise ConfigError(f"--{given.replace('_', '-')} needs --prometheus")


def latest_from(args: argparse.Namespace) -> "Uses":
    """Return the present usage of clients, from the metrics that the options name. Raises `TidegateError`."""
    from tidegate.pipeline.prometheus.measured import latest_from_files, latest_from_server

    source = source_of(args)
    spellings, server = source.spellings(), source.server()
    if server is None:
        return latest_from_files(source.files(), spellings)
    return latest_from_server(server, spellings, at_s=int(time.time()), match=args.match or "")


def source_of(args: argparse.Namespace) -> "MetricsSource":
    """Return the source of metrics that the options name."""
    from tidegate.pipeline.prometheus.server import MetricsSource

    options = {name: getattr(args, name) for name in _ONLY_PROMETHEUS}
    return MetricsSource(sources=args.prometheus, is_command=True, **options)
