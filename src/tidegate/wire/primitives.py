"""What compiled readers and writers call where straight-line code would not pay: long varints, tags, UUIDs, texts.

Lengths in flexible versions are unsigned varints of one more than the length, 0 for null (KIP-482). Compiled code
handles the one-byte form itself and comes here for longer ones.
"""

import struct
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

from tidegate.wire.errors import MalformedError

__all__ = [
    "ZERO_UUID",
    "int_packer",
    "int_unpacker",
    "skip_tags",
    "tag_section",
    "uuid_bytes",
    "uuid_text",
    "uvarint",
    "varint",
]

MAX_VARINT_BYTES = 5  # Kafka `ByteUtils.readUnsignedVarint`: 32 bits, seven at a time
MAX_KEPT_TAGS = 64  # unknown tagged fields kept per structure; further ones are read and forgotten
MAX_STRING_BYTES = 0x7FFF  # Kafka generated messages: "string field ... had invalid length"
ZERO_UUID = "00000000-0000-0000-0000-000000000000"


def varint(buf: memoryview, at: int) -> tuple[int, int]:
    """Return (value, offset after it) of an unsigned varint, as a signed 32-bit number like Kafka's.

    Raises `MalformedError` when it has more than five bytes, `IndexError` when the buffer ends in it.
    """
    value = 0
    for place in range(MAX_VARINT_BYTES):
        byte = buf[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            value &= 0xFFFFFFFF
            return (value if value < 1 << 31 else value - (1 << 32)), at + place + 1
    raise MalformedError(f"a varint has at most {MAX_VARINT_BYTES} bytes, this one goes on")


def uvarint(value: int) -> bytes:
    """Return an unsigned varint.

    >>> uvarint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(buf: memoryview, at: int, end: int) -> tuple[int, dict[int, bytes] | None]:
    """Return (offset after the tagged fields that begin at `at`, those fields as tag to bytes)."""
    count, at = varint(buf, at)
    unknown: dict[int, bytes] = {}
    for _ in range(count):
        tag, size, at = tag_header(buf, at, end)
        if len(unknown) < MAX_KEPT_TAGS:
            unknown[tag] = bytes(buf[at : at + size])
        at += size
    return at, unknown or None


def tag_header(buf: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """Return (tag, size of its value, offset of its value). Raises `MalformedError` where the value is cut off."""
    tag, at = varint(buf, at)
    size, at = varint(buf, at)
    if not 0 <= size <= end - at:
        raise MalformedError(f"tagged field {tag} is said to have {size} bytes, {end - at} remain")
    return tag, size, at


def tag_section(tags: Mapping[int, bytes | bytearray], unknown: Mapping[int, bytes] | None) -> bytes:
    """Return tagged fields as Kafka writes them: how many, then each in ascending order of tags."""
    both: MutableMapping[int, bytes | bytearray] = {**(unknown or {}), **tags}
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
