"""Helpers of compiled readers and writers where straight-line code would not pay: long varints, tags, UUIDs, texts.

Lengths in flexible versions are unsigned varints of the length plus one, 0 for null (KIP-482). Compiled code handles
the one-byte form itself and calls these functions for longer forms.
"""

import struct
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tidegate.wire.errors import MalformedError

__all__ = [
    "MAX_KEPT_TAGS",
    "MAX_KEPT_TAG_BYTES",
    "MAX_REQUEST_ELEMENTS",
    "MAX_STRING_BYTES",
    "MAX_TAGS",
    "SENDABLE_STRING_BYTES",
    "check_sendable",
    "crowded",
    "cut_off",
    "cut_text",
    "int_packer",
    "int_unpacker",
    "keep_tag",
    "long_size",
    "misplaced",
    "read_tags",
    "string_size",
    "tag_count",
    "tag_header",
    "tag_section",
    "too_many",
    "uuid_bytes",
    "uuid_text",
    "uvarint",
    "varint",
]

Bytes = bytes | bytearray | memoryview

MAX_VARINT_BYTES = 5  # Kafka `ByteUtils.readUnsignedVarint`: 32 bits, seven at a time
MAX_TAGS = 1000  # tagged fields of one structure, known or not: half a millisecond; Kafka has no such bound
MAX_KEPT_TAGS = 64  # unknown tagged fields kept per structure; further ones are read and forgotten
MAX_KEPT_TAG_BYTES = 1024  # of the value of one that is kept
MAX_REQUEST_ELEMENTS = (
    100_000  # array elements and tagged fields of a request in all: 40 MB of dicts; Kafka has no such bound
)
MAX_STRING_BYTES = 0x7FFF  # Kafka generated messages: "string field ... had invalid length"
SENDABLE_STRING_BYTES = MAX_STRING_BYTES // 3  # so many bytes of a string can be sent back, whatever they are
_DOTS = b"..."


def varint(buf: Bytes, at: int) -> tuple[int, int]:
    """Return (value, offset after it) of an unsigned varint, as a signed 32-bit number like Kafka's.

    Raises `MalformedError` when it has more than five bytes, `IndexError` when the buffer ends in it.
    """
    first = buf[at]
    if first < 0x80:
        return first, at + 1
    second = buf[at + 1]
    if second < 0x80:
        return first & 0x7F | second << 7, at + 2
    third = buf[at + 2]
    if third < 0x80:
        return first & 0x7F | (second & 0x7F) << 7 | third << 14, at + 3
    return _long_varint(buf, at)


def _long_varint(buf: Bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(MAX_VARINT_BYTES):
        byte = buf[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            value &= 0xFFFFFFFF
            return (value if value < 1 << 31 else value - (1 << 32)), at + place + 1
    raise MalformedError(f"a varint has at most {MAX_VARINT_BYTES} bytes, this one is longer")


def uvarint(value: int) -> bytes:
    """Return an unsigned varint.

    >>> uvarint(300).hex()
    'ac02'
    """
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80,)) + uvarint(value >> 7)


def string_size(buf: Bytes, at: int) -> tuple[int, int]:
    """Return (length of a string as on the wire, offset after it). Raises `MalformedError` for one too long."""
    size, at = varint(buf, at)
    if size > MAX_STRING_BYTES + 1:
        raise MalformedError(f"a string has at most {MAX_STRING_BYTES} bytes, this one has {size - 1}")
    if size > SENDABLE_STRING_BYTES + 1:
        check_sendable(buf[at : at + size - 1])
    return size, at


def check_sendable(text: Bytes) -> None:
    """Refuse the bytes of a string that could not be sent back: wrong ones become U+FFFD, of three bytes each.

    Raises `MalformedError`.
    """
    size = len(str(text, "utf-8", "replace").encode())
    if size > MAX_STRING_BYTES:
        raise MalformedError(
            f"a string has at most {MAX_STRING_BYTES} bytes, this one of {len(text)} is not UTF-8 and would have {size}"
        )


def cut_text(text: bytes) -> bytes:
    """Return the beginning of a text for people, as long as a string may be, with dots for the rest."""
    return text[: MAX_STRING_BYTES - len(_DOTS)].decode("utf-8", "ignore").encode() + _DOTS


def long_size(size: int, code: str) -> bytes:
    """Return the length of a text (`code` "h") or of anything else ("i") as it is on the wire in flexible versions."""
    if code == "h" and size > MAX_STRING_BYTES:
        raise ValueError(f"a string has at most {MAX_STRING_BYTES} bytes, this one has {size}")
    return uvarint(size + 1)


