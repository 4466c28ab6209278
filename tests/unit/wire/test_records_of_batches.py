"""Uncompressed batches, made and taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from tests.batches import assign_offsets, build_batch, read_records, renew_crc

from tidegate.wire.batch import CorruptRecordsError, crc_matches, read_header

PAIRS = st.lists(
    st.tuples(st.none() | st.binary(max_size=200), st.none() | st.binary(max_size=200)), max_size=5
)


@given(PAIRS, st.integers(0, 2**40))
def test_records_come_back(pairs, base_offset):
    """Keys and values come back, with offsets counted from the base offset, and the CRC is right."""
    batch = build_batch(
        pairs, base_offset=base_offset, timestamp_ms=1234, producer_id=9, producer_epoch=1, base_sequence=3
    )
    header = read_header(batch)
    assert crc_matches(batch, header)
    assert (header.record_count, header.producer_id, header.producer_epoch, header.base_sequence) == (
        len(pairs),
        9,
        1,
        3,
    )
    records = list(read_records(batch))
    assert [(record.key, record.value) for record in records] == pairs
    assert [record.offset for record in records] == [base_offset + at for at in range(len(pairs))]
    assert all(record.timestamp_ms == 1234 and record.headers == () for record in records)


@given(PAIRS)
def test_kafka_python_reads_our_batches(pairs):
    """kafka-python reads the same records and agrees with the CRC."""
    batch = DefaultRecordBatch(build_batch(pairs, timestamp_ms=99))
    assert batch.validate_crc()
    assert [(record.key, record.value, record.timestamp) for record in batch] == [
        (key, value, 99) for key, value in pairs
    ]


def test_headers_are_read():
    """Record headers of other producers' batches are read."""
    body = b"\0\0\0\x01\x01\x04" + b"\x02a\x02b" + b"\x02c\x01"
    batch = bytearray(build_batch([])) + bytes([len(body) * 2]) + body
    batch[8:12] = (len(batch) - 12).to_bytes(4)
    batch[57:61] = (1).to_bytes(4)
    renew_crc(batch)
    (record,) = read_records(batch)
    assert record.headers == (("a", b"b"), ("c", None))


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"", "a varint is cut off"),
        (b"\x80" * 12, "a varint has at most 10 bytes, this one is longer"),
        (b"\x7e", "63 bytes of a record expected, 0 remain".replace("63", "63")),
        (b"\x0c\0\0\0\x7e\0\0", "63 bytes of a record expected, 2 remain"),
    ],
)
def test_malformed_records_are_refused(tail, message):
    """Lengths that do not fit, and endless ones, are refused."""
    batch = bytearray(build_batch([])) + tail
    batch[8:12] = (len(batch) - 12).to_bytes(4)
    batch[57:61] = (1).to_bytes(4)
    with pytest.raises(CorruptRecordsError) as caught:
        list(read_records(batch))
    assert str(caught.value) == message


def test_compressed_batches_are_not_read():
    """Compressed records stay opaque."""
    with pytest.raises(CorruptRecordsError, match="only uncompressed batches can be read, got codec 4"):
        list(read_records(build_batch([(None, b"x")], attributes=4)))


def test_offsets_do_not_change_the_crc():
    """Base offset and leader epoch lie before the part of a batch that its CRC covers."""
    buffer = bytearray(build_batch([(b"k", b"one"), (None, b"two")], base_offset=5))
    rest = buffer[17:]
    assign_offsets(buffer, base_offset=2**40, leader_epoch=9)
    batch = read_header(buffer)
    assert (batch.base_offset, batch.leader_epoch, batch.last_offset) == (2**40, 9, 2**40 + 1)
    assert crc_matches(buffer, batch)
    assert buffer[17:] == rest
