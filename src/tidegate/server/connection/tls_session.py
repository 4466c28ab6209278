"""One end of TLS on one connection, without any I/O: encrypted bytes in, decrypted ones out, and back.

    session.receive(encrypted)          # what has come
    session.handshake()                 # one step; True: it is over
    session.read_into(target)           # decrypted
    session.encrypt(data)               # what to send for it
    session.take_out()                  # what TLS itself has to send: send it after every call

The client's end, which is given the name of the server, begins with `handshake` and what that has to send.

All sessions of a node share two memory BIOs, which are empty between two calls: what a session keeps between them is
what OpenSSL keeps of it, and the records that came and were not looked at (`MAX_KEPT_BYTES`). A call works on a bounded
number of records, so that many tiny ones, or changes of keys, take a bounded time.

Follows: RFC 8446, RFC 5246; Kafka `SslTransportLayer`.
"""

import ssl
import struct
from collections.abc import Callable
from typing import Any, cast

from tidegate.server.connection.other_protocols import other_protocol

__all__ = [
    "CLIENT_HELLO",
    "HANDSHAKE",
    "HANDSHAKE_MESSAGE_BYTES",
    "MAX_KEPT_BYTES",
    "RECORDS_AT_A_TIME",
    "TlsBuffers",
    "TlsError",
    "TlsSession",
]

RECORDS_AT_A_TIME = 32
"""Most records that one call works on. A change of keys takes some 10 µs, and needs 27 bytes."""
MAX_KEPT_BYTES = 128 * 1024
"""Most encrypted bytes that are received at once: eight records of the largest size."""
HANDSHAKE_MESSAGE_BYTES = 32 * 1024
"""Longest ClientHello. OpenSSL would take 128 KB, and the memory as soon as it is announced; Java takes 32 KB."""
_HEADER_BYTES = 5
_FIRST_BYTES = 9  # a record's header, and that of the message in it
HANDSHAKE, CLIENT_HELLO = 22, 1
"""The type of a record, and of the message in it. Follows: RFC 8446 (4, 5.1)."""
_HANDSHAKE_BYTE = bytes((HANDSHAKE,))
_read_length = struct.Struct(">H").unpack_from
_MEANINGS = {
    "NO_SHARED_CIPHER": "client offers none of the enabled cipher suites; see ssl.cipher.suites",
    "UNSUPPORTED_PROTOCOL": "client supports none of the enabled TLS versions; see ssl.enabled.protocols",
    "VERSION_TOO_LOW": "client supports none of the enabled TLS versions; see ssl.enabled.protocols",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "client sent no certificate, but ssl.client.auth is required",
    "TLSV1_ALERT_UNKNOWN_CA": "client does not trust the broker's certificate; hint: check the client's truststore",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "client rejected the broker's certificate; hint: check the client's truststore",
    "SSLV3_ALERT_BAD_CERTIFICATE": "client rejected the broker's certificate; hint: check the client's truststore",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "client rejected the broker's certificate: expired",
}
"""Meanings of some of OpenSSL's reasons at the server's end."""


