"""What `tidegate usage` takes beside a replay of one plan, both in this process.

    python bench/bench_usage.py [--rows N ...] [--pairs N] [--hot]

In turns, as `bench_replay_floor.py` does it; look at the CPU time.
"""

from bench_replay import arguments, bench_files, bench_plan
from bench_replay_floor import measure
from tidegate.pipeline.jobs.where import jobs_here
from tidegate.pipeline.read.ingest import UsageFiles

PLANS = [bench_plan()]


def replay(_: object, files: UsageFiles) -> None:
    """Replay the rows against one plan."""
    jobs_here(files).replay(PLANS, out=None)


def usage(_: object, files: UsageFiles) -> None:
    """Add the rows up by client."""
    jobs_here(files).usage(out=None, top=20)


def main() -> None:
    """Measure what the command line asks for."""
    args = arguments(__doc__, rows=[100_000, 2_000_000], pairs=10)
    for rows in args.rows:
        measure("usage to a replay", (replay, usage), None, bench_files(rows, hot=args.hot), pairs=args.pairs)


if __name__ == "__main__":
    main()
