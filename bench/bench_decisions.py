"""Cost of `tidegate replay --decisions` beyond the same replay without, both with `--out`.

    python bench/bench_decisions.py [--rows N ...] [--pairs N] [--master M] [--hot]

In this process, and on Spark in one session; in turns, as `bench_replay_floor.py` does it.
"""

import tempfile
from pathlib import Path

from bench_replay import arguments, bench_files, bench_plan
from bench_replay_floor import Way, measure
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.record import jobs_here, jobs_on_spark
from tidegate.pipeline.spark.session import RunningSpark, running_spark
from tidegate.pipeline.warm_up import compile_replay_kernel

PLANS = [bench_plan()]


def here(out: Path, *, with_decisions: bool) -> Way:
    """Return a replay in this process."""

    def replay(_: RunningSpark, files: UsageFiles) -> None:
        jobs_here(files).replay(PLANS, out=out, with_decisions=with_decisions)

    return replay


def on_spark(out: Path, *, with_decisions: bool) -> Way:
    """Return a replay on Spark."""

    def replay(spark: RunningSpark, files: UsageFiles) -> None:
        jobs_on_spark(spark, files).replay(PLANS, out=out, with_decisions=with_decisions)

    return replay


def main() -> None:
    """Measure what the command line asks for."""
    args = arguments(__doc__, rows=[2_000_000], pairs=10)
    compile_replay_kernel()
    with (
        tempfile.TemporaryDirectory() as name,
        running_spark(app_name="bench", master=args.master, rows=0) as spark,
    ):
        for rows in args.rows:
            files = bench_files(rows, hot=args.hot)
            for place, way in (("here", here), ("on Spark", on_spark)):
                ways = tuple(way(Path(name, place, str(kind)), with_decisions=kind) for kind in (False, True))
                measure(f"decisions, {place}", (ways[0], ways[1]), spark, files, pairs=args.pairs)


if __name__ == "__main__":
    main()
