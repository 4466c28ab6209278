"""The ClientHello at the beginning of a TLS connection: whether it is complete, and the server name in it (SNI).

    hello = read_client_hello(received)       # an int: the number of bytes to receive before the next try
    name = server_name(hello)           # None: the client names no server

Both only read: the bytes stay in the socket for OpenSSL. A ClientHello may be divided among records. Work and memory
are bounded: `HANDSHAKE_MESSAGE_BYTES`, `MOST_RECORDS`, `MOST_EXTENSIONS`.

Follows: RFC 8446 (4.1.2, 5.1), RFC 6066 (3).
"""

import struct

from tidegate.server.connection.other_protocols import other_protocol
from tidegate.server.connection.tls_session import CLIENT_HELLO, HANDSHAKE, HANDSHAKE_MESSAGE_BYTES, TlsError

__all__ = ["MAX_HELLO_BYTES", "MOST_EXTENSIONS", "MOST_RECORDS", "read_client_hello", "server_name"]

MOST_RECORDS = 32
"""Most records of a ClientHello. Clients send one, or a few; OpenSSL would take any number."""
MOST_EXTENSIONS = 100
"""Most extensions that are looked at. Clients send 10 to 20."""
_HEADER_BYTES = 5
_MESSAGE_HEADER_BYTES = 4
_MOST_RECORD_BYTES = 1 << 14
MAX_HELLO_BYTES = (
    HANDSHAKE_MESSAGE_BYTES + _MESSAGE_HEADER_BYTES + MOST_RECORDS * _HEADER_BYTES + _MOST_RECORD_BYTES
)
"""Most bytes of a connection that `read_client_hello` looks at."""
_SERVER_NAME, _HOST_NAME = 0, 0
_VERSION_AND_RANDOM_BYTES = 2 + 32
_read_length = struct.Struct(">H").unpack_from
_read_extension = struct.Struct(">HH").unpack_from
_read_name = struct.Struct(">HBH").unpack_from
_NAME_AT = 5


def read_client_hello(received: memoryview) -> bytes | int:
    """Return the ClientHello with which a connection begins, or how many bytes to receive for the next step.

    received: all bytes of the connection so far. Raises `TlsError` if they do not begin with a ClientHello.
    """
    message = bytearray()
    at = 0
    for _ in range(MOST_RECORDS):
        if len(received) < at + _HEADER_BYTES:
            return at + _HEADER_BYTES
        if received[at] != HANDSHAKE:
            raise TlsError(
                other_protocol(bytes(received[at : at + _HEADER_BYTES])) or "expected a ClientHello"
            )
        size: int = _read_length(received, at + 3)[0]
        if not 0 < size <= _MOST_RECORD_BYTES:
            raise TlsError(f"a record of a ClientHello is {size} bytes, expected 1 to {_MOST_RECORD_BYTES}")
        at, begun = at + _HEADER_BYTES + size, at + _HEADER_BYTES
        message += received[begun:at]
        if message and message[0] != CLIENT_HELLO:
            raise TlsError(f"handshake message of type {message[0]}, expected a ClientHello")
        if len(message) >= _MESSAGE_HEADER_BYTES:
            announced = int.from_bytes(message[1:_MESSAGE_HEADER_BYTES])
            if announced > HANDSHAKE_MESSAGE_BYTES:
                raise TlsError(
                    f"ClientHello is {announced} bytes, expected at most {HANDSHAKE_MESSAGE_BYTES}"
                )
            if len(message) >= _MESSAGE_HEADER_BYTES + announced and len(received) >= at:
                return bytes(message[_MESSAGE_HEADER_BYTES : _MESSAGE_HEADER_BYTES + announced])
        if len(received) < at:
            return at
    raise TlsError(f"ClientHello has more than {MOST_RECORDS} records")


def server_name(hello: bytes) -> str | None:
    """Return the host name in a ClientHello without its header; None: it has none. Raises `TlsError`."""
    try:
        at = _VERSION_AND_RANDOM_BYTES
        at += 1 + hello[at]  # session id
        at += 2 + _read_length(hello, at)[0]  # cipher suites
        at += 1 + hello[at]  # compression methods
        if at == len(hello):
            return None  # no extensions
        end = at + 2 + _read_length(hello, at)[0]
        if end != len(hello):
            raise TlsError("malformed ClientHello: its extensions do not fill it")
        at += 2
        for _ in range(MOST_EXTENSIONS):
            if at == end:
                return None
            kind, size = _read_extension(hello, at)
            at += 4
            if kind == _SERVER_NAME:
                return _host_name(hello[at : at + size])
            at += size
    except (struct.error, IndexError):
        raise TlsError("malformed ClientHello: a field reaches beyond its end") from None
    raise TlsError(f"ClientHello has more than {MOST_EXTENSIONS} extensions")


def _host_name(extension: bytes) -> str:
    """Return the only name in an extension `server_name`; as in OpenSSL, there is exactly one. Raises `TlsError`."""
    size, kind, length = _read_name(extension)
    if kind != _HOST_NAME or size + 2 != len(extension) or _NAME_AT + length != len(extension):
        raise TlsError("malformed ClientHello: expected exactly one server name")
    return extension[_NAME_AT:].decode("ascii", "backslashreplace")
