"""One connection to a broker: TCP or TLS, the versions of its APIs, the login, requests and their responses.

    connection = await Connection.open(address, settings, on_throttle=node.throttle)
    reply = await connection.request(DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False}, timeout_s=30)

Several requests may be under way; the broker answers them in order. A request whose time is over closes the connection,
since its response may still come. While a broker throttles the client, the time of its requests stands still (B§7.1).

Bounds: a response has at most `MAX_RESPONSE_BYTES`; requests under way, `MAX_IN_FLIGHT`.
Follows: Kafka `NetworkClient`, `SaslClientAuthenticator`.
"""

import asyncio
import contextlib
import errno
import os
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tidegate import __version__, error_codes
from tidegate.api_keys import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidegate.client.errors import (
    ClientError,
    ConnectionLostError,
    LoginError,
    RequestTimeoutError,
    UnreachableError,
    UnsupportedApiError,
    raise_for,
)
from tidegate.client.settings import Address, ClientSettings
from tidegate.scram import SCRAM_MECHANISMS, AuthenticationError, ScramClient
from tidegate.wire import (
    API_BY_KEY,
    Message,
    ProtocolError,
    decode_response_header,
    encode_request,
    read_response,
)

__all__ = ["MAX_IN_FLIGHT", "MAX_RESPONSE_BYTES", "Connection", "Reply"]

