"""Errors of the protocol layer: what was wrong, where, and what was expected."""

from tidegate.errors import TidegateError

__all__ = ["MalformedError", "MessageError", "ProtocolError", "UnsupportedVersionError"]


class ProtocolError(TidegateError, ValueError):
    """Raise when received bytes are not what the protocol says they must be.

    `byte_offset` counts from the start of the buffer that was read; `path` is the field, as in
    `topics[2].partitions[0].records`; both are None where they are not known.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        byte_offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.byte_offset = byte_offset


class UnsupportedVersionError(ProtocolError):
    """Raise when a request header names an API or a version that is not spoken.

    It carries the header, because an ApiVersions request in an unknown version is answered all the same
    (error 35 in the form of version 0, KIP-511).
    """

    def __init__(
        self, message: str, *, api_key: int, api_version: int, correlation_id: int, client_id: str
    ) -> None:
        super().__init__(message, byte_offset=0)
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id


class MessageError(TidegateError, ValueError):
    """Raise when a message of our own cannot be written: a field is missing or does not fit its type."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class MalformedError(Exception):
    """Raised by compiled readers and their helpers; becomes a `ProtocolError` that also says where."""
