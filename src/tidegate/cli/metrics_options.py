"""Options of `tidegate recommend` and `tidegate explain` for Prometheus, and what they mean."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.cli.job_options import path_type
from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.pipeline.prometheus.latest import Uses
    from tidegate.pipeline.prometheus.measured import Measured
    from tidegate.pipeline.prometheus.server import MetricsServer

__all__ = [
    "MAX_DAYS",
    "add_prometheus_options",
    "check_prometheus",
    "check_source",
    "latest_from",
    "measured_from",
]

MAX_DAYS = 366
"""Longest time that metrics are asked for, in days."""

_DAYS = 7  # that are read without --from
_DAY_S = 24 * 3600
_MOST_FILES = 100
_ONLY_PROMETHEUS = ("match", "metric_names", "bearer_token_file", "basic_auth_file")


def add_prometheus_options(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the options that name a Prometheus server or its answers. what: what is read of it, for the help."""
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
        raise ConfigError("DIR and --prometheus are two sources", hint="give one of them")
    if not args.prometheus and args.directory is None:
        raise ConfigError(
            "nothing to read is given", hint="give the usage directory of a broker, or --prometheus URL|FILE"
        )
    check_prometheus(args)
    if args.last_ms is not None and (args.from_ms, args.to_ms) != (None, None):
        raise ConfigError("--last excludes --from and --to", hint="give either --last, or --from and --to")
    if args.prometheus and args.master is not None:
        raise ConfigError("--master is for a usage record; metrics need no Spark", hint="leave it out")


def check_prometheus(args: argparse.Namespace) -> None:
    """Raise `ConfigError` if an option for Prometheus is given without `--prometheus`."""
    given = next((name for name in _ONLY_PROMETHEUS if getattr(args, name) is not None), None)
    if not args.prometheus and given is not None:
        raise ConfigError(f"--{given.replace('_', '-')} needs --prometheus")


def latest_from(args: argparse.Namespace) -> "Uses":
    """Return what clients use now, by the metrics that the options name. Raises `TidegateError`."""
    from tidegate.pipeline.prometheus.latest import latest_from_files, latest_from_server
    from tidegate.pipeline.prometheus.spellings import KNOWN, load_spellings

    spellings = KNOWN if args.metric_names is None else load_spellings(args.metric_names)
    server = _server(args)
    if server is None:
        return latest_from_files(_files(args), spellings)
    return latest_from_server(server, spellings, at_s=int(time.time()), match=args.match or "")


def measured_from(args: argparse.Namespace) -> "Measured":
    """Return what the metrics that the options name say of each client. Raises `TidegateError`."""
    from tidegate.pipeline.prometheus.measured import measured_from_files, measured_from_server
    from tidegate.pipeline.prometheus.spellings import KNOWN, load_spellings

    spellings = KNOWN if args.metric_names is None else load_spellings(args.metric_names)
    server = _server(args)
    if server is None:
        if args.last_ms is not None:
            raise ConfigError("--last is for a server, not for a saved answer", hint="give --from and --to")
        return measured_from_files(_files(args), spellings, from_s=_s(args.from_ms), to_s=_s(args.to_ms))
    from_s, to_s = _time(args)
    return measured_from_server(server, spellings, from_s=from_s, to_s=to_s, match=args.match or "")


def _server(args: argparse.Namespace) -> "MetricsServer | None":
    """Return the server that the options name; None: they name files. Raises `ConfigError`."""
    from tidegate.pipeline.prometheus.server import MetricsServer, basic_auth, bearer_token, checked_url

    if not any("://" in source for source in args.prometheus):
        return None
    if len(args.prometheus) > 1:
        raise ConfigError(
            "--prometheus with a URL is given with another source", hint="give one URL, or files"
        )
    credential = None
    if args.bearer_token_file is not None:
        credential = bearer_token(args.bearer_token_file)
    elif args.basic_auth_file is not None:
        credential = basic_auth(args.basic_auth_file)
    return MetricsServer(checked_url(args.prometheus[0]), credential)


def _files(args: argparse.Namespace) -> list[Path]:
    """Return the saved answers. Raises `ConfigError` where an option is for a server only."""
    for name in ("match", "bearer_token_file", "basic_auth_file"):
        if getattr(args, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} is for the URL of a server, not for a saved answer"
            )
    if len(args.prometheus) > _MOST_FILES:
        raise ConfigError(
            f"--prometheus is given {len(args.prometheus)} times, expected at most {_MOST_FILES}"
        )
    return [Path(source) for source in args.prometheus]


def _s(time_ms: int | None) -> int | None:
    return None if time_ms is None else time_ms // 1000


def _time(args: argparse.Namespace) -> tuple[int, int]:
    """Return the first and the last second to ask for. Raises `ConfigError`."""
    to_s = int(time.time()) if args.to_ms is None else args.to_ms // 1000
    from_s = to_s - (_DAYS * _DAY_S if args.last_ms is None else -(-args.last_ms // 1000))
    if args.from_ms is not None:
        from_s = args.from_ms // 1000
    if from_s >= to_s:
        raise ConfigError("--to must be later than --from")
    if to_s - from_s > MAX_DAYS * _DAY_S:
        raise ConfigError(f"metrics are asked for at most {MAX_DAYS} days", hint="give a later --from")
    return from_s, to_s
