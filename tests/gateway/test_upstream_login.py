"""The gateway's own login, held against servers that refuse it, break the protocol, or know no password."""

import asyncio
import random
import secrets
from typing import Any

import pytest

from tidegate.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidegate.client.connection import MAX_LOGIN_RESPONSE_BYTES
from tidegate.client.settings import ClientSettings
from tidegate.gateway.upstream_login import Credentials, UpstreamLogin
from tidegate.scram import SCRAM_MECHANISMS, ScramServer
from tidegate.wire import decode_request_header, encode_response, read_request

PASSWORD = "s=e,cret"


class Server:
    """The broker's end: `ask` is given each frame, and what it returns is received by the login."""

    def __init__(self, mechanism: str) -> None:
        loop = asyncio.get_running_loop()
        settings = ClientSettings(addresses=(), mechanism=mechanism, user="gateway", password=PASSWORD)
        self.ended: list[tuple[str, int]] = []
        self.sent: list[bytes] = []
        self.login = UpstreamLogin(
            Credentials(settings, loop), send=self.sent.append, on_end=lambda *end: self.ended.append(end)
        )
        self.login.begin()

    async def request(self) -> tuple[int, dict[str, Any]]:
        """Return the key and the body of the next request; a salted password is made on a thread."""
        while not self.sent:
            await asyncio.sleep(0.001)
        frame = memoryview(self.sent.pop(0))[4:]
        header = decode_request_header(frame)
        self.header = header
        return header.api_key, read_request(header.api_key, header.api_version, frame, header.body_at)

    def answer(self, message: dict[str, Any], at_once: int = 1 << 20) -> None:
        """Send a response, so many bytes at once."""
        header = self.header
        encoded = encode_response(header.api_key, header.api_version, header.correlation_id, message)
        data = b"".join(bytes(part) for part in encoded.buffers)
        for at in range(0, len(data), at_once):
            self.login.receive(data[at : at + at_once])


def authenticated(
    token: bytes = b"", code: int = 0, text: str | None = None, lifetime_ms: int = 0
) -> dict[str, Any]:
    """Return a response to SaslAuthenticate."""
    return {
        "error_code": code,
        "error_message": text,
        "auth_bytes": token,
        "session_lifetime_ms": lifetime_ms,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM_MECHANISMS])
@pytest.mark.parametrize("at_once", [1, 3, 1 << 20])
def test_login_succeeds(mechanism: str, at_once: int) -> None:
    """The exchange ends with the lifetime of the session, in whichever pieces responses come."""

    async def run() -> None:
        server = Server(mechanism)
        assert await server.request() == (SASL_HANDSHAKE, {"mechanism": mechanism})
        server.answer({"error_code": 0, "mechanisms": [mechanism]}, at_once)
        if mechanism == "PLAIN":
            key, body = await server.request()
            assert (key, bytes(body["auth_bytes"])) == (SASL_AUTHENTICATE, f"\0gateway\0{PASSWORD}".encode())
            server.answer(authenticated(lifetime_ms=5000), at_once)
        else:
            kind = SCRAM_MECHANISMS[mechanism]
            credential = kind.credential(PASSWORD.encode(), salt=secrets.token_bytes(8), iterations=4096)
            scram = ScramServer(kind, {"gateway": credential}.get)
            for lifetime_ms in (0, 5000):
                _, body = await server.request()
                server.answer(
                    authenticated(scram.respond(bytes(body["auth_bytes"])), lifetime_ms=lifetime_ms), at_once
                )
        assert server.ended == [("", 5000)]

    asyncio.run(run())


def test_password_is_salted_once() -> None:
    """Two logins with the same salt ask for one hash; another salt for one more."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        settings = ClientSettings(addresses=(), mechanism="SCRAM-SHA-256", user="u", password=PASSWORD)
        credentials = Credentials(settings, loop)
        scram = credentials.scram()
        assert scram is not None
        found: list[tuple[bytes, bytes]] = []

        def ask(salt: bytes) -> None:
            credentials.salted(scram, (salt, 4096), lambda salted: found.append((salt, salted)))

        for salt in (b"a", b"a", b"b"):
            ask(salt)
        while len(found) < 3:
            await asyncio.sleep(0.001)
        (first, second), (other,) = ([each for salt, each in found if salt == name] for name in (b"a", b"b"))
        assert first == second != other
        ask(b"a")
        assert found[3] == (b"a", first)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (
            {"error_code": 33, "mechanisms": ["GSSAPI"]},
            "it does not support the mechanism PLAIN, it supports GSSAPI",
        ),
        ({"error_code": 34, "mechanisms": []}, "it refuses a login: "),
    ],
)
def test_refused_handshake_is_told(answer: dict[str, Any], failure: str) -> None:
    """The reason says what the broker supports, or that it expects no login."""

    async def run() -> None:
        server = Server("PLAIN")
        await server.request()
        server.answer(answer)
        ((found, lifetime_ms),) = server.ended
        assert found.startswith(failure)
        assert lifetime_ms == 0

    asyncio.run(run())


def test_refusal_does_not_show_the_password() -> None:
    """A server that sends the password back is not quoted."""

    async def run() -> None:
        server = Server("PLAIN")
        await server.request()
        server.answer({"error_code": 0, "mechanisms": ["PLAIN"]})
        await server.request()
        server.answer(authenticated(code=58, text=f"no {PASSWORD}\n"))
        ((found, _),) = server.ended
        assert found.startswith("it refuses the login of 'gateway': no [password]")
        assert "\n" not in found

    asyncio.run(run())


def test_server_that_does_not_know_the_password_is_not_believed() -> None:
    """A broker that accepts a SCRAM login without proof fails it."""

    async def run() -> None:
        server = Server("SCRAM-SHA-256")
        await server.request()
        server.answer({"error_code": 0, "mechanisms": []})
        _, body = await server.request()
        nonce = bytes(body["auth_bytes"]).rpartition(b"r=")[2]
        server.answer(authenticated(b"r=" + nonce + b"x,s=c2FsdA==,i=4096"))
        await server.request()
        server.answer(authenticated(b"v=AAAA"))
        ((found, _),) = server.ended
        assert found == (
            "the login of 'gateway' failed: the server could not prove that it knows the password"
        )

    asyncio.run(run())


def test_hostile_responses_end_the_login() -> None:
    """Random bytes end the login with a reason, once, and keep nothing beyond the bound."""
    seed = secrets.randbits(32)
    rng = random.Random(seed)

    async def run() -> None:
        for _ in range(300):
            server = Server(rng.choice(["PLAIN", "SCRAM-SHA-512"]))
            await server.request()
            if rng.random() < 0.5:
                server.answer({"error_code": 0, "mechanisms": []})
            size = rng.choice([0, 4, 30, MAX_LOGIN_RESPONSE_BYTES, -1, 2**31 - 1])
            server.login.receive(size.to_bytes(4, "big", signed=True) + rng.randbytes(max(0, min(size, 200))))
            server.login.receive(rng.randbytes(5000))
            if not server.ended:
                assert 5000 < size <= MAX_LOGIN_RESPONSE_BYTES, seed
                server.login.receive(bytes(MAX_LOGIN_RESPONSE_BYTES))
            ((found, _),) = server.ended
            assert found, seed

    asyncio.run(run())
