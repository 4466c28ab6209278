"""Ask a real Apache Kafka and `tidegate serve` the same, and print where they differ, made as small as it can be.

python tests/differential.py --seed 7 --count 10000
python tests/differential.py --seed 7,8,9                   # one after the other, with the same brokers
python tests/differential.py --seed 7 --only 12,34          # two sequences of that run alone
python tests/differential.py --apis Metadata,OffsetFetch    # requests of these APIs
python tests/differential.py --kafka localhost:9092 --ours localhost:9192

Without --kafka or --ours it starts that broker itself. `tidegate serve` has to have tidegate.kafka.exact=true. Topics
whose names end with "-d" and ALL client quotas are deleted: give it no broker that somebody needs.
Exit code 1: they differ where no row of docs/kafka-differences.md says so.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.differing.brokers import prepared_player
from tests.differing.compare import Comparison, described
from tests.differing.play import Player
from tests.differing.requests import COMPARED

from tidegate.wire import API_BY_KEY


def main() -> int:
    """Compare as the command line asks; return the exit code."""
    options = _parser().parse_args()
    keys = _keys(options.apis)
    # A process that was asked to stop may still write a last file.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        prepared_player(Path(options.data or folder), kafka=options.kafka, ours=options.ours) as player,
    ):
        only = [int(number) for number in options.only.split(",")] if options.only else None
        return max(
            _compare(player, seed, keys, options.count, only) for seed in map(int, options.seed.split(","))
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests/differential.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a running Apache Kafka")
    parser.add_argument("--ours", metavar="HOST:PORT", help="a running tidegate serve")
    parser.add_argument("--data", metavar="DIR", help="where a broker that it starts leaves data and log")
    parser.add_argument(
        "--seed", default=str(time.time_ns() % 100_000), help="seeds, by commas; default: any"
    )
    parser.add_argument("--count", type=int, default=1000, help="requests of each seed")
    parser.add_argument("--apis", help="names, by commas; default: all that are compared")
    parser.add_argument("--only", help="numbers of sequences, by commas")
    return parser


def _keys(names: str | None) -> list[int]:
    known = {API_BY_KEY[key].name: key for key in COMPARED}
    if names is None:
        return list(known.values())
    for name in names.split(","):
        if name not in known:
            sys.exit(f"error: no such API is compared: {name!r}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def _compare(player: Player, seed: int, keys: list[int], count: int, only: list[int] | None) -> int:
    comparison = Comparison(player, seed, keys)
    console = Console(stderr=True)
    columns = (TextColumn("seed {task.fields[seed]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    begun, differing, once = time.monotonic(), 0, 0
    found_in = map(comparison.play, only) if only else comparison.run(count)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=count, seed=seed)
        for found in found_in:
            progress.update(task, completed=comparison.requests)
            if found is not None:
                differing += found.smallest is not None
                once += found.smallest is None
                again = f"python tests/differential.py --seed {seed} --only {found.difference.number}"
                print(f"{described(found)}\n  again    {again}", flush=True)
    rate = comparison.requests / (time.monotonic() - begun)
    print(
        f"seed {seed}: {comparison.requests} requests, {rate:.0f} a second; as declared: {dict(comparison.rows)}; "
        f"not declared: {differing}, and not seen again: {once}",
        flush=True,
    )
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
