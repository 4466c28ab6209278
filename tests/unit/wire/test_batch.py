"""Record batches: header fields, checks, CRC, and offsets patched in place."""

import struct

import pytest
from crc32c import crc32c
from tests.batches import build_batch, check_produced, renew_crc
from tests.wire.messages import recorded

from tidegate.wire import read_request
from tidegate.wire.batch import (
    HEADER_BYTES,
    CorruptRecordsError,
    InvalidRecordsError,
    batches,
    crc_matches,
    read_header,
)

BATCH = build_batch([(b"k", b"one"), (None, b"two")], base_offset=5, timestamp_ms=1_700_000_000_000)


def changed(at, code, value, batch=BATCH):
    """Return a batch with one header field changed, its CRC made right again."""
    batch = bytearray(batch)
    struct.pack_into(">" + code, batch, at, value)
    if at > 20:
        renew_crc(batch)
    return bytes(batch)


def recorded_records():
    """Yield the records of recorded Produce requests that the broker took."""
    for step in recorded("apis"):
        if step.api_key == 0 and step.response_plain:
            topics = step.response_plain["responses"]
            at = 10 + len(step.client_id) + (step.version >= 9)
            message = read_request(0, step.version, step.request, at)
            if topics and topics[0]["partition_responses"][0]["error_code"] == 0:
                yield step.version, message["topic_data"][0]["partition_data"][0]["records"]


def test_header_fields():
    """Every field of the header is read, and what follows from it."""
    batch = read_header(b"xx" + BATCH, 2)
    assert batch[:6] == (2, 5, len(BATCH) - 12, -1, 2, crc32c(BATCH[21:]))
    assert batch[6:] == (0, 1, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 2)
    assert (batch.size, batch.end_index, batch.last_offset) == (len(BATCH), len(BATCH) + 2, 6)


@pytest.mark.parametrize(
    ("attributes", "facts"),
    [
        (0x00, (0, False, False, False)),
        (0x04, (4, False, False, False)),
        (0x08, (0, True, False, False)),
        (0x11, (1, False, True, False)),
        (0x30, (0, False, True, True)),
    ],
)
def test_attributes(attributes, facts):
    """Compression, timestamp type, transactional and control are bits of the attributes."""
    batch = read_header(build_batch([(None, b"x")], attributes=attributes))
    assert (batch.compression, batch.is_log_append_time, batch.is_transactional, batch.is_control) == facts


def test_header_needs_61_bytes():
    """Fewer bytes than a header are refused."""
    assert HEADER_BYTES == 61
    with pytest.raises(CorruptRecordsError, match="a batch header has 61 bytes, 60 remain"):
        read_header(BATCH[:60])


def test_batches_follow_one_another():
    """Whole batches are found one after the other; one cut short at the end is left out."""
    records = BATCH * 3
    assert [batch.at for batch in batches(records)] == [0, len(BATCH), 2 * len(BATCH)]
    assert [batch.at for batch in batches(records, len(BATCH))] == [len(BATCH), 2 * len(BATCH)]
    for cut in range(1, len(BATCH)):
        assert len(list(batches(records[:-cut]))) == 2


@pytest.mark.parametrize(
    ("records", "max_bytes", "message"),
    [
        (bytes(30), 2**31 - 1, "Record size 0 is less than the minimum record overhead (14)"),
        (bytes(12), 2**31 - 1, "Record size 0 is less than the minimum record overhead (14)"),
        (changed(8, "i", -5), 2**31 - 1, "Record size -5 is less than the minimum record overhead (14)"),
        (BATCH, 20, f"Record size {len(BATCH) - 12} exceeds the largest allowable message size (20)."),
        (changed(16, "b", 3), 2**31 - 1, "Invalid magic found in record: 3"),
        (changed(16, "b", -1), 2**31 - 1, "Invalid magic found in record: -1"),
    ],
)
def test_records_that_are_no_batches(records, max_bytes, message):
    """A size or magic that no batch has fails the request, in Kafka's words."""
    with pytest.raises(CorruptRecordsError) as caught:
        list(batches(records, max_bytes=max_bytes))
    assert str(caught.value) == message
    assert caught.value.error_code == 2


def test_size_below_that_of_a_header_fails_one_partition():
    """Kafka finds it when it looks at the batch, not when it takes the records apart."""
    with pytest.raises(InvalidRecordsError) as caught:
        list(batches(changed(8, "i", 20)))
    assert (
        str(caught.value)
        == "Record batch is corrupted (the size 32 is smaller than the minimum allowed overhead 61)"
    )
    assert caught.value.error_code == 2


def test_crc():
    """The CRC covers all from the attributes on."""
    assert crc_matches(BATCH, read_header(BATCH))
    for at in range(21, len(BATCH)):
        wrong = bytearray(BATCH)
        wrong[at] ^= 1
        assert not crc_matches(wrong, read_header(wrong))


def test_what_a_broker_took_passes():
    """The records of recorded Produce requests pass every check."""
    found = list(recorded_records())
    assert len(found) > 10
    for version, records in found:
        assert crc_matches(records, check_produced(records, api_version=version))


@pytest.mark.parametrize(
    ("records", "code", "message"),
    [
        (None, 87, "Produce requests with version 6 must have at least one record batch per partition"),
        (b"", 87, "Produce requests with version 6 must have at least one record batch per partition"),
        (
            BATCH * 2,
            87,
            "Produce requests with version 6 are only allowed to contain exactly one record batch per partition",
        ),
        (changed(16, "b", 1), 87, "only record batches with magic version 2 can be read"),
        (
            changed(21, "h", 4),
            76,
            "Produce requests with version 6 are not allowed to use ZStandard compression",
        ),
        (changed(21, "h", 0x20), 87, "Clients are not allowed to write control records"),
        (changed(23, "i", -1), 87, "Batch has an invalid offset range: [5, 4]"),
        (changed(57, "i", 0), 87, "Invalid reported count for record batch: 0"),
        (changed(57, "i", -3), 87, "Invalid reported count for record batch: -3"),
        (changed(57, "i", 9), 87, "Inconsistent batch offset range [5, 6] and count of records 9"),
        (changed(43, "q", 77), 87, "Invalid sequence number -1 in record batch with producerId 77"),
    ],
)
def test_batches_that_may_not_be_produced(records, code, message):
    """What a producer may not send fails its partition, in Kafka's words."""
    with pytest.raises(InvalidRecordsError) as caught:
        check_produced(records, api_version=6)
    assert (caught.value.error_code, str(caught.value)) == (code, message)


def test_bytes_that_cannot_be_parsed_fail_the_request():
    """The error of bytes that are no batch is not one of a partition."""
    with pytest.raises(CorruptRecordsError):
        check_produced(bytes(70), api_version=9)


def test_zstd_is_allowed_from_version_7():
    """ZStandard came with Produce v7."""
    assert check_produced(changed(21, "h", 4), api_version=7).compression == 4
