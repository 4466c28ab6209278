"""`kill -9` of recorder and writer, as real processes: nothing recorded is lost, and nothing appears twice."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.usage_process import ROWS, START_MS, compact, open_recorder, record
from tests.replaying.files import write_events
from tests.unit.usage.reading import read_events

from tidegate.errors import ConfigError, install_hint
from tidegate.server.requests.recorder import Recorder
from tidegate.testing import ManualClock
from tidegate.usage.convert import drain
from tidegate.usage.directory import WRITER_LOCK, parquet_directory, spool_directory
from tidegate.usage.events import read_segment
from tidegate.usage.files import list_files
from tidegate.usage.readers import complete_files
from tidegate.usage.segment import CLOSED_SUFFIX, OPEN_SUFFIX, segment_paths
from tidegate.usage.writer_process import EXIT_NO_PYARROW, RESTART_MS, WriterProcess, start_writer

ROOT = Path(__file__).parents[2]
RUN = 10**6  # numbers of one run of the recording process
KEEP_MS = 10**13
WAIT_S = 60
HAND_CHANGES_MAX = 48
CHANGES_MAX = 22  # more than conversion and compaction of two segments make to the file system


def start(*arguments):
    command = [sys.executable, "-m", "tests.e2e.usage_process", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def spool_events(directory):
    spool = spool_directory(directory, 1)
    return [event for path in segment_paths(spool, CLOSED_SUFFIX) for event in read_segment(path)]


def check_runs(events, acknowledged):
    """Each run's rows are there without a hole, at least as many as it acknowledged, in order, with fresh numbers."""
    for run, count in enumerate(acknowledged):
        numbers = [event["request_bytes"] for event in events if event["request_bytes"] // RUN == run]
        assert numbers == list(range(run * RUN, run * RUN + len(numbers)))
        assert len(numbers) >= count
    assert all(event["user"] == f"user-{event['request_bytes'] % 5}" for event in events)
    for column in ("seq", "connection_id"):
        values = [event[column] for event in events]
        assert values == sorted(set(values))


def test_recorder_killed_under_load(tmp_path):
    """Every row acknowledged before the kill is there after it, over several lives."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acknowledged = []
    for run in range(4):
        process = start("record", tmp_path, run * RUN)
        target = chance.randrange(1, 6000)
        for line in process.stdout:
            if int(line) >= target:
                process.kill()
                break
        last = process.stdout.read().split(b"\n")[:-1]
        process.stdout.close()
        process.wait()
        acknowledged.append(int(last[-1]) if last else int(line))
    open_recorder(tmp_path).close()
    check_runs(spool_events(tmp_path), acknowledged)


def test_recorder_killed_at_every_change_to_the_file_system(tmp_path):
    """Killed before each file it makes, cuts, renames or removes, a recorder starts again and has lost nothing."""
    acknowledged = []
    while True:
        run = len(acknowledged)
        process = start("record-until", tmp_path, run * RUN, 2 * ROWS + 3, run + 1)
        lines = process.stdout.read().split()
        process.stdout.close()
        acknowledged.append(int(lines[-1]) if lines else 0)
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL
    assert run > 8
    check_runs(spool_events(tmp_path), acknowledged)


@pytest.fixture
def spooled(tmp_path):
    """A usage directory with two closed segments, and the events in them."""
    directory = tmp_path / "spooled"
    recorder = open_recorder(directory)
    for number in range(ROWS + 10):
        record(recorder, number)
    recorder.close()
    return directory, spool_events(directory)


def is_part(events, expected):
    """Return whether `events` are some of `expected`, none twice, all whole."""
    wanted = {event["seq"]: event for event in expected}
    seqs = [event["seq"] for event in events]
    return len(set(seqs)) == len(seqs) and all(wanted[event["seq"]] == event for event in events)


def test_conversion_killed_at_every_change_to_the_file_system(spooled, tmp_path):
    """Killed before each change it makes, conversion and compaction done again give every row once."""
    template, expected = spooled
    directories = [tmp_path / str(change) for change in range(CHANGES_MAX)]
    for directory in directories:
        shutil.copytree(template, directory)
    codes = list(map(int, start("convert", *directories).communicate()[0].split()))
    changes = codes.index(0)
    assert changes > 10
    assert codes == [-signal.SIGKILL] * changes + [0] * (CHANGES_MAX - changes)
    for directory in directories:
        assert is_part(list(read_events(directory)), expected)
        drain(spool_directory(directory, 1), parquet_directory(directory))
        assert list(read_events(directory)) == expected
    assert len(list(directories[-1].rglob("*.parquet"))) == 1


def test_compaction_by_hand_killed_at_every_change_to_the_file_system(tmp_path):
    """Of a killed broker's record, with an open segment and files of two hours: whoever reads then finds every row."""
    template = tmp_path / "template"
    drained = open_recorder(template)
    for number in range(ROWS + 1):
        record(drained, number)
    drained.close()
    drain(spool_directory(template, 1), parquet_directory(template))
    write_events(parquet_directory(template), later_events(12), rows_per_file=4)
    killed = start("record-until", template, 0, ROWS + 3, 11)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    spool = spool_directory(template, 1)
    assert len(segment_paths(spool, CLOSED_SUFFIX)) == len(segment_paths(spool, OPEN_SUFFIX)) == 1
    with complete_files(template) as files:
        expected = [event for file in files for event in read_events(file)]
    directories = [tmp_path / str(change) for change in range(HAND_CHANGES_MAX)]
    for directory in directories:
        shutil.copytree(template, directory)
    codes = list(map(int, start("compact", *directories).communicate()[0].split()))
    changes = codes.index(0)
    assert changes > 20
    assert codes == [-signal.SIGKILL] * changes + [0] * (HAND_CHANGES_MAX - changes)
    for directory in directories:
        with complete_files(directory) as files:
            assert sorted_by_seq(event for file in files for event in read_events(file)) == sorted_by_seq(
                expected
            )
        compact(directory)
        assert list(read_events(directory)) == sorted_by_seq(expected)
        names = [path.parent.parent.name + path.parent.name for path in directory.rglob("*.parquet")]
        assert len(names) == len(set(names))
        assert list(directory.rglob("*.tmp")) == []


def later_events(count):
    """Return events of node 1 in an hour of their own."""
    return [
        {"kind": "expire", "ts_ms": START_MS + number, "seq": number + 1, "node_id": 1}
        for number in range(count)
    ]


def sorted_by_seq(events):
    return sorted(events, key=lambda event: event["seq"])


def test_writer_killed_at_random(tmp_path):
    """However often the writer is killed, and whenever one looks: no loss, no duplicates, no half-written file."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    recorder = open_recorder(tmp_path)
    for number in range(40 * ROWS):
        record(recorder, number)
    recorder.close()
    expected = spool_events(tmp_path)
    clock = ManualClock()
    spool, parquet = spool_directory(tmp_path, 1), parquet_directory(tmp_path)
    writer = start_writer(spool, parquet, node_id=1, clock=clock, retention_ms=KEEP_MS)
    for _ in range(5):
        wait_until(lambda: parquet.exists() or not writer.running)
        time.sleep(chance.uniform(0, 0.1))
        os.kill(writer.pid, signal.SIGKILL)
        wait_until(lambda: not writer.running)
        assert is_part(list(read_events(tmp_path)), expected)
        clock.advance(RESTART_MS)
        writer.keep_running()
        time.sleep(chance.uniform(0.3, 1.0))
    wait_until(lambda: segment_paths(spool, CLOSED_SUFFIX) == [])
    assert writer.stop(timeout_s=WAIT_S)
    assert list(read_events(tmp_path)) == expected
    assert len(list_files(tmp_path)) == 1
    assert list(tmp_path.rglob("*.tmp")) == []


def test_writer_ends_when_the_broker_is_killed(tmp_path):
    """Without its parent the writer converts what is closed and exits; the next start hands it the rest."""
    process = start("serve", tmp_path)
    pid = int(process.stdout.readline())
    process.kill()
    process.stdout.read()
    process.stdout.close()
    process.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert len(list(read_events(tmp_path))) == 2 * ROWS
    open_recorder(tmp_path).close()
    drain(spool_directory(tmp_path, 1), parquet_directory(tmp_path))
    assert [event["request_bytes"] for event in read_events(tmp_path)] == list(range(2 * ROWS + 5))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_writer_outlives_the_signals_that_end_the_broker(tmp_path, signum):
    """It is in no group of the broker's, takes no notice of its signals, and ends when what is left is converted."""
    recorder = open_recorder(tmp_path)
    spool, parquet = spool_directory(tmp_path, 1), parquet_directory(tmp_path)
    writer = start_writer(spool, parquet, node_id=1, clock=ManualClock(), retention_ms=KEEP_MS)
    assert os.getpgid(writer.pid) != os.getpgrp()
    for number in range(2 * ROWS):
        record(recorder, number)
    wait_until(lambda: len(list(read_events(tmp_path))) == ROWS if parquet.exists() else False)
    os.kill(writer.pid, signum)
    recorder.close()
    assert writer.stop(timeout_s=WAIT_S)
    assert len(list(read_events(tmp_path))) == 2 * ROWS


def test_writer_that_was_killed_is_started_again_to_finish(tmp_path):
    """When the broker closes there is a writer, though the last one was killed a moment before."""
    recorder = open_recorder(tmp_path)
    spool, parquet = spool_directory(tmp_path, 1), parquet_directory(tmp_path)
    writer = start_writer(spool, parquet, node_id=1, clock=ManualClock(), retention_ms=KEEP_MS)
    record(recorder, 1)
    os.kill(writer.pid, signal.SIGKILL)
    wait_until(lambda: not writer.running)
    recorder.close()
    assert writer.stop(timeout_s=WAIT_S)
    assert len(list(read_events(tmp_path))) == 1


def test_writer_follows_a_spool_that_is_made_again(tmp_path):
    """When somebody has removed the usage directory, the writer turns what comes after into Parquet, one at a time."""
    clock = ManualClock(start_ms=START_MS)
    usage = tmp_path / "usage"
    spool, parquet = spool_directory(usage, 1), parquet_directory(usage)
    recorder = Recorder(spool, node_id=1, clock=clock, segment_age_ms=1)
    writer = start_writer(spool, parquet, node_id=1, clock=clock, retention_ms=KEEP_MS)
    wait_until(lambda: (spool / WRITER_LOCK).exists())
    record(recorder, 1)
    shutil.rmtree(usage)
    clock.advance(1000)
    recorder.maybe_roll(START_MS)
    record(recorder, 2)
    recorder.maybe_roll(START_MS + 1000)
    wait_until(lambda: usage.exists() and len(list_files(usage)) == 1)
    with pytest.raises(ConfigError, match="a writer is using the usage spool"):
        drain(spool, parquet, timeout_s=0.5)
    recorder.close()
    assert writer.stop(timeout_s=WAIT_S)
    assert [event["kind"] for event in read_events(usage)] == ["gap", "request"]


def test_two_writers_take_turns(tmp_path):
    """A writer waits until the one of an earlier broker is done with the spool."""
    recorder = open_recorder(tmp_path)
    spool, parquet = spool_directory(tmp_path, 1), parquet_directory(tmp_path)
    writers = [
        start_writer(spool, parquet, node_id=1, clock=ManualClock(), retention_ms=KEEP_MS) for _ in range(2)
    ]
    for number in range(3 * ROWS):
        record(recorder, number)
    recorder.close()
    wait_until(lambda: segment_paths(spool, CLOSED_SUFFIX) == [])
    for writer in writers:
        writer.stop()  # either may be the one that waits for the other
    for writer in writers:
        assert writer.stop(timeout_s=WAIT_S)
    assert len(list(read_events(tmp_path))) == 3 * ROWS


def test_without_pyarrow_the_spool_waits(tmp_path):
    """An interpreter without pyarrow says so once, with a hint, and exits with its own code."""
    recorder = open_recorder(tmp_path)
    record(recorder, 1)
    recorder.close()
    spool = spool_directory(tmp_path, 1)
    command = [sys.executable, "-S", "-m", "tidegate.usage.writer", spool, tmp_path / "out", "--node-id", "1"]
    environment = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == EXIT_NO_PYARROW
    assert done.stderr == (
        f"tidegate usage writer: pyarrow is not installed: recorded events stay in {spool}; "
        f"hint: {install_hint('pipeline')}\n"
    )
    assert len(spool_events(tmp_path)) == 1


def test_writer_without_pyarrow_is_not_started_again():
    """A writer that said that pyarrow is missing is left alone."""
    clock = ManualClock()
    writer = WriterProcess([sys.executable, "-c", f"raise SystemExit({EXIT_NO_PYARROW})"], clock)
    pid = writer.pid
    wait_until(lambda: not writer.running)
    clock.advance(RESTART_MS)
    writer.keep_running()
    assert (writer.pid, writer.running) == (pid, False)
    assert writer.stop()


def test_broker_side_needs_no_pyarrow(tmp_path):
    """What the broker imports runs where neither pyarrow nor numpy is installed."""
    modules = ("server.requests.recorder", "usage.writer_process", "usage.files", "usage.events")
    code = "import sys, " + ", ".join(f"tidegate.{name}" for name in modules)
    check = "; assert not {'pyarrow', 'numpy'} & set(sys.modules)"
    environment = {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-S", "-c", code + check], env=environment, check=True)


def test_idle_writer_gives_its_memory_back(tmp_path):
    """With nothing to convert pyarrow goes again, in the same process; the next segment is converted as the first."""
    spool, parquet = spool_directory(tmp_path, 1), parquet_directory(tmp_path)
    recorder = open_recorder(tmp_path)
    code = "import sys; from tidegate.usage import writer; writer.IDLE_S = 0.5; sys.exit(writer.main())"
    command = [sys.executable, "-c", code, spool, parquet, "--node-id", "1", "--retention-ms", str(KEEP_MS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:

        def has_arrow():
            return "libarrow" in Path(f"/proc/{process.pid}/maps").read_text()

        for number in range(2):
            record(recorder, number)
            recorder.maybe_roll(KEEP_MS)
            wait_until(lambda number=number: len(list_files(tmp_path)) == number + 1)
            wait_until(lambda: not has_arrow())
        record(recorder, 2)
        recorder.close()
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
    assert [event["request_bytes"] for event in read_events(tmp_path)] == [0, 1, 2]
