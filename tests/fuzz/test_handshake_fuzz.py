"""Fuzzing TLS: handshakes that go on, are cut, mutated, answered with garbage or left, at a node in memory.

Whoever is served has shaken hands; nothing is logged with a traceback, nothing waits for ever, and nothing is left
behind, in the buffers that all sessions share neither. A run in the test suite has 5,000 steps; `make soak ARGS=logins`
has 200,000.
"""

import logging
import random
import ssl
import struct
from pathlib import Path

from tests.fuzz.tracebacks import no_tracebacks
from tests.server.authentication.tls_login_client import TLS_SETTINGS
from tests.server.connection.tls_client import TlsClient, client_context
from tests.server.memory_network import MemoryNode

from tidegate.api_keys import API_VERSIONS
from tidegate.server.authentication.logins import MAX_LOGIN_S
from tidegate.server.requests.front import Front
from tidegate.wire import encode_request

SHORT_RUN_STEPS = 5_000
CONNECTIONS = 20
LISTENERS = ("SSL", "SSL", "MTLS", "SASL_SSL")
RECORD_TYPES = (20, 21, 22, 23, 24, 0, 19, 25, 255)
VERSIONS = (0x0301, 0x0303, 0x0303, 0x0303, 0x0304, 0x0300, 0x0002, 0xFFFF)
LENGTHS = (0, 1, 2, 4, 100, 16_384, 16_385, 16_640, 16_641, 65_535)
MESSAGE_TYPES = (0, 1, 1, 1, 2, 11, 15, 16, 20, 24, 255)
MESSAGE_LENGTHS = (0, 1, 100, 32_768, 32_769, 131_072, 2**24 - 1)
MOST_GROWTH_BYTES = 64 << 20
_REQUEST = encode_request(API_VERSIONS, 0, 1, "fuzz", {})


