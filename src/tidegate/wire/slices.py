"""Reading and writing in slices: what compiled code calls for a single value too large for one step.

Between two yields lies less than a millisecond of work.
"""

from collections.abc import Generator, Iterable, Sequence
from io import BytesIO
from struct import calcsize
from typing import Any

from tidegate.wire.primitives import int_packer, int_unpacker

__all__ = [
    "COPIED_AT_ONCE_BYTES",
    "NUMBERS_AT_ONCE",
    "copies_in_slices",
    "copy_in_slices",
    "numbers_in_slices",
    "pack_in_slices",
]

COPIED_AT_ONCE_BYTES = 256 * 1024
NUMBERS_AT_ONCE = 4096


def copy_in_slices(view: memoryview) -> Generator[None, None, bytes]:
    """Return a copy of `view`.

    What a `BytesIO` holds becomes bytes without another copy, if it has their size from the start: one that grows is
    moved now and then, in one step.
    """
    copy = BytesIO(bytes(len(view)))
    for at in range(0, len(view), COPIED_AT_ONCE_BYTES):
        copy.write(view[at : at + COPIED_AT_ONCE_BYTES])
        yield
    return copy.getvalue()


def copies_in_slices(
    values: Iterable[bytes | memoryview], most_bytes: int
) -> Generator[None, None, list[Any]]:
    """Return `values` with copies in place of views; as they are where all together have more than `most_bytes`."""
    copies = list(values)
    if sum(map(len, copies)) <= most_bytes:
        for at, value in enumerate(copies):
            if isinstance(value, memoryview):
                copies[at] = yield from copy_in_slices(value)
    return copies


def numbers_in_slices(code: str, count: int, view: memoryview, at: int) -> Generator[None, None, list[Any]]:
    """Return `count` big-endian numbers of struct type `code` that begin at `at`."""
    size, numbers = calcsize(">" + code), list[Any]()
    for first in range(0, count, NUMBERS_AT_ONCE):
        numbers += int_unpacker(code, min(NUMBERS_AT_ONCE, count - first))(view, at + first * size)
        yield
    return numbers


def pack_in_slices(code: str, numbers: Sequence[Any], out: bytearray) -> Generator[None, None, None]:
    """Append numbers to `out`, big-endian, as struct type `code`."""
    for first in range(0, len(numbers), NUMBERS_AT_ONCE):
        part = numbers[first : first + NUMBERS_AT_ONCE]
        out += int_packer(code, len(part))(*part)
        yield
