"""Tests of a partition's log: appending, reading, rolling, refusing, expiring."""

import errno
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.batches import renew_crc
from tests.unit.storage.logs import NOW_MS, append, batch, contents, new_log

from tidegate import error_codes
from tidegate.storage.errors import AppendError, OffsetOutOfRangeError
from tidegate.storage.log.partition_log import CHECKPOINT_BYTES, GATHERED_BYTES, PartitionLog
from tidegate.storage.log.producers import PACKED_AT_ONCE
from tidegate.storage.log.recovery import reopen_log
from tidegate.storage.log.turn_writes import TurnWrites
from tidegate.wire.batch import batches, crc_matches

MIB = 1024 * 1024


def refused(log: PartitionLog, data: bytes, *, version: int = 9) -> int:
    """Return the error code of a batch that is not stored."""
    before = log.end_offset, log.size_bytes
    with pytest.raises(AppendError) as raised:
        log.append(memoryview(bytearray(data)), NOW_MS, version)
    assert (log.end_offset, log.size_bytes) == before
    return raised.value.error_code


def test_offsets_are_consecutive(tmp_path: Path) -> None:
    """Each batch begins where the last one ended."""
    log = new_log(tmp_path)
    assert [append(log, batch(count)) for count in (1, 3, 2)] == [0, 1, 4]
    assert (log.start_offset, log.end_offset) == (0, 6)


def test_file_holds_what_was_sent_but_offset_and_epoch(tmp_path: Path) -> None:
    """Base offset and leader epoch are set, the rest is stored as it came, and the CRC still fits."""
    log = new_log(tmp_path)
    sent = [batch(2), batch(3)]
    for data in sent:
        append(log, data)
    stored = (tmp_path / "00000000000000000000.log").read_bytes()
    first = struct.pack(">q", 0) + sent[0][8:12] + bytes(4) + sent[0][16:]
    assert stored == first + struct.pack(">q", 2) + sent[1][8:12] + bytes(4) + sent[1][16:]
    assert all(crc_matches(stored, header) for header in batches(stored))


def test_read_only_memory_is_not_written_to(tmp_path: Path) -> None:
    """A batch in immutable bytes is copied before its offset is set."""
    log, data = new_log(tmp_path), batch()
    append(log, batch())
    log.append(memoryview(data), NOW_MS, 9)
    assert data == batch()
    assert log.end_offset == 2


def test_every_offset_reads_from_its_batch_on(tmp_path: Path) -> None:
    """A read begins with the whole batch that holds the offset."""
    log = new_log(tmp_path, index_interval_bytes=200)
    sizes = [3, 1, 4, 2, 5, 1, 2, 6]
    bases = [append(log, batch(size)) for size in sizes]
    for base, size in zip(bases, sizes, strict=True):
        for offset in range(base, base + size):
            found = log.read(offset, MIB)
            assert found is not None
            assert struct.unpack(">q", found.read()[:8])[0] == base


def test_read_at_the_end_finds_nothing(tmp_path: Path) -> None:
    """At the end there is nothing to read yet; beyond it and before the start is an error."""
    log = new_log(tmp_path)
    append(log, batch(2))
    assert log.read(2, MIB) is None
    for offset in (3, -1):
        with pytest.raises(OffsetOutOfRangeError):
            log.read(offset, MIB)


def test_limit_cuts_behind_the_first_batch(tmp_path: Path) -> None:
    """As on Apache Kafka: the first batch is whole, what follows ends at the limit."""
    log = new_log(tmp_path)
    size = len(batch())
    for _ in range(3):
        append(log, batch())
    sizes = [len(log.read(0, limit) or b"") for limit in (0, size - 1, size, size + 5, 3 * size, MIB)]
    assert sizes == [size, size, size, size + 5, 3 * size, 3 * size]
    assert log.read(0, size - 1, at_least_one=False) is None
    assert len(log.read(0, size + 5, at_least_one=False) or b"") == size + 5


