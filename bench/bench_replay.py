"""Rows per second and peak memory of `tidegate replay`, over 2 and 20 million rows.

    python bench/bench_replay.py [--rows N ...] [--master M] [--hot]

Rows are made once, from a fixed seed, and kept under .cache/bench; the first is the node's start. `--hot`: 80 % of them
are one client's.
Time is that of the job: both passes over the files, laying out, shuffle, sort and kernel. Starting Spark and Java, and
a first replay of 100,000 rows (its time is shown) that Java needs to warm up, are not in it. On a busy machine look at
the CPU time a row. Memory is the largest seen of the Java process and of all Python workers together; what they share
counts once.
"""

import argparse
import os
import platform
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.pipeline.read.ingest import UsageFiles, open_usage
from tidegate.pipeline.record import jobs_on_spark
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.spark.session import running_spark
from tidegate.pipeline.warm_up import compile_replay_kernel
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.usage.arrow import arrow_schema, merge_files, table_schema, write_parquet

CACHE = Path(__file__).parent.parent / ".cache" / "bench"
ROWS_PER_FILE = 1_000_000
SEED = 1
START_MS = 1_700_000_000_000
USERS, CLIENT_IDS = 200, 5
FIRST_KIND = "start"  # without it nothing is ever known of a sensor (decision 0058)
WARM_UP_ROWS = 100_000
LOOK_EVERY_SECONDS = 0.7  # reading its memory stops a process
MASTER = "local[2]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Largest resident sizes in MB."""

    java: int
    python: int


def bench_plan(name: str = "bench", *, share: float = 1.0) -> Plan:
    """Return the plan of the benchmark: every quota that the rows can meet; one user in ten is over it.

    share: of these quotas; with more than one other users are within them, with less others are over them.
    """
    enough = {"producer_byte_rate": 400_000.0, "consumer_byte_rate": 400_000.0, "request_percentage": 4.0}
    enough = {key: value * share for key, value in enough.items()}
    records = [_quota(None, key, value) for key, value in enough.items()]
    tight = range(0, USERS, 10)
    records += [_quota(f"user-{user:03d}", key, value / 5) for user in tight for key, value in enough.items()]
    return Plan(name=name, records=tuple(records))


def _quota(user: str | None, key: str, value: float) -> QuotaRecord:
    return QuotaRecord(entity=(("user", user),), key=key, value=value)


def bench_files(rows: int, *, hot: bool) -> UsageFiles:
    """Return usage files with `rows` rows, made if they are not there."""
    with open_usage(bench_directory(rows, hot=hot)) as files:
        return files


