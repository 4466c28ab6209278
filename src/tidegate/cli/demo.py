"""`tidegate demo`: the whole way once, with real clients, in under two minutes."""

import argparse
from pathlib import Path

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
See why quotas exist and what Tidegate does about them, in under two minutes and
without a network:

  1. starts a broker, and three real clients of it: `checkout` sends a small
     order every few milliseconds and waits for each, `loader` floods,
     `analytics` reads all of the flood
  2. half-way sets quotas over the wire, as any Kafka admin client would
  3. sums up the recorded traffic on Spark, and replays it against the quotas
     that were in force and two others

Exit code 0 only if every step did what it should."""

_EPILOG = """\
examples:
  tidegate demo
  tidegate demo --out /tmp/demo --seconds 20

Needs Java 17 or later and the extras 'pipeline' and 'clients' (README,
Install). Writes 2 to 4 GB while it runs, a few MB of which stay."""

_SECONDS_MIN, _SECONDS_MAX = 5, 600


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "demo",
        help="see all of it in under two minutes",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("demo-out"),
        help="where results go (default: ./demo-out)",
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=_seconds,
        default=14,
        help="how long the clients run before the quotas are set, and again after (default: 14)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demonstration; 1 when a step did not do what it should."""
    from tidegate.cli.demonstration.story import run_story

    return 0 if run_story(args.out, seconds=args.seconds) else 1


def _seconds(text: str) -> int:
    """Return a number of seconds. Raises `argparse.ArgumentTypeError`."""
    if text.isascii() and text.isdigit() and len(text) <= 3 and _SECONDS_MIN <= int(text) <= _SECONDS_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"expected whole seconds from {_SECONDS_MIN} to {_SECONDS_MAX}, got {text!r}"
    )
