"""`tidegate usage` beside general engines: the same Parquet files, each engine in a process of its own.

`bench_usage.py --beside duckdb,polars` runs it; it needs `pip install duckdb polars`, which Tidegate does not use. The
process of an engine runs this module, which imports no other engine, no Spark and no pandas: its memory is its own.
*sums*: requests, bytes, thread time, throttle times, first and last time by client. *all*: also p50, p95 and p99 of
handler time, throttle time and request size, and peaks: the largest rate in Kafka's windows in Tidegate, and in the
other engines, which cannot measure that, the largest sum of a second. Percentiles are exact in the other engines and up
to an eighth too large in Tidegate.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["compare"]

SUMS = ("requests", "request_bytes", "response_bytes", "produce_bytes", "handler_ns", "network_ns")
"""Totals on which all engines must agree."""
_ADDED = (
    "request_bytes", "response_bytes", "produce_bytes", "fetch_bytes", "handler_ns", "network_ns",
    "produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms",
)  # fmt: skip
_KEYS = ("user", "client_id")
_PERCENTS = (0.5, 0.95, 0.99)


class Taken(NamedTuple):
    """The cost of one run, and the totals that it found."""

    seconds: float
    cpu_seconds: float
    peak_mb: int
    totals: Mapping[str, int]


def _tidegate(directory: Path, *, with_peaks: bool, threads: int) -> pa.Table:
    from tidegate.pipeline.jobs.here import Here
    from tidegate.pipeline.jobs.jobs import Jobs
    from tidegate.pipeline.read.ingest import open_usage

    with open_usage(directory) as files:
        jobs = Jobs(files=files, back_end=Here(threads=threads))
        summary = jobs.usage(out=None, top=1_000_000, with_peaks=with_peaks)
    return pa.Table.from_pylist(list(summary.top))


def _duckdb(directory: Path, *, with_peaks: bool, threads: int) -> pa.Table:
    import duckdb

    files = f"read_parquet('{directory}/**/*.parquet', hive_partitioning = false)"
    sums = ", ".join(f"sum({name})::BIGINT AS {name}" for name in _ADDED)
    throttle = "greatest(produce_throttle_ms, fetch_throttle_ms, request_throttle_ms)"
    more = "".join(
        f", quantile_disc({value}, {list(_PERCENTS)}) AS {name}_p"
        for name, value in (
            ("handler_ns", "handler_ns"),
            ("throttle_ms", throttle),
            ("request_bytes", "request_bytes"),
        )
    )
    query = (
        f"SELECT user, client_id, count(*) FILTER (kind = 'request') AS requests, {sums}, min(ts_ms) AS first, "
        f"max(ts_ms) AS last {more if with_peaks else ''} FROM {files} "
        "WHERE kind IN ('request', 'network') GROUP BY ALL"
    )
    peaks = (
        "SELECT user, client_id, max(produced) AS p, max(fetched) AS f, max(ns) AS n FROM (SELECT user, client_id, "
        f"sum(produce_bytes) AS produced, sum(fetch_bytes) AS fetched, sum(handler_ns + network_ns) AS ns FROM {files} "
        "WHERE kind IN ('request', 'network') GROUP BY user, client_id, ts_ms // 1000) GROUP BY ALL"
    )
    if with_peaks:
        query = f"SELECT * FROM ({query}) JOIN ({peaks}) USING (user, client_id)"
    return duckdb.connect(config={"threads": threads}).sql(query).to_arrow_table()


def _polars(directory: Path, *, with_peaks: bool, threads: int) -> pa.Table:
    import polars as pl

    assert pl.thread_pool_size() == threads
    rows = pl.scan_parquet(f"{directory}/**/*.parquet", hive_partitioning=False)
    rows = rows.filter(pl.col("kind").is_in(["request", "network"]))
    wanted = [
        (pl.col("kind") == "request").sum().alias("requests"),
        *(pl.col(name).sum() for name in _ADDED),
        pl.col("ts_ms").min().alias("first"),
        pl.col("ts_ms").max().alias("last"),
    ]
    if with_peaks:
        throttle = pl.max_horizontal("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms")
        for name, value in (
            ("handler_ns", pl.col("handler_ns")),
            ("throttle_ms", throttle),
            ("request_bytes", pl.col("request_bytes")),
        ):
            wanted += [value.quantile(percent).alias(f"{name}_{percent}") for percent in _PERCENTS]
    found = rows.group_by(*_KEYS).agg(*wanted).collect(engine="streaming")
    if with_peaks:
        seconds = rows.group_by(*_KEYS, (pl.col("ts_ms") // 1000).alias("second")).agg(
            pl.col("produce_bytes").sum(),
            pl.col("fetch_bytes").sum(),
            (pl.col("handler_ns") + pl.col("network_ns")).sum().alias("ns"),
        )
        peaks = seconds.group_by(*_KEYS).agg(
            pl.col("produce_bytes").max().alias("p"),
            pl.col("fetch_bytes").max().alias("f"),
            pl.col("ns").max().alias("n"),
        )
        found = found.join(peaks.collect(engine="streaming"), on=_KEYS)
    return found.to_arrow()


ENGINES: dict[str, Callable[..., pa.Table]] = {"tidegate": _tidegate, "duckdb": _duckdb, "polars": _polars}


def run_engine(engine: str, directory: Path, *, with_peaks: bool, threads: int) -> None:
    """Run one engine in this process, and print what it took as JSON."""
    if engine == "tidegate":  # compiled before, as the other engines are: what is loaded here counts
        from tidegate.cli.record_reading import prepare_reading

        prepare_reading()  # as the command does
        import tidegate.pipeline.jobs.here  # noqa: F401
    else:
        __import__(engine)
    cpu, started = time.process_time(), time.perf_counter()
    found = ENGINES[engine](directory, with_peaks=with_peaks, threads=threads)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    totals = {name: int(pc.sum(found[name]).as_py()) for name in SUMS}
    print(json.dumps(Taken(seconds, cpu_seconds, _peak_mb(), totals | {"clients": len(found)})._asdict()))


def _peak_mb() -> int:
    """Return the peak resident memory since this process began; `getrusage` has that of its parent in it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) >> 10


