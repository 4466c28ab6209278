"""Whole frames: prefix, header, buffers, sizes, and the throttle time in place."""

import pytest

from tidegate.wire import (
    MessageError,
    RequestHeader,
    decode_request_header,
    encode_request,
    encode_response,
    read_request,
    read_response,
)

PARTITION = {"index": 0, "error_code": 0, "base_offset": 1, "record_errors": []}


class FileSlice:
    """Stands for records that lie in a file: only their length is known here."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


def fetch(records):
    """Return a Fetch response with these records."""
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 5,
        "last_stable_offset": 5,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "records": records,
    }
    return {"error_code": 0, "session_id": 0, "responses": [{"topic": "t", "partitions": [partition]}]}


def joined(encoded):
    """Return the frame with stand-ins for what lies in files."""
    return b"".join(
        bytes(len(part)) if isinstance(part, FileSlice) else bytes(part) for part in encoded.buffers
    )


def test_request_frame():
    """A request frame begins with its length, then the header, then the body."""
    frame = encode_request(12, 0, 9, "me", {"group_id": "g", "generation_id": 1, "member_id": "m"})
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    header = decode_request_header(frame[4:])
    assert header == RequestHeader(12, 0, 9, "me", header.body_at)
    assert read_request(12, 0, frame[4:], header.body_at)["member_id"] == "m"


@pytest.mark.parametrize(("key", "version", "header_bytes"), [(12, 1, 4), (12, 4, 5), (18, 4, 4)])
def test_response_frame(key, version, header_bytes):
    """The response header has tagged fields in flexible versions, but never for ApiVersions."""
    encoded = encode_response(key, version, -2, {"error_code": 3, "api_keys": []})
    frame = joined(encoded)
    assert frame[:8] == (len(frame) - 4).to_bytes(4) + (-2).to_bytes(4, signed=True)
    assert (encoded.size, encoded.body_size) == (len(frame) - 4, len(frame) - 4 - header_bytes)
    assert read_response(key, version, frame, 4 + header_bytes)["error_code"] == 3


@pytest.mark.parametrize("version", [4, 12, 17])
@pytest.mark.parametrize("records", [bytes(2000), memoryview(bytes(2000)), bytearray(2000), FileSlice(2000)])
def test_large_records_are_passed_through(version, records):
    """Records above a kilobyte are a buffer of their own: the very object that was given."""
    encoded = encode_response(1, version, 1, fetch(records) | ids(version, records))
    assert any(part is records for part in encoded.buffers)
    assert all(len(part) for part in encoded.buffers)
    assert encoded.size == sum(map(len, encoded.buffers)) - 4
    at = 8 + (version >= 12)
    found = read_response(1, version, joined(encoded), at)
    assert len(found["responses"][0]["partitions"][0]["records"]) == 2000


def ids(version, records):
    """Return what a Fetch response has instead of topic names in later versions."""
    if version < 13:
        return {}
    topic_id = "00000000-0000-0000-0000-000000000001"
    return {"responses": [{"topic_id": topic_id, "partitions": fetch(records)["responses"][0]["partitions"]}]}


def test_small_records_are_joined_unless_they_lie_in_a_file():
    """A kilobyte of bytes is cheaper to copy than to send apart; what is no bytes cannot be copied."""
    assert len(encode_response(1, 12, 1, fetch(bytes(1024))).buffers) == 1
    assert len(encode_response(1, 12, 1, fetch(b"")).buffers) == 1
    assert len(encode_response(1, 12, 1, fetch(None)).buffers) == 1
    small = FileSlice(10)
    assert small in encode_response(1, 12, 1, fetch(small)).buffers


def test_no_empty_buffer_is_left_at_the_end():
    """In versions where records come last nothing follows them."""
    encoded = encode_response(1, 4, 1, fetch(bytes(2000)))
    assert [len(part) for part in encoded.buffers][1:] == [2000]


@pytest.mark.parametrize(
    ("key", "version", "message"),
    [
        (0, 9, {"responses": [{"name": "t", "partition_responses": [PARTITION]}]}),
        (0, 9, {"responses": []}),
        (18, 3, {"error_code": 0, "api_keys": [], "finalized_features_epoch": 5}),
        (47, 0, {"error_code": 0, "topics": []}),
        (41, 3, {"error_code": 0, "tokens": []}),
        (1, 12, fetch(bytes(5000))),
    ],
)
def test_throttle_time_is_set_wherever_it_lies(key, version, message):
    """The throttle time is written into the frame, before or behind fields of any length."""
    encoded = encode_response(key, version, 1, message)
    before = joined(encoded)
    encoded.set_throttle_time_ms(0x01020304)
    after = joined(encoded)
    assert len(before) == len(after)
    at = 8 + (key != 18 and version >= 2 and key != 47)
    assert read_response(key, version, before, at)["throttle_time_ms"] == 0
    assert read_response(key, version, after, at)["throttle_time_ms"] == 0x01020304


def test_a_longer_throttle_time_stays():
    """The client waits for the longest: that of a broker that was asked before us, or ours."""
    for there, ours, told in ((500, 300, 500), (300, 500, 500), (0, 500, 500)):
        encoded = encode_response(47, 0, 1, {"error_code": 0, "throttle_time_ms": there, "topics": []})
        encoded.set_throttle_time_ms(ours)
        assert read_response(47, 0, joined(encoded), 8)["throttle_time_ms"] == told


def test_throttle_time_without_a_field_is_nothing():
    """In a version that cannot carry it the throttle time changes nothing."""
    encoded = encode_response(17, 1, 1, {"error_code": 0, "mechanisms": ["PLAIN"]})
    before = joined(encoded)
    encoded.set_throttle_time_ms(5)
    assert joined(encoded) == before


def test_copy_for_another_request():
    """A kept answer is copied for each request: correlation id and throttle time are the copy's own."""
    kept = encode_response(12, 4, 1, {"error_code": 0})
    copy = kept.with_correlation_id(99)
    copy.set_throttle_time_ms(7)
    assert joined(copy)[4:8] == (99).to_bytes(4)
    assert joined(kept)[4:8] == (1).to_bytes(4)
    assert read_response(12, 4, joined(kept), 9)["throttle_time_ms"] == 0
    assert read_response(12, 4, joined(copy), 9)["throttle_time_ms"] == 7
    assert (copy.size, copy.body_size) == (kept.size, kept.body_size)


def test_repr_shows_no_content():
    """What is printed of a response are its sizes."""
    assert repr(
        encode_response(36, 1, 1, {"error_code": 0, "error_message": "secret", "auth_bytes": b"x"})
    ) == ("Encoded(buffers=1, size=27, throttle_at=-1)")


@pytest.mark.parametrize("key", [0, 12])
def test_unwritable_response_is_refused(key):
    """A response that lacks a field is refused, on the hot path too."""
    with pytest.raises(MessageError):
        encode_response(key, 3, 1, {"responses": [{"name": "t", "partition_responses": [{"index": 0}]}]})


class Enormous:
    """Records of two gigabytes that are not there."""

    def __len__(self):
        """Return more than a frame can have."""
        return 2**31 - 1


def test_an_answer_has_the_size_of_a_frame_at_most():
    """What is longer than a length prefix can say is refused, as anything that cannot be written."""
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 0, "aborted_transactions": None}
    message = {"responses": [{"topic": "t", "partitions": [{**partition, "records": Enormous()}]}]}
    with pytest.raises(MessageError, match="an answer has at most 2147483647 bytes, this one has 21474"):
        encode_response(1, 4, 7, message)