class FuzzedHandshake:
    """One connection: an honest client of TLS, whose bytes are changed on their way now and then."""

    def __init__(self, node: MemoryNode, rng: random.Random, context: ssl.SSLContext) -> None:
        self.rng = rng
        self.listener = rng.choice(LISTENERS)
        self.below = node.connect(self.listener)
        self.client = TlsClient(context)
        self.answers = b""
        self._node = node
        self._gave_up = False
        self._receive(b"")

    @property
    def over(self) -> bool:
        """Whether the node has closed the connection."""
        return self.below.closed

    def step(self) -> None:
        """Let something come, and take what is answered."""
        choices = (
            self._go_on,
            self._request,
            self._mutate,
            self._record,
            self._garbage,
            self._message,
            self._leave,
        )
        self.rng.choices(choices, (12, 4, 3, 2, 1, 1, 1))[0]()
        self._node.loop.turn()
        if not self.over:
            self._receive(self.below.client_take())

    def _receive(self, data: bytes) -> None:
        if self._gave_up:
            return
        try:
            self.client.receive(data)
        except ssl.SSLError:
            self._gave_up = True
        self.answers += self.client.received
        self.client.received = b""

    def _go_on(self) -> None:
        self._send(self.client.out)

    def _request(self) -> None:
        if not self.client.established or self._gave_up:
            self._send(_REQUEST if self.rng.random() < 0.2 else self.client.out)
            return
        encrypted = self.client.encrypt(
            _REQUEST[: self.rng.choice((len(_REQUEST), len(_REQUEST), 3, 0)) or None]
        )
        self._send(encrypted * self.rng.choice((1, 1, 1, 2)))

    def _mutate(self) -> None:
        rng, data = self.rng, bytearray(self.client.out)
        if not data:
            return
        kind = rng.randrange(4)
        if kind == 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[rng.randrange(len(data)) :]
        elif kind == 2:
            at = rng.randrange(len(data))
            data[at:at] = rng.randbytes(rng.randrange(1, 20))
        else:
            data *= 2
        self._send(bytes(data))

    def _record(self) -> None:
        rng = self.rng
        length = rng.choice(LENGTHS)
        body = rng.randbytes(rng.choice((length, length, length // 2, 0)))
        self._send(struct.pack(">BHH", rng.choice(RECORD_TYPES), rng.choice(VERSIONS), length) + body)

    def _message(self) -> None:
        """Send the beginning of a message of a handshake that says to be of any length, in a record of its own."""
        rng = self.rng
        body = bytes([rng.choice(MESSAGE_TYPES)]) + rng.choice(MESSAGE_LENGTHS).to_bytes(3)
        body += rng.randbytes(rng.choice((0, 10, 1000)))
        self._send(struct.pack(">BHH", 22, 0x0303, len(body)) + body)

    def _garbage(self) -> None:
        rng = self.rng
        self._send(
            rng.choice(
                (rng.randbytes(rng.randrange(1, 3000)), b"GET / HTTP/1.1\r\n\r\n", bytes(70_000), b"\x16")
            )
        )

    def _leave(self) -> None:
        if not self.over:
            self.rng.choice((self.below.client_end, self.below.client_break))()

    def _send(self, data: bytes) -> None:
        at_once = self.rng.choice((len(data), len(data), 7)) if len(data) < 2000 else len(data)
        for at in range(0, len(data), at_once or 1):
            if self.over:
                return
            self.below.client_send(data[at : at + at_once])
            self._node.loop.turn()


def fuzz_handshakes(seed: int, steps: int, directory: Path) -> dict[str, int]:
    """Take so many steps and return what was counted. Raises `AssertionError` where something is wrong."""
    rng = random.Random(seed)
    node = MemoryNode(directory, texts=TLS_SETTINGS)
    context = client_context()
    seen = {"connections": 0, "established": 0, "answered": 0}
    try:
        front, logins = node.node._front, node.node._logins
        connections: list[FuzzedHandshake] = []
        grown_from = 0
        for number in range(steps):
            place = rng.randrange(CONNECTIONS)
            if place >= len(connections):
                connections.append(FuzzedHandshake(node, rng, context))
            elif connections[place].over:
                count(connections[place], seen)
                connections[place] = FuzzedHandshake(node, rng, context)
            connections[place % len(connections)].step()
            buffers = node.node.tls_buffers
            assert buffers.incoming.pending == buffers.outgoing.pending == 0
            if rng.random() < 0.02:
                node.loop.advance(rng.choice((1, 100, 5_000)))
            assert len(front.channels) <= CONNECTIONS
            assert len(logins._begun) <= len(front.channels)
            if number == steps // 5:
                grown_from = resident_bytes()
        assert resident_bytes() < grown_from + MOST_GROWTH_BYTES
        for each in connections:
            count(each, seen)
            if not each.over:
                each.below.client_break()
        node.loop.advance(int(MAX_LOGIN_S * 1000) + 2_000)
        assert (len(front.channels), len(logins._begun)) == (0, 0)
        return seen | totals(front)
    finally:
        node.close()


def totals(front: Front) -> dict[str, int]:
    """Return the logins of all listeners."""
    of = front.requests.listeners.values()
    return {name: sum(getattr(each, name) for each in of) for name in ("logins", "failed_logins", "requests")}


def count(connection: FuzzedHandshake, seen: dict[str, int]) -> None:
    """Count a connection that is over; who was answered has shaken hands."""
    seen["connections"] += 1
    seen["established"] += connection.client.established
    seen["answered"] += bool(connection.answers)
    assert connection.client.established or not connection.answers


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run(seed: int, steps: int, directory: Path) -> dict[str, int]:
    """Fuzz; fail where something was logged with a traceback."""
    with no_tracebacks(seed, level=logging.CRITICAL if steps > SHORT_RUN_STEPS else logging.ERROR):
        return fuzz_handshakes(seed, steps, directory)


def test_any_bytes_in_any_handshake(tmp_path: Path) -> None:
    """Handshakes end well, fail, and are left in numbers; nobody is served without one, and nothing is left."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    counts = run(seed, SHORT_RUN_STEPS, tmp_path)
    print(counts)
    for name in ("established", "answered", "logins", "failed_logins"):
        assert counts[name] > 10, f"seed {seed}: {counts}"
