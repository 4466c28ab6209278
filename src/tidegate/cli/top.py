"""`tidegate top`: the live quota entities of a broker, throttled ones first."""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from tidegate.cli.arguments import number, printable
from tidegate.cli.client_options import command_config_option
from tidegate.cli.job_options import shown, top_option
from tidegate.cli.metrics_client import (
    MetricsClient,
    MetricsError,
    add_metrics_options,
    clock_text,
)
from tidegate.cli.metrics_processes import processes_text, whole_document
from tidegate.server.monitoring.amounts import amount_text, used_text
from tidegate.server.monitoring.entity_order import would_be_throttled

__all__ = ["add_parser", "run"]

_TYPES = {"ControllerMutation": "Mutation"}
_HEAD = ("user", "client-id", "quota", "rate", "limit", "used", "throttled")
_WIDTHS = (10, 14, 8, 10, 10, 6)  # the rest of 80 columns is for throttles
_MOST_S = 99  # a longer time takes more than 80 columns
_OTHER_LINES = 5  # lines above the entities, and the line with the number of further ones

_DESCRIPTION = """\
Show the quota entities of a running broker: rate, limit, and the share of the
limit that is used. Entities with throttled connections come first, then those
that use most of their quota. The table refreshes in place on a terminal.
Otherwise the command prints it once."""

_EPILOG = """\
examples:
  tidegate top                         the broker's metrics at 127.0.0.1:9404
  tidegate top --metrics http://10.0.0.5:9404 --token-file token
  tidegate top --metrics https://broker1:9404 --command-config client.properties
  tidegate top --once --json           for programs

The broker needs a metrics listener:
  tidegate serve --override tidegate.metrics.listener=127.0.0.1:9404

Rates and limits are those of a second. An empty user or client-id stands for
all: these clients share one quota. "observed, 1.5 s": the clients would be
throttled for 1.5 s, but are only observed (tidegate.quota.observe). The
command needs nothing but the base installation, and has no effect on the
broker's decisions. The output contains user names and client ids, which are
personal data.

exit codes:
  0    --once: done
  2    an option cannot be used, or the listener cannot be reached; the reason
       is on stderr
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "top",
        help="show live quota entities of a broker, throttled ones first",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_metrics_options(parser)
    command_config_option(parser, "ssl.* for a URL with https://")
    parser.add_argument("--once", action="store_true", help="print the table once and exit")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=number(0.1, 3600, noun="a number of seconds"),
        default=2.0,
        help="interval between refreshes, in seconds (default: 2)",
    )
    top_option(parser, "entities", default=None)


def run(args: argparse.Namespace) -> int:
    """Show the entities, once or until Ctrl-C. Raises `TidegateError`."""
    client = MetricsClient.of(args)
    if args.json or args.once or not sys.stdout.isatty():
        document = whole_document(client, "/entities")
        if args.json:
            document["entities"] = document["entities"][: shown(args)]
        print(json.dumps(document, indent=2) if args.json else "\n".join(table_lines(document, shown(args))))
        return 0
    _refresh(client, args)
    return 0


def _refresh(client: MetricsClient, args: argparse.Namespace) -> None:
    """Redraw the table at intervals. Show an error after the first answer in place of its first line, and try again."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)

    def lines_now() -> list[str]:
        room = max(console.height - _OTHER_LINES, 1)
        return table_lines(whole_document(client, "/entities"), min(shown(args), room))

    lines = lines_now()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            time.sleep(args.every)
            try:
                lines = lines_now()
            except MetricsError as error:
                lines = [f"no data: {error}", *lines[1:]]


def table_lines(document: Mapping[str, Any], top: int) -> list[str]:
    """Return the table of a document of `/entities`: at most 80 columns, and at most `top` entities."""
    entities = document["entities"][:top]
    counts = document["quota_types"].values()
    total = sum(count["entities"] for count in counts)
    throttled = sum(1 for entity in document["entities"] if entity["throttled_connections"])
    observed = sum(map(would_be_throttled, document["entities"]))
    first = f"{clock_text(document['time_ms'])} · node {document['node_id']}{processes_text(document)} · "
    first += f"{total:,} {'entity' if total == 1 else 'entities'}, {throttled:,} throttled"
    if observed:
        first += f", {observed:,} would be (observed)"
    if not entities:
        return [first, "", "no usage yet: a client appears when it sends requests that a quota limits"]
    lines = [first, "", _line(_HEAD), "─" * 80]
    lines += [_line(_cells(entity)) for entity in entities]
    if len(entities) < total:
        lines.append(f"… and {total - len(entities):,} more")
    return lines


def _cells(entity: Mapping[str, Any]) -> tuple[str, ...]:
    from tidegate.pipeline.report.names import fitted  # imports rich

    return (
        fitted(printable(entity["user"]), _WIDTHS[0]),
        fitted(printable(entity["client_id"]), _WIDTHS[1]),
        _TYPES.get(entity["quota_type"], entity["quota_type"]),
        amount_text(entity["rate"], entity["unit"]).removesuffix("/s"),
        amount_text(entity["limit"], entity["unit"]).removesuffix("/s"),
        used_text(entity["utilization"]),
        _throttled_text(entity),
    )


def _throttled_text(entity: Mapping[str, Any]) -> str:
    """Return how many connections are throttled and until when, or the throttle time that is observed only."""
    if connections := entity["throttled_connections"]:
        return f"{connections} to {clock_text(entity['throttled_until_ms'])[:8]}"
    if would_be_throttled(entity):
        seconds = entity["throttle_time_ms"] / 1000
        return "observed, " + (f"{seconds:.1f} s" if seconds < _MOST_S else f">{_MOST_S} s")
    return "observed" if entity.get("observed") else ""


def _line(cells: tuple[str, ...]) -> str:
    from tidegate.pipeline.report.names import padded

    user, client_id, kind, rate, limit, used, throttled = cells
    widths = _WIDTHS
    names = f"{padded(user, widths[0])} {padded(client_id, widths[1])} {kind:{widths[2]}}"
    return f"{names} {rate:>{widths[3]}} {limit:>{widths[4]}} {used:>{widths[5]}} {throttled}".rstrip()
