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


def results_in(out: Path) -> str:
    """Return all that counts in a directory of results, once it is sure that it is whole, by marker and by path."""
    marker = json.loads((out / MARKER).read_text())
    assert marker["complete"]
    there = {path.name.removesuffix(".parquet") for path in out.glob("*.parquet") if path.exists()}
    assert there == set(marker["tables"])
    tables: dict[str, Any] = {}
    for name in marker["tables"]:
        files = sorted(str(path.relative_to(out)) for path in (out / f"{name}.parquet").rglob("*.parquet"))
        assert files == sorted(marker["tables"][name])
        rows = [row for file in files for row in pq.ParquetFile(out / file).read().to_pylist()]
        tables[name] = sorted(map(repr, rows))
    directory = marker["record"]["directory"]
    return json.dumps({"command": marker["command"], "record": directory, **tables}, sort_keys=True)


def check_alone(out: Path) -> None:
    """Check that there is nothing but what counts, for its owner alone."""
    marker = json.loads((out / MARKER).read_text())
    names = {MARKER, ".tidegate", *(f"{name}.parquet" for name in marker["tables"])}
    assert {path.name for path in out.iterdir()} == names
    assert {path.name for path in (out / ".tidegate").iterdir()} == {"latest", "lock", marker["run"]}
    for path in (out, *out.rglob("*")):
        if not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def killed_again_and_again(
    out: Path, commands: Sequence[Sequence[str]], *, kills: int, rng: random.Random, master: str = ""
) -> None:
    """Kill processes that write what the commands write, over and over: what is there is what one of them writes.

    master: of the Spark that they run on; none: in their own process.
    """
    expected = set()
    for command in commands:
        assert main([*command]) == 0
        expected.add(results_in(out))
        check_alone(out)
    assert len(expected) == len(commands)
    for _ in range(kills):
        _kill_one(out, commands, rng=rng, master=master)
        assert results_in(out) in expected
    assert main([*commands[0]]) == 0
    assert results_in(out) in expected
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
    return os.readlink(out / ".tidegate" / "latest")
