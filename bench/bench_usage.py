"""Time of `tidegate usage` beside a replay of one plan, or beside other engines.

    python bench/bench_usage.py [--rows N ...] [--pairs N] [--hot]
    python bench/bench_usage.py --beside duckdb,polars [--rows N ...] [--threads N] [--rounds N] [--stored]

In turns, as `bench_replay_floor.py` does it; look at the CPU time. Engines: see `bench_beside.py`.
"""

import argparse
import platform
import sys

from bench_beside import compare
from bench_replay import bench_directory, bench_files, bench_plan
from bench_replay_floor import measure
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.record import jobs_here

PLANS = [bench_plan()]


def replay(_: object, files: UsageFiles) -> None:
    """Replay the rows against one plan."""
    jobs_here(files).replay(PLANS, out=None)


def usage(_: object, files: UsageFiles) -> None:
    """Add the rows up by client."""
    jobs_here(files).usage(out=None, top=20)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--hot", action="store_true", help="80 %% of the rows are one client's")
    parser.add_argument("--beside", metavar="ENGINES", type=lambda text: text.split(","))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--stored", action="store_true", help="with --beside: files as `tidegate compact` leaves them"
    )
    args = parser.parse_args()
    print(
        f"# python {' '.join(sys.argv)}; Python {platform.python_version()}, {platform.machine()}", flush=True
    )
    if args.beside is not None:
        for rows in args.rows or [20_000_000]:
            directory = bench_directory(rows, hot=args.hot, stored=args.stored)
            compare(args.beside, directory, rows=rows, threads=args.threads, rounds=args.rounds)
        return
    for rows in args.rows or [100_000, 2_000_000]:
        measure("usage to a replay", (replay, usage), None, bench_files(rows, hot=args.hot), pairs=args.pairs)


if __name__ == "__main__":
    main()
