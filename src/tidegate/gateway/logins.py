"""Logins that pass through the gateway: the broker decides, and the gateway reads the name of the user.

The name applies only after the broker has accepted the login, also when a client logs in again (KIP-368). PLAIN, SCRAM
and OAUTHBEARER send it unencrypted. The gateway cannot read it with other mechanisms (GSSAPI), with delegation tokens,
and in tokens longer than `MAX_TOKEN_BYTES`. These clients stay `ANONYMOUS`: the quotas of client ids and of the default
user apply to them.

Version 0 of SaslHandshake is refused, because the tokens after it have no header. Its clients are older than Kafka 1.0.
"""

import base64
import binascii
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidegate import error_codes
from tidegate.gateway.relay import Forwarded, upstream_of
from tidegate.gateway.responses import plain_answer
from tidegate.gateway.upstream_response import Response
from tidegate.server.authentication.authenticator import HEADERS_SINCE
from tidegate.server.connection.channel import Channel
from tidegate.server.requests.handler import Answer, Charge, Request
from tidegate.wire import API_BY_KEY, RequestHeader, read_request, read_response
from tidegate.wire.encoded import LENGTH_BYTES
from tidegate.wire.header import decode_response_header

__all__ = [
    "OnUser",
    "PassingLogin",
    "claimed_name",
    "handle_passing_authenticate",
    "handle_passing_handshake",
]

_log = logging.getLogger("tidegate.gateway")

OnUser = Callable[[Channel, str], object]
"""Called with a channel and the name of its user after the broker has accepted the login."""
MAX_NAME_CHARS = 32_767
MAX_TOKEN_BYTES = 64 * 1024
"""Longest token that is read: the JSON of a longer one would hold the loop for more than a few milliseconds."""
_BY_DELEGATION_TOKEN = b"tokenauth=true"
_SCRAM_END = b"v="  # the last message of a SCRAM server begins with its signature


@dataclass(slots=True)
class PassingLogin:
    """A login under way: its mechanism, and the name that its first token claims; None where that cannot be read."""

    mechanism: str
    name: str | None = None
    is_begun: bool = False

    def is_accepted(self, error_code: int, challenge: bytes) -> bool:
        """Return whether the broker's response completes the login successfully."""
        if error_code or self.name is None:
            return False
        return challenge.startswith(_SCRAM_END) if self.mechanism.startswith("SCRAM-") else not challenge


def handle_passing_handshake(request: Request) -> Forwarded:
    """Forward a SaslHandshake, and remember the mechanism."""
    header, upstream = request.header, upstream_of(request)
    upstream.login = None
    if API_BY_KEY[header.api_key].speaks(header.api_version):
        body = read_request(header.api_key, header.api_version, request.frame, header.body_at)
        if header.api_version < HEADERS_SINCE:
            return _refuse_old(request)
        upstream.login = PassingLogin(body["mechanism"])
    return upstream.forward(request, _exempt)


def _refuse_old(request: Request) -> Answer:
    """Refuse a login whose tokens have no header."""
    connection = request.connection
    _log.warning(
        "refused SaslHandshake version 0 of connection %d from %s: logins pass through from version 1 on; "
        "hint: update the client",
        connection.id,
        connection.client_host,
        extra={"repeats": f"old login {connection.client_host}"},
    )
    message = {"error_code": error_codes.UNSUPPORTED_VERSION, "mechanisms": []}
    return Answer(request.encode(message), Charge.EXEMPT, close=True)


def handle_passing_authenticate(on_user: OnUser, request: Request) -> Forwarded:
    """Forward a SaslAuthenticate; when the broker accepts the login, the connection has its user's name."""
    header, upstream = request.header, upstream_of(request)
    login = upstream.login
    is_readable = (
        API_BY_KEY[header.api_key].speaks(header.api_version) and len(request.frame) <= MAX_TOKEN_BYTES
    )
    if not isinstance(login, PassingLogin) or not is_readable:
        upstream.login = None
        return upstream.forward(request, _exempt)
    body = read_request(header.api_key, header.api_version, request.frame, header.body_at)
    if not login.is_begun:
        login.is_begun = True
        login.name = claimed_name(login.mechanism, bytes(body["auth_bytes"]))

    def respond(header: RequestHeader, response: Response) -> Answer:
        data = memoryview(response.frame)[LENGTH_BYTES:]
        _, at = decode_response_header(data, header.api_key, header.api_version)
        message = read_response(header.api_key, header.api_version, data, at)
        if login.is_accepted(message["error_code"], bytes(message["auth_bytes"])):
            assert login.name is not None
            on_user(upstream.channel, login.name)
        return _exempt(header, response)

    return upstream.forward(request, respond)


def _exempt(header: RequestHeader, response: Response) -> Answer:
    answer = plain_answer(header, response)
    answer.charge = Charge.EXEMPT  # a client that logs in is charged to no quota (B§4.3)
    return answer


def claimed_name(mechanism: str, first_message: bytes) -> str | None:
    """Return the name of the user that a client's first message claims, None where it cannot be read.

    >>> claimed_name("PLAIN", b"\\0alice\\0secret"), claimed_name("SCRAM-SHA-256", b"n,,n=bob=2Cjr,r=123")
    ('alice', 'bob,jr')
    """
    try:
        name = _claimed_name(mechanism, first_message)
    except (ValueError, KeyError, IndexError, AttributeError, RecursionError):
        return None
    return name if name and isinstance(name, str) and len(name) <= MAX_NAME_CHARS else None


def _claimed_name(mechanism: str, message: bytes) -> str | None:
    if mechanism == "PLAIN":
        _, name, _ = message.split(b"\0")
        return name.decode()
    if mechanism.startswith("SCRAM-"):
        _, _, bare = message.split(b",", 2)
        parts = bare.split(b",")
        if _BY_DELEGATION_TOKEN in parts:
            return None  # the principal is the owner of the token, which the broker alone knows
        found = next((part for part in parts if part.startswith(b"n=")), b"")
        return found[2:].decode().replace("=2C", ",").replace("=3D", "=")
    if mechanism == "OAUTHBEARER":
        auth = next((part for part in message.split(b"\x01") if part.startswith(b"auth=Bearer ")), b"")
        payload = auth[len(b"auth=Bearer ") :].split(b".")[1]
        try:
            claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        except binascii.Error as error:
            raise ValueError from error
        subject: str = claims["sub"]
        return subject
    return None
