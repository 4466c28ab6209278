"""One connection to a broker: TCP or TLS, the versions of its APIs, the login, requests and their responses.

    connection = await Connection.open(address, settings, on_throttle=..., until_free=...)
    reply = await connection.send(DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})

Several requests may be in flight; the broker answers them in order. A request that takes too long closes the
connection, because its response may still come. A throttle time is added to the time of the requests that are in
flight: the broker reads them later (B§7.1).

Bounds: a response has at most `MAX_RESPONSE_BYTES`, before the end of the login `MAX_LOGIN_RESPONSE_BYTES`.
Follows: Kafka `NetworkClient`, `InFlightRequests`, `SaslClientAuthenticator`.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tidegate import __version__, error_codes
from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    LoginError,
    RequestTimeoutError,
    UnreachableError,
    UnsupportedApiError,
    raise_for,
    shown,
)
from tidegate.client.settings import Address, ClientSettings
from tidegate.scram import SCRAM_MECHANISMS, AuthenticationError, ScramClient
from tidegate.wire import (
    API_BY_KEY,
    Message,
    MessageError,
    ProtocolError,
    decode_response_header,
    encode_request,
    read_response,
)

__all__ = ["MAX_LOGIN_RESPONSE_BYTES", "MAX_RESPONSE_BYTES", "Connection", "Reply", "session_use_s"]

MAX_RESPONSE_BYTES = 64 << 20
"""Largest response. Kafka's consumers ask for at most 50 MB at once."""
MAX_LOGIN_RESPONSE_BYTES = 256 << 10
"""Largest response before the login has ended: until then any server may be at the other end."""
_SOFTWARE = {"client_software_name": "tidegate", "client_software_version": __version__}
_NEWEST_API_VERSIONS = 3  # Kafka 2.4 and later; an older broker answers in version 0
_ERROR_35 = struct.pack(">h", error_codes.UNSUPPORTED_VERSION)
_LENGTH = struct.Struct(">i")
_TLS_ALERT = 0x1503  # the beginning of what a TLS listener answers to a client without TLS
_USED_OF_SESSION = 0.85  # Kafka `SaslClientAuthenticator` logs in again after 85 to 95 % of a session
_SESSION_SPARE_S = 1.0
_NEEDED_BY_DEFAULT = "give the address of a broker of Apache Kafka 2.8 or later, not of a KRaft controller"
_NEEDED = {
    **dict.fromkeys(
        (DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS),
        "client quotas need Apache Kafka 2.6 or later",  # KIP-546
    ),
    **dict.fromkeys(
        (DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS),
        "SCRAM users need Apache Kafka 2.7 or later, with KRaft 3.5 or later",  # KIP-554, KIP-900
    ),
}
"""Hints by API, for a broker that does not support it."""
_WRONG_PROTOCOL = "check that security.protocol matches the listener at this port"
_TLS_HINT = "set ssl.keystore.location if the listener asks for a certificate; check that the port is of a TLS listener"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: the version of the API, the decoded message, and its throttle time in ms, 0 without one."""

    api_version: int
    message: Message
    throttle_time_ms: int = 0


@dataclass(slots=True)
class _InFlight:
    api_key: int
    api_version: int
    correlation_id: int
    timeout_s: float
    expires_s: float
    future: "asyncio.Future[Reply]"
    timer: asyncio.TimerHandle | None = field(default=None)


class Connection:
    """A connection that is ready for requests. Make one with `open`.

    on_throttle: called with the throttle time of each response, in ms, and whether the client has to hold back because
    of it, before the response is returned. until_free: waited for before each request of the login.
    `versions`: the range of versions that the broker supports, by api key. `closed_by`: why the connection has ended.
    """

    def __init__(
        self,
        address: Address,
        settings: ClientSettings,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_throttle: Callable[[int, bool], None],
        until_free: Callable[[], Awaitable[None]],
    ) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self.closed_by: ClientError | None = None
        self._settings = settings
        self._reader, self._writer = streams
        self._on_throttle, self._until_free = on_throttle, until_free
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[_InFlight] = deque()
        self._correlation_id = 0
        self._answers = 0  # beside those to ApiVersions
        self._session_ends_s = float("inf")
        self._max_response_bytes = MAX_LOGIN_RESPONSE_BYTES
        self._receiving = self._loop.create_task(self._receive())

    @classmethod
    async def open(
        cls,
        address: Address,
        settings: ClientSettings,
        *,
        on_throttle: Callable[[int, bool], None],
        until_free: Callable[[], Awaitable[None]],
    ) -> "Connection":
        """Connect, ask for the versions of the APIs, and log in.

        Raises `UnreachableError`, `LoginError`, or another `ClientError`.
        """
        connection = cls(address, settings, await _connect(address, settings), on_throttle, until_free)
        try:
            await connection._learn_versions()
            if settings.mechanism:
                await connection._log_in()
        except BaseException:
            await connection.close()
            raise
        connection._max_response_bytes = MAX_RESPONSE_BYTES
        return connection

    @property
    def in_flight(self) -> int:
        """Return how many requests wait for their responses."""
        return len(self._in_flight)

    @property
    def usable(self) -> bool:
        """Return whether requests can be sent: the connection is open, and its login has not expired."""
        return self.closed_by is None and self._loop.time() < self._session_ends_s

    def version(self, api_key: int, most: int | None = None) -> int:
        """Return the newest version of an API that both sides support, at most `most`. Raises `UnsupportedApiError`."""
        api = API_BY_KEY[api_key]
        least_theirs, most_theirs = self.versions.get(api_key, (0, -1))
        most_ours = api.max_version if most is None else most
        version = min(most_ours, most_theirs)
        if version < max(api.min_version, least_theirs):
            if most_theirs < least_theirs:
                raise UnsupportedApiError(
                    f"broker {self.address} does not support {api.name}",
                    hint=_NEEDED.get(api_key, _NEEDED_BY_DEFAULT),
                )
            raise UnsupportedApiError(
                f"broker {self.address} supports versions {least_theirs} to {most_theirs} of {api.name}, "
                f"expected one of {api.min_version} to {most_ours}",
                hint="Tidegate's client supports Apache Kafka 2.8 and later",
            )
        return version

    def send(
        self,
        api_key: int,
        message: Message,
        *,
        timeout_s: float | None = None,
        most_version: int | None = None,
    ) -> "asyncio.Future[Reply]":
        """Send a request; return the future of its response. Raises `ClientError`, as does the future.

        timeout_s: how long the response may take, `request.timeout.ms` by default.
        """
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        return self._send(api_key, self.version(api_key, most_version), message, timeout_s)

    async def finish(self) -> None:
        """Wait for the responses to requests in flight, or their timeouts; then close the connection."""
        waiting = [each.future for each in self._in_flight if not each.future.done()]
        if waiting:
            await asyncio.wait(waiting)
        await self.close()

    async def close(self) -> None:
        """Close the connection. Requests in flight fail."""
        self._fail(ConnectionLostError(f"the connection to {self.address} was closed"))
        self._receiving.cancel()
        await asyncio.wait((self._receiving,))
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    # --- requests and responses -------------------------------------------------------------------------------------

    def _send(
        self, api_key: int, version: int, message: Message, timeout_s: float
    ) -> "asyncio.Future[Reply]":
        self._correlation_id = (self._correlation_id + 1) % 2**31
        try:
            frame = encode_request(api_key, version, self._correlation_id, self._settings.client_id, message)
        except MessageError as error:
            raise ClientError(f"cannot send {API_BY_KEY[api_key].name} version {version}: {error}") from error
        if self.closed_by is not None:
            raise self.closed_by
        expires_s, future = self._loop.time() + timeout_s, self._loop.create_future()
        waiting = _InFlight(api_key, version, self._correlation_id, timeout_s, expires_s, future)
        self._in_flight.append(waiting)
        self._writer.write(frame)
        self._look_at_time(waiting)
        return future

    def _look_at_time(self, waiting: _InFlight) -> None:
        """Close the connection if a request has waited too long, or look again when its time is over."""
        if self._loop.time() < waiting.expires_s:
            waiting.timer = self._loop.call_at(waiting.expires_s, self._look_at_time, waiting)
        else:
            self._fail(
                RequestTimeoutError(
                    f"broker {self.address} did not answer {API_BY_KEY[waiting.api_key].name} within "
                    f"{waiting.timeout_s:g} s",
                    hint="check whether the broker is overloaded, or raise request.timeout.ms",
                )
            )

    async def _receive(self) -> None:
        """Receive responses until the connection ends."""
        try:
            while True:
                (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if size >> 16 == _TLS_ALERT and not self._answers and self._settings.tls is None:
                    self._fail(ConnectionLostError(f"broker {self.address} answered by TLS", is_first=True))
                    return
                if not 0 <= size <= self._max_response_bytes:
                    raise ProtocolError(
                        f"a response of {size} bytes, expected 0 to {self._max_response_bytes}"
                    )
                self._on_response(await self._reader.readexactly(size))
        except asyncio.IncompleteReadError:
            is_first = self._answers == 0 and not self._settings.mechanism
            self._fail(ConnectionLostError(f"broker {self.address} closed the connection", is_first=is_first))
        except ProtocolError as error:
            self._fail(ConnectionLostError(f"broker {self.address} sent an invalid response: {shown(error)}"))
        except ssl.SSLError as error:  # TLS 1.3: a client without a certificate learns it after the handshake
            self._fail(
                ConnectionLostError(f"TLS with {self.address} failed: {_reason(error)}", hint=_TLS_HINT)
            )
        except OSError as error:
            self._fail(ConnectionLostError(f"the connection to {self.address} broke: {_reason(error)}"))

    def _on_response(self, frame: bytes) -> None:
        if not self._in_flight:
            raise ProtocolError("a response without a request")
        waiting = self._in_flight[0]
        correlation_id, at = decode_response_header(frame, waiting.api_key, waiting.api_version)
        if correlation_id != waiting.correlation_id:
            raise ProtocolError(f"correlation id {correlation_id}, expected {waiting.correlation_id}")
        version = waiting.api_version
        if waiting.api_key == API_VERSIONS and frame[at : at + len(_ERROR_35)] == _ERROR_35:
            version = 0  # error 35 comes in the version that every client can read (KIP-511)
        message = read_response(waiting.api_key, version, frame, at)
        self._in_flight.popleft()
        self._answers += waiting.api_key != API_VERSIONS
        throttle_time_ms = max(message.get("throttle_time_ms", 0), 0)
        since = API_BY_KEY[waiting.api_key].java_client_backs_off_since
        holds_back = throttle_time_ms > 0 and since is not None and version >= since
        if holds_back:
            for other in self._in_flight:
                other.expires_s += throttle_time_ms / 1000
        if waiting.api_key not in (SASL_HANDSHAKE, SASL_AUTHENTICATE):  # these never have a throttle time
            self._on_throttle(throttle_time_ms, holds_back)
        _settle(waiting, Reply(version, message, throttle_time_ms))

    def _fail(self, error: ClientError) -> None:
        """Close the connection, and let all requests in flight fail."""
        if self.closed_by is None:
            self.closed_by = error
            # Not `close`: that waits for a peer that does not read, or that does not end its side of TLS.
            self._writer.transport.abort()
        while self._in_flight:
            _settle(self._in_flight.popleft(), error)

    # --- the beginning ----------------------------------------------------------------------------------------------

    async def _ask(self, api_key: int, version: int, message: Message) -> Message:
        """Send a request of the login. Raises `UnreachableError`, also for a listener of another protocol."""
        await self._until_free()
        try:
            reply = await self._send(api_key, version, message, self._settings.connect_timeout_s)
        except RequestTimeoutError as error:
            raise UnreachableError(str(error), hint=_WRONG_PROTOCOL) from error
        except ConnectionLostError as error:
            raise UnreachableError(str(error), hint=error.hint or _WRONG_PROTOCOL) from error
        return reply.message

    async def _learn_versions(self) -> None:
        answer = await self._ask(API_VERSIONS, _NEWEST_API_VERSIONS, _SOFTWARE)
        if answer["error_code"] == error_codes.UNSUPPORTED_VERSION:
            answer = await self._ask(API_VERSIONS, 0, {})
        raise_for(answer["error_code"], None)
        self.versions = {
            each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]
        }

    async def _log_in(self) -> None:
        """Log in by SASL. Raises `LoginError`."""
        settings = self._settings
        answer = await self._ask(
            SASL_HANDSHAKE, self.version(SASL_HANDSHAKE), {"mechanism": settings.mechanism}
        )
        if answer["error_code"] == error_codes.UNSUPPORTED_SASL_MECHANISM:
            offered = shown(", ".join(answer["mechanisms"])) or "none"
            raise LoginError(
                f"broker {self.address} does not support {settings.mechanism}, it supports {offered}",
                hint="set sasl.mechanism to one that both sides support",
            )
        if answer["error_code"] == error_codes.ILLEGAL_SASL_STATE:
            raise LoginError(
                f"broker {self.address} expects no login at this port",
                hint="set security.protocol to PLAINTEXT or SSL, or use the port of a SASL listener",
            )
        raise_for(answer["error_code"], None)
        if settings.mechanism in SCRAM_MECHANISMS:
            scram = ScramClient(SCRAM_MECHANISMS[settings.mechanism], settings.user, settings.password)
            server_first = await self._send_token(scram.first_message())
            try:
                # On a thread: the server chooses how long the hash takes.
                token = await asyncio.to_thread(scram.final_message, server_first)
                scram.check_final(await self._send_token(token))
            except AuthenticationError as error:
                raise LoginError(
                    f"broker {self.address} failed the login of {settings.user!r}: {error}",
                    hint="check the address: a server that does not know the password may be in the broker's place",
                ) from error
        else:
            await self._send_token(f"\0{settings.user}\0{settings.password}".encode())

    async def _send_token(self, token: bytes) -> bytes:
        answer = await self._ask(SASL_AUTHENTICATE, self.version(SASL_AUTHENTICATE), {"auth_bytes": token})
        if answer["error_code"]:
            text = answer["error_message"] or BrokerError(answer["error_code"]).text
            if self._settings.password:  # a server that got it may send it back
                text = text.replace(self._settings.password, "[password]")
            raise LoginError(
                f"broker {self.address} refused the login of {self._settings.user!r}: {shown(text)}",
                hint="check username and password in sasl.jaas.config",
            )
        lifetime_ms = answer.get("session_lifetime_ms", 0)
        if lifetime_ms > 0:  # the broker closes connections that are used after this (KIP-368)
            self._session_ends_s = self._loop.time() + session_use_s(lifetime_ms)
        return bytes(answer["auth_bytes"])


def session_use_s(lifetime_ms: int) -> float:
    """Return for how many seconds to use a session of `lifetime_ms` ms before the next login.

    A broker closes a connection when it reads a request after the end of the session, even if the request was sent
    before. The last 15 % of the session are therefore not used, and at least one second; if the session is shorter than
    two seconds, half of it.
    Follows: KIP-368; Kafka `SaslClientAuthenticator` leaves 5 to 15 %.
    """
    lifetime_s = lifetime_ms / 1000
    return min(_USED_OF_SESSION * lifetime_s, max(lifetime_s - _SESSION_SPARE_S, lifetime_s / 2))


def _settle(waiting: _InFlight, result: Reply | ClientError) -> None:
    """Set the result of a request, unless its caller has cancelled it."""
    if waiting.timer is not None:
        waiting.timer.cancel()
    if waiting.future.done():
        return
    if isinstance(result, Reply):
        waiting.future.set_result(result)
    else:
        waiting.future.set_exception(result)
        waiting.future.exception()  # marks it as seen: its caller may have been cancelled


async def _connect(
    address: Address, settings: ClientSettings
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            return await asyncio.open_connection(
                *address,
                ssl=settings.tls,
                server_hostname=address.host if settings.tls is not None else None,
            )
    except TimeoutError:
        raise UnreachableError(
            f"cannot connect to {address}: no answer within {settings.connect_timeout_s:g} s",
            hint="check the address, security.protocol, and whether a firewall drops the packets",
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise LoginError(
            f"the certificate of broker {address} is not accepted: {error.verify_message}",
            hint="set ssl.truststore.location to the authority's certificate, and connect by a name in the certificate",
        ) from error
    except ssl.SSLError as error:
        raise LoginError(
            f"TLS handshake with {address} failed: {_reason(error)}",
            hint=_TLS_HINT,
        ) from error
    except socket.gaierror as error:
        raise UnreachableError(
            f"cannot connect to {address}: {_reason(error)}", hint="check the host name"
        ) from error
    except (OSError, ValueError, OverflowError) as error:  # also for hosts and ports that no address can have
        raise UnreachableError(
            f"cannot connect to {address}: {_reason(error)}", hint="check that a broker listens there"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):  # its number is not one of the system's
        return shown(error.reason or error)
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    return shown(getattr(error, "strerror", None) or str(error) or type(error).__name__)
