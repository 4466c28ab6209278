"""Bytes from someone who means harm: one clear error, soon, and no memory taken on their word."""

import random
import struct
import time
import tracemalloc
from contextlib import suppress

import pytest
from tests.wire.crowded import crowded_bodies, tagged_body
from tests.wire.messages import raw_frames, recorded, recorded_files, response_body_at

from tidegate.wire import (
    API_BY_KEY,
    ProtocolError,
    decode_request_header,
    encode_request,
    read_request,
    read_response,
)
from tidegate.wire.apis import spoken_pairs
from tidegate.wire.codecs import AT_ONCE_BYTES
from tidegate.wire.definitions import layout
from tidegate.wire.primitives import uvarint

MAX_ALLOCATED_BYTES = 1 << 20
MAX_ONE_STEP_MS = 10.0  # half of what a request may hold the event loop; 2 or 3 without others on the machine
HARMS = (b"\xff\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\x80" * 6, b"\xff\xfe", b"\xff\xff\xff\xff\x07")
MAX_SECONDS_PER_MEGABYTE = 20.0  # a bound against quadratic work, far above what this takes on a busy machine


def one_of_each_pair():
    """Return the longest of up to 2 kB of the recorded requests of each (api, version), and likewise the responses."""
    found = {}
    for name in recorded_files():
        for step in recorded(name):
            if not API_BY_KEY[step.api_key].speaks(step.version):
                continue
            for direction, frame in (("request", step.request), ("response", step.response or b"")):
                key = (step.api_key, step.version, direction)
                if len(found.get(key, b"")) < len(frame) <= 2048:
                    found[key] = frame
    return found


FRAMES = one_of_each_pair()


def decode(case, frame):
    """Decode a whole frame of either direction."""
    key, version, direction = case
    if direction == "response":
        return read_response(key, version, frame, response_body_at(key, version))
    header = decode_request_header(frame)
    return read_request(header.api_key, header.api_version, frame, header.body_at)


def outcome(case, frame):
    """Return the protocol error of a frame, or None where it can be read. Anything else is a failure of the test."""
    try:
        decode(case, frame)
    except ProtocolError as error:
        return error
    return None


def by_api():
    """Return the recorded frames of each API in its newest recorded version: the same code reads the older ones."""
    newest = {}
    for key, version, direction in FRAMES:
        newest[key, direction] = max(version, newest.get((key, direction), -1))
    return [(key, version, direction) for (key, direction), version in newest.items()]


def case_title(case):
    """Return a readable test id."""
    return f"{API_BY_KEY[case[0]].name}-v{case[1]}-{case[2]}"


@pytest.mark.parametrize("case", by_api(), ids=case_title)
def test_frame_cut_anywhere_is_one_clear_error(case):
    """A frame that ends early is refused at every length, with where it was found short and what was expected."""
    whole = FRAMES[case]
    for size in range(response_body_at(case[0], case[1]) if case[2] == "response" else 0, len(whole)):
        error = outcome(case, whole[:size])
        assert error is not None, size
        assert "expected" in str(error) or "remain" in str(error), error
        assert error.byte_offset is not None
        assert error.byte_offset <= size


@pytest.mark.parametrize("case", by_api(), ids=case_title)
def test_overwritten_bytes_never_surprise(case):
    """Lengths made huge, negative or endless at any place are read or refused, and take next to no memory."""
    whole = FRAMES[case]
    outcome(case, whole)  # compiles the reader
    tracemalloc.start()
    try:
        for at in range(0, len(whole), max(1, len(whole) // 60)):
            for harm in HARMS:
                outcome(case, whole[:at] + harm + whole[at + len(harm) :])
        assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED_BYTES + 40 * len(whole)
    finally:
        tracemalloc.stop()


def bodies_of_pure(byte, size):
    """Yield every spoken request, its body nothing but one byte repeated."""
    for key, version in spoken_pairs():
        header = struct.pack(">hhih", key, version, 1, -1) + bytes(API_BY_KEY[key].is_flexible(version))
        yield (key, version, "request"), header + bytes([byte]) * size


@pytest.mark.alone
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF])
def test_monotonous_bodies_are_read_or_refused(byte):
    """A body of one byte repeated is read or refused for every API and version, in time and space near its size."""
    for case, frame in bodies_of_pure(byte, 20_000):
        begun = time.perf_counter()
        outcome(case, frame)
        taken = time.perf_counter() - begun
        assert taken < MAX_SECONDS_PER_MEGABYTE * len(frame) / 1e6 + 0.5, case_title(case)


def test_array_count_is_checked_against_what_remains():
    """An array that cannot fit the bytes left is refused before anything is made of it."""
    frame = next(
        frame for frame in raw_frames("closed") if frame.scenario == "frame-array-length-huge"
    ).content
    header = decode_request_header(frame)
    assert outcome((3, 4, "request"), frame)  # compiles the reader
    tracemalloc.start()
    with pytest.raises(ProtocolError) as caught:
        read_request(header.api_key, header.api_version, frame, header.body_at)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert str(caught.value) == (
        "malformed Metadata request v4 at byte 15, topics: 2147483647 times struct of 2 or more bytes expected, "
        "1 bytes remain"
    )


def test_endless_varint_is_refused():
    """A varint of more than five bytes is refused."""
    with pytest.raises(ProtocolError, match="a varint has at most 5 bytes, this one is longer"):
        read_request(3, 12, b"\xff" * 50)


