"""Varints, tags and UUIDs."""

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.wire import ProtocolError, read_request
from tidegate.wire.errors import MalformedError
from tidegate.wire.primitives import (
    MAX_KEPT_TAG_BYTES,
    MAX_KEPT_TAGS,
    MAX_STRING_BYTES,
    MAX_TAGS,
    SENDABLE_STRING_BYTES,
    check_sendable,
    cut_text,
    int_packer,
    int_unpacker,
    keep_tag,
    long_size,
    read_tags,
    string_size,
    tag_count,
    tag_header,
    tag_section,
    uuid_bytes,
    uuid_text,
    uvarint,
    varint,
)


@given(st.integers(0, 2**31 - 1), st.binary(max_size=3))
def test_varint_comes_back(value, before):
    """An unsigned varint is read back at any place, and the place after it told."""
    written = uvarint(value)
    assert varint(before + written + b"\xff", len(before)) == (value, len(before) + len(written))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**21, "80808001"),
        (2**31 - 1, "ffffffff07"),
    ],
)
def test_varint_bytes(value, written):
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    assert uvarint(value).hex() == written
    assert varint(bytes.fromhex(written), 0) == (value, len(written) // 2)


def test_varint_above_31_bits_is_negative():
    """A varint is a signed 32-bit number, as in Java: 2**32 - 1 is -1, and bits above are lost."""
    assert varint(bytes.fromhex("ffffffff0f"), 0) == (-1, 5)
    assert varint(bytes.fromhex("ffffffff7f"), 0) == (-1, 5)


def test_varint_is_bounded():
    """Five bytes are the most; a varint cut off is an IndexError, which compiled readers turn into their error."""
    with pytest.raises(MalformedError, match="at most 5 bytes"):
        varint(b"\x80" * 9, 0)
    with pytest.raises(IndexError):
        varint(b"\x80\x80", 0)


def test_string_size_is_bounded():
    """A string has at most 32767 bytes, read or written."""
    assert string_size(uvarint(32768), 0) == (32768, 3)
    with pytest.raises(MalformedError, match="at most 32767 bytes, this one has 32768"):
        string_size(uvarint(32769), 0)
    assert long_size(32767, "h") == uvarint(32768)
    assert long_size(32768, "i") == uvarint(32769)
    with pytest.raises(ValueError, match="at most 32767 bytes, this one has 32768"):
        long_size(32768, "h")


@pytest.mark.parametrize(
    "text", [b"\xff" * SENDABLE_STRING_BYTES, b"a" * MAX_STRING_BYTES, "é".encode() * (MAX_STRING_BYTES // 2)]
)
def test_strings_that_can_be_sent_back_are_read(text):
    """A third of the most bytes a string may have can be anything; more of them must not become too many."""
    check_sendable(text)
    assert string_size(uvarint(len(text) + 1) + text, 0) == (len(text) + 1, 3 if len(text) > 16382 else 2)
    assert read_request(12, 0, struct.pack(">h", len(text)) + text + bytes(6))["group_id"] == text.decode(
        "utf-8", "replace"
    )


@pytest.mark.parametrize("text", [b"\xff" * (SENDABLE_STRING_BYTES + 1), b"a" * 32_766 + b"\xff"])
def test_strings_that_could_not_be_sent_back_are_refused(text):
    """Wrong bytes become three each; a string that then has too many is refused, in either form of lengths."""
    size = len(text.decode("utf-8", "replace").encode())
    expected = f"a string has at most 32767 bytes, this one of {len(text)} is not UTF-8 and would have {size}"
    with pytest.raises(MalformedError, match=expected):
        string_size(uvarint(len(text) + 1) + text, 0)
    with pytest.raises(ProtocolError, match=f"group_id: {expected}"):
        read_request(12, 0, struct.pack(">h", len(text)) + text + bytes(6))
    with pytest.raises(ProtocolError, match=f"group_id: {expected}"):
        read_request(12, 4, uvarint(len(text) + 1) + text + bytes(10))


@pytest.mark.parametrize("before", ["", "a", "aa", "aaa"])
@pytest.mark.parametrize("letter", ["a", "é", "€", "😀"])
def test_texts_are_cut_at_a_character(before, letter):
    """A text that is cut is as long as a string may be or up to three bytes shorter, and its beginning."""
    long_text = (before + letter * 40_000).encode()
    cut = cut_text(long_text)
    assert MAX_STRING_BYTES - 3 <= len(cut) <= MAX_STRING_BYTES
    assert cut.endswith(b"...")
    assert long_text.decode().startswith(cut[:-3].decode())


def test_tag_section_is_sorted():
    """Known and unknown tagged fields are written in one ascending order, after their number."""
    assert (
        tag_section({5: b"e"}, {300: b"", 1: b"aa"}).hex()
        == "03" + "0102" + b"aa".hex() + "0501" + b"e".hex() + "ac0200"
    )
    assert tag_section(None, None) == b"\0"


def test_tags_are_read_into_the_message():
    """Tagged fields that nobody knows are kept under `_unknown_tags`."""
    message = {}
    section = tag_section({7: b"\1\2"}, {})
    count, at = tag_count(section, 0)
    assert read_tags(section + b"rest", at, len(section) + 4, message, count) == len(section)
    assert message == {"_unknown_tags": {7: b"\1\2"}}
    assert read_tags(b"\0", 1, 1, message := {}, 0) == 1
    assert message == {}


def test_largest_tag_comes_back():
    """A tag of 32 bits is kept as the number that it is, and written again (found by fuzzing)."""
    section = bytes.fromhex("01" + "ffffffff0f" + "01") + b"x"
    read_tags(section, 1, len(section), message := {}, 1)
    assert message == {"_unknown_tags": {2**32 - 1: b"x"}}
    assert tag_section(None, message["_unknown_tags"]) == section


def test_tag_past_the_end_is_refused():
    """The size of a tagged field is checked against what remains."""
    assert tag_header(b"\x09\x02ab", 0, 4) == (9, 4, 2)
    with pytest.raises(MalformedError, match="tagged field 9 is said to have 3 bytes, 2 remain"):
        tag_header(b"\x09\x03ab", 0, 4)


def test_tags_beyond_the_bound_are_forgotten():
    """No more than the named number of unknown tagged fields is kept."""
    message = {}
    for tag in range(MAX_KEPT_TAGS + 5):
        assert keep_tag(b"x", 0, 1, tag, message) == 1
    assert sorted(message["_unknown_tags"]) == list(range(MAX_KEPT_TAGS))


def test_long_values_of_unknown_tags_are_forgotten():
    """The value of an unknown tagged field is kept up to the named size, else the field is passed over."""
    message = {}
    assert keep_tag(bytes(5000), 0, MAX_KEPT_TAG_BYTES + 1, 3, message) == MAX_KEPT_TAG_BYTES + 1
    assert message == {}
    keep_tag(bytes(5000), 0, MAX_KEPT_TAG_BYTES, 3, message)
    assert message == {"_unknown_tags": {3: bytes(MAX_KEPT_TAG_BYTES)}}


def test_number_of_tags_is_bounded():
    """A structure with more tagged fields than the named number is refused; a negative number is none."""
    assert tag_count(uvarint(MAX_TAGS) + b"x", 0) == (MAX_TAGS, 2)
    assert tag_count(b"\xff\xff\xff\xff\x0f", 0) == (0, 5)
    for count in (MAX_TAGS + 1, 2**31 - 1):
        with pytest.raises(MalformedError, match=f"at most 1000 tagged fields, this one has {count}"):
            tag_count(uvarint(count), 0)


@given(st.uuids())
def test_uuid_comes_back(value):
    """A UUID is text in messages; a `uuid.UUID` is written as well."""
    assert uuid_text(value.bytes) == str(value)
    assert uuid_bytes(str(value)) == uuid_bytes(value) == value.bytes


def test_bad_uuid_is_refused():
    """A text that is no UUID cannot be written."""
    with pytest.raises(ValueError, match="badly formed"):
        uuid_bytes("nonsense")
    assert uuid_bytes(uuid.UUID(int=0)) == bytes(16)


def test_numbers_of_any_count():
    """Arrays of numbers are packed and read in one call."""
    packed = int_packer("h", 3)(1, -2, 3)
    assert packed.hex() == "0001fffe0003"
    assert int_unpacker("h", 3)(b"x" + packed, 1) == (1, -2, 3)
