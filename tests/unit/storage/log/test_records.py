"""Tests of what the log does to record batches."""

import struct

import pytest
from tests.unit.storage.logs import batch

from tidegate import error_codes
from tidegate.storage.errors import AppendError
from tidegate.storage.log.records import (
    is_one_batch,
    last_sequence,
    only_batch,
    raise_unparsable,
    stamp_append_time,
)
from tidegate.wire.batch import CorruptRecordsError, crc_matches, read_header


def test_one_whole_batch_is_recognised() -> None:
    """One batch of format 2, no more and no less."""
    one = batch()
    assert is_one_batch(memoryview(one))
    assert not is_one_batch(memoryview(one + b"x"))
    assert not is_one_batch(memoryview(one[:-1]))
    assert not is_one_batch(None)


@pytest.mark.parametrize("data", [None, b"", b"short", batch()[:-1], batch()[:60]])
def test_no_whole_batch_is_an_invalid_record(data: bytes | None) -> None:
    """Records without one complete batch are refused with error 87."""
    with pytest.raises(AppendError) as raised:
        only_batch(None if data is None else memoryview(data), 9)
    assert raised.value.error_code == error_codes.INVALID_RECORD


def test_two_batches_are_refused() -> None:
    """A partition of a Produce request holds exactly one batch."""
    with pytest.raises(AppendError) as raised:
        only_batch(memoryview(batch() + batch()), 9)
    assert raised.value.error_code == error_codes.INVALID_RECORD


def test_broken_rest_is_left_out() -> None:
    """What follows the batch and is no batch is not stored."""
    one = batch()
    assert only_batch(memoryview(one + b"rest"), 9) == one


def test_zstd_needs_produce_7() -> None:
    """Compression zstd came with Produce version 7 (KIP-110)."""
    data = memoryview(batch(attributes=4))
    assert len(only_batch(data, 7)) == len(data)
    with pytest.raises(AppendError) as raised:
        only_batch(data, 6)
    assert raised.value.error_code == error_codes.UNSUPPORTED_COMPRESSION_TYPE


def test_bad_size_fails_the_request() -> None:
    """A size that no record has cannot be parsed, with Kafka's text."""
    data = bytearray(batch())
    struct.pack_into(">i", data, 8, 0)
    with pytest.raises(CorruptRecordsError, match="Record size 0 is less than the minimum record overhead"):
        raise_unparsable(memoryview(data))


def test_last_sequence_wraps() -> None:
    """Sequence numbers go on from 0 after 2**31 - 1."""
    assert last_sequence(5, 2) == 7
    assert last_sequence(2**31 - 1, 0) == 2**31 - 1
    assert last_sequence(2**31 - 2, 3) == 1


def test_append_time_renews_the_crc() -> None:
    """The broker's time is set together with its mark and a CRC that fits."""
    data = memoryview(bytearray(batch(2)))
    stamp_append_time(data, 1234)
    header = read_header(data)
    assert (header.max_timestamp, header.is_log_append_time, crc_matches(data, header)) == (1234, True, True)
