"""The command `tidegate demo`."""

import argparse
from pathlib import Path

from tidegate.cli.arguments import whole_number

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Show what quotas do, in under two minutes and without a network. The demo

  1. starts a broker and three real clients: `checkout` sends a small order
     every few milliseconds and waits for each, `loader` sends as fast as it
     can, and `analytics` reads what `loader` sends
  2. sets quotas over the wire half-way, as any Kafka admin client would
  3. shows the usage of each client, and replays the recorded traffic on Spark
     under the quotas in force and two others

The exit code is 0 only if every step succeeds."""

_EPILOG = """\
examples:
  tidegate demo
  tidegate demo --out /tmp/demo --seconds 20

Needs Java 17 or later and the extras 'pipeline' and 'clients' (README,
Install). Uses 2 to 4 GB of disk while it runs, and a few MB afterwards."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "demo",
        help="show what quotas do, in under two minutes",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("demo-out"),
        help="directory for results (default: ./demo-out)",
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=whole_number(5, 600, noun="whole seconds"),
        default=14,
        help="how long the clients run before the quotas are set, and again after (default: 14)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo. Return 1 if a check fails."""
    from tidegate.cli.demo.steps import run_demo

    return 0 if run_demo(args.out, seconds=args.seconds) else 1
