"""The writer's round, on a clock that stands still."""

import pytest
from tests.unit.usage.reading import read_events
from tests.unit.usage.recording import (
    START_MS,
    client,
    open_recorder,
    parquet_directory,
    record,
    set_file_times,
    spool_directory,
)

from tidegate.testing import ManualClock
from tidegate.usage.files import HOUR_MS, list_files, parquet_path, temporary_path
from tidegate.usage.writer import TIDY_MS, Writer, main


def make_writer(tmp_path, clock, retention_ms=5 * HOUR_MS):
    spool, parquet = spool_directory(tmp_path, 1), parquet_directory(tmp_path)
    return Writer(spool, parquet, node_id=1, retention_ms=retention_ms, clock=clock)


def record_rolls(tmp_path, segments):
    recorder = open_recorder(tmp_path)
    for index in range(segments):
        record(recorder, client(), START_MS, index)
        recorder.maybe_roll(START_MS + 10**6)
    recorder.close()


def test_round_converts_compacts_and_deletes(tmp_path):
    """Closed segments become Parquet, hours that are over one file, and old hours nothing."""
    clock = ManualClock(start_ms=START_MS)
    writer = make_writer(tmp_path, clock)
    record_rolls(tmp_path, 3)
    writer.step()
    assert len(list_files(tmp_path)) == 3
    clock.advance(2 * HOUR_MS)
    writer.step()
    assert len(list_files(tmp_path)) == 1
    assert len(list(read_events(tmp_path))) == 3
    set_file_times(tmp_path, clock.wall_ms())
    clock.advance(5 * HOUR_MS)
    writer.step()
    assert list_files(tmp_path) == []


def test_tidying_is_not_done_every_round(tmp_path):
    """Hours are looked through now and then only; segments every time."""
    clock = ManualClock(start_ms=START_MS + 2 * HOUR_MS)
    writer = make_writer(tmp_path, clock)
    writer.step()
    record_rolls(tmp_path, 2)
    writer.step()
    assert len(list_files(tmp_path)) == 2
    clock.advance(TIDY_MS)
    writer.step()
    assert len(list_files(tmp_path)) == 1


def test_first_round_removes_what_a_killed_writer_left(tmp_path):
    """Files that were never finished do not pile up."""
    left = temporary_path(
        parquet_path(tmp_path / "parquet/date=2023-11-14/hour=22", node_id=1, first_seq=1, last_seq=2)
    )
    left.parent.mkdir(parents=True)
    left.touch()
    make_writer(tmp_path, ManualClock(start_ms=START_MS)).step()
    assert not left.exists()


def test_failing_disk_is_reported_once_and_tried_again(tmp_path, caplog):
    """While Parquet cannot be written the spool keeps everything; when it can be, all is there."""
    writer = make_writer(tmp_path, ManualClock(start_ms=START_MS))
    record_rolls(tmp_path, 2)
    blocked = parquet_directory(tmp_path)
    blocked.touch()
    assert writer.step()
    assert writer.step(), "what waits is something to do: a writer that begins anew would say it again"
    assert [entry.message.split(":")[0] for entry in caplog.records] == [
        "cannot write the usage record, segments stay in the spool"
    ]
    blocked.unlink()
    assert writer.step()
    assert not writer.step()
    assert len(list(read_events(tmp_path))) == 2


def test_wrong_arguments(capsys):
    """Arguments are checked, and the usage line names the program."""
    with pytest.raises(SystemExit) as caught:
        main(["spool"])
    assert caught.value.code == 2
    assert "usage: python -m tidegate.usage.writer" in capsys.readouterr().err