def bench_directory(rows: int, *, hot: bool, stored: bool = False) -> Path:
    """Return the directory of usage files with `rows` rows, made if they are not there.

    stored: as a record has them after `tidegate compact`: times in whole microseconds, encodings for each column.
    """
    made_of = zlib.crc32(f"{FIRST_KIND} {arrow_schema()}".encode())  # those made otherwise are left alone
    directory = CACHE / f"usage-{rows}{'-hot' if hot else ''}{'-stored' if stored else ''}-{made_of:08x}"
    if not (directory / "done").exists():
        for number in range(-(-rows // ROWS_PER_FILE)):
            first = number * ROWS_PER_FILE
            _write(directory, first, min(ROWS_PER_FILE, rows - first), hot=hot, stored=stored)
        (directory / "done").touch()
    return directory


def _write(directory: Path, first_seq: int, rows: int, *, hot: bool, stored: bool) -> None:
    path = (
        directory
        / "date=2023-11-14"
        / "hour=22"
        / f"node-1-{first_seq:020d}-{first_seq + rows - 1:020d}.parquet"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    table = _table(first_seq, rows, hot=hot)
    if not stored:
        pq.write_table(table, path, compression="zstd")
        return
    for name in ("handler_ns", "network_ns"):
        whole_us = pc.multiply(pc.divide(table[name], 1000), 1000)
        table = table.set_column(table.column_names.index(name), name, whole_us)
    with tempfile.TemporaryDirectory() as unmerged:
        part = Path(unmerged, "part.parquet")
        write_parquet(part, table.cast(table_schema()))
        for _ in merge_files([part], path):
            pass


def _table(first_seq: int, rows: int, *, hot: bool) -> pa.Table:
    """Return requests at 5,000 a second: four of ten produce, four fetch, two neither."""
    rng = np.random.default_rng(SEED + first_seq)
    seq = np.arange(first_seq, first_seq + rows)
    client = rng.integers(0, USERS * CLIENT_IDS, rows)
    if hot:
        client[rng.random(rows) < 0.8] = 0
    kind = rng.choice([0, 0, 1, 1, 3], rows)
    size = rng.integers(100, 20_000, rows)
    values = {
        "kind": pa.array(np.where(seq == 0, FIRST_KIND, "request")),
        "ts_ms": START_MS + seq // 5,
        "seq": seq,
        "node_id": np.ones(rows, np.int32),
        "user": _names("user", client // CLIENT_IDS, USERS),
        "client_id": _names("client", client % CLIENT_IDS, CLIENT_IDS),
        "api_key": kind.astype(np.int16),
        "connection_id": client,
        "produce_bytes": pa.array(size, pa.int64(), mask=kind != 0),
        "fetch_bytes": pa.array(size, pa.int64(), mask=kind != 1),
        "request_bytes": size,
        "handler_ns": rng.integers(5_000, 400_000, rows),
        "network_ns": rng.integers(1_000, 50_000, rows),
    }
    return columns_of(values, rows)


def columns_of(values: Mapping[str, Any], rows: int) -> pa.Table:
    """Return rows of the usage record that have these columns, and nothing in the others."""
    return pa.table(
        [_column(field, values.get(field.name), rows) for field in arrow_schema()], arrow_schema()
    )


def _column(field: pa.Field, values: object, rows: int) -> pa.Array:
    if values is not None:
        return values if isinstance(values, pa.Array) else pa.array(values, field.type)
    if field.nullable:
        return pa.nulls(rows, field.type)
    return _repeated({pa.string(): "", pa.bool_(): False}.get(field.type, 0), rows, field.type)


def _repeated(value: object, rows: int, data_type: pa.DataType | None = None) -> pa.Array:
    return pa.repeat(pa.scalar(value, data_type), rows)


def _names(prefix: str, numbers: np.ndarray, count: int) -> pa.Array:
    names = pa.array([f"{prefix}-{number:03d}" for number in range(count)])
    return names.take(pa.array(numbers))


@contextmanager
def memory_watched() -> Iterator[list[Memory]]:
    """Yield a list that holds the peak memory of our child processes when the block ends."""
    peak: list[Memory] = [Memory(java=0, python=0)]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_EVERY_SECONDS):
            now = _resident_now()
            peak[0] = Memory(java=max(peak[0].java, now.java), python=max(peak[0].python, now.python))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def _ours() -> dict[int, bool]:
    """Return our children, and theirs: process id, and whether it is a Java process."""
    parents, is_java = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        pid = int(status.parent.name)
        parents[pid] = int(fields["PPid"])
        is_java[pid] = fields["Name"].strip() == "java"
    found = {os.getpid()}
    for _ in range(6):
        found |= {pid for pid, parent in parents.items() if parent in found}
    return {pid: is_java[pid] for pid in found - {os.getpid()}}


def _resident_now() -> Memory:
    """Return what our children have resident now."""
    ours = _ours()
    java = sum(_shared_out_kb(pid) for pid in ours if ours[pid])
    python = sum(_shared_out_kb(pid) for pid in ours if not ours[pid])
    return Memory(java=java // 1024, python=python // 1024)


def cpu_seconds() -> float:
    """Return the CPU time that our children have used so far; those that ended are left out."""
    ticks = 0
    for pid in _ours():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _shared_out_kb(pid: int) -> int:
    """Return what a process has resident; pages that several share count in part for each (PSS)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def measure(rows: int, *, hot: bool, master: str) -> None:
    """Replay a little, so that Java has warmed up, then all, and print a line."""
    warm_up, files = bench_files(WARM_UP_ROWS, hot=hot), bench_files(rows, hot=hot)
    with memory_watched() as peak, running_spark(app_name="bench", master=master, rows=0) as spark:
        started = time.perf_counter()
        jobs_on_spark(spark, warm_up).replay([bench_plan()], out=None)
        warm_up_seconds = time.perf_counter() - started
        cpu_before, started = cpu_seconds(), time.perf_counter()
        found = jobs_on_spark(spark, files).replay([bench_plan()], out=None)
        seconds = time.perf_counter() - started
        cpu = cpu_seconds() - cpu_before
    decided = sum(row["requests"] for row in found.entities)
    throttled = sum(row["throttled_requests"] for row in found.entities)
    name = "replay, hot" if hot else "replay"
    rate = f"{rows / seconds / 1e6:5.2f} M rows/s {seconds:6.1f} s (first {warm_up_seconds:4.1f} s)"
    rate += f", CPU {cpu / rows * 1e6:4.2f} µs a row"
    memory = f"java {peak[0].java:5} MB, python {peak[0].python:5} MB"
    print(
        f"{name:11} {rows:>11,} rows {rate}  {memory}  {decided:,} decisions, {throttled:,} throttled",
        flush=True,
    )


def arguments(description: str | None, *, rows: list[int], pairs: int | None = None) -> argparse.Namespace:
    """Return the command line's arguments, and print what was run where. rows, pairs: what is taken by default."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=rows)
    if pairs is not None:
        parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--master", default=MASTER)
    parser.add_argument("--hot", action="store_true", help="80 %% of the rows are one client's")
    args = parser.parse_args()
    print(
        f"# python {' '.join(sys.argv)}; Python {platform.python_version()}, {platform.machine()}", flush=True
    )
    return args


def main() -> None:
    """Measure what the command line asks for."""
    args = arguments(__doc__, rows=[2_000_000, 20_000_000])
    compile_replay_kernel()
    for rows in args.rows:
        measure(rows, hot=args.hot, master=args.master)


if __name__ == "__main__":
    main()
