"""A whole record compacted by hand: one file an hour and node, and nobody else at work on it."""

import json
import os
import stat
import subprocess
import sys

import pytest
from tests.replaying.files import write_events
from tests.unit.usage.reading import read_events
from tests.unit.usage.recording import (
    START_MS,
    client,
    closed_events,
    open_recorder,
    parquet_directory,
    record,
    segment_of,
    spool_directory,
)

from tidegate.cli.main import main
from tidegate.usage.compaction import compact_record
from tidegate.usage.directory import WRITER_LOCK, lock_file
from tidegate.usage.files import HOUR_MS, IMPORT_MANIFEST
from tidegate.usage.readers import complete_files

SECOND_HOUR_MS = START_MS - START_MS % HOUR_MS + HOUR_MS


def _events(node_id, *, hours=2, each=9):
    return [
        {"kind": "expire", "ts_ms": START_MS + hour * HOUR_MS + at, "seq": hour * each + at + 1, "node_id": node_id}
        for hour in range(hours)
        for at in range(each)
    ]  # fmt: skip


@pytest.fixture
def usage(tmp_path):
    """The record of two nodes in files of four rows, and what a dead broker of node 1 has left in its spool."""
    for node_id in (1, 2):
        write_events(tmp_path / "parquet", _events(node_id), rows_per_file=4)
    recorder = open_recorder(tmp_path, segment_bytes=segment_of(10))
    for number in range(25):
        record(recorder, client(), START_MS + number, number)
    recorder.close()
    segments = sorted(spool_directory(tmp_path, 1).glob("*.closed"))
    segments[-1].rename(segments[-1].with_suffix(".open"))
    return tmp_path


def test_one_file_an_hour_and_node(usage):
    """With every row, in order, the open segment's too; a second time there is nothing to do."""
    with complete_files(usage) as files:
        expected = [event for file in files for event in read_events(file)]
    done = compact_record(usage)
    assert (done.segments, done.files_before, done.files, done.unreadable) == (3, 15, 4, ())
    assert list(read_events(usage)) == sorted(expected, key=lambda event: (event["node_id"], event["seq"]))
    assert list(spool_directory(usage, 1).glob("*.open")) == closed_events(usage) == []
    again = compact_record(usage)
    assert (again.segments, again.files_before, again.files) == (0, 4, 4)


@pytest.mark.parametrize(
    ("options", "merged"),
    [
        ({"from_ms": SECOND_HOUR_MS}, [False, True]),
        ({"from_ms": SECOND_HOUR_MS - 1}, [True, True]),
        ({"to_ms": SECOND_HOUR_MS}, [True, False]),
        ({"to_ms": SECOND_HOUR_MS + 1}, [True, True]),
        ({"from_ms": 0, "to_ms": SECOND_HOUR_MS - HOUR_MS}, [False, False]),
        ({"last_ms": 1}, [False, True]),
        ({"last_ms": HOUR_MS + 1}, [True, True]),
        ({"last_ms": 2**60}, [True, True]),
    ],
)
def test_hours_of_a_range(tmp_path, options, merged):
    """Each hour that a range touches is merged completely, the others are left; no row is lost."""
    write_events(tmp_path / "parquet", _events(1), rows_per_file=4)
    expected = list(read_events(tmp_path))
    done = compact_record(tmp_path, **options)
    hours = sorted({path.parent for path in (tmp_path / "parquet").rglob("*.parquet")})
    assert [any(hour.glob("*-compacted.parquet")) for hour in hours] == merged
    assert done.files == sum(1 if is_merged else 3 for is_merged in merged)
    assert list(read_events(tmp_path)) == expected


def test_a_range_of_the_command(usage, capsys):
    """The options of the command choose the hours; those that contradict each other are refused."""
    assert main(["compact", str(usage), "--to", "1971-01-01"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "converted 3 segments of the spool to Parquet",
        "merged 15 files into 15",
    ]
    assert main(["compact", str(usage), "--last", "2d"]) == 0
    assert capsys.readouterr().out == "merged 15 files into 4\n"
    assert main(["compact", str(usage), "--last", "2d", "--from", "2026-01-01"]) == 2
    assert "--last cannot be used with --from and --to" in capsys.readouterr().err


def test_what_was_merged_stays_for_those_who_read_it(usage):
    """A job that has listed the files reads on; an hour later the next run deletes them."""
    with complete_files(usage) as files:
        listed = [file for file in files if usage in file.parents]
        compact_record(usage)
        assert all(file.exists() for file in listed)
        compact_record(usage)
        assert all(file.exists() for file in listed)
    for compacted in parquet_directory(usage).rglob("*-compacted.parquet"):
        os.utime(compacted, (0, 0))
    compact_record(usage)
    assert not any(file.exists() for file in listed)
    assert len(list(parquet_directory(usage).rglob("*.parquet"))) == 4


def test_it_stays_private(usage):
    """Files and directories are for the owner only."""
    compact_record(usage)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in parquet_directory(usage).rglob("*")}
    assert modes == {True: 0o700, False: 0o600}