def test_full_segments_are_rolled(tmp_path: Path) -> None:
    """A batch that would not fit begins a new file, named by its offset; reads do not cross files."""
    size = len(batch(2))
    log = new_log(tmp_path, segment_bytes=3 * size)
    for _ in range(7):
        append(log, batch(2))
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [f"{base:020d}.log" for base in (0, 6, 12)]
    assert [len(log.read(offset, MIB) or b"") for offset in (0, 3, 6, 11, 12)] == [
        3 * size,
        2 * size,
        3 * size,
        size,
        size,
    ]


def test_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    """A batch fills a segment at the most."""
    log = new_log(tmp_path, segment_bytes=len(batch()))
    for _ in range(3):
        append(log, batch())
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    assert refused(log, batch(2)) == error_codes.RECORD_LIST_TOO_LARGE


def test_old_segment_is_rolled(tmp_path: Path) -> None:
    """A segment whose first batch is older by more than `segment.ms` than the one that comes is closed."""
    log = new_log(tmp_path, segment_ms=1000)
    for delta_ms in (0, 1000, 1001):
        append(log, batch(time_ms=NOW_MS + delta_ms), NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_segment_without_times_is_rolled_by_the_clock(tmp_path: Path) -> None:
    """Where the first batch has no time, the time since it came counts."""
    log = new_log(tmp_path, segment_ms=1000)
    for delta_ms in (0, 1000, 1001):
        append(log, batch(time_ms=-1), NOW_MS + delta_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


@pytest.mark.parametrize("closed", [True, False])
def test_restart_does_not_make_a_segment_younger(tmp_path: Path, closed: bool) -> None:
    """After a restart, too, a segment is closed by the time of its first batch."""
    log = new_log(tmp_path, segment_ms=1000)
    for _ in range(100):
        append(log, batch(value=bytes(100)))
    append(log, batch(time_ms=NOW_MS + 500))
    if closed:
        log.close()
    log = new_log(tmp_path, segment_ms=1000)
    append(log, batch(time_ms=NOW_MS + 1001))
    assert [segment.base_offset for segment in log.segments] == [0, 101]


def test_offsets_in_an_index_stay_within_32_bits(tmp_path: Path) -> None:
    """Compressed batches that claim very many records begin new segments in time."""
    log = new_log(tmp_path)
    most = 2**31 - 2
    huge = bytearray(batch(attributes=1))
    struct.pack_into(">i", huge, 23, most)
    struct.pack_into(">i", huge, 57, most + 1)
    huge = with_right_crc(huge)
    assert [append(log, bytes(huge)) for _ in range(2)] == [0, most + 1]
    assert [segment.base_offset for segment in log.segments] == [0, most + 1]


def with_right_crc(data: bytearray) -> bytearray:
    """Return the batch with a CRC that fits."""
    renew_crc(data)
    return data


def changed(at: int, code: str, value: int, *, renew: bool = True, **fields: int) -> bytes:
    """Return a batch with one header field changed."""
    data = bytearray(batch(2, **fields))
    struct.pack_into(f">{code}", data, at, value)
    return bytes(with_right_crc(data) if renew else data)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (changed(17, "I", 12345, renew=False), error_codes.CORRUPT_MESSAGE),
        (changed(0, "q", 5), error_codes.INVALID_RECORD),
        (changed(57, "i", 3), error_codes.INVALID_RECORD),
        (changed(57, "i", 0), error_codes.INVALID_RECORD),
        (changed(57, "i", -1), error_codes.INVALID_RECORD),
        (changed(23, "i", -1), error_codes.INVALID_RECORD),
        (changed(23, "i", 7), error_codes.INVALID_RECORD),
        (changed(21, "h", 0x20), error_codes.INVALID_RECORD),
        (changed(21, "h", 0x10), error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (changed(21, "h", 0x05), error_codes.UNKNOWN_SERVER_ERROR),
        (changed(21, "h", -1), error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (changed(21, "h", -1 ^ 0x10), error_codes.INVALID_RECORD),
        (changed(53, "i", -1, producer_id=5, producer_epoch=0), error_codes.INVALID_RECORD),
        (changed(35, "q", NOW_MS + 3_600_001), error_codes.INVALID_TIMESTAMP),
        (batch(value=bytes(1_048_588)), error_codes.MESSAGE_TOO_LARGE),
    ],
)
def test_bad_batches_are_refused(tmp_path: Path, data: bytes, code: int) -> None:
    """Each thing that may be wrong with a batch has Kafka's error, and nothing is stored."""
    log = new_log(tmp_path)
    append(log, batch())
    assert refused(log, data) == code
    assert append(log, batch()) == 1


def test_claimed_records_must_fit(tmp_path: Path) -> None:
    """An uncompressed batch cannot have more records than bytes allow."""
    data = bytearray(batch())
    struct.pack_into(">i", data, 23, 999)
    struct.pack_into(">i", data, 57, 1000)
    assert refused(new_log(tmp_path), bytes(with_right_crc(data))) == error_codes.INVALID_RECORD


def test_size_limit_is_exact(tmp_path: Path) -> None:
    """`max.message.bytes` counts the whole batch, header included."""
    data = batch(value=bytes(100))
    log = new_log(tmp_path, max_message_bytes=len(data))
    append(log, data)
    assert refused(log, batch(value=bytes(101))) == error_codes.MESSAGE_TOO_LARGE


def test_append_time_replaces_the_producers(tmp_path: Path) -> None:
    """With LogAppendTime the broker's clock counts, is answered, and no time is too far ahead."""
    log = new_log(tmp_path, log_append_time=True)
    data = memoryview(bytearray(batch(time_ms=NOW_MS + 10**9)))
    assert log.append(data, NOW_MS, 9) == (0, NOW_MS)
    header = next(batches(contents(log)))
    assert (header.max_timestamp, header.is_log_append_time) == (NOW_MS, True)
    assert crc_matches(contents(log), header)


def test_create_time_answers_no_append_time(tmp_path: Path) -> None:
    """With CreateTime the answer's append time is -1."""
    assert new_log(tmp_path).append(memoryview(batch()), NOW_MS, 9) == (0, -1)


def test_repeated_batch_is_stored_once(tmp_path: Path) -> None:
    """A retry gets the first offset and, as from Kafka, the largest time of the batch."""
    log = new_log(tmp_path)
    data = batch(3, producer_id=9, producer_epoch=0, base_sequence=0)
    assert log.append(memoryview(data), NOW_MS, 9) == (0, -1)
    assert log.append(memoryview(data), NOW_MS, 9) == (0, NOW_MS)
    assert log.end_offset == 3


def test_gap_in_the_sequence_is_refused(tmp_path: Path) -> None:
    """A producer's lost batch is not passed over."""
    log = new_log(tmp_path)
    append(log, batch(3, producer_id=9, producer_epoch=0, base_sequence=0))
    late = batch(1, producer_id=9, producer_epoch=0, base_sequence=4)
    assert refused(log, late) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_full_disk_takes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """A write that comes to its end half-way is taken back, and appending goes on when there is room again."""
    log = new_log(tmp_path)
    data = batch(value=bytes(1000))
    append(log, data)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(data) + 500, limits[1]))
    try:
        code = refused(log, data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == error_codes.KAFKA_STORAGE_ERROR
    assert (tmp_path / "00000000000000000000.log").stat().st_size == len(data)
    assert append(log, data) == 1
    assert len(contents(log)) == 2 * len(data)


def test_turn_is_written_together(tmp_path: Path) -> None:
    """What is gathered in a turn has its offsets at once and is in the file when the turn ends, as if appended."""
    log, other, turn = new_log(tmp_path / "a"), new_log(tmp_path / "b"), TurnWrites()
    for count in (1, 3, 2):
        base_offset, _ = log.append(memoryview(bytearray(batch(count))), NOW_MS, 9, turn)
        assert append(other, batch(count)) == base_offset
    file = tmp_path / "a" / "00000000000000000000.log"
    assert not file.exists() or file.stat().st_size == 0
    assert turn.finish()
    assert file.read_bytes() == contents(other)
    assert (log.end_offset, log.size_bytes) == (6, other.size_bytes)


def test_reading_and_writing_at_once_see_the_turn(tmp_path: Path) -> None:
    """A read, a checkpoint or a batch that is too large to be gathered has what was gathered written before it."""
    log, turn = new_log(tmp_path), TurnWrites()
    size = len(batch())
    append_in_turn(log, turn, batch())
    assert len(contents(log)) == size
    append_in_turn(log, turn, batch())
    log.checkpoint()
    assert (tmp_path / "00000000000000000000.log").stat().st_size == 2 * size
    append_in_turn(log, turn, batch())
    large = batch(value=bytes(GATHERED_BYTES))
    append_in_turn(log, turn, large)
    assert (tmp_path / "00000000000000000000.log").stat().st_size == 3 * size + len(large)
    assert turn.finish()
    assert log.end_offset == 4


def test_turn_on_a_full_disk_is_taken_back(tmp_path: Path) -> None:
    """What was gathered and cannot be written is gone, producers' sequences too; then all goes on as before."""
    log, turn = new_log(tmp_path), TurnWrites()
    first, second = (
        batch(2, value=bytes(1000), producer_id=9, producer_epoch=0, base_sequence=at) for at in (0, 2)
    )
    append(log, first)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(first) + 500, limits[1]))
    try:
        append_in_turn(log, turn, second)
        assert not turn.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert turn.failed == {log}
    assert (log.end_offset, log.size_bytes, log.failed) == (2, len(first), False)
    assert append(log, second) == 2
    assert append(log, first) == 0  # remembered: answered again, not stored again
    append_in_turn(log, turn, batch())
    assert turn.finish()
    assert turn.failed == set()
    assert len(contents(log)) == 2 * len(first) + len(batch())


