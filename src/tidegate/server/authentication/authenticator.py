"""Logs a client in by SASL before its connection is served, and again before its session ends (KIP-43, 152, 368).

Until then a connection belongs to an `Authenticator`, which accepts ApiVersions once, SaslHandshake and
SaslAuthenticate, or tokens without a header after a SaslHandshake v0. Frames must be short, and there is a deadline.
Then it hands the connection over to the front. If sessions are limited, it stays the owner, and passes requests on.

A failed login is answered, and its connection closed, after `connection.failed.authentication.delay.ms`; until then
only the socket is kept. The time spent here counts as network time of the connection's first request (B§4.2). A client
that does not log in is not charged, because it has no principal.

Follows: Kafka `SaslServerAuthenticator`, `KafkaChannel`, `Selector`.
"""

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Any

from tidegate import error_codes
from tidegate.api_keys import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidegate.clock import NS_PER_MS
from tidegate.quota.admin.java_hash import hash_map_order
from tidegate.scram import SCRAM_MECHANISMS, AuthenticationError, InvalidCredentialsError, ScramServer
from tidegate.server.authentication.logins import Logins
from tidegate.server.authentication.plain import PlainServer
from tidegate.server.connection.channel import ANSWER_DUE, Channel
from tidegate.server.handlers.api_versions import unsupported_version_answer
from tidegate.server.listening.sasl_config import PLAIN, SaslConfig
from tidegate.server.requests.handler import Answer, Message, Request
from tidegate.wire import (
    AT_ONCE_BYTES,
    Encoded,
    ProtocolError,
    RequestHeader,
    UnsupportedVersionError,
    decode_request_header,
    encode_response,
    field_since,
    read_request,
)
from tidegate.wire.definitions import empty_value, layout

__all__ = ["HEADERS_SINCE", "Authenticator"]

_log = logging.getLogger("tidegate.server")

_MIN_REAUTH_INTERVAL_NS = 1_000_000_000  # Kafka `KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS`
_LOGGED_CHARS = 80  # of a mechanism's name
_ERROR_CODE_AT = 8  # offset in an ApiVersions answer, after length and correlation id
HEADERS_SINCE = 1
"""The version of SaslHandshake from which on tokens come in SaslAuthenticate."""
_REAUTH_SINCE = field_since(SASL_AUTHENTICATE, "response", "session_lifetime_ms")
_HANDSHAKE_KEY = SASL_HANDSHAKE.to_bytes(2)


class _FailedLoginError(Exception):
    """Raised if a login has failed. It contains the answer, to be sent after the delay, and the text for the log."""

    def __init__(self, reason: str, answer: Encoded | None = None) -> None:
        super().__init__(reason)
        self.answer = answer


class _State(Enum):
    """The state of a login: what the connection may send next. Follows: Kafka `SaslServerAuthenticator.SaslState`."""

    HANDSHAKE_OR_VERSIONS = "ApiVersions or SaslHandshake"
    HANDSHAKE = "SaslHandshake"
    AUTHENTICATE = "tokens"
    BAD_MECHANISM = "anything, which fails the login"
    COMPLETE = "requests"
    FAILED = "nothing"


