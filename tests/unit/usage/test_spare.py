"""The file of rows that is made ready before it is needed."""

import os
import time

import pytest
from tests.unit.usage.recording import START_MS, client, closed_events, open_recorder, record, spool_directory

from tidegate.usage.segment import CLOSED_SUFFIX, OPEN_SUFFIX, segment_path
from tidegate.usage.spare import FILLED_BYTES, MAX_WAITING, SPARE, keep_spare, keeping_spare, take_spare

SIZE = 1 << 20


def waiting(spool, count, size):
    for number in range(count):
        with segment_path(spool, number, CLOSED_SUFFIX).open("wb") as file:
            file.truncate(size)


@pytest.fixture
def spool(tmp_path):
    """A spool where a segment was filled and another is open."""
    waiting(tmp_path, 1, FILLED_BYTES)
    with segment_path(tmp_path, 1000, OPEN_SUFFIX).open("wb") as file:
        file.truncate(SIZE)
    return tmp_path


def test_made_where_segments_are_filled(spool):
    """As large as the open one, with its blocks, the owner's only, and nothing unfinished beside it."""
    keep_spare(spool)
    status = (spool / SPARE).stat()
    assert (status.st_size, status.st_mode & 0o777) == (SIZE, 0o600)
    assert status.st_blocks * 512 >= SIZE
    assert len(list(spool.iterdir())) == 3
    inode = status.st_ino
    keep_spare(spool)
    assert (spool / SPARE).stat().st_ino == inode


@pytest.mark.parametrize(("count", "size"), [(1, FILLED_BYTES - 1), (MAX_WAITING + 1, FILLED_BYTES), (0, 0)])
def test_not_made_where_it_is_not_needed(tmp_path, count, size):
    """Where little is recorded, or the spool fills up because nobody converts."""
    waiting(tmp_path, count, size)
    segment_path(tmp_path, 1000, OPEN_SUFFIX).write_bytes(bytes(128))
    keep_spare(tmp_path)
    assert not (tmp_path / SPARE).exists()


def test_what_was_left_unfinished_is_made_anew(spool):
    """A writer that was killed leaves no spare file with something in it."""
    (spool / f".{SPARE}.tmp").write_bytes(b"x" * 2 * SIZE)
    keep_spare(spool)
    assert (spool / SPARE).read_bytes() == bytes(SIZE)


def test_taken_by_its_size(spool):
    """It gets the name of the segment; one of another size is deleted."""
    keep_spare(spool)
    path = segment_path(spool, 2000, OPEN_SUFFIX)
    fd = take_spare(path, SIZE)
    assert fd is not None
    os.close(fd)
    assert path.stat().st_size == SIZE
    assert take_spare(path, SIZE) is None
    (spool / SPARE).write_bytes(b"short")
    assert take_spare(path, SIZE) is None
    assert not (spool / SPARE).exists()


def test_a_link_is_no_spare_file(spool):
    """What lies elsewhere is not written."""
    other = spool / "other"
    other.write_bytes(bytes(SIZE))
    (spool / SPARE).symlink_to(other)
    assert take_spare(segment_path(spool, 2000, OPEN_SUFFIX), SIZE) is None


def test_a_recorder_writes_into_it(tmp_path):
    """The next segment is the spare file, and reads like any other."""
    recorder = open_recorder(tmp_path)
    record(recorder, client(), START_MS)
    spool = spool_directory(tmp_path, 1)
    waiting(spool, 1, FILLED_BYTES)
    keep_spare(spool)
    segment_path(spool, 0, CLOSED_SUFFIX).unlink()
    inode = (spool / SPARE).stat().st_ino
    recorder.maybe_roll(START_MS + 10**6)
    record(recorder, client(), START_MS + 1)
    (opened,) = spool.glob(f"*{OPEN_SUFFIX}")
    assert opened.stat().st_ino == inode
    assert not (spool / SPARE).exists()
    recorder.close()
    assert [event["ts_ms"] for event in closed_events(tmp_path)] == [START_MS, START_MS + 1]


def test_kept_as_long_as_the_writer_works(spool):
    """A thread makes it; when the writer ends nothing is left of it."""
    with keeping_spare(spool, 0.001):
        deadline = time.monotonic() + 30
        while not (spool / SPARE).exists():
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert not (spool / SPARE).exists()