def append_in_turn(log: PartitionLog, turn: TurnWrites, data: bytes) -> None:
    """Append a batch whose answer is put off."""
    log.append(memoryview(bytearray(data)), NOW_MS, 9, turn)


def test_failed_roll_changes_nothing(tmp_path: Path) -> None:
    """When the next file cannot be made the batch is refused and the log goes on in the old one."""
    log = new_log(tmp_path, segment_bytes=100)
    append(log, batch())
    (tmp_path / "00000000000000000001.log").mkdir()
    assert refused(log, batch()) == error_codes.KAFKA_STORAGE_ERROR
    (tmp_path / "00000000000000000001.log").rmdir()
    assert append(log, batch()) == 1
    assert len(log.segments) == 2


def test_slice_survives_deletion_of_the_log(tmp_path: Path) -> None:
    """What is on its way to a client is still there after the topic's files are gone."""
    log = new_log(tmp_path / "log")
    append(log, batch())
    found = log.read(0, MIB)
    assert found is not None
    log.forget()
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    assert len(found.read()) == len(batch())


def test_checkpoints_keep_few_snapshots(tmp_path: Path) -> None:
    """Index entries and producers are written down as the log grows; old snapshots go."""
    log = new_log(tmp_path)
    for at in range(3 * CHECKPOINT_BYTES // MIB):
        append(log, batch(value=bytes(MIB - 100), producer_id=5, producer_epoch=0, base_sequence=at))
    assert len(list(tmp_path.glob("*.snapshot"))) == 2
    assert (tmp_path / "00000000000000000000.index").stat().st_size > 0


def with_many_producers(directory: Path, **settings: Any) -> PartitionLog:
    """Return a log of one batch each of more producers than a snapshot is made of at once."""
    log = new_log(directory, **settings)
    for producer_id in range(PACKED_AT_ONCE + 1):
        append(log, batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))
    return log


