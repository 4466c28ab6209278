"""Cost of many nodes and many client ids: seconds and the driver's memory, `usage` and replays, here and on Spark.

    python bench/bench_growth.py [--nodes N ...] [--clients N ...] [--only WORD ...]

nodes: so many nodes with 100,000 rows together, a file each. clients: so many client ids of one user, two rows each,
a file a million rows. Files are made once, under .cache/bench. Each command is a process of its own, its start, Java's
too, is in its time and its CPU time (on a busy machine look at that); memory, in 10**6 bytes, is the most that the
driver's Python had resident, on Spark Java's too.
`--only forecast spark`: measurements whose names have these words.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench_replay import CACHE, SEED, START_MS, columns_of
from tidegate.usage.files import hour_directory, parquet_path

ROWS_OF_NODES = 100_000
ROWS_PER_CLIENT = 2
ROWS_PER_FILE = 1_000_000
QUOTAS = """
quotas:
  - user: {default: true}
    producer_byte_rate: 20MB
    consumer_byte_rate: 20MB
  - user: {default: true}
    client-id: {default: true}
    producer_byte_rate: 1KB
    consumer_byte_rate: 1KB
"""


def files_of_nodes(nodes: int) -> Path:
    """Return a directory with a file for each node."""
    rows = -(-ROWS_OF_NODES // nodes)
    return _made(
        f"nodes-{nodes}", lambda: (_table(node, 0, rows, np.arange(rows) % 5) for node in range(nodes))
    )


def files_of_clients(clients: int) -> Path:
    """Return a directory with files of one node that has many clients, in any order."""
    client = np.random.default_rng(SEED).permutation(np.repeat(np.arange(clients), ROWS_PER_CLIENT))
    firsts = range(0, len(client), ROWS_PER_FILE)
    return _made(
        f"clients-{clients}",
        lambda: (
            _table(1, first, min(ROWS_PER_FILE, len(client) - first), client[first : first + ROWS_PER_FILE])
            for first in firsts
        ),
    )


def _made(name: str, tables: Callable[[], Iterator[pa.Table]]) -> Path:
    directory = CACHE / name
    if not (directory / "done").exists():
        for table in tables():
            node_id, first, last = (
                table[column][at].as_py() for column, at in (("node_id", 0), ("seq", 0), ("seq", -1))
            )
            path = parquet_path(
                hour_directory(directory, START_MS), node_id=node_id, first_seq=first, last_seq=last
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path, compression="zstd")
        (directory / "done").touch()
    return directory


def _table(node_id: int, first_seq: int, rows: int, client: np.ndarray) -> pa.Table:
    """Return requests, half of them produce and half fetch; the first row is the node's start."""
    rng = np.random.default_rng(SEED + node_id + first_seq)
    seq = np.arange(first_seq, first_seq + rows)
    is_start = seq == 0
    produces = rng.random(rows) < 0.5
    size = rng.integers(100, 20_000, rows)
    values = {
        "kind": pa.array(np.where(is_start, "start", "request")),
        "ts_ms": START_MS + seq // 5,
        "seq": seq,
        "node_id": np.full(rows, node_id, np.int32),
        "user": pa.repeat("app", rows),
        "client_id": pa.array(np.char.add("client-", client.astype(str))),
        "connection_id": client,
        "produce_bytes": pa.array(size, pa.int64(), mask=~produces),
        "fetch_bytes": pa.array(size, pa.int64(), mask=produces),
        "handler_ns": rng.integers(5_000, 400_000, rows),
        "network_ns": rng.integers(1_000, 50_000, rows),
    }
    return columns_of(values, rows)


def measure(name: str, directory: Path, command: list[str], master: str | None) -> None:
    """Run a command and print a line."""
    where = [] if master is None else ["--master", master]
    arguments = [sys.executable, "-m", "tidegate", command[0], str(directory), *command[1:], *where]
    started = time.perf_counter()
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    most_mb = {"python": 0, "java": 0}
    ended, status, used = 0, 0, None
    while not ended:
        for kind, size in _resident_mb(process.pid).items():
            most_mb[kind] = max(most_mb[kind], size)
        time.sleep(0.2)
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    memory = ", ".join(f"{kind} {size:5} MB" for kind, size in most_mb.items() if size)
    done = "" if process.returncode == 0 else f"  exit code {process.returncode}"
    cpu = used.ru_utime + used.ru_stime
    print(f"{name:34} {seconds:6.1f} s, CPU {cpu:6.1f} s  {memory}{done}", flush=True)


def _resident_mb(pid: int) -> dict[str, int]:
    """Return the most that a driver has had resident: its Python, and its Java."""
    found = {}
    for candidate in [pid, *_children(pid)]:
        try:
            fields = dict(
                line.split(":", 1) for line in Path(f"/proc/{candidate}/status").read_text().splitlines()
            )
        except OSError:
            continue
        is_java = fields["Name"].strip() == "java"
        if candidate == pid or is_java:
            found["java" if is_java else "python"] = (
                int(fields.get("VmHWM", "0 kB").split()[0]) * 1024 // 10**6
            )
    return found


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="*", default=[2_000, 10_000])
    parser.add_argument("--clients", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    command = f"python bench/bench_growth.py {' '.join(sys.argv[1:])}".rstrip()
    print(f"# {command}; Python {platform.python_version()}, {os.cpu_count()} cores", flush=True)
    cases: list[tuple[str, Callable[[int], Path], int]]
    cases = [(f"{count:,} nodes", files_of_nodes, count) for count in args.nodes]
    cases += [(f"{count:,} client ids", files_of_clients, count) for count in args.clients]
    with tempfile.TemporaryDirectory() as work:
        quotas = Path(work) / "plan.yaml"
        quotas.write_text(QUOTAS)
        for what, files, count in cases:
            replay = ["replay", "--quotas", str(quotas), "--loop"]
            commands = {"usage": ["usage"], "replay open": [*replay, "open"], "forecast": [*replay, "closed"]}
            for command_name, command_line in commands.items():
                for master in (None, "local[2]"):
                    name = f"{what}, {command_name}, {'here' if master is None else 'spark'}"
                    if all(word in name for word in args.only):
                        measure(name, files(count), command_line, master)


if __name__ == "__main__":
    main()
