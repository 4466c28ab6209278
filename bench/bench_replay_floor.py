"""Cost of a replay beyond its floor, and of five plans beyond one.

    python bench/bench_replay_floor.py [--rows N ...] [--pairs N] [--master M] [--hot]

*floor*: the way `tidegate replay` takes, with nothing decided: both passes over the files, laying out, shuffle, sort,
and rows unpacked. Both sides of a pair run in one session, after each of them has run thrice, and in turns: one first,
then the other first. A ratio is that of a pair; of all pairs the median is shown, and the least and the largest.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import pyarrow as pa

from bench_replay import arguments, bench_files, bench_plan, cpu_seconds
from tidegate.pipeline.jobs.on_spark import OnSpark, PlacedOnSpark
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.packing import unpack
from tidegate.pipeline.record import jobs_on_spark
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.spark.session import RunningSpark, running_spark
from tidegate.pipeline.warm_up import compile_replay_kernel

ONE = [bench_plan()]
FIVE = [bench_plan(f"bench {share}", share=share) for share in (1.0, 0.5, 0.75, 1.5, 2.0)]

WARM_UPS = 3

Way = Callable[[Any, UsageFiles], None]
"""A job, given a running Spark (None where it needs none) and files."""


class Taken(NamedTuple):
    """Seconds that one run took."""

    time: float
    cpu: float


def count_block_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Unpack every block and count its rows."""
    rows = 0
    for batch in batches:
        for data, count in zip(batch.column("data"), batch.column("rows").to_pylist(), strict=True):
            rows += len(unpack(data.as_buffer(), count).seq)
    yield pa.record_batch({"rows": pa.array([rows])})


def floor(spark: RunningSpark, files: UsageFiles) -> None:
    """Run the steps of a replay up to the kernel."""
    placed = OnSpark(spark).place(files, ONE, repeats=False)
    assert isinstance(placed, PlacedOnSpark)
    counts = placed.blocks.mapInArrow(count_block_rows, "rows bigint").collect()
    assert sum(row.rows for row in counts) == files.rows - 1, "all but the start"


def replay_of(plans: list[Plan]) -> Way:
    """Return what replays the plans."""

    def replay(spark: RunningSpark, files: UsageFiles) -> None:
        found = jobs_on_spark(spark, files).replay(plans, out=None)
        assert {row["plan"] for row in found.entities} == {plan.name for plan in plans}

    return replay


def measure(
    name: str, ways: tuple[Way, Way], spark: RunningSpark | None, files: UsageFiles, *, pairs: int
) -> None:
    """Run both ways in turns, and print the time of the second as a share of the first."""
    for way in ways * WARM_UPS:
        way(spark, files)
    firsts, seconds = [], []
    for number in range(pairs):
        sides = [(ways[0], firsts), (ways[1], seconds)]
        for way, taken in sides if number % 2 == 0 else reversed(sides):
            taken.append(taken_by(way, spark, files))
    for what in Taken._fields:
        sides_of_pairs = [(getattr(a, what), getattr(b, what)) for a, b in zip(firsts, seconds, strict=True)]
        ratios = [second / first for first, second in sides_of_pairs]
        first, second = (median(side) for side in zip(*sides_of_pairs, strict=True))
        span = f"({min(ratios):.2f} to {max(ratios):.2f})"
        print(
            f"{name:23} {files.rows:>10,} rows, {pairs} pairs, {what}: "
            f"{first:6.3f} s, {second:6.3f} s, {median(ratios):.2f} times {span}",
            flush=True,
        )


def taken_by(way: Way, spark: RunningSpark | None, files: UsageFiles) -> Taken:
    """Run one way and return its cost."""
    cpu_before, started = _cpu_seconds(), time.perf_counter()
    way(spark, files)
    return Taken(time.perf_counter() - started, _cpu_seconds() - cpu_before)


def _cpu_seconds() -> float:
    """Return the CPU time of Java, of the Python workers and of this process, the driver."""
    return cpu_seconds() + time.process_time()


def main() -> None:
    """Measure what the command line asks for."""
    args = arguments(__doc__, rows=[2_000_000], pairs=10)
    compile_replay_kernel()
    one, five = replay_of(ONE), replay_of(FIVE)
    for rows in args.rows:
        files = bench_files(rows, hot=args.hot)
        with running_spark(app_name="bench", master=args.master, rows=0) as spark:
            measure("one plan to the floor", (floor, one), spark, files, pairs=args.pairs)
            measure("five plans to one", (one, five), spark, files, pairs=args.pairs)


if __name__ == "__main__":
    main()
