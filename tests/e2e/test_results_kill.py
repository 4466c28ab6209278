"""`kill -9` of jobs that write results: what a marker calls complete is complete."""

import json
import random
import stat
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main
from tidegate.pipeline.output import MARKER
from tidegate.pipeline.rollup.parts import compile_usage_kernel
from tidegate.pipeline.warm_up import OPEN, compile_replay_kernel

ROOT = Path(__file__).parents[2]
KILLS = 5
WAIT_S = 60

_FOR_EVER = """\
import json, sys
from tidegate.cli.main import main
while True:
    for command in json.loads(sys.argv[1]):
        assert main(command) == 0
"""


def _record(directory, clients):
    node = RecordingNode()
    node.start(START_MS)
    for number in range(clients):
        node.produce("alice", f"c{number}", 10, START_MS + 1000 * number)
    write_events(directory / "parquet", node.events)


def _tables(out):
    """Return the marker's rows by table, or None where it does not say that they are complete."""
    marker = json.loads((out / MARKER).read_text())
    if not marker["complete"]:
        return None
    there = {path.name.removesuffix(".parquet") for path in out.glob("[!.]*.parquet")}
    assert there == set(marker["tables"])
    for name in marker["tables"]:
        files = sorted(
            path.relative_to(out).as_posix() for path in (out / f"{name}.parquet").rglob("*.parquet")
        )
        assert files == sorted(marker["tables"][name])
    return {
        "command": marker["command"],
        "record": marker["record"]["directory"],
        **{
            name: sorted(repr(row) for file in files for row in pq.ParquetFile(out / file).read().to_pylist())
            for name, files in marker["tables"].items()
        },
    }


def test_what_is_marked_complete_is_complete(tmp_path, capsys):
    """Two records and two commands in turns, killed anywhere: tables are of one run, or nothing says complete."""
    compile_replay_kernel(OPEN)
    compile_usage_kernel()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    out, expected, commands = tmp_path / "out", {}, []
    for clients in (5, 9):
        record = tmp_path / str(clients)
        _record(record, clients)
        for command in (["usage"], ["replay", "--in-force", "--decisions"], ["usage", "--by", "user"]):
            commands.append([command[0], str(record), *command[1:], "--out", str(out)])
            assert main(commands[-1]) == 0
            tables = _tables(out)
            expected[json.dumps(tables, sort_keys=True)] = command
    assert len(expected) == len(commands)
    for _ in range(KILLS):
        before = (out / MARKER).stat().st_mtime_ns
        process = subprocess.Popen(
            [sys.executable, "-c", _FOR_EVER, json.dumps(commands)], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + WAIT_S
            while (out / MARKER).stat().st_mtime_ns == before:
                assert process.poll() is None
                assert time.monotonic() < deadline, "nothing is written"
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.2))
        finally:
            process.kill()
            process.wait()
        found = _tables(out)
        assert found is None or json.dumps(found, sort_keys=True) in expected
        modes = {stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*.parquet") if path.is_dir()}
        assert modes <= {0o700}
    assert main(commands[0]) == 0
    assert json.dumps(_tables(out), sort_keys=True) in expected
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [MARKER, "usage_by_client.parquet", "usage_by_minute.parquet"]
    )
    capsys.readouterr()