def next_sequence(log: PartitionLog, producer_id: int) -> int:
    """Return the only sequence that a log accepts of a producer next."""
    [accepted] = [at for at in range(10) if _is_accepted(log, producer_id, at)]
    return accepted


def _is_accepted(log: PartitionLog, producer_id: int, sequence: int) -> bool:
    try:
        return log.producers.check(producer_id, 0, sequence, 0) is None
    except AppendError:
        return False


def test_snapshot_in_slices_is_of_the_offset_at_which_it_began(tmp_path: Path) -> None:
    """Batches that are appended while it is made are read again after a kill: none is missing, none counts twice."""
    log = with_many_producers(tmp_path)
    begun_at = log.end_offset
    slices = log.checkpoint_in_slices()
    next(slices)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=1))
    append(log, batch(producer_id=PACKED_AT_ONCE, producer_epoch=0, base_sequence=1))
    assert len(list(slices)) > 1
    assert [path.stem for path in tmp_path.glob("*.snapshot")] == [f"{begun_at:020}"]
    again = new_log(tmp_path)
    assert len(again.producers) == PACKED_AT_ONCE + 1
    assert [next_sequence(again, producer_id) for producer_id in (0, 1, PACKED_AT_ONCE)] == [1, 2, 2]


def test_older_snapshot_is_not_taken_for_one_that_is_being_made(tmp_path: Path) -> None:
    """A snapshot that is asked for meanwhile is written from what is known then, and is not replaced by the other."""
    log = new_log(tmp_path)
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0))
    log.checkpoint()
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=1))
    slices = log.checkpoint_in_slices()
    next(slices)
    append(log, batch())
    log.checkpoint()
    list(slices)
    assert sorted(path.stem for path in tmp_path.glob("*.snapshot")) == [f"{1:020}", f"{3:020}"]
    assert next_sequence(new_log(tmp_path), 1) == 2


