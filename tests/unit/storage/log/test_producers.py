"""Tests of what a partition remembers of idempotent producers."""

import tracemalloc
from pathlib import Path

import pytest

from tidegate import error_codes
from tidegate.in_slices import run_at_once
from tidegate.storage.errors import AppendError
from tidegate.storage.log.producers import (
    MAX_PRODUCERS,
    PACKED_AT_ONCE,
    REMEMBERED_BATCHES,
    ProducerMemory,
    Producers,
)

DAY_MS = 86_400_000


def with_batches(count: int, *, epoch: int = 0) -> Producers:
    """Return producers where number 1 has stored `count` batches of ten records each."""
    producers = Producers(DAY_MS)
    for at in range(count):
        producers.record_batch(1, epoch, 10 * at, 9, 100 + 10 * at, 1000 + at)
    return producers


def refusal(producers: Producers, epoch: int, sequence: int) -> int:
    """Return the error code of a batch of ten records."""
    with pytest.raises(AppendError) as raised:
        producers.check(1, epoch, sequence, 9)
    assert raised.value.log_start_known
    return raised.value.error_code


def test_unknown_producer_may_begin_anywhere() -> None:
    """Without anything remembered every sequence is taken."""
    assert Producers(DAY_MS).check(1, 3, 55, 9) is None


def test_next_sequence_is_taken() -> None:
    """A batch that follows the last one is new."""
    assert with_batches(2).check(1, 0, 20, 9) is None


@pytest.mark.parametrize("back", range(1, REMEMBERED_BATCHES + 1))
def test_last_five_batches_are_known_again(back: int) -> None:
    """A repeated batch is answered with its first offset and its time."""
    at = 8 - back
    assert with_batches(8).check(1, 0, 10 * at, 9) == (100 + 10 * at, 1000 + at)


def test_sixth_batch_back_is_out_of_order() -> None:
    """What is no longer remembered counts as a gap, as in Kafka."""
    assert refusal(with_batches(8), 0, 20) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_gap_is_refused() -> None:
    """A batch that skips sequences is error 45."""
    assert refusal(with_batches(2), 0, 21) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_same_start_with_another_length_is_no_repetition() -> None:
    """A repeated batch has the same first and last sequence."""
    with pytest.raises(AppendError):
        with_batches(2).check(1, 0, 10, 4)


def test_old_epoch_is_refused() -> None:
    """A producer that another one has replaced is error 47."""
    assert refusal(with_batches(2, epoch=3), 2, 20) == error_codes.INVALID_PRODUCER_EPOCH


def test_new_epoch_begins_at_zero() -> None:
    """A new epoch starts a new sequence, and only at 0."""
    producers = with_batches(2)
    assert producers.check(1, 1, 0, 9) is None
    assert refusal(producers, 1, 20) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_new_epoch_forgets_the_old_batches() -> None:
    """After a batch of a new epoch the old epoch's batches are not repetitions any more."""
    producers = with_batches(2)
    producers.record_batch(1, 1, 0, 9, 500, 2000)
    assert producers.check(1, 1, 0, 9) == (500, 2000)
    assert refusal(producers, 1, 20) == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequence_goes_on_from_zero_after_the_largest() -> None:
    """After 2**31 - 1 comes 0."""
    producers = Producers(DAY_MS)
    producers.record_batch(1, 0, 2**31 - 10, 9, 100, 1000)
    assert producers.check(1, 0, 0, 9) is None


def test_batch_across_the_wrap_is_known_again() -> None:
    """A batch whose sequences wrap is recognised by both ends."""
    producers = Producers(DAY_MS)
    producers.record_batch(1, 0, 2**31 - 3, 9, 100, 1000)
    assert producers.check(1, 0, 2**31 - 3, 9) == (100, 1000)
    assert producers.check(1, 0, 7, 9) is None


