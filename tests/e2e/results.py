"""Results that are written again and again by processes that are killed meanwhile."""

import contextlib
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main
from tidegate.pipeline.results.output import MARKER
from tidegate.pipeline.rollup.parts import compile_usage_kernel
from tidegate.pipeline.warm_up import OPEN, compile_replay_kernel

__all__ = ["check_alone", "killed_again_and_again", "results_in", "write_records"]

_ROOT = Path(__file__).parents[2]
_WAIT_S = 120

_FOR_EVER = """\
import json, sys
from tidegate.cli.main import main
from tidegate.pipeline.spark.session import running_spark
from contextlib import nullcontext
master = sys.argv[2]
with running_spark(app_name="tests", master=master, rows=0) if master else nullcontext():
    while True:
        for command in json.loads(sys.argv[1]):
            assert main(command) == 0
"""


def write_records(directory: Path) -> list[list[str]]:
    """Write two records, and return commands that write what is in them to `directory / "out"`."""
    compile_replay_kernel(OPEN)
    compile_usage_kernel()
    commands = []
    for clients in (5, 9):
        record = directory / str(clients)
        node = RecordingNode()
        node.start(START_MS)
        for number in range(clients):
            node.produce("alice", f"c{number}", 10, START_MS + 1000 * number)
        write_events(record / "parquet", node.events)
        for command in (["usage"], ["replay", "--in-force", "--decisions"], ["usage", "--by", "user"]):
            commands.append([command[0], str(record), *command[1:], "--out", str(directory / "out")])
    return commands


def results_in(out: Path) -> dict[str, Any]:
    """Return the rows of each table, and of each date, in a directory of results."""
    tables: dict[str, Any] = {}
    for path in sorted(out.rglob("*.parquet")):
        assert path.name == "part-0.parquet"
        tables[str(path.relative_to(out).parent)] = sorted(map(repr, pq.ParquetFile(path).read().to_pylist()))
    return tables


def check_alone(out: Path) -> None:
    """Check that there are only tables and documents of runs, for their owner alone."""
    runs = [json.loads(path.read_text()) for path in (out / "_runs").glob("run-*.json")]
    assert json.loads((out / MARKER).read_text()) in runs
    assert all(run["complete"] for run in runs)
    tables = {name for run in runs for name in run["tables"]}
    assert {path.name for path in out.iterdir()} == {MARKER, "_runs", *tables}
    names = {f"{run['run']}.json" for run in runs}
    assert {path.name for path in (out / "_runs").iterdir()} == {"lock", *names}
    for path in (out, *out.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def killed_again_and_again(
    out: Path, commands: Sequence[Sequence[str]], *, kills: int, rng: random.Random, master: str = ""
) -> None:
    """Kill processes that write what the commands write, over and over: each table is what one of them writes.

    master: of the Spark that they run on; none: in their own process.
    """
    expected: dict[str, list[Any]] = defaultdict(list)
    for command in commands:
        assert main([*command]) == 0
        for table, rows in results_in(out).items():
            expected[table] += [rows] * (rows not in expected[table])
        check_alone(out)
    assert {len(versions) for versions in expected.values()} == {2}
    for _ in range(kills):
        _kill_one(out, commands, rng=rng, master=master)
        for table, rows in results_in(out).items():
            assert rows in expected[table]
    assert main([*commands[0]]) == 0
    for table, rows in results_in(out).items():
        assert rows in expected[table]
    check_alone(out)


def _kill_one(out: Path, commands: Sequence[Sequence[str]], *, rng: random.Random, master: str) -> None:
    """Start a process, wait until it writes, and kill it a while later; with its children, or it alone."""
    before = _run_of(out)
    process = subprocess.Popen(
        [sys.executable, "-c", _FOR_EVER, json.dumps(commands), master],
        cwd=_ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + _WAIT_S
        while _run_of(out) == before:
            assert process.poll() is None
            assert time.monotonic() < deadline, "nothing is written"
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 10 if master else 0.2))
        if rng.random() < 0.5:
            process.kill()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _run_of(out: Path) -> str:
    return (out / MARKER).read_text()
