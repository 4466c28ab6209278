"""Records of a batch: what is encoded is decoded, and what others wrote is checked at every byte."""

import contextlib
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batches import build_batch, check_produced, read_records, renew_crc

from tidegate.wire.batch import ATTRIBUTES_AT, HEADER_BYTES, LENGTH_AT, OVERHEAD_BYTES, CorruptRecordsError
from tidegate.wire.records import MAX_UNPACKED_BYTES, Record, decode_batch, encode_batch, read_header

_BYTES = st.none() | st.binary(max_size=300)
_RECORDS = st.lists(
    st.builds(
        Record,
        key=_BYTES,
        value=_BYTES,
        headers=st.lists(st.tuples(st.text(max_size=20), _BYTES), max_size=3).map(tuple),
        timestamp_ms=st.none() | st.integers(0, 2**45),
    ),
    min_size=1,
    max_size=20,
)


def decoded(batch, **changed):
    """Return the records of a batch."""
    return list(decode_batch(batch, read_header(batch)._replace(**changed)))


def packed(body, *, count=1, codec=1):
    """Return a batch with these compressed records."""
    batch = bytearray(build_batch([(None, b"x")], attributes=codec)[:HEADER_BYTES] + body)
    struct.pack_into(">i", batch, LENGTH_AT, len(batch) - OVERHEAD_BYTES)
    struct.pack_into(">i", batch, HEADER_BYTES - 4, count)
    renew_crc(batch)
    return bytes(batch)


@given(given_records=_RECORDS, gzip=st.booleans())
def test_what_is_encoded_is_decoded(given_records, gzip):
    """Keys, values, headers and times come back, with offsets; a record without a time has that of sending."""
    batch = encode_batch(given_records, now_ms=77, gzip=gzip)
    check_produced(batch, api_version=9)
    assert decoded(batch) == [
        Record(
            key=each.key,
            value=each.value,
            headers=each.headers,
            timestamp_ms=77 if each.timestamp_ms is None else each.timestamp_ms,
            offset=at,
        )
        for at, each in enumerate(given_records)
    ]


@given(given_records=_RECORDS)
def test_the_reader_of_the_tests_agrees(given_records):
    """An independent reader finds the same in an uncompressed batch."""
    batch = encode_batch(given_records, now_ms=77)
    theirs = [
        (each.offset, each.timestamp_ms, each.key, each.value, each.headers) for each in read_records(batch)
    ]
    assert theirs == [
        (each.offset, each.timestamp_ms, each.key, each.value, each.headers) for each in decoded(batch)
    ]


def test_times_of_the_broker_hold_for_all_records():
    """With LogAppendTime each record has the batch's largest time."""
    batch = build_batch([(None, b"x"), (None, b"y")], attributes=0x08, timestamp_ms=5, base_offset=40)
    assert [(each.timestamp_ms, each.offset) for each in decoded(batch)] == [(5, 40), (5, 41)]


def test_markers_of_transactions_are_no_records():
    """A control batch has none."""
    assert decoded(build_batch([(b"\0\0\0\1", b"x")], attributes=0x20)) == []


def test_every_cut_of_every_record_is_an_error():
    """A batch whose records end early, with a right CRC, fails and never reads beyond its end."""
    whole = encode_batch([Record(key=b"k", value=b"value", headers=(("h", b"v"),))] * 2, now_ms=1)
    for end in range(HEADER_BYTES, len(whole)):
        batch = bytearray(whole[:end])
        struct.pack_into(">i", batch, LENGTH_AT, end - OVERHEAD_BYTES)
        renew_crc(batch)
        with pytest.raises(CorruptRecordsError):
            decoded(batch + whole[end:])


def test_every_changed_byte_is_an_error():
    """The CRC covers all that it should."""
    whole = encode_batch([Record(value=b"value")], now_ms=1)
    for at in range(ATTRIBUTES_AT, len(whole)):
        batch = bytearray(whole)
        batch[at] ^= 0x10
        with pytest.raises(CorruptRecordsError, match="CRC"):
            decoded(batch)


def test_random_records_with_a_right_crc():
    """Whatever a producer writes ends in records or in a `CorruptRecordsError`."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomly = random.Random(seed)
    whole = encode_batch([Record(key=b"k", value=b"v" * 50, headers=(("h", None),))] * 5, now_ms=1)
    for _ in range(3000):
        batch = bytearray(whole)
        for _ in range(randomly.randrange(1, 5)):
            batch[randomly.randrange(HEADER_BYTES, len(batch))] = randomly.randrange(256)
        renew_crc(batch)
        with contextlib.suppress(CorruptRecordsError):
            decoded(batch, record_count=randomly.choice([0, 5, 6, -1, 2**31 - 1]))


def test_a_decompression_bomb_is_refused():
    """No more than the bound is decompressed: here of a stream that expands to 6 GB."""
    megabytes = MAX_UNPACKED_BYTES >> 20
    stream = zlib.compressobj(wbits=31)
    block = stream.compress(bytes(1 << 20)) + stream.flush(zlib.Z_FULL_FLUSH)
    again = stream.compress(bytes(1 << 20)) + stream.flush(zlib.Z_FULL_FLUSH)
    with pytest.raises(CorruptRecordsError, match=f"more than {megabytes << 20} bytes"):
        decoded(packed(block + again * 6000))


def test_a_gzip_stream_is_whole_and_alone():
    """A stream that is cut off, or followed by bytes, is an error, as is one that is none."""
    good = zlib.compress(encode_batch([Record(value=b"v")], now_ms=1)[HEADER_BYTES:], wbits=31)
    assert [each.value for each in decoded(packed(good))] == [b"v"]
    for body in (good[:-1], good + b"x", good + good, b"", b"nothing", good[:5]):
        with pytest.raises(CorruptRecordsError, match=r"gzip|decompressed"):
            decoded(packed(body))


@pytest.mark.parametrize("codec", [2, 3, 4, 7])
def test_other_codecs_are_named(codec):
    """snappy, lz4 and zstd are not read."""
    with pytest.raises(CorruptRecordsError, match=f"codec {codec}"):
        decoded(packed(b"", codec=codec))


def test_records_are_decoded_one_after_the_other():
    """The first record of a damaged batch comes before the error: nothing is decoded ahead."""
    whole = bytearray(encode_batch([Record(value=b"a"), Record(value=b"b")], now_ms=1))
    whole[-1] = 0x7F  # headers: -64
    renew_crc(whole)
    found = decode_batch(whole, read_header(whole))
    assert next(found).value == b"a"
    with pytest.raises(CorruptRecordsError):
        next(found)
