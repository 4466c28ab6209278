"""Tests of decompressing batches: how many are in memory at once, and what becomes of those that fail."""

from concurrent.futures import wait
from functools import partial
from pathlib import Path

import pytest
from tests.unit.in_slices import whole
from tests.unit.storage.logs import NOW_MS, append, batch_of, new_log, packed, timed_batch

from tidegate.storage.errors import UnreadableBatchError
from tidegate.storage.log import time_lookup
from tidegate.storage.log.unpacking import MAX_UNPACKED_BYTES, Unpacker, unpack
from tidegate.wire.batch import read_header


def test_of_each_principal_few_batches_are_in_memory(tmp_path: Path) -> None:
    """The next one is decompressed when one was read and freed; other principals do not wait for that."""
    log, unpacker, time_ms = new_log(tmp_path), Unpacker(), NOW_MS + 300
    append(log, timed_batch([NOW_MS + number for number in range(400)], codec=4))

    def look(owner: str) -> time_lookup.Lookup:
        return time_lookup.offset_by_time(log, time_ms, partial(unpacker.unpack, owner=owner))

    lookups = [look("many") for _ in range(20)]
    futures = [next(filter(None, lookup)) for lookup in lookups]
    other = look("other")
    wait([next(filter(None, other))], timeout=10)
    done = [sum(future.done() for future in futures)]
    for lookup in lookups:
        assert whole(lookup) == (time_ms, 300)
        wait(futures[: done[0] + len(done)], timeout=10)
        done.append(sum(future.done() for future in futures))
    assert done == [2, *range(3, 21), 20, 20]
    assert whole(other) == (time_ms, 300)
    assert not unpacker._held
    unpacker.close()


def test_lookups_that_fail_make_room_for_others(tmp_path: Path) -> None:
    """A lookup that is closed while it reads makes room, too."""
    log, unpacker = new_log(tmp_path), Unpacker()
    append(log, batch_of(b"garbage", [NOW_MS, NOW_MS + 5], codec=4))
    append(log, batch_of(packed(4, b"\x02"), [NOW_MS, NOW_MS + 9], codec=4))
    append(log, timed_batch([NOW_MS + 10 + number for number in range(400)], codec=4))
    for time_ms in (NOW_MS + 5, NOW_MS + 9) * 3:
        with pytest.raises(UnreadableBatchError):
            whole(time_lookup.offset_by_time(log, time_ms, unpacker.unpack))
    for _ in range(3):
        lookup = time_lookup.offset_by_time(log, NOW_MS + 300, unpacker.unpack)
        wait([next(filter(None, lookup))], timeout=10)
        assert next(lookup) is None
        with unpacker._lock:  # garbage is collected at any place
            lookup.close()
    assert whole(time_lookup.offset_by_time(log, NOW_MS + 300, unpacker.unpack)) == (NOW_MS + 300, 294)
    assert not unpacker._held


@pytest.mark.parametrize("is_ready", [False, True])
def test_lookups_that_end_before_they_read_make_room_for_others(tmp_path: Path, is_ready: bool) -> None:
    """Their batches are freed whether they are decompressed by then, wait for the thread, or wait for room."""
    log, unpacker = new_log(tmp_path), Unpacker()
    append(log, timed_batch([NOW_MS + number for number in range(400)], codec=4))
    lookups = [time_lookup.offset_by_time(log, NOW_MS + 300, unpacker.unpack) for _ in range(5)]
    futures = [next(filter(None, lookup)) for lookup in lookups]
    if is_ready:
        wait(futures[:2], timeout=10)
    for lookup in lookups:
        lookup.close()
    wait(futures, timeout=10)
    assert whole(time_lookup.offset_by_time(log, NOW_MS + 300, unpacker.unpack)) == (NOW_MS + 300, 300)
    assert not unpacker._held
    unpacker.close()


def test_what_waits_for_room_ends_with_the_thread(tmp_path: Path) -> None:
    """Its future is cancelled."""
    log, unpacker = new_log(tmp_path), Unpacker()
    append(log, timed_batch([NOW_MS, NOW_MS + 5], codec=4))
    lookups = [time_lookup.offset_by_time(log, NOW_MS + 5, unpacker.unpack) for _ in range(5)]
    futures = [next(filter(None, lookup)) for lookup in lookups]
    unpacker.close()
    wait(futures, timeout=10)
    assert [future.cancelled() for future in futures[2:]] == [True] * 3


def test_a_batch_of_no_records_is_freed_in_slices(tmp_path: Path) -> None:
    """A client can store such a batch, and look it up many times."""
    log = new_log(tmp_path)
    append(log, batch_of(packed(4, bytes(MAX_UNPACKED_BYTES)), [NOW_MS, NOW_MS + 5], codec=4))
    slices = []
    with pytest.raises(UnreadableBatchError, match="its times alone have more"):
        slices.extend(time_lookup.offset_by_time(log, NOW_MS + 5, Unpacker().unpack))
    assert slices.count(None) >= MAX_UNPACKED_BYTES >> 20


def test_lack_of_memory_is_no_damage() -> None:
    """The batch cannot be looked into; the log is as good as before."""
    with pytest.raises(UnreadableBatchError, match="no memory"):
        unpack(4, packed(4, b"records"), 1 << 47)


def test_a_codec_that_panics_ends_one_lookup() -> None:
    """A panic is no `Exception`: nothing would catch it."""

    class Panic(BaseException):
        """The exception of a panic in native code."""

    class File:
        """Fails when it is read."""

        @property
        def fd(self) -> int:
            """Raise it."""
            raise Panic("at block 7")

    header = read_header(timed_batch([NOW_MS, NOW_MS + 5], codec=4), 0)
    outcome = Unpacker().unpack(File(), 0, header, most=True).result(timeout=10)
    with pytest.raises(UnreadableBatchError, match="at block 7"):
        outcome.result()
    outcome.on_freed()
