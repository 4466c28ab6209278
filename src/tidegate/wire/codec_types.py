"""What readers and writers are asked with and what they may raise."""

import struct
from typing import Any

from tidegate.wire.errors import MalformedError

__all__ = ["MALFORMED", "UNWRITABLE", "Buffer", "Message"]

Message = dict[str, Any]
"""A decoded message; see `codecs` for what it holds."""

Buffer = bytes | bytearray | memoryview

MALFORMED = (MalformedError, struct.error, IndexError)
"""What reading malformed bytes raises in compiled code; becomes a `ProtocolError`."""

UNWRITABLE = (LookupError, TypeError, AttributeError, ValueError, OverflowError, struct.error)
"""What writing a message that does not fit raises in compiled code; becomes a `MessageError`."""