def test_silent_producers_are_forgotten() -> None:
    """A producer goes after `producer.id.expiration.ms` without a batch."""
    producers = with_batches(1)
    assert producers.expire(1000 + DAY_MS - 1) == 0
    assert producers.expire(1000 + DAY_MS) == 1
    assert len(producers) == 0


def test_table_is_bounded() -> None:
    """Past the bound those silent longest go, never the newest."""
    producers = Producers(DAY_MS)
    for producer_id in range(MAX_PRODUCERS + 1):
        producers.record_batch(producer_id, 0, 0, 0, producer_id, producer_id)
    assert len(producers) == MAX_PRODUCERS - MAX_PRODUCERS // 10 + 1
    assert producers.check(MAX_PRODUCERS, 0, 0, 0) == (MAX_PRODUCERS, MAX_PRODUCERS)
    assert producers.check(0, 0, 0, 0) is None


def save(producers: Producers, path: Path) -> None:
    """Write a snapshot of a table."""
    path.write_bytes(b"".join(run_at_once(producers.snapshot_in_slices())))


def test_snapshot_gives_back_everything(tmp_path: Path) -> None:
    """A saved table answers like the one it was saved from."""
    producers = with_batches(8, epoch=2)
    producers.record_batch(1, 2, 2**31 - 3, 9, 900, 5000)
    save(producers, tmp_path / "5.snapshot")
    again = Producers(DAY_MS)
    assert again.load(tmp_path / "5.snapshot")
    assert again.check(1, 2, 70, 9) == (170, 1007)
    assert again.check(1, 2, 2**31 - 3, 9) == (900, 5000)
    assert refusal(again, 1, 80) == error_codes.INVALID_PRODUCER_EPOCH


def test_snapshot_holds_what_was_known_when_it_was_begun(tmp_path: Path) -> None:
    """A batch that is recorded while a snapshot is made is not in it, and the producers count as changed."""
    producers = with_batches(2)
    for producer_id in range(2, 2 * PACKED_AT_ONCE):
        producers.record_batch(producer_id, 0, 0, 9, 1000 * producer_id, 1000)
    before = run_at_once(producers.snapshot_in_slices())
    making = producers.snapshot_in_slices()
    next(making)
    producers.record_batch(1, 0, 20, 9, 500, 2000)
    producers.record_batch(2 * PACKED_AT_ONCE - 1, 0, 10, 9, 600, 2000)
    producers.forget(producers.states()[2])
    assert run_at_once(making) == before
    assert producers.changed


def test_every_broken_byte_of_a_snapshot_is_noticed(tmp_path: Path) -> None:
    """A damaged or short snapshot is not believed."""
    path = tmp_path / "5.snapshot"
    save(with_batches(2), path)
    sound = path.read_bytes()
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        assert not Producers(DAY_MS).load(path)
        path.write_bytes(sound[:at])
        assert not Producers(DAY_MS).load(path)