def cut_off(wire_type: str, size: int, remaining: int) -> MalformedError:
    """Return the error of a text or of bytes that are null or go past the end."""
    if size < 0:
        return MalformedError(f"{wire_type} expected, got null")
    return MalformedError(f"{size} bytes of {wire_type} expected, {remaining} remain")


def too_many(wire_type: str, count: int, least: int, remaining: int) -> MalformedError:
    """Return the error of an array that is null or needs more bytes than there are."""
    if count < 0:
        return MalformedError(f"array of {wire_type} expected, got null")
    return MalformedError(
        f"{count} times {wire_type} of {least} or more bytes expected, {remaining} bytes remain"
    )


def crowded() -> MalformedError:
    """Return the error of a request with too many array elements or tagged fields."""
    return MalformedError(
        f"a request has at most {MAX_REQUEST_ELEMENTS} array elements and tagged fields, this one has more"
    )


def misplaced(tag: int, at: int, stop: int) -> MalformedError:
    """Return the error of a tagged field whose value does not end where its size says."""
    return MalformedError(f"tagged field {tag} ends at byte {at}, its size says {stop}")


def tag_count(buf: Bytes, at: int) -> tuple[int, int]:
    """Return (number of tagged fields of a structure, offset after it); a negative one is none, as in Kafka.

    Raises `MalformedError` for more than anyone sends.
    """
    count, at = varint(buf, at)
    if count > MAX_TAGS:
        raise MalformedError(f"a structure has at most {MAX_TAGS} tagged fields, this one has {count}")
    return max(count, 0), at


def tag_header(buf: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return (tag, offset after its value, offset of its value). Raises `MalformedError` for a value cut off."""
    tag, at = varint(buf, at)
    size, at = varint(buf, at)
    if not 0 <= size <= end - at:
        raise MalformedError(f"tagged field {tag} is said to have {size} bytes, {end - at} remain")
    return tag & 0xFFFFFFFF, at + size, at


def keep_tag(buf: Bytes, at: int, stop: int, tag: int, message: dict[str, Any]) -> int:
    """Store an unknown tagged field in `message`, a limited number of short ones; return the offset after it."""
    if stop - at <= MAX_KEPT_TAG_BYTES:
        kept = message.setdefault("_unknown_tags", {})
        if len(kept) < MAX_KEPT_TAGS:
            kept[tag] = bytes(buf[at:stop])
    return stop


def read_tags(buf: Bytes, at: int, end: int, message: dict[str, Any], count: int) -> int:
    """Read `count` unknown tagged fields that begin at `at` into `message`; return the offset after them."""
    for _ in range(count):
        tag, stop, at = tag_header(buf, at, end)
        at = keep_tag(buf, at, stop, tag, message)
    return at


def tag_section(tags: Mapping[int, bytes | bytearray] | None, unknown: Mapping[int, bytes] | None) -> bytes:
    """Return tagged fields as Kafka writes them: how many, then each in ascending order of tags."""
    both: Mapping[int, bytes | bytearray] = {**(unknown or {}), **(tags or {})}
    parts: list[bytes | bytearray] = [uvarint(len(both))]
    for tag in sorted(both):
        parts += uvarint(tag), uvarint(len(both[tag])), both[tag]
    return b"".join(parts)


@lru_cache(maxsize=4096)
def uuid_text(value: bytes) -> str:
    """Return a UUID's 16 bytes as text: the form that messages hold.

    >>> uuid_text(bytes(15) + b"\\x0a")
    '00000000-0000-0000-0000-00000000000a'
    """
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@lru_cache(maxsize=4096)
def uuid_bytes(value: str | uuid.UUID) -> bytes:
    """Return the 16 bytes of a UUID given as text or as `uuid.UUID`. Raises `ValueError` for other texts."""
    return uuid.UUID(str(value)).bytes


@lru_cache(maxsize=256)
def int_unpacker(code: str, count: int) -> Callable[..., tuple[Any, ...]]:
    """Return the function that reads `count` big-endian numbers of struct type `code` at an offset."""
    return struct.Struct(f">{count}{code}").unpack_from


@lru_cache(maxsize=256)
def int_packer(code: str, count: int) -> Callable[..., bytes]:
    """Return the function that writes `count` big-endian numbers of struct type `code`."""
    return struct.Struct(f">{count}{code}").pack
