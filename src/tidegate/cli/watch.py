"""`tidegate watch`: shows current usage, and the clients that quotas would throttle."""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate.cli.arguments import number, whole_number
from tidegate.cli.job_options import (
    check_range,
    json_option,
    path_type,
    plans_option,
    range_options,
    shown,
    top_option,
)
from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from tidegate.pipeline.replay.plan import Plan
    from tidegate.pipeline.spark.session import RunningSpark
    from tidegate.pipeline.watch.node import Advance
    from tidegate.pipeline.watch.totals import Totals
    from tidegate.pipeline.watching import Watched

__all__ = ["add_parser", "run"]

_LATENESS_S = 60.0  # as `tidegate.pipeline.watch.arrivals` has it, which takes pyarrow
_WHERE = "run watch on the machine of the broker; usage and replay also read copies and URIs"

_DESCRIPTION = """\
Show the current usage of each client, and which clients a plan would throttle.
Without --quotas, show the throttling by the quotas in force. Requests appear
about ten seconds after they were served. The table refreshes in place on a
terminal; otherwise the command prints one line per update, or one JSON document
with --json."""

_EPILOG = """\
examples:
  tidegate watch ./usage                      under the quotas in force
  tidegate watch ./usage --quotas quotas.yaml   under a plan
  tidegate watch ./usage --quotas quotas.yaml --json      for programs
  tidegate watch ./usage --checkpoint ./watched
                              resumes where it ended, also after a crash
  tidegate watch ./usage --from 2026-11-22T14:05:30 --once
                              the rows since then, then exit
  tidegate watch ./usage --last 15m
                              begin with the last 15 minutes
  tidegate watch ./usage --master 'local[2]' --checkpoint ./watched
                              on Spark, as structured streaming

DIR is the usage directory of `tidegate serve`, or one that `tidegate import`
has written; if it is empty, the command waits. It starts with the newest hour
that has rows, because the broker writes the state of its quotas at the
beginning of each hour. With --from or --last, it also processes the earlier
rows of that hour, without counting them (docs/watch.md). A watch has no end:
use --to with usage and replay. The totals are those of `tidegate replay --loop
open` and `tidegate usage` over the same rows. They contain user names and
client ids, which are personal data.
Needs the extra 'pipeline' (README, Install); --master also needs Java
17 or later.

exit codes:
  0    --once: done
  2    an option, the files, the checkpoint, Java or Spark cannot be used; the
       reason is on stderr
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "watch",
        help="show current usage, and which clients quotas would throttle",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=partial(path_type, hint=_WHERE),
        help="usage directory of a broker: a local path",
    )
    plans_option(parser, " (default: the quotas in force)")
    parser.add_argument(
        "--in-force", action="store_true", help="also show the quotas in force, next to the plans"
    )
    parser.add_argument(
        "--window",
        metavar="MINUTES",
        type=whole_number(1, 60),
        default=5,
        help="length of the window of current usage, in minutes (default: 5)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        type=path_type,
        help="save progress in DIR and resume from it, also after a crash",
    )
    range_options(
        parser,
        start="count rows from this time on, in UTC, such as 2026-11-22T14:05:30 (default: the newest hour)",
        end=argparse.SUPPRESS,  # refused with a reason; otherwise it would be read as --top
        last="begin so long before the newest row, such as 90s, 15m or 6h, and continue with new rows",
    )
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=number(0.1, 3600, noun="a number of seconds"),
        default=1.0,
        help="interval between checks for new rows, in seconds (default: 1)",
    )
    parser.add_argument(
        "--lateness",
        metavar="SECONDS",
        type=number(0, 86_400, noun="a number of seconds"),
        default=None,
        help="how long to wait for missing earlier rows of a node, in seconds; rows that arrive later are only counted"
        " (default: 60; 0 with --once and without --checkpoint)",
    )
    parser.add_argument("--once", action="store_true", help="process the existing rows and exit")
    top_option(parser, "clients and entities", default=None)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show entities that were never throttled and have no limit of their own",
    )
    json_option(parser, "print JSON documents, one per line (docs/watch.md)")
    parser.add_argument(
        "--master",
        metavar="M",
        help="run on this Spark master, such as local[2] (default: run in this process)",
    )


def run(args: argparse.Namespace) -> int:
    """Watch the record, and print updates."""
    from rich.live import Live

    from tidegate.pipeline.replay.plan import load_plans
    from tidegate.pipeline.report.console import results_console
    from tidegate.pipeline.watching import watch_plans, watched_plans

    if args.lateness is None:
        args.lateness = 0.0 if args.once and args.checkpoint is None else _LATENESS_S
    if args.to_ms is not None:
        raise ConfigError(
            "--to is not supported: a watch has no end",
            hint="use --to with tidegate usage or tidegate replay",
        )
    check_range(args.from_ms, None, args.last_ms)
    plans = watched_plans(load_plans(args.quotas), in_force=args.in_force)
    with contextlib.ExitStack() as stack:
        console, live = results_console(), None
        if console.is_terminal and not args.json and not args.once:
            live = stack.enter_context(Live(console=console, auto_refresh=False, vertical_overflow="crop"))
        shows = _Shows(args, plans, console, live)
        spark = None if args.master is None else stack.enter_context(_started_spark(args.master, plans))
        watched = watch_plans(
            args.directory,
            plans,
            on_update=shows.update,
            window_ms=args.window * 60_000,
            from_ms=args.from_ms,
            last_ms=args.last_ms,
            is_once=args.once,
            every_s=args.every,
            lateness_s=args.lateness,
            checkpoint=args.checkpoint,
            spark=spark,
        )
        shows.end(watched.totals)
    return 0


@contextlib.contextmanager
def _started_spark(master: str, plans: "Sequence[Plan]") -> "Iterator[RunningSpark]":
    """Start Spark, and compile kernels at the same time."""
    from tidegate.pipeline.spark.session import running_spark
    from tidegate.pipeline.warm_up import kernel_in_the_making

    with (
        kernel_in_the_making(plans),
        running_spark(app_name="tidegate watch", master=master, rows=0) as spark,
    ):
        yield spark


class _Shows:
    """Prints updates: in place on a terminal, as lines elsewhere, or as JSON documents.

    live: the table that is refreshed in place, if the output is a terminal.
    """

    def __init__(
        self, args: argparse.Namespace, plans: "Sequence[Plan]", console: "Console", live: "Live | None"
    ) -> None:
        self._args, self._plans = args, plans
        self._console, self._live = console, live
        self._said: list[str] = []

    def update(self, watched: "Watched") -> None:
        """Print the state after an update."""
        totals = watched.totals
        if self._args.once:
            return
        if not (watched.rows or watched.advances):
            print(f"no rows in {str(self._args.directory)!r} yet: waiting", file=sys.stderr)
        elif self._args.json:
            self._print_document(totals)
        elif self._live is not None:
            self._live.update(self._screen(totals), refresh=True)
        else:
            self._print_lines(totals, watched.advances)

    def end(self, totals: "Totals") -> None:
        """Print the state at the end of `--once`."""
        if not totals.events:
            where = "only files named node-N-... in the requested hours are read"
            print(f"no rows in {str(self._args.directory)!r}: {where}", file=sys.stderr)
        if self._args.json:
            self._print_document(totals)
        else:
            self._console.print(self._screen(totals))

    def _screen(self, totals: "Totals") -> Any:
        from rich.console import Group

        from tidegate.pipeline.report.notes import late_notes
        from tidegate.pipeline.report.watch_report import screen_lines

        window = totals.in_window()
        lines = screen_lines(
            self._plans,
            window=(window.clients, window.entities),
            in_all=totals.in_all().entities,
            unmatched=totals.unmatched(self._plans),
            late=late_notes(totals.late_events, totals.late_files),
            window_ms=totals.window_ms,
            last_ts_ms=totals.last_ts_ms,
            events=totals.events,
            top=self._args.top or _SCREEN_TOP,
            show_all=self._args.all,
            width=self._console.width,
        )
        return Group(*lines)

    def _print_lines(self, totals: "Totals", done: "Sequence[Advance]") -> None:
        from tidegate.pipeline.report.notes import late_notes
        from tidegate.pipeline.report.watch_report import notes, update_lines

        found = totals.of_update(done)
        lines = update_lines(
            self._plans,
            entities=found.entities,
            clients=found.clients,
            events=sum(advance.events for advance in done),
            last_ts_ms=totals.last_ts_ms,
            top=shown(self._args),
        )
        said = [*notes(self._plans, found.entities, totals.unmatched(self._plans))]
        said += late_notes(totals.late_events, totals.late_files)
        fresh = [note for note in said if note not in self._said]
        self._said = said
        for line in (*lines, *fresh):
            print(line, flush=True)

    def _print_document(self, totals: "Totals") -> None:
        from tidegate.pipeline.report.documents import watch_document
        from tidegate.pipeline.report.json_text import json_text

        parts = {"window": totals.in_window(), "in_all": totals.in_all()}
        document = watch_document(
            self._plans,
            parts={name: (found.clients, found.entities) for name, found in parts.items()},
            unmatched=totals.unmatched(self._plans),
            top=shown(self._args),
            update=totals.updates,
            events=totals.events,
            waiting_events=sum(totals.waiting.values()),
            late_events=totals.late_events,
            late_files=[{"path": path, "events": rows} for path, rows in totals.late_files.items()],
            window_ms=totals.window_ms,
            last_ts_ms=totals.last_ts_ms,
            nodes=[
                {"node_id": node_id, "last_seq": last_seq, "last_ts_ms": last_ts_ms}
                for node_id, (last_seq, last_ts_ms) in sorted(totals.nodes.items())
            ],
        )
        print(json_text(document), flush=True)


_SCREEN_TOP = 8  # clients, and entities, so that both fit on a screen
