"""Types that readers and writers use, and the exceptions that they may raise."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.wire.errors import MalformedError

__all__ = [
    "MALFORMED",
    "UNKNOWN",
    "UNWRITABLE",
    "ZERO_ID",
    "Buffer",
    "EncodedElements",
    "Message",
    "PlainRows",
]

UNKNOWN: Final = -1
"""An epoch, offset, time or size that is not known."""
ZERO_ID: Final = "00000000-0000-0000-0000-000000000000"
"""The id of what has none, as a UUID."""

Message = dict[str, Any]
"""A decoded message; see `codecs` for what it holds."""

Buffer = bytes | bytearray | memoryview

MALFORMED = (MalformedError, struct.error, IndexError)
"""Exceptions of compiled code that reads malformed bytes; they become a `ProtocolError`."""

UNWRITABLE = (LookupError, TypeError, AttributeError, ValueError, OverflowError, struct.error)
"""Exceptions of compiled code that writes a message that does not fit; they become a `MessageError`."""


@dataclass(slots=True, eq=False)
class EncodedElements:
    """The elements of an array that are encoded already: a writer takes it in the place of a list of dicts.

    count: how many elements. chunks: their bytes, in the layout of the version that is written, a part at a time.
    A handler that answers the same few numbers for thousands of partitions encodes them itself in a tenth of the time.
    """

    count: int
    chunks: Sequence[bytes]

    def __len__(self) -> int:
        return self.count


@dataclass(slots=True, eq=False)
class PlainRows:
    """The elements of an array as they are on the wire, all of one size: their strings are empty or null.

    count: how many elements. data: their bytes. A handler that needs a few numbers of each reads them with one `struct`
    call, in a quarter of the time that a dict for each takes.
    """

    count: int
    data: bytes

    def __len__(self) -> int:
        return self.count
