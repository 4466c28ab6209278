"""Options of the commands that connect to a cluster, and the connection that they share."""

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidegate.cli.arguments import printable
from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.client import Admin

__all__ = ["add_client_options", "command_config_option", "run_admin", "warn_of_misspelt"]

_Result = TypeVar("_Result")


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add `--bootstrap-server` and `--command-config`."""
    parser.add_argument(
        "--bootstrap-server",
        "--bootstrap",
        metavar="HOST:PORT",
        help="address of one or more brokers, separated by commas; Apache Kafka 2.8 or later, or Tidegate",
    )
    command_config_option(parser, "security.protocol, sasl.mechanism, sasl.jaas.config, ssl.*, timeouts")


def command_config_option(parser: argparse.ArgumentParser, names: str) -> None:
    """Add `--command-config`. names: the settings that the file may have, for the help."""
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        type=Path,
        help=f"client settings by Kafka's names: {names}",
    )


def run_admin(args: argparse.Namespace, work: "Callable[[Admin], Awaitable[_Result]]") -> _Result:
    """Call `work` with an `Admin` of the cluster that the options name; return its result. Raises `TidegateError`."""
    from tidegate.client import load_client_settings, run_as_admin

    if args.bootstrap_server is None and args.command_config is None:
        raise ConfigError("no cluster is named", hint="give --bootstrap-server HOST:PORT")
    settings = load_client_settings(args.bootstrap_server, args.command_config)
    warn_of_misspelt(settings.misspelt)
    return run_as_admin(settings, work)


def warn_of_misspelt(names: Mapping[str, str]) -> None:
    """Print a warning for each unknown setting. names: each with the known name that is most like it."""
    for name, like in names.items():
        print(f"warning: unknown setting {printable(name)!r}; did you mean {like!r}?", file=sys.stderr)
