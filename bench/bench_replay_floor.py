"""What a replay cannot be faster than: the same rows read, shuffled and sorted, with nothing done to them.

    python bench/bench_replay_floor.py [--rows N ...] [--master M] [--hot]

*blocks*: the way `tidegate replay` takes, up to the kernel. *rows*: the same by Spark's own means, row by row: scan,
join with the table of clients, shuffle, sort. Both begin with what a replay knows after its first look at the files.
"""

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench_replay import arguments, bench_files, bench_plan
from tidegate.pipeline.jobs import UsageFiles, replay_blocks
from tidegate.pipeline.read.ingest import read_events
from tidegate.pipeline.read.packing import unpack
from tidegate.pipeline.session import RunningSpark, running_spark

NUMBERS = (
    "seq",
    "ts_ms",
    "handler_ns",
    "network_ns",
    "connection_id",
    "produce_throttle_ms",
    "request_throttle_ms",
)


def count_block_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Unpack every block and count its rows."""
    rows = 0
    for batch in batches:
        for data, count in zip(batch.column("data"), batch.column("rows").to_pylist(), strict=True):
            rows += len(unpack(data.as_buffer(), count).seq)
    yield pa.record_batch({"rows": pa.array([rows])})


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count rows."""
    yield pa.record_batch({"rows": pa.array([sum(batch.num_rows for batch in batches)])})


def by_blocks(spark: RunningSpark, files: UsageFiles) -> int:
    """Take the way of the replay, up to the kernel."""
    blocks, _ = replay_blocks(spark, files.paths, [bench_plan()])
    return _total(blocks.mapInArrow(count_block_rows, "rows bigint"))


def by_rows(spark: RunningSpark, files: UsageFiles) -> int:
    """Take the way that Spark offers."""
    names = ["node_id", "user", "client_id"]
    events = read_events(spark.session, files.paths)
    clients = events.select(*names).distinct().withColumn("client", F.monotonically_increasing_id())
    amount = F.coalesce("produce_bytes", "fetch_bytes", F.lit(0)).alias("amount")
    rows = events.where(F.col("kind") == "request").select(*names, *NUMBERS, amount)
    placed = rows.join(F.broadcast(clients), on=names, how="inner").drop(*names)
    partitions = 2 * spark.session.sparkContext.defaultParallelism
    placed = placed.withColumn("partition", (F.hash("client") % partitions + partitions) % partitions)
    ordered = placed.repartitionById(partitions, F.col("partition")).sortWithinPartitions("seq")
    return _total(ordered.mapInArrow(count_rows, "rows bigint"))


def _total(counts: DataFrame) -> int:
    return sum(row.rows for row in counts.collect())


def measure(
    name: str, way: Callable[[RunningSpark, UsageFiles], int], files: UsageFiles, master: str
) -> None:
    """Go one way once and print a line."""
    java_rows = files.rows if way is by_rows else 0
    with running_spark(app_name="bench", master=master, rows=java_rows) as spark:
        started = time.perf_counter()
        rows = way(spark, files)
        seconds = time.perf_counter() - started
    assert rows == files.rows
    print(f"{name:7} {rows:>11,} rows  {rows / seconds / 1e6:5.2f} M rows/s  {seconds:6.1f} s", flush=True)


def main() -> None:
    """Measure what the command line asks for."""
    args = arguments(__doc__)
    for rows in args.rows:
        files = bench_files(rows, hot=args.hot)
        measure("blocks", by_blocks, files, args.master)
        measure("rows", by_rows, files, args.master)


if __name__ == "__main__":
    main()