def test_error_names_the_field_its_index_and_the_offset():
    """The error points at the field inside nested arrays, and at the byte."""
    message = {
        "transactional_id": None,
        "acks": 1,
        "timeout_ms": 5,
        "topic_data": [
            {"name": "t", "partition_data": [{"index": index, "records": b"abc"} for index in range(3)]},
            {"name": "u", "partition_data": [{"index": 7, "records": b"abcdef"}]},
        ],
    }
    frame = encode_request(0, 3, 1, "c", message)[4:]
    header = decode_request_header(frame)
    with pytest.raises(ProtocolError) as caught:
        read_request(0, 3, frame[:-2], header.body_at)
    error = caught.value
    assert error.path == "topic_data[1].partition_data[0].records"
    assert error.byte_offset == len(frame) - 6
    assert str(error) == (
        f"malformed Produce request v3 at byte {len(frame) - 6}, topic_data[1].partition_data[0].records: "
        "6 bytes of records expected, 4 remain"
    )


def test_tagged_field_of_a_wrong_size_is_refused():
    """A known tagged field must have the size that it is said to have."""
    body = bytes.fromhex("01") + b"\x00\x05" + b"\x02ab\x00\x00"
    with pytest.raises(ProtocolError):
        read_request(1, 12, bytes(27) + body)


def test_many_unknown_tags_are_not_kept():
    """Of more unknown tagged fields than anyone sends only the first are kept; all are read."""
    body = (
        b"\x00\x00\x00"
        + b"\xff\x01"
        + b"".join(
            (bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])) + b"\x01x"
            for tag in range(255)
        )
    )
    message = read_request(3, 12, body)
    assert len(message["_unknown_tags"]) == 64


def test_few_bytes_cannot_become_a_mountain_of_objects():
    """A request with more array elements in all than anyone sends is refused before they are made."""
    inner = uvarint(50_001) + b"\x01\x00\x01\x00" * 50_000
    resource = b"\x02" + b"\x02r" + inner + b"\x00"
    body = b"\x04" + resource * 3 + b"\x00\x00"
    with pytest.raises(ProtocolError) as caught:
        read_request(44, 1, body)
    assert "a request has at most 100000 array elements and tagged fields, this one has more" in str(
        caught.value
    )
    assert caught.value.path == "resources[1].configs"


def milliseconds(call, *args):
    """Return the thread time of one call, its protocol error taken."""
    begun_ns = time.thread_time_ns()
    with suppress(ProtocolError):
        call(*args)
    return (time.thread_time_ns() - begun_ns) / 1e6


def pair_title(pair):
    """Return a readable test id."""
    return f"{API_BY_KEY[pair[0]].name}-v{pair[1]}"


FLEXIBLE = [pair for pair in spoken_pairs() if API_BY_KEY[pair[0]].is_flexible(pair[1])]


@pytest.mark.alone
@pytest.mark.parametrize("pair", FLEXIBLE, ids=pair_title)
def test_a_mountain_of_tagged_fields_is_refused_at_once(pair):
    """Millions of tagged fields, in the header or the body, are one clear error, and 1,000 are read."""
    mountain = uvarint(5_000_000) + b"\x09\x00" * 5_000
    header = struct.pack(">hhih", *pair, 1, -1)
    for refused in (
        lambda: decode_request_header(header + mountain),
        lambda: read_request(*pair, tagged_body(*pair, mountain)),
    ):
        with pytest.raises(ProtocolError) as caught:
            refused()
        assert "a structure has at most 1000 tagged fields, this one has 5000000" in str(caught.value)
        assert milliseconds(refused) < MAX_ONE_STEP_MS
    few = uvarint(1000) + b"\x7f\x00" * 1000
    assert decode_request_header(header + few).body_at == len(header + few)
    assert milliseconds(decode_request_header, header + few) < MAX_ONE_STEP_MS
    read_request(*pair, tagged_body(*pair, few))


def test_tagged_fields_count_as_elements():
    """Tagged fields of many structures are bounded in all, too."""
    few = uvarint(1000) + b"\x7f\x00" * 1000
    body = uvarint(101) + (b"\x02x" + few) * 100 + b"\x00\x00\x00\x00"
    with pytest.raises(ProtocolError, match="at most 100000 array elements and tagged fields"):
        read_request(3, 9, body)
    read_request(3, 9, uvarint(91) + (b"\x02x" + few) * 90 + b"\x00\x00\x00\x00")


@pytest.mark.alone
@pytest.mark.parametrize("pair", list(spoken_pairs()), ids=pair_title)
def test_requests_read_in_one_step_are_read_soon(pair):
    """However many structures the bytes hold, reading up to 8 KB of them without slices takes some milliseconds."""
    read_request(*pair, tagged_body(*pair, b"\0") if pair in FLEXIBLE else bytes(100))  # compiles
    for path, body in crowded_bodies(*pair, AT_ONCE_BYTES):
        assert any(milliseconds(read_request, *pair, body) < MAX_ONE_STEP_MS for _ in range(3)), path


def test_headers_of_any_bytes_are_read_or_refused():
    """Any sixteen bytes are a header, or a protocol error; seed printed on failure."""
    seed = random.randrange(2**32)
    source = random.Random(seed)
    for _ in range(3_000):
        frame = source.randbytes(source.randrange(16))
        try:
            header = decode_request_header(frame)
        except ProtocolError:
            continue
        assert API_BY_KEY[header.api_key].speaks(header.api_version), seed
        assert header.body_at <= len(frame), seed


def test_nesting_is_bounded_by_the_definitions():
    """No message refers to itself: the deepest has seven structures inside one another, so nothing can recurse."""

    def depth(fields):
        return max((1 + depth(field.fields) for field in fields if field.type == "struct"), default=0)

    deepest = max(
        depth(layout(*pair, way).fields) for pair in spoken_pairs() for way in ("request", "response")
    )
    assert deepest <= 7
