"""What lies in the spool, read by those who read the record: every row once, whatever the writer does meanwhile."""

import os
from contextlib import ExitStack

import pytest
from tests.unit.usage.reading import read_batches
from tests.unit.usage.recording import (
    START_MS,
    client,
    open_recorder,
    parquet_directory,
    record,
    segment_of,
    spool_directory,
)

from tidegate.errors import ConfigError
from tidegate.usage.convert import compact, convert_segment, drain
from tidegate.usage.files import HOUR_MS
from tidegate.usage.readers import complete_files
from tidegate.usage.segment import CLOSED_SUFFIX, OPEN_SUFFIX, SpoolError, segment_path, segment_paths

ROWS = 35  # three segments are closed, one is open


def numbers_in(files):
    """Return what identifies each row, in the order of the files."""
    return [
        row["request_bytes"] for file in files for batch in read_batches(file) for row in batch.to_pylist()
    ]


def contents(directory):
    """Return what an `ls -l` would show of everything in a directory, and every byte."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return [(path, path.stat().st_mtime_ns, path.read_bytes()) for path in paths]


@pytest.fixture
def recorder(tmp_path):
    """A recorder that has written `ROWS` rows over two hours, the last ones into a segment that is open."""
    recorder = open_recorder(tmp_path, segment_bytes=segment_of(10))
    for number in range(ROWS):
        record(recorder, client(), START_MS + number * 100_000, number)
    yield recorder
    recorder.close()


def test_rows_in_the_spool_are_read(tmp_path, recorder):
    """Of a running broker, open segment included; nothing in the directory changes, and the copies are private."""
    before = contents(tmp_path)
    with complete_files(tmp_path) as files:
        assert sorted(numbers_in(files)) == list(range(ROWS))
        assert all(os.stat(path).st_mode & 0o077 == 0 for file in files for path in (file, *file.parents[:3]))
    assert not any(file.exists() for file in files)
    assert contents(tmp_path) == before


def test_rows_of_a_killed_broker_are_read(tmp_path, recorder):
    """What nobody will convert before the next start."""
    drain(spool_directory(tmp_path, 1), parquet_directory(tmp_path))
    with complete_files(tmp_path) as files:
        assert sorted(numbers_in(files)) == list(range(ROWS))
        assert sum(tmp_path in file.parents for file in files) < len(files)


@pytest.mark.parametrize("converted", range(4))
@pytest.mark.parametrize("compacted", [False, True])
def test_what_is_converted_meanwhile_is_read_once(tmp_path, recorder, monkeypatch, converted, compacted):
    """Between the copies and the listing the writer converts some segments, half of one, and compacts hours."""
    import tidegate.usage.readers as module

    list_files, spool, parquet = module.list_files, spool_directory(tmp_path, 1), parquet_directory(tmp_path)
    work = ExitStack()

    def convert() -> None:
        record(recorder, client(), START_MS + ROWS * 100_000, ROWS)
        closed = segment_paths(spool, CLOSED_SUFFIX)
        for path in closed[:converted]:
            convert_segment(path, parquet, node_id=1)
        if converted < len(closed):  # the writer is between two files of a segment: its rows are in both
            data = closed[converted].read_bytes(), closed[converted].with_suffix(".names").read_bytes()
            convert_segment(closed[converted], parquet, node_id=1)
            closed[converted].write_bytes(data[0])
            closed[converted].with_suffix(".names").write_bytes(data[1])
            later = sorted(parquet.rglob(f"node-1-{closed[converted].stem}-*"))[1:]
            for path in later:
                path.unlink()
        if compacted:
            list(compact(parquet, node_id=1, now_ms=START_MS + 100 * HOUR_MS))

    def listed(path):
        if path == tmp_path:
            work.close()
        return list_files(path)

    work.callback(convert)
    monkeypatch.setattr(module, "list_files", listed)  # the one way to be between the two
    with complete_files(tmp_path) as files:
        found = sorted(numbers_in(files))
    assert found == list(range(ROWS))


def test_segment_that_is_closed_while_it_is_looked_for(tmp_path, recorder):
    """It is found under its other name, or is in Parquet by then."""
    from tidegate.usage.readers import _load

    spool = spool_directory(tmp_path, 1)
    (path,) = segment_paths(spool, OPEN_SUFFIX)
    first_seq = int(path.stem)
    assert len(_load(spool, first_seq).rows) == 5 * 128
    recorder.maybe_roll(START_MS + 10**9)
    assert not segment_path(spool, first_seq, OPEN_SUFFIX).exists()
    assert len(_load(spool, first_seq).rows) == 5 * 128
    drain(spool, parquet_directory(tmp_path))
    assert _load(spool, first_seq) is None


def test_damaged_segments_are_left_out(tmp_path, recorder, caplog):
    """The writer will make a gap of it; the job says which one, and reads the others."""
    path = segment_paths(spool_directory(tmp_path, 1), CLOSED_SUFFIX)[1]
    path.write_bytes(b"no segment".ljust(1280))
    with complete_files(tmp_path) as files:
        assert sorted(numbers_in(files)) == [*range(10), *range(20, ROWS)]
    assert [text for text in caplog.messages if str(path) in text]


def test_only_damaged_segments(tmp_path, recorder):
    """The error names the first one."""
    spool = spool_directory(tmp_path, 1)
    paths = [*segment_paths(spool, CLOSED_SUFFIX), *segment_paths(spool, OPEN_SUFFIX)]
    for path in paths:
        path.write_bytes(b"no segment".ljust(1280))
    with pytest.raises(SpoolError, match=str(paths[0])), complete_files(tmp_path):
        pass


def test_without_a_spool(tmp_path, recorder):
    """Only a usage directory has one; what is not there is an error as ever."""
    drain(spool_directory(tmp_path, 1), parquet_directory(tmp_path))
    with complete_files(parquet_directory(tmp_path)) as files:
        assert sorted(numbers_in(files)) == list(range(30))
    with pytest.raises(ConfigError, match="no usage record at"), complete_files(tmp_path / "nowhere"):
        pass