MAX_RESPONSE_BYTES = 256 << 20
MAX_IN_FLIGHT = 5
"""Requests under way on one connection. Follows: Kafka `max.in.flight.requests.per.connection`."""
_SOFTWARE = {"client_software_name": "tidegate", "client_software_version": __version__}
_NEWEST_API_VERSIONS = 3  # Kafka 2.4 and later; an older broker answers in version 0
_LENGTH = struct.Struct(">i")
_LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: the version that was spoken, the decoded message, and the throttle time that it carries."""

    api_version: int
    message: Message
    throttle_time_ms: int = 0


@dataclass(slots=True)
class _InFlight:
    api_key: int
    api_version: int
    correlation_id: int
    expires_s: float
    future: "asyncio.Future[Reply]"


class Connection:
    """A connection that is ready for requests. Make one with `open`.

    on_throttle: called with each response's throttle time in ms, whether the client has to hold back because of it, and
    before the response is returned. `versions`: the range of versions that the broker speaks, by api key.
    """

    def __init__(
        self,
        address: Address,
        settings: ClientSettings,
        on_throttle: Callable[[int, bool], None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self.closed_by: ClientError | None = None
        self._settings = settings
        self._on_throttle = on_throttle
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[_InFlight] = deque()
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._correlation_id = 0
        self._session_ends_s = float("inf")
        self._receiving = self._loop.create_task(self._receive())

    @classmethod
    async def open(
        cls, address: Address, settings: ClientSettings, *, on_throttle: Callable[[int, bool], None]
    ) -> "Connection":
        """Connect, ask for the versions of the APIs, and log in.

        Raises `UnreachableError`, `LoginError`, or another `ClientError`.
        """
        reader, writer = await _connect(address, settings)
        connection = cls(address, settings, on_throttle, reader, writer)
        try:
            await connection._learn_versions()
            if settings.mechanism:
                await connection._log_in()
        except BaseException:
            await connection.close()
            raise
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
        """Return the newest version of an API that both sides speak, at most `most`. Raises `UnsupportedApiError`."""
        api = API_BY_KEY[api_key]
        least_theirs, most_theirs = self.versions.get(api_key, (0, -1))
        version = min(api.max_version if most is None else most, most_theirs)
        if version < max(api.min_version, least_theirs):
            spoken = f"versions {least_theirs} to {most_theirs}" if most_theirs >= 0 else "no version"
            raise UnsupportedApiError(
                f"broker {self.address} speaks {spoken} of {api.name}, expected one of "
                f"{api.min_version} to {api.max_version}",
                hint="Tidegate's client supports Apache Kafka 2.8 and later",
            )
        return version

    async def request(
        self, api_key: int, message: Message, *, timeout_s: float, most_version: int | None = None
    ) -> Reply:
        """Send a request and return its response. Raises `ClientError`."""
        async with self._room:
            return await self._exchange(api_key, self.version(api_key, most_version), message, timeout_s)

    async def close(self) -> None:
        """Close the connection. Requests under way fail."""
        self._fail(ConnectionLostError(f"the connection to {self.address} was closed"))
        self._receiving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._receiving
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def extend(self, throttle_time_ms: int) -> None:
        """Add a throttle time to the time that each request under way has."""
        for waiting in self._in_flight:
            waiting.expires_s += throttle_time_ms / 1000

    # --- requests and responses -------------------------------------------------------------------------------------

    async def _exchange(self, api_key: int, version: int, message: Message, timeout_s: float) -> Reply:
        self._correlation_id = (self._correlation_id + 1) % 2**31
        waiting = _InFlight(
            api_key, version, self._correlation_id, self._loop.time() + timeout_s, self._loop.create_future()
        )
        frame = encode_request(api_key, version, waiting.correlation_id, self._settings.client_id, message)
        if self.closed_by is not None:
            raise self.closed_by
        self._in_flight.append(waiting)
        self._writer.write(frame)
        while not waiting.future.done():
            left_s = waiting.expires_s - self._loop.time()
            if left_s <= 0:
                self._fail(
                    RequestTimeoutError(
                        f"broker {self.address} did not answer {API_BY_KEY[api_key].name} within {timeout_s:g} s",
                        hint="raise request.timeout.ms, or look whether the broker is overloaded",
                    )
                )
            else:
                await asyncio.wait((waiting.future,), timeout=min(left_s, _LONGEST_WAIT_S))
        return waiting.future.result()

    async def _receive(self) -> None:
        """Receive responses until the connection ends."""
        try:
            while True:
                (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if not 0 <= size <= MAX_RESPONSE_BYTES:
                    raise ProtocolError(f"a response of {size} bytes, expected 0 to {MAX_RESPONSE_BYTES}")
                self._on_response(await self._reader.readexactly(size))
        except asyncio.IncompleteReadError:
            self._fail(ConnectionLostError(f"broker {self.address} closed the connection"))
        except (ProtocolError, IndexError) as error:
            self._fail(
                ConnectionLostError(f"broker {self.address} sent something else than expected: {error}")
            )
        except OSError as error:
            self._fail(ConnectionLostError(f"the connection to {self.address} broke: {_reason(error)}"))

    def _on_response(self, frame: bytes) -> None:
        if not self._in_flight:
            raise ProtocolError("a response that no request waits for")
        waiting = self._in_flight[0]
        correlation_id, at = decode_response_header(frame, waiting.api_key, waiting.api_version)
        if correlation_id != waiting.correlation_id:
            raise ProtocolError(f"correlation id {correlation_id}, expected {waiting.correlation_id}")
        version = waiting.api_version
        if waiting.api_key == API_VERSIONS and frame[at : at + 2] == b"\0\x23":
            version = 0  # error 35, in the form that every client can read (KIP-511)
        message = read_response(waiting.api_key, version, frame, at)
        self._in_flight.popleft()
        throttle_time_ms = max(message.get("throttle_time_ms", 0), 0)
        since = API_BY_KEY[waiting.api_key].java_client_backs_off_since
        self._on_throttle(throttle_time_ms, since is not None and version >= since)
        if not waiting.future.done():
            waiting.future.set_result(Reply(version, message, throttle_time_ms))

    def _fail(self, error: ClientError) -> None:
        """Close the connection, and let all requests under way fail."""
        if self.closed_by is None:
            self.closed_by = error
            self._writer.close()
        while self._in_flight:
            future = self._in_flight.popleft().future
            if not future.done():
                future.set_exception(error)
                future.exception()  # it counts as seen where the caller has given up

    # --- the beginning ----------------------------------------------------------------------------------------------

    async def _ask(self, api_key: int, version: int, message: Message) -> Message:
        reply = await self._exchange(api_key, version, message, self._settings.connect_timeout_s)
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
            SASL_HANDSHAKE, self.version(SASL_HANDSHAKE, 1), {"mechanism": settings.mechanism}
        )
        if answer["error_code"] == error_codes.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer["mechanisms"]) or "none"
            raise LoginError(
                f"broker {self.address} does not offer {settings.mechanism}, it offers {offered}"
            )
        if answer["error_code"] == error_codes.ILLEGAL_SASL_STATE:
            raise LoginError(
                f"broker {self.address} expects no login on this port",
                hint="set security.protocol to PLAINTEXT or SSL, or use the port of a SASL listener",
            )
        raise_for(answer["error_code"], None)
        if settings.mechanism in SCRAM_MECHANISMS:
            scram = ScramClient(SCRAM_MECHANISMS[settings.mechanism], settings.user, settings.password)
            try:
                server_first = await self._send_token(scram.first_message())
                scram.check_final(await self._send_token(scram.final_message(server_first)))
            except AuthenticationError as error:
                raise LoginError(f"broker {self.address} does not know the password: {error}") from error
        else:
            await self._send_token(f"\0{settings.user}\0{settings.password}".encode())

    async def _send_token(self, token: bytes) -> bytes:
        answer = await self._ask(SASL_AUTHENTICATE, self.version(SASL_AUTHENTICATE), {"auth_bytes": token})
        if answer["error_code"]:
            text = answer["error_message"] or "no reason given"
            raise LoginError(
                f"broker {self.address} refused the login of {self._settings.user!r}: {text}",
                hint="check username and password in sasl.jaas.config",
            )
        lifetime_ms = answer.get("session_lifetime_ms", 0)
        if lifetime_ms > 0:  # the broker closes connections that are used after this (KIP-368)
            self._session_ends_s = self._loop.time() + 0.85 * lifetime_ms / 1000
        return bytes(answer["auth_bytes"])


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
            hint="check the address and whether a firewall is between",
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise LoginError(
            f"the certificate of broker {address} is not accepted: {error.verify_message}",
            hint="set ssl.truststore.location to the authority's certificate, and connect by a name that it is of",
        ) from error
    except ssl.SSLError as error:
        raise LoginError(
            f"TLS handshake with {address} failed: {error.reason or error}",
            hint="check that the port is of a TLS listener and, if it asks for one, that you have a certificate",
        ) from error
    except (OSError, UnicodeError) as error:
        raise UnreachableError(
            f"cannot connect to {address}: {_reason(error)}", hint="check that a broker listens there"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