def test_snapshot_that_is_given_up_is_made_later(tmp_path: Path) -> None:
    """After an end in the middle, the producers still count as changed."""
    log = with_many_producers(tmp_path)
    slices = log.checkpoint_in_slices()
    next(slices)
    slices.close()
    assert log.producers.changed
    log.checkpoint()
    assert len(list(tmp_path.glob("*.snapshot"))) == 1


@pytest.mark.parametrize("ends", [PartitionLog.forget, reopen_log])
def test_snapshot_of_a_log_that_has_gone_is_not_written(
    tmp_path: Path, ends: Callable[[PartitionLog], None]
) -> None:
    """A deleted log's directory may be another topic's by then; a log opened anew may end earlier."""
    log = with_many_producers(tmp_path)
    slices = log.checkpoint_in_slices()
    next(slices)
    ends(log)
    list(slices)
    assert not list(tmp_path.glob("*.snapshot"))


def test_many_producers_are_saved_by_no_append(tmp_path: Path) -> None:
    """An append, with a new segment or not, leaves their snapshot to the work in slices; recovery reads batches."""
    log = with_many_producers(tmp_path, segment_bytes=CHECKPOINT_BYTES)
    for at in range(2 * CHECKPOINT_BYTES // MIB):
        append(log, batch(value=bytes(MIB - 100), producer_id=5, producer_epoch=0, base_sequence=at + 1))
    assert len(log.segments) > 1
    assert not list(tmp_path.glob("*.snapshot"))
    assert log.unsaved_bytes > CHECKPOINT_BYTES
    again = new_log(tmp_path)
    assert len(again.producers) == PACKED_AT_ONCE + 1
    assert again.producers.check(5, 0, 2 * CHECKPOINT_BYTES // MIB + 1, 0) is None


def test_producers_are_saved_before_their_batches_go(tmp_path: Path) -> None:
    """Retention deletes no segment that recovery would have needed."""
    log = with_many_producers(tmp_path, segment_bytes=1000)
    for producer_id in range(100):
        append(log, batch(producer_id=producer_id, producer_epoch=0, base_sequence=1))
    for _ in range(len(log.segments) - 1):
        log.drop_oldest()
    again = new_log(tmp_path)
    assert len(again.producers) == PACKED_AT_ONCE + 1
    assert [next_sequence(again, producer_id) for producer_id in (50, 200)] == [2, 1]


def test_full_disk_does_not_keep_segments_from_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That makes room: it goes on although no snapshot can be written."""
    log = with_many_producers(tmp_path, segment_bytes=1000)

    def full(path: Path, *parts: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("tidegate.storage.log.partition_log.replace_private_file", full)
    segments = len(log.segments)
    log.drop_oldest()
    assert len(log.segments) == segments - 1


def open_files_of(directory: Path) -> set[str]:
    """Return the files of a directory that this process has open."""
    paths = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return {path for path in paths if path.startswith(f"{directory.resolve()}/")}


def test_only_the_last_read_old_segment_stays_open(tmp_path: Path) -> None:
    """Reading through many old segments does not collect open files."""
    log = new_log(tmp_path, segment_bytes=100)
    for _ in range(20):
        append(log, batch())
    before = open_files_of(tmp_path)
    for offset in range(20):
        log.read(offset, MIB)
    assert len(open_files_of(tmp_path) - before) <= 1
