"""Logins that pass through the gateway: the broker decides, the gateway learns the name of the user.

The name counts only after the broker has accepted it, also when a client logs in again (KIP-368). PLAIN, SCRAM and
OAUTHBEARER carry it in the clear. Of other mechanisms (GSSAPI) it cannot be read: those clients stay `ANONYMOUS`, and
their quotas are those of client ids and of the default user.
"""

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.gateway.relay import Forwarded, upstream_of
from tidegate.gateway.responses import plain_answer
from tidegate.gateway.upstream import Response
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

OnUser = Callable[[Channel, str], object]
"""Called with a channel and the name of its user when the broker has accepted the login."""
MAX_NAME_CHARS = 32_767
_SCRAM_END = b"v="  # the last message of a SCRAM server begins with its signature


@dataclass(slots=True)
class PassingLogin:
    """A login under way: its mechanism, and the name that the client claims, once it has."""

    mechanism: str
    name: str | None = None

    def is_accepted(self, error_code: int, challenge: bytes) -> bool:
        """Return whether the broker's response ends the login well."""
        if error_code or self.name is None:
            return False
        return challenge.startswith(_SCRAM_END) if self.mechanism.startswith("SCRAM-") else not challenge


def handle_passing_handshake(request: Request) -> Forwarded:
    """Forward a SaslHandshake, and remember the mechanism."""
    header, upstream = request.header, upstream_of(request)
    if API_BY_KEY[header.api_key].speaks(header.api_version):
        body = read_request(header.api_key, header.api_version, request.frame, header.body_at)
        upstream.login = PassingLogin(body["mechanism"])
    return upstream.forward(request, _exempt)


def handle_passing_authenticate(on_user: OnUser, request: Request) -> Forwarded:
    """Forward a SaslAuthenticate; when the broker accepts the login, the connection has its user's name."""
    header, upstream = request.header, upstream_of(request)
    login = upstream.login
    if not isinstance(login, PassingLogin) or not API_BY_KEY[header.api_key].speaks(header.api_version):
        return upstream.forward(request, _exempt)
    body = read_request(header.api_key, header.api_version, request.frame, header.body_at)
    if login.name is None:
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
        found = next(part for part in bare.split(b",") if part.startswith(b"n="))
        return found[2:].decode().replace("=2C", ",").replace("=3D", "=")
    if mechanism == "OAUTHBEARER":
        auth = next(part for part in message.split(b"\x01") if part.startswith(b"auth=Bearer "))
        payload = auth[len(b"auth=Bearer ") :].split(b".")[1]
        try:
            claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        except binascii.Error as error:
            raise ValueError from error
        subject: str = claims["sub"]
        return subject
    return None