def test_nothing_is_done_beside_a_broker(usage, capsys):
    """Neither to its node's files nor to others."""
    before = sorted(usage.rglob("*"))
    recorder = open_recorder(usage)
    assert main(["compact", str(usage)]) == 2
    error = f"error: a broker is using '{spool_directory(usage, 1)}'\nhint: stop the broker first"
    assert capsys.readouterr().err.startswith(error)
    recorder.close()
    assert [path for path in before if path.suffix == ".parquet" and not path.exists()] == []


def test_nothing_is_done_beside_a_writer(usage, capsys):
    """Which outlives its broker for a while; when it has ended it can be done."""
    lock = lock_file(spool_directory(usage, 1) / WRITER_LOCK)
    assert main(["compact", str(usage)]) == 2
    assert capsys.readouterr().err.startswith("error: a writer is using ")
    os.close(lock)
    assert main(["compact", str(usage)]) == 0
    assert capsys.readouterr() == (
        "converted 3 segments of the spool to Parquet\nmerged 15 files into 4\n",
        "",
    )


def test_nothing_is_done_beside_an_import(tmp_path, capsys):
    """Which holds the directory; afterwards it can be done."""
    write_events(tmp_path / "parquet", _events(1), rows_per_file=4)
    (tmp_path / IMPORT_MANIFEST).write_text(json.dumps({"files": []}))
    lock = lock_file(tmp_path / "import.lock")
    assert main(["compact", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"error: another import into '{tmp_path}' is running\nhint: wait"
    )
    os.close(lock)
    assert main(["compact", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "merged 6 files into 2\n"


@pytest.mark.parametrize("part", ["nowhere", "parquet", "parquet/date=2023-11-14"])
def test_no_record(usage, capsys, part):
    """A part of a record is none: who is at work on it could not be told."""
    assert main(["compact", str(usage / part)]) == 2
    assert capsys.readouterr().err.startswith(f"error: no usage record in '{usage / part}'")


def test_files_that_overlap_are_left_alone(tmp_path, capsys, caplog):
    """Merged in their order they would not be sorted; the other hours are compacted, and the answer is 1."""
    events = _events(1)
    write_events(tmp_path / "parquet", events, rows_per_file=4)
    write_events(tmp_path / "parquet", events[2:5], rows_per_file=4)
    assert main(["compact", str(tmp_path)]) == 1
    assert "overlap" in caplog.text
    assert capsys.readouterr().out == "merged 7 files into 5\n"


def test_the_command_prints_warnings_and_the_function_does_not(tmp_path):
    """Python itself would print them on stderr."""
    script = "import sys; from tidegate import pipeline; print(pipeline.compact(sys.argv[1]).files)"
    for command in ([sys.executable, "-c", script], [sys.executable, "-m", "tidegate", "compact"]):
        write_events(tmp_path / command[1] / "parquet", _events(1)[:9], rows_per_file=4)
        write_events(tmp_path / command[1] / "parquet", _events(1)[2:5], rows_per_file=4)
        done = subprocess.run(
            [*command, str(tmp_path / command[1])], capture_output=True, text=True, check=False
        )
        assert ("overlap" in done.stderr) is ("compact" in command), done.stderr
        assert done.stdout in ("4\n", "merged 4 files into 4\n")


def test_a_record_that_cannot_be_written(tmp_path, capsys):
    """Says so, in a line."""
    write_events(tmp_path / "parquet", _events(1), rows_per_file=4)
    (tmp_path / "spool" / "node-1").mkdir(parents=True)
    (tmp_path / "spool" / "node-1" / "state.json").write_text('{"node_id": 1, "next_number": 1}')
    (tmp_path / "spool" / "node-1" / "lock").mkdir()
    assert main(["compact", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot compact '{tmp_path}': Is a directory\nhint: ")
