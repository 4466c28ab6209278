"""Fuzzing logins: any frames in any order on many connections of a node in memory, at a clock moved by hand.

Whoever is served has shown the right password; nothing is logged with a traceback, nothing waits for ever, and nothing
is left behind. A run in the test suite has 10^5 frames; `make soak ARGS=logins` has 10^6.
"""

import logging
import random
import re
from pathlib import Path

from tests.fuzz.tracebacks import no_tracebacks
from tests.server.authentication.login_client import (
    CLIENTS,
    SETTINGS,
    LoginClient,
    add_user,
    plain_token,
    scram_final,
)
from tests.server.memory_network import MemoryNode

from tidegate.api_keys import (
    API_VERSIONS,
    DESCRIBE_CLIENT_QUOTAS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.scram import SCRAM_MECHANISMS
from tidegate.server.authentication.logins import MAX_DELAYED, MAX_LOGIN_S
from tidegate.server.requests.front import Front
from tidegate.wire import encode_request

SHORT_RUN_FRAMES = 100_000
CONNECTIONS = 40
REAUTH_MS = 5_000
_DESCRIBE = {"components": [], "strict": True}
_METADATA = {
    "topics": [], "allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}  # fmt: skip
_FIRST = b"n,,n=sam,r=nonce"
_SERVER_FIRST = re.compile(rb"r=nonce[!-~]+,s=[A-Za-z0-9+/=]*,i=[0-9]+")


class FuzzedLogin:
    """One connection, and what it needs to know to go on with a login."""

    def __init__(self, node: MemoryNode, rng: random.Random) -> None:
        self.rng = rng
        self.client = LoginClient(node)
        self.mechanism = ""
        self._server_first = b""

    def step(self) -> None:
        """Send one frame, mostly one that makes sense somewhere, and look at what comes back."""
        rng = self.rng
        choice = rng.choices(
            (
                self._handshake,
                self._right_token,
                self._wrong_token,
                self._request,
                self._any_bytes,
                self._odd,
            ),
            (5, 6, 2, 3, 1, 1),
        )[0]
        choice()
        self._look()

    def _handshake(self) -> None:
        self.mechanism = self.rng.choice(["PLAIN", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", ""])
        self.client.send(SASL_HANDSHAKE, self.rng.choice([0, 1, 1, 1]), {"mechanism": self.mechanism})

    def _right_token(self) -> None:
        token = plain_token("alice", "alice-secret")
        if self.mechanism.startswith("SCRAM"):
            kind = SCRAM_MECHANISMS[self.mechanism]
            asked, self._server_first = self._server_first, b""
            token = scram_final(kind, _FIRST, asked, "s1") if asked else _FIRST
        self._send_token(token)

    def _wrong_token(self) -> None:
        good = plain_token("bob", "bob-secret")
        self._send_token(
            self.rng.choice(
                [good[:-1], good[1:], good + b"\0", b"", _FIRST[:-6], b"n,,n=nobody,r=x", bytes(3000)]
            )
        )

    def _send_token(self, token: bytes) -> None:
        if self.rng.random() < 0.15:
            self.client.send_frame(token)
        else:
            self.client.send(SASL_AUTHENTICATE, self.rng.randrange(3), {"auth_bytes": token})

    def _request(self) -> None:
        api_key, version, message = self.rng.choice(
            [
                (DESCRIBE_CLIENT_QUOTAS, 0, _DESCRIBE),
                (METADATA, 9, _METADATA),
                (API_VERSIONS, 0, {}),
                (API_VERSIONS, 3, {"client_software_name": "x", "client_software_version": "1"}),
            ]
        )
        self.client.send(api_key, version, message)

    def _any_bytes(self) -> None:
        self.client.send_frame(self.rng.randbytes(self.rng.randrange(40)))

    def _odd(self) -> None:
        whole = encode_request(
            SASL_AUTHENTICATE, 2, 1, "c", {"auth_bytes": plain_token("alice", "alice-secret")}
        )
        transport = self.client.transport
        if self.client.closed:
            return
        match self.rng.randrange(5):
            case 0:
                transport.client_send(whole[: self.rng.randrange(len(whole))])
            case 1:
                transport.client_send(whole * 3)
            case 2:
                transport.client_end()
            case 3:
                transport.client_break()
            case 4:
                transport.client_send(b"\x7f\xff\xff\xff")
        self.client.node.loop.turn()

    def _look(self) -> None:
        """Read the answers; keep what a mechanism asks."""
        while (frame := self.client.receive()) is not None:
            asked = _SERVER_FIRST.search(frame)
            if asked:
                self._server_first = asked[0]


def user_of(front: Front, login: FuzzedLogin) -> str | None:
    """Return whose connection it is for the node, None where it is closed there."""
    channels = (channel for channel in front.channels if channel.transport is login.client.transport)
    return next((channel.connection.user for channel in channels), None)


def fuzz_logins(seed: int, frames: int, directory: Path) -> dict[str, int]:
    """Send so many frames and return what was counted. Raises `AssertionError` where something is wrong."""
    rng = random.Random(seed)
    node = MemoryNode(directory, texts={**SETTINGS, "connections.max.reauth.ms": str(REAUTH_MS)})
    try:
        add_user(node, "sam", "s1")
        front, logins = node.node._front, node.node._logins
        counts = front.requests.listeners[CLIENTS]
        connections = [FuzzedLogin(node, rng) for _ in range(CONNECTIONS)]
        for _ in range(frames):
            place = rng.randrange(CONNECTIONS)
            if connections[place].client.closed:
                connections[place] = FuzzedLogin(node, rng)
            served, known = counts.requests, counts.logins
            was_known = user_of(front, connections[place]) != "ANONYMOUS"
            connections[place].step()
            assert counts.requests == served or was_known or counts.logins > known
            if rng.random() < 0.05:
                node.loop.advance(rng.choice([1, 20, 99, 1_000, REAUTH_MS]))
            assert len(front.channels) <= CONNECTIONS
            assert len(logins._begun) <= len(front.channels)
            assert len(logins._delayed) <= MAX_DELAYED
        assert {channel.connection.user for channel in front.channels} <= {"ANONYMOUS", "alice", "sam"}
        for each in connections:
            if not each.client.closed:
                each.client.transport.client_break()
        node.loop.advance(int(MAX_LOGIN_S * 1000) + 2_000)
        assert (len(front.channels), len(logins._begun), len(logins._delayed)) == (0, 0, 0)
        assert counts.created == counts.closed
        return {name: getattr(counts, name) for name in counts.__slots__}
    finally:
        node.close()


def run(seed: int, frames: int, directory: Path) -> dict[str, int]:
    """Fuzz; fail where something was logged with a traceback."""
    with no_tracebacks(seed, level=logging.CRITICAL if frames > SHORT_RUN_FRAMES else logging.ERROR):
        return fuzz_logins(seed, frames, directory)


def test_any_frames_in_any_order(tmp_path: Path) -> None:
    """Logins succeed, fail and expire in numbers; nobody is served without one, and nothing is left."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    counts = run(seed, SHORT_RUN_FRAMES, tmp_path)
    print(counts)
    for name in ("logins", "failed_logins", "relogins", "failed_relogins", "expired"):
        assert counts[name] > 10, f"seed {seed}: {counts}"