def test_node_is_bounded_in_bytes() -> None:
    """Made-up producer ids on many partitions push out who was silent longest, wherever that was, not who is heard."""
    memory = ProducerMemory(max_bytes=1_000_000)
    tables = [Producers(DAY_MS, memory) for _ in range(10)]
    tables[0].record_batch(1, 0, 0, 9, 100, 1000)
    tables[1].record_batch(2, 0, 0, 9, 100, 1000)
    for at in range(20_000):
        tables[at % 10].record_batch(1000 + at, 0, 0, 0, 1000 + at, 10**15)
        if at % 500 == 0:
            memory.begin_period()
            tables[0].record_batch(1, 0, 10 + at // 50, 9, 200 + at, 1000)
        assert memory._bound.used <= memory._bound.capacity
    assert tables[0].check(1, 0, 10 + 19_500 // 50, 9) == (200 + 19_500, 1000)
    assert tables[1].check(2, 0, 5000, 9) is None
    assert 1000 < sum(len(table) for table in tables) < 2000


def test_a_flood_evicts_its_own_producers() -> None:
    """Where the node's bound is full, the principal that holds most loses its oldest producers, others none."""
    memory = ProducerMemory(max_bytes=1_000_000)
    tables = [Producers(DAY_MS, memory) for _ in range(10)]
    tables[0].record_batch(1, 0, 0, 9, 100, 1000, "User:victim")
    for at in range(5000):
        tables[at % 10].record_batch(1000 + at, 0, 0, 0, 1000 + at, 10**15, "User:mallory")
    assert memory._bound.used <= memory._bound.capacity
    assert tables[0].check(1, 0, 0, 9) == (100, 1000)
    assert tables[4999 % 10].check(1000 + 4999, 0, 0, 0) == (1000 + 4999, 10**15)


def test_the_newest_writer_owns_a_producer() -> None:
    """What was read from files belongs to the table's owner, until a principal writes."""
    memory = ProducerMemory(max_bytes=1_000_000)
    table = Producers(DAY_MS, memory, owner="Topic:orders")
    other = Producers(DAY_MS, memory, owner="User:mallory")
    for producer_id in range(500):
        table.record_batch(producer_id, 0, 0, 9, 10 * producer_id, 1000)
    table.record_batch(7, 0, 10, 9, 9000, 1001, "User:victim")
    for at in range(3000):
        other.record_batch(1000 + at, 0, 0, 0, at, 1000)
    assert table.check(7, 0, 10, 9) == (9000, 1001)
    assert table.check(499, 0, 0, 9) == (4990, 1000)
    assert memory._bound.used <= memory._bound.capacity
    for each in (table, other):
        each.clear()
    assert memory._bound.used == 0


def test_principals_of_one_partition_keep_their_producers() -> None:
    """Past the bound of a partition the principal with most producers there loses its oldest."""
    producers = Producers(DAY_MS)
    for producer_id in range(10):
        producers.record_batch(producer_id, 0, 0, 0, producer_id, 1, "User:victim")
    for producer_id in range(10, 2 * MAX_PRODUCERS):
        producers.record_batch(producer_id, 0, 0, 0, producer_id, 1, "User:mallory")
    assert len(producers) <= MAX_PRODUCERS
    assert [producers.check(producer_id, 0, 0, 0) for producer_id in range(10)] == [
        (producer_id, 1) for producer_id in range(10)
    ]


def test_what_is_forgotten_is_not_counted() -> None:
    """Expiry, new epochs and deleted partitions give back what they took."""
    memory = ProducerMemory()
    producers = Producers(DAY_MS, memory)
    for at in range(100):
        producers.record_batch(at % 20, at // 40, at, 0, at, at)
    before = memory._bound.used
    assert before > 0
    producers.expire(DAY_MS + 89)
    assert 0 < memory._bound.used < before
    producers.clear()
    assert memory._bound.used == 0


@pytest.mark.parametrize("batches", [1, REMEMBERED_BATCHES])
def test_bytes_are_counted_as_they_are(batches: int) -> None:
    """What a producer is counted for is what it takes: not less, nor twice as much."""
    memory = ProducerMemory()
    tables = [Producers(DAY_MS, memory) for _ in range(10)]
    tracemalloc.start()
    try:
        for at in range(10_000):
            for count in range(batches):
                tables[at % 10].record_batch(
                    10**12 + at, 0, 5000 + 100 * count, 99, 10**10 + at * 1000 + count, 10**12 + at
                )
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= memory._bound.used < 2 * taken


def test_unchanged_producers_need_no_new_snapshot(tmp_path: Path) -> None:
    """A table knows whether it is as it was saved or loaded."""
    producers = with_batches(2)
    assert producers.changed
    save(producers, tmp_path / "5.snapshot")
    assert not producers.changed
    again = Producers(DAY_MS)
    assert again.load(tmp_path / "5.snapshot")
    assert not again.changed
    again.record_batch(1, 0, 20, 9, 500, 2000)
    assert again.changed
