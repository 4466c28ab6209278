"""The gateway's own login at a broker, on the connection of one client: SaslHandshake, then the tokens of a mechanism.

    login = UpstreamLogin(credentials, send=..., on_end=...)
    login.begin()              # sends the first request
    login.receive(data)        # for each response, until `on_end` is called

The password of a SCRAM user is salted once for each salt and number of iterations, on a thread: the broker chooses how
long that takes, and it chooses the same for every connection.

Bounds: a response has at most `MAX_LOGIN_RESPONSE_BYTES`, of salted passwords `MAX_SALTED` are kept.
Follows: Kafka `SaslClientAuthenticator`, KIP-152, KIP-368.
"""

import asyncio
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidegate import error_codes
from tidegate.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidegate.client.connection import MAX_LOGIN_RESPONSE_BYTES
from tidegate.client.errors import BrokerError, shown
from tidegate.client.settings import ClientSettings
from tidegate.scram import SCRAM_MECHANISMS, AuthenticationError, ScramClient
from tidegate.server.connection.tls_session import TlsBuffers
from tidegate.wire import Message, ProtocolError, decode_response_header, encode_request, read_response

__all__ = ["Credentials", "UpstreamLogin", "UpstreamSecurity"]

MAX_SALTED = 64
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2  # Kafka 2.5 and later have both
_LENGTH = struct.Struct(">i")


class Credentials:
    """The name and password of the gateway, for one mechanism."""

    def __init__(self, settings: ClientSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.client_id = settings.client_id
        self.mechanism, self.user, self.password = settings.mechanism, settings.user, settings.password
        self._loop = loop
        self._salted: dict[tuple[bytes, int], asyncio.Future[bytes]] = {}

    def scram(self) -> ScramClient | None:
        """Return the client's side of a login by SCRAM; None where the mechanism is another one."""
        found = SCRAM_MECHANISMS.get(self.mechanism)
        return None if found is None else ScramClient(found, self.user, self.password)

    def salted(self, scram: ScramClient, salting: tuple[bytes, int], then: Callable[[bytes], object]) -> None:
        """Call `then` with the salted password, at once where it is known."""
        making = self._salted.get(salting)
        if making is None:
            if len(self._salted) >= MAX_SALTED:
                self._salted.clear()
            making = self._loop.run_in_executor(None, partial(scram.salted_password, *salting))
            self._salted[salting] = making
        if making.done():
            then(making.result())
        else:
            making.add_done_callback(lambda made: made.cancelled() or then(made.result()))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSecurity:
    """Security of the connections to brokers: `tls` and `credentials`, each None where it is not used."""

    tls: ssl.SSLContext | None
    buffers: TlsBuffers
    credentials: Credentials | None


class UpstreamLogin:
    """One login on one connection.

    send: sends a frame. on_end: called once, with why the login has failed, or "", and the lifetime of the session in
    ms, 0 without an end.
    """

    __slots__ = (
        "_api",
        "_correlation_id",
        "_credentials",
        "_next",
        "_on_end",
        "_received",
        "_scram",
        "_send",
    )

    def __init__(
        self,
        credentials: Credentials,
        *,
        send: Callable[[bytes], object],
        on_end: Callable[[str, int], object],
    ) -> None:
        self._credentials = credentials
        self._send = send
        self._on_end: Callable[[str, int], object] | None = on_end
        self._scram = credentials.scram()
        self._received = bytearray()
        self._correlation_id = 0
        self._api = SASL_HANDSHAKE, _HANDSHAKE_VERSION
        self._next: Callable[[Message], object] | None = None

    def begin(self) -> None:
        """Send the first request."""
        self._ask(self._on_handshake, {"mechanism": self._credentials.mechanism})

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Process what the broker has sent."""
        self._received += data
        if len(self._received) < _LENGTH.size:
            return
        (size,) = _LENGTH.unpack_from(self._received)
        left = _LENGTH.size + size - len(self._received)
        if self._next is None or not 0 <= size <= MAX_LOGIN_RESPONSE_BYTES or left < 0:
            self._end(f"the broker sent something else than the response to a login ({size} bytes)")
        elif not left:
            frame, self._received = memoryview(self._received)[_LENGTH.size :], bytearray()
            on_response, self._next = self._next, None
            try:
                on_response(self._read(frame))
            except ProtocolError as error:
                self._end(f"the broker sent an invalid response to a login: {error}")
            except AuthenticationError as error:
                self._end(f"the login of {self._credentials.user!r} failed: {error}")

    # --- the exchange -----------------------------------------------------------------------------------------------

    def _ask(self, on_response: Callable[[Message], object], message: Message) -> None:
        self._next = on_response
        self._correlation_id += 1
        self._send(encode_request(*self._api, self._correlation_id, self._credentials.client_id, message))

    def _read(self, frame: memoryview) -> Message:
        """Return the decoded response. Raises `ProtocolError`."""
        correlation_id, at = decode_response_header(frame, *self._api)
        if correlation_id != self._correlation_id:
            raise ProtocolError(f"correlation id {correlation_id}, expected {self._correlation_id}")
        return read_response(*self._api, frame, at)

    def _on_handshake(self, message: Message) -> None:
        credentials = self._credentials
        code = message["error_code"]
        if code == error_codes.UNSUPPORTED_SASL_MECHANISM:
            offered = shown(", ".join(message["mechanisms"])) or "none"
            self._end(f"it does not support the mechanism {credentials.mechanism}, it supports {offered}")
            return
        if code:
            self._end(f"it refuses a login: {BrokerError(code).text}")
            return
        self._api = SASL_AUTHENTICATE, _AUTHENTICATE_VERSION
        if self._scram is not None:
            self._ask(self._on_server_first, {"auth_bytes": self._scram.first_message()})
        else:
            token = f"\0{credentials.user}\0{credentials.password}".encode()
            self._ask(self._on_end_of_tokens, {"auth_bytes": token})

    def _on_server_first(self, message: Message) -> None:
        if self._is_refused(message):
            return
        scram, server_first = self._scram, bytes(message["auth_bytes"])
        assert scram is not None

        def on_salted(salted: bytes) -> None:
            if self._on_end is not None:
                self._ask(self._on_end_of_tokens, {"auth_bytes": scram.final_message(server_first, salted)})

        self._credentials.salted(scram, scram.salting(server_first), on_salted)

    def _on_end_of_tokens(self, message: Message) -> None:
        if self._is_refused(message):
            return
        if self._scram is not None:
            self._scram.check_final(bytes(message["auth_bytes"]))
        self._end("", message["session_lifetime_ms"])

    def _is_refused(self, message: Message) -> bool:
        """End the login if the broker refuses it; return whether it does."""
        if not message["error_code"]:
            return False
        credentials = self._credentials
        text = message["error_message"] or BrokerError(message["error_code"]).text
        if credentials.password:  # a server that got it may send it back
            text = text.replace(credentials.password, "[password]")
        self._end(f"it refuses the login of {credentials.user!r}: {shown(text)}")
        return True

    def _end(self, failure: str, lifetime_ms: int = 0) -> None:
        on_end: Any = self._on_end
        self._on_end = self._next = None
        if on_end is not None:
            on_end(failure, lifetime_ms)