class Authenticator:
    """The `ChannelOwner` until the client has logged in, and afterwards, too, if sessions have a limited lifetime."""

    __slots__ = (
        "_began_ns",
        "_expires_ns",
        "_front",
        "_has_headers",
        "_knows_reauth",
        "_logins",
        "_mechanism",
        "_reauthenticates",
        "_sasl",
        "_server",
        "_state",
    )

    def __init__(self, logins: Logins, sasl: SaslConfig) -> None:
        self._logins = logins
        self._front = logins.front
        self._sasl = sasl
        self._state = _State.HANDSHAKE_OR_VERSIONS
        self._has_headers = False
        self._knows_reauth = False  # the client can log in again
        self._mechanism = ""
        self._server: PlainServer | ScramServer | None = None
        self._reauthenticates = False
        self._began_ns: int | None = None  # start of the last login after the first
        self._expires_ns = 0  # end of the session

    # --- ChannelOwner ---------------------------------------------------------------------------------------------

    @property
    def at_ns(self) -> int:
        """Return the front's `at_ns`."""
        return self._front.at_ns

    def on_frame(self, channel: Channel, frame: memoryview, started_ns: int) -> None:
        """Process the next message of the login.

        If no login is under way and the session has not expired, pass the request to the front.
        """
        if self._state is _State.COMPLETE and not self._begin_again(channel, frame):
            return
        if self._state is _State.COMPLETE:
            self._front.on_frame(channel, frame, started_ns)
            return
        try:
            answer = self._step(channel, frame)
        except _FailedLoginError as error:
            self._fail(channel, error)
            return
        except ProtocolError as error:
            self._state = _State.FAILED
            self._front.on_bad_frame(channel, f"{error} during login")
            channel.close()
            return
        if self._server is not None and self._server.complete:
            self._complete(channel)
        left = channel.send(answer)
        channel.network_ns += self._logins.monotonic_ns() - started_ns
        if left and not channel.closed:
            channel.release_hold(ANSWER_DUE)

    def on_bad_frame(self, channel: Channel, reason: str) -> None:
        """Pass the reason to the front, which logs it."""
        self._front.on_bad_frame(channel, reason)

    def on_waiting(self, channel: Channel) -> None:
        """Tell the front to serve the next frame in the next turn."""
        self._front.on_waiting(channel)

    def on_failed(self, channel: Channel, error: Exception) -> None:
        """Pass the error to the front, which logs it."""
        self._front.on_failed(channel, error)

    def on_answer_left(self, channel: Channel) -> None:
        """Tell the front that the answer has left."""
        self._front.on_answer_left(channel)

    def on_closed(self, channel: Channel) -> None:
        """Forget the login."""
        self._logins.end_login(channel)
        self._front.on_closed(channel)

    # --- sessions -------------------------------------------------------------------------------------------------

    def _begin_again(self, channel: Channel, frame: memoryview) -> bool:
        """Begin another login if the frame asks for it. Return False if the session has expired; the channel closes."""
        now_ns = self._logins.monotonic_ns()
        if frame[:2] == _HANDSHAKE_KEY and (
            self._began_ns is None or now_ns - self._began_ns >= _MIN_REAUTH_INTERVAL_NS
        ):
            self._began_ns = now_ns
            self._reauthenticates = True
            self._has_headers = False
            self._state = _State.HANDSHAKE
            self._logins.start_login(channel)
        elif now_ns > self._expires_ns:
            self._logins.counts(channel).expired += 1
            _log.info(
                "closed connection %d: session expired without a new login; see connections.max.reauth.ms",
                channel.connection.id,
            )
            channel.close()
            return False
        return True

    def _complete(self, channel: Channel) -> None:
        """Hand the channel over to the front, or pass its requests on until the session ends."""
        assert self._server is not None
        logins = self._logins
        if self._reauthenticates:
            logins.counts(channel).relogins += 1
        else:
            logins.log_in(channel, self._server.user, knows_reauth=self._knows_reauth)
        self._server = None
        self._state = _State.COMPLETE
        logins.end_login(channel)
        lifetime_ms = self._sasl.max_reauth_ms[self._mechanism]
        if lifetime_ms:
            self._expires_ns = logins.monotonic_ns() + lifetime_ms * NS_PER_MS
        else:
            channel.owner = self._front

    def _fail(self, channel: Channel, error: _FailedLoginError) -> None:
        self._state = _State.FAILED
        self._server = None
        self._count_failed(channel)
        self._front.on_bad_frame(channel, f"failed login: {error}")
        self._logins.end_later(channel, () if error.answer is None else error.answer.buffers)

    def _count_failed(self, channel: Channel) -> None:
        counts = self._logins.counts(channel)
        if self._reauthenticates:
            counts.failed_relogins += 1
        else:
            counts.failed_logins += 1

    # --- the exchange ---------------------------------------------------------------------------------------------

    def _step(self, channel: Channel, frame: memoryview) -> Sequence[Any]:
        """Return the answer to a frame.

        Raises `_FailedLoginError`, and `ProtocolError` if the channel must close at once.
        """
        if self._state is _State.BAD_MECHANISM:
            raise _FailedLoginError(f"client changed its SASL mechanism, expected {self._mechanism}")
        if self._state is _State.AUTHENTICATE:
            return self._on_token(channel, frame)
        assert self._state is not _State.FAILED, "a failed login reads nothing"
        try:
            header = decode_request_header(frame)
        except UnsupportedVersionError as error:
            if error.api_key == API_VERSIONS and self._state is _State.HANDSHAKE_OR_VERSIONS:
                return unsupported_version_answer(error.correlation_id).buffers
            raise
        if header.api_key == SASL_HANDSHAKE:
            return self._on_handshake(header, frame)
        if header.api_key == API_VERSIONS and self._state is _State.HANDSHAKE_OR_VERSIONS:
            return self._on_versions(channel, header, frame)
        raise ProtocolError(f"api key {header.api_key} is not served")

    def _on_versions(self, channel: Channel, header: RequestHeader, frame: memoryview) -> Sequence[Any]:
        front = self._front
        request = Request(header, frame, channel.connection, front.new_quotas(), self._logins.wall_ms())
        answer = channel.handlers[API_VERSIONS](request)
        assert isinstance(answer, Answer)
        assert answer.response is not None
        buffers = answer.response.buffers
        if buffers[0][_ERROR_CODE_AT : _ERROR_CODE_AT + 2] == b"\0\0":
            self._state = _State.HANDSHAKE
        return buffers

    def _on_handshake(self, header: RequestHeader, frame: memoryview) -> Sequence[Any]:
        mechanism = _body(header, frame)["mechanism"]
        self._has_headers = header.api_version >= HEADERS_SINCE
        known = mechanism in self._sasl.mechanisms
        code = error_codes.NONE if known else error_codes.UNSUPPORTED_SASL_MECHANISM
        message = {"error_code": code, "mechanisms": hash_map_order(self._sasl.mechanisms)}
        answer = _encoded(header, message)
        if not known:
            expected = ", ".join(self._sasl.mechanisms)
            raise _FailedLoginError(
                f"SASL mechanism is {mechanism[:_LOGGED_CHARS]!r}, expected one of {expected}", answer
            )
        if self._reauthenticates and mechanism != self._mechanism:
            self._state = _State.BAD_MECHANISM
        else:
            self._mechanism = mechanism
            self._server = self._make_server(mechanism)
            self._state = _State.AUTHENTICATE
        return answer.buffers

    def _make_server(self, name: str) -> PlainServer | ScramServer:
        if name == PLAIN:
            return PlainServer(self._sasl.plain_users)
        mechanism, credentials = SCRAM_MECHANISMS[name], self._logins.credentials
        return ScramServer(
            mechanism, lambda user: credentials.credential_of(mechanism, user) if credentials else None
        )

    def _on_token(self, channel: Channel, frame: memoryview) -> Sequence[Any]:
        if not self._has_headers:
            try:
                token = self._respond(channel, bytes(frame))
            except AuthenticationError as error:
                raise _FailedLoginError(self._client_text(error)) from error
            return [len(token).to_bytes(4) + token]
        header = decode_request_header(frame)
        if header.api_key != SASL_AUTHENTICATE:
            if len(frame) > AT_ONCE_BYTES:
                raise ProtocolError(f"api key {header.api_key} is not served")
            _body(header, frame)  # check that it can be decoded
            raise _FailedLoginError(
                f"request with api key {header.api_key}, expected SaslAuthenticate",
                _encoded(header, _refusal(header, error_codes.ILLEGAL_SASL_STATE)),
            )
        message: Message = {"error_code": error_codes.NONE, "error_message": "", "session_lifetime_ms": 0}
        try:
            message["auth_bytes"] = self._respond(channel, bytes(_body(header, frame)["auth_bytes"]))
        except AuthenticationError as error:
            told = self._client_text(error)
            code = error_codes.SASL_AUTHENTICATION_FAILED
            message |= {"error_code": code, "error_message": told, "auth_bytes": b""}
            raise _FailedLoginError(told, _encoded(header, message)) from error
        assert self._server is not None
        if self._server.complete:
            self._knows_reauth = header.api_version >= _REAUTH_SINCE
            message["session_lifetime_ms"] = self._sasl.max_reauth_ms[self._mechanism]
        return _encoded(header, message).buffers

    def _respond(self, channel: Channel, token: bytes) -> bytes:
        """Return the mechanism's answer. Raises `AuthenticationError`, also if the user changes in a later login."""
        server = self._server
        assert server is not None
        answer = server.respond(token)
        before = channel.connection.user
        if server.complete and self._reauthenticates and server.user != before:
            raise AuthenticationError(
                f"Cannot change principals during re-authentication from User.{before}: User.{server.user}"
            )
        return answer

    def _client_text(self, error: AuthenticationError) -> str:
        """Return the error text for the client."""
        if isinstance(error, InvalidCredentialsError):
            when = "re-authentication" if self._reauthenticates else "authentication"
            mechanism = self._mechanism
            return f"Authentication failed during {when} due to invalid credentials with SASL mechanism {mechanism}"
        return str(error)


def _body(header: RequestHeader, frame: memoryview) -> Message:
    return read_request(header.api_key, header.api_version, frame, header.body_at)


def _encoded(header: RequestHeader, message: Message) -> Encoded:
    return encode_response(header.api_key, header.api_version, header.correlation_id, message)


def _refusal(header: RequestHeader, error_code: int) -> Message:
    """Return an answer of any API with only an error code, if the API has a field for it."""
    fields = layout(header.api_key, header.api_version, "response").fields
    return {**{field.name: empty_value(field) for field in fields}, "error_code": error_code}