class TlsError(ssl.SSLError):
    """Raised where TLS cannot go on: the connection is to close when what `take_out` returns has been sent.

    reason: why, for a log line; nothing in it is secret.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class TlsBuffers:
    """Buffers that all sessions of a node share: the BIOs, and the memory that encrypted bytes are received in."""

    __slots__ = ("incoming", "outgoing", "scratch")

    def __init__(self) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.scratch = memoryview(bytearray(MAX_KEPT_BYTES))


class TlsSession:
    """TLS on one connection. Every call but `receive` may raise `TlsError`."""

    __slots__ = (
        "_answered",
        "_failure",
        "_first",
        "_incoming",
        "_is_client",
        "_kept",
        "_out",
        "_outgoing",
        "_owed",
        "_tls",
        "ended",
        "established",
    )

    def __init__(
        self, context: ssl.SSLContext, buffers: TlsBuffers, *, server_name: str | None = None
    ) -> None:
        """server_name: the host that the server's certificate has to name, at the client's end."""
        self._incoming = buffers.incoming
        self._outgoing = buffers.outgoing
        self._is_client = server_name is not None
        self._tls = context.wrap_bio(
            buffers.incoming,
            buffers.outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._kept = b""  # received, and not given to OpenSSL
        self._owed = 0  # how much of the last record that was given to it is still to come
        self._first = b""  # what the connection began with
        self._out = b""
        self._failure = ""  # why it cannot go on; its error would keep all that it was raised in
        self._answered = False  # something was made to be sent
        self.established = False
        self.ended = False  # the other end has said that nothing more follows

    # --- encrypted bytes in -----------------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> None:
        """Store received bytes. Call it only when nothing is left to read: this bounds what is stored."""
        self._kept += bytes(data)
        if not self.established and len(self._first) < _FIRST_BYTES:
            self._first += data[: _FIRST_BYTES - len(self._first)]

    @property
    def has_more(self) -> bool:
        """Return whether `handshake` or `read_into` can do something before more bytes are received."""
        least = 1 if self._owed else _HEADER_BYTES
        return bool(len(self._kept) >= least or self._tls.pending() or self.ended or self._failure)

    @property
    def has_only_hello(self) -> bool:
        """Return whether the first byte begins a handshake and nothing was sent in answer to it."""
        return not self._answered and self._first[:1] == _HANDSHAKE_BYTE

    @property
    def is_inside_record(self) -> bool:
        """Return whether some received bytes are not processed yet, or a record is incomplete."""
        return bool(self._kept or self._owed)

    @property
    def unread_bytes(self) -> int:
        """Return the number of received bytes that `read_into` has not returned."""
        return len(self._kept) + self._tls.pending()

    @property
    def certificate(self) -> bytes | None:
        """The certificate that the other end has shown, as DER."""
        return self._tls.getpeercert(binary_form=True)

    def handshake(self) -> bool:
        """Process the received bytes of the handshake; return whether it is over."""
        self._check_beginning()
        self._give(MAX_KEPT_BYTES)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsError(self._reason(error)) from error
        finally:
            self._take_back()
        self.established = True
        self._first = b""  # nothing that follows is named by it
        return True

    def read_into(self, target: memoryview) -> int:
        """Decrypt into `target`; return how many bytes, 0 where none are whole, or none follow (`ended`)."""
        if self._failure:
            raise TlsError(self._failure)
        if self.ended:
            return 0
        if not self._tls.pending():
            self._give(len(target))
        read: Callable[[int, memoryview], int] = cast("Any", self._tls.read)
        filled, pending, incoming = 0, self._tls.pending, self._incoming
        try:
            while True:
                count = read(len(target) - filled, target[filled:])
                filled += count
                if not count:
                    self.ended = True
                    break
                if filled == len(target) or not (pending() or incoming.pending):
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._failure = self._reason(error)
            # What was decrypted before the failure is delivered first: the next call raises.
            if not filled:
                raise TlsError(self._failure) from error
        finally:
            self._take_back()
        return filled

    # --- encrypted bytes out ----------------------------------------------------------------------------------------

    def encrypt(self, data: Any) -> bytes:
        """Return what is to be sent for `data`, bytes-like and not empty."""
        try:
            done = self._tls.write(data)
            while done < len(data):
                done += self._tls.write(memoryview(data)[done:])
        except ssl.SSLError as error:
            raise TlsError(self._reason(error)) from error
        finally:
            # What TLS itself had to send was made earlier, and must leave in this order.
            out, self._out = self._out + self._outgoing.read(), b""
        return out

    def take_out(self) -> bytes:
        """Return what TLS itself has to send: handshake, tickets, alerts; nothing where there is nothing."""
        out, self._out = self._out, b""
        return out

    def close_notify(self) -> bytes:
        """Return what says that nothing more follows (close_notify)."""
        if self.established and not self._failure:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # it wants the client's close_notify; the broker closes without it
            finally:
                self._take_back()
        return self.take_out()

    # --- between here and OpenSSL -----------------------------------------------------------------------------------

    def _give(self, most_bytes: int) -> None:
        """Write whole records to OpenSSL, and the received part of the last one.

        Stops when OpenSSL has `most_bytes`, or up to one record more.
        """
        kept = self._kept
        end, most = self._owed, len(kept)
        records = 0
        while records < RECORDS_AT_A_TIME and end < most_bytes and most - end >= _HEADER_BYTES:
            if kept[end] == HANDSHAKE and self.established:
                self._failure = f"{self._other_end} asked for renegotiation, which is not allowed"
            end += _HEADER_BYTES + _read_length(kept, end + 3)[0]
            records += 1
        if most <= end:
            self._owed, self._kept = end - most, b""
            self._incoming.write(kept)
        else:
            self._owed, self._kept = 0, kept[end:]
            self._incoming.write(kept[:end])

    def _take_back(self) -> None:
        """Leave the shared BIOs empty: keep whole records that were not needed, and what is to be sent."""
        if self._incoming.pending:
            self._kept, self._owed = self._incoming.read() + self._kept, 0
        if self._outgoing.pending:
            self._out += self._outgoing.read()
            self._answered = True

    # --- what goes wrong --------------------------------------------------------------------------------------------

    def _check_beginning(self) -> None:
        """Refuse a ClientHello that is announced too long, before memory is taken for it."""
        first = self._first
        if len(first) == _FIRST_BYTES and first[0] == HANDSHAKE and first[5] == CLIENT_HELLO:
            size = int.from_bytes(first[6:])
            # OpenSSL takes the memory as soon as the size is announced (decision 0086).
            if size > HANDSHAKE_MESSAGE_BYTES:
                self._kept = b""
                raise TlsError(f"ClientHello is {size} bytes, expected at most {HANDSHAKE_MESSAGE_BYTES}")

    def _reason(self, error: ssl.SSLError) -> str:
        """Return why TLS failed, for people."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"{self._other_end}'s certificate rejected: {error.verify_message}"
        name = error.reason or "unknown"
        if self._is_client:
            return name.replace("_", " ").lower()
        return other_protocol(self._first) or _MEANINGS.get(name) or name.replace("_", " ").lower()

    @property
    def _other_end(self) -> str:
        return "server" if self._is_client else "client"