def compare(engines: list[str], directory: Path, *, rows: int, threads: int, rounds: int) -> None:
    """Run the engines in turns, and print the best run of each. Raises `SystemExit` where sums differ."""
    for what in ("sums", "all"):
        best: dict[str, Taken] = {}
        for _ in range(rounds):
            for engine in ("tidegate", *engines):
                taken = _in_a_process(engine, directory, what, threads)
                if taken.totals != best.get("tidegate", taken).totals:
                    raise SystemExit(f"{engine} found {taken.totals}, tidegate {best['tidegate'].totals}")
                if engine not in best or taken.seconds < best[engine].seconds:
                    best[engine] = taken
        for engine, taken in best.items():
            ratio = best["tidegate"].seconds / taken.seconds
            print(
                f"{what:5} {engine:9} {rows:>11,} rows {taken.seconds:6.2f} s wall, {taken.cpu_seconds:6.2f} s CPU, "
                f"{taken.peak_mb:5} MB; tidegate takes {ratio:.2f} of its time",
                flush=True,
            )


def _in_a_process(engine: str, directory: Path, what: str, threads: int) -> Taken:
    command = [sys.executable, __file__, engine, what, str(directory), str(threads)]
    # As `tidegate` sets it for itself; Polars reads the number of threads when it is loaded.
    environ = {**os.environ, "POLARS_MAX_THREADS": str(threads), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ)
    return Taken(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Run the engine that `compare` asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("what", choices=("sums", "all"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("threads", type=int)
    args = parser.parse_args()
    run_engine(args.engine, args.directory, with_peaks=args.what == "all", threads=args.threads)


if __name__ == "__main__":
    main()
