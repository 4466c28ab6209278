"""Tests of finding offsets by time."""

import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.batches import renew_crc
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms, whole
from tests.unit.storage.logs import NOW_MS, append, batch, batch_of, new_log, packed, timed_batch

from tidegate.error_codes import INVALID_RECORD, UNKNOWN_SERVER_ERROR
from tidegate.storage.errors import UnreadableBatchError
from tidegate.storage.log import time_lookup
from tidegate.storage.log.all_logs import expire
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.time_lookup import PIECE_BYTES, TimeAndOffset
from tidegate.storage.log.unpacking import MAX_UNPACKED_BYTES, Unpacker
from tidegate.wire.batch import HEADER_BYTES

UNPACKER = Unpacker()
TIMES = [NOW_MS + delta for delta in (10, 20, 15, 40, 40, 30, 50)]


def offset_by_time(log: PartitionLog, time_ms: int) -> TimeAndOffset | None:
    """Look a time up, all slices at once."""
    return whole(time_lookup.offset_by_time(log, time_ms, UNPACKER.unpack))


def offset_of_latest_time(log: PartitionLog) -> TimeAndOffset | None:
    """Look the largest time up, all slices at once."""
    return whole(time_lookup.offset_of_latest_time(log, UNPACKER.unpack))


@pytest.fixture(params=[1 << 30, 300], ids=["one segment", "several"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> PartitionLog:
    """Return a log of batches of two records, not in the order of their times."""
    log = new_log(tmp_path, segment_bytes=request.param, index_interval_bytes=0)
    for time_ms in TIMES:
        append(log, batch(2, time_ms=time_ms), NOW_MS)
    return log


@pytest.mark.parametrize("time_ms", [0, *(NOW_MS + delta for delta in range(8, 53, 3))])
def test_first_record_not_older_is_found(log: PartitionLog, time_ms: int) -> None:
    """The answer is the first record in the log whose time is not before the one asked for."""
    expected = next(((at, 2 * n) for n, at in enumerate(TIMES) if at >= time_ms), None)
    assert offset_by_time(log, time_ms) == expected


@pytest.mark.parametrize("start", range(15))
def test_records_that_were_deleted_are_not_found(log: PartitionLog, start: int) -> None:
    """The answer is the first record from the beginning of the log on; the largest time counts all, as in Kafka."""
    log.raise_start(start)
    for time_ms in (NOW_MS + 10, NOW_MS + 16, NOW_MS + 40, NOW_MS + 50):
        records = [(at, 2 * n + k) for n, at in enumerate(TIMES) for k in (0, 1)]
        expected = next((each for each in records if each[0] >= time_ms and each[1] >= start), None)
        assert offset_by_time(log, time_ms) == expected
    assert offset_of_latest_time(log) == (NOW_MS + 50, 12)


def test_latest_time_is_found(log: PartitionLog) -> None:
    """The record with the largest time, the first of them."""
    assert offset_of_latest_time(log) == (NOW_MS + 50, 12)


def test_empty_log_has_no_times(tmp_path: Path) -> None:
    """Nothing is found in a log without records."""
    log = new_log(tmp_path)
    assert offset_by_time(log, 0) is None
    assert offset_of_latest_time(log) is None


@pytest.mark.parametrize("codec", range(5))
def test_records_are_found_in_any_compression(tmp_path: Path, codec: int) -> None:
    """Time and offset are those of the record, as recorded of Kafka (`vectors/wire/time_lookups.json`)."""
    log = new_log(tmp_path)
    first, second = (
        [NOW_MS + delta for delta in (10, 30, 20, 30, 5)],
        [NOW_MS + delta for delta in (40, 35, 60)],
    )
    append(log, timed_batch(first, codec=codec))
    append(log, timed_batch(second, codec=codec))
    records = list(enumerate([*first, *second]))
    for time_ms in range(NOW_MS, NOW_MS + 65, 5):
        assert offset_by_time(log, time_ms) == next(
            ((at, offset) for offset, at in records if at >= time_ms), None
        )
    assert offset_of_latest_time(log) == (NOW_MS + 60, 7)
    log.raise_start(2)
    assert offset_by_time(log, NOW_MS) == (NOW_MS + 20, 2)
    log.raise_start(4)
    assert offset_by_time(log, NOW_MS + 20) == (NOW_MS + 40, 5), "the records before are deleted"


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_much_that_is_compressed_is_looked_through(tmp_path: Path, codec: int) -> None:
    """What expands more than most is decompressed again, in more memory."""
    log = new_log(tmp_path, max_message_bytes=10**8)
    times = [NOW_MS + number for number in range(40)]
    append(log, timed_batch(times, value=bytes(100_000), codec=codec))
    for number in (0, 1, 20, 39):
        assert offset_by_time(log, NOW_MS + number) == (NOW_MS + number, number)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_bomb_is_bounded(tmp_path: Path, codec: int) -> None:
    """A record behind the bound is not looked for: the batch's first offset stands for it (row L2)."""
    log = new_log(tmp_path, max_message_bytes=10**8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = timed_batch([NOW_MS, NOW_MS, NOW_MS + 9], value=bytes(2 * MAX_UNPACKED_BYTES), codec=codec)
    made = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    append(log, data)
    found, longest_ms = longest_step_ms(lambda: time_lookup.offset_by_time(log, NOW_MS + 9, UNPACKER.unpack))
    assert (found, longest_ms < MOST_STEP_MS) == ((NOW_MS + 9, 0), True)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - made <= 2 * MAX_UNPACKED_BYTES // 1024, (before, made, after)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "body",
    [b"", b"garbage garbage", b"\x82SNAPPY\x00" + bytes(8) + b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f"],
)
def test_what_cannot_be_decompressed_is_said(tmp_path: Path, codec: int, body: bytes) -> None:
    """Kafka answers error -1; the log is not damaged, and other lookups go on."""
    log = new_log(tmp_path)
    append(log, batch_of(body, [NOW_MS, NOW_MS + 5], codec=codec))
    append(log, batch(time_ms=NOW_MS + 50))
    with pytest.raises(UnreadableBatchError) as raised:
        offset_by_time(log, NOW_MS + 5)
    assert raised.value.error_code == UNKNOWN_SERVER_ERROR
    assert offset_by_time(log, NOW_MS + 6) == (NOW_MS + 50, 2)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("cut", [1, 5, 9])
def test_what_is_cut_off_is_said(tmp_path: Path, codec: int, cut: int) -> None:
    """A stream that ends early is none."""
    times = [NOW_MS, NOW_MS + 5]
    whole_body = packed(codec, timed_batch(times, value=bytes(range(200)))[HEADER_BYTES:])
    log = new_log(tmp_path)
    append(log, batch_of(whole_body[:-cut], times, codec=codec))
    with pytest.raises(UnreadableBatchError):
        offset_by_time(log, NOW_MS + 5)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_header_that_lies_is_believed(tmp_path: Path, codec: int) -> None:
    """Kafka writes the largest time anew; here it stays, and the batch stands for a record that is not there (L1)."""
    log = new_log(tmp_path)
    data = bytearray(timed_batch([NOW_MS, NOW_MS + 5], codec=codec))
    struct.pack_into(">q", data, 35, NOW_MS + 99)
    renew_crc(data)
    append(log, bytes(data))
    assert offset_by_time(log, NOW_MS + 50) == (NOW_MS + 99, 0)


def test_append_time_counts_where_it_is_kept(tmp_path: Path) -> None:
    """With LogAppendTime all records of a batch have the broker's time."""
    log = new_log(tmp_path, log_append_time=True)
    append(log, batch(3, time_ms=5), NOW_MS)
    assert offset_by_time(log, 6) == (NOW_MS, 0)


def test_times_survive_a_restart(tmp_path: Path) -> None:
    """After a clean end and after a kill the same offsets are found."""
    log = new_log(tmp_path, segment_bytes=300, index_interval_bytes=0)
    for time_ms in TIMES:
        append(log, batch(2, time_ms=time_ms), NOW_MS)
    wanted = [offset_by_time(log, NOW_MS + delta) for delta in range(60)]
    assert [offset_by_time(new_log(tmp_path), NOW_MS + delta) for delta in range(60)] == wanted
    log.close()
    again = new_log(tmp_path)
    assert [offset_by_time(again, NOW_MS + delta) for delta in range(60)] == wanted
    assert offset_of_latest_time(again) == (NOW_MS + 50, 12)


@pytest.mark.alone
def test_useless_time_index_is_walked_in_slices(tmp_path: Path) -> None:
    """30,000 batches older than the first one, then the one that is looked for: no step is long."""
    log = new_log(tmp_path)
    append(log, batch(time_ms=NOW_MS + 50), NOW_MS)
    old = memoryview(bytearray(batch(time_ms=NOW_MS)))
    for _ in range(30_000):
        log.append(old, NOW_MS, 9)
        old[:8] = bytes(8)
    append(log, batch(time_ms=NOW_MS + 100), NOW_MS)
    found, longest_ms = longest_step_ms(lambda: time_lookup.offset_by_time(log, NOW_MS + 60, UNPACKER.unpack))
    assert found == (NOW_MS + 100, 30_001)
    assert longest_ms < MOST_STEP_MS
    found, longest_ms = longest_step_ms(lambda: time_lookup.offset_of_latest_time(log, UNPACKER.unpack))
    assert found == (NOW_MS + 100, 30_001)
    assert longest_ms < MOST_STEP_MS


@pytest.mark.parametrize("value", [b"", bytes(100), bytes(PIECE_BYTES), bytes(3 * PIECE_BYTES + 1)])
def test_records_are_read_in_pieces(tmp_path: Path, value: bytes) -> None:
    """The record is found wherever it lies: records smaller and larger than the piece that is read at once."""
    log = new_log(tmp_path, max_message_bytes=10**8)
    times = [NOW_MS + delta for delta in (0, 3, 1, 7, 2, 9, 4)]
    append(log, timed_batch(times, value=value))
    for time_ms in range(NOW_MS, NOW_MS + 11):
        expected = next(((at, number) for number, at in enumerate(times) if at >= time_ms), None)
        assert offset_by_time(log, time_ms) == expected


@pytest.mark.alone
def test_many_records_in_one_batch_are_read_in_slices(tmp_path: Path) -> None:
    """100,000 records of eight bytes, the last of which is looked for: no step is long."""
    log = new_log(tmp_path)
    append(log, timed_batch([NOW_MS] * 100_000 + [NOW_MS + 9]))
    found, longest_ms = longest_step_ms(lambda: time_lookup.offset_by_time(log, NOW_MS + 9, UNPACKER.unpack))
    assert found == (NOW_MS + 9, 100_000)
    assert longest_ms < MOST_STEP_MS


@pytest.mark.parametrize("nonsense", [b"\xff" * 40, b"\x02" + bytes(39), b"\x7e" * 40])
@pytest.mark.parametrize("codec", range(5))
def test_what_is_no_record_is_said(tmp_path: Path, codec: int, nonsense: bytes) -> None:
    """Kafka answers error 87, or -1 for a number that is none; other batches are found."""
    log = new_log(tmp_path)
    append(log, batch_of(packed(codec, nonsense), [NOW_MS, NOW_MS + 5], codec=codec))
    append(log, batch(time_ms=NOW_MS + 50))
    with pytest.raises(UnreadableBatchError) as raised:
        offset_by_time(log, NOW_MS + 5)
    assert raised.value.error_code == INVALID_RECORD
    assert offset_by_time(log, NOW_MS + 6) == (NOW_MS + 50, 2)


def test_segments_may_go_while_they_are_looked_through(tmp_path: Path) -> None:
    """Whatever is deleted between two slices leaves no file behind and no error."""
    for slices in range(12):
        directory = tmp_path / str(slices)
        directory.mkdir()
        log = new_log(directory, segment_bytes=300, retention_ms=1000)
        for time_ms in (5000, *range(1000, 1100), 9000):
            append(log, batch(time_ms=time_ms), 9000)
        work = time_lookup.offset_by_time(log, 6000, UNPACKER.unpack)
        for _ in range(slices):
            next(work, None)
        list(expire(log, 10**9))
        whole(work)
        assert sorted(path.name for path in directory.glob("*.log")) == [log.segments[0].path.name]


def test_deleted_log_has_no_times(tmp_path: Path) -> None:
    """A topic that is deleted while one of its logs is looked through does not come back."""
    log = new_log(tmp_path, segment_bytes=300)
    for _ in range(20):
        append(log, batch(time_ms=5))
    work = time_lookup.offset_by_time(log, 6, UNPACKER.unpack)
    log.forget()
    assert whole(work) is None


def test_codecs_are_loaded_when_they_are_needed() -> None:
    """A broker that starts, and lookups in plain batches, do without the library of codecs."""
    code = "import sys, tidegate.cli.serving; assert 'cramjam' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
