"""Hostile frames at a gateway from both sides: clients that mutate requests, and a broker that mutates its responses.

`make soak ARGS=gateway` sends 10^6; a short run is a test.
"""

import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.plain_client import receive_frame
from tests.fuzz.test_node_fuzz import harmless
from tests.fuzz.test_wire_fuzz import mutated, steps
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.lying_broker import BROKER_ID, LyingBroker
from tests.gateway.raw_client import RawClient
from tests.waiting import wait_until
from tests.wire.odd_messages import odd_frames, plain_message

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.wire import API_BY_KEY, RequestHeader

__all__ = ["READ", "fuzz", "garbled", "hostile_requests"]

READ = (
    PRODUCE, FETCH, METADATA, FIND_COORDINATOR, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS,
    DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS, SASL_HANDSHAKE, SASL_AUTHENTICATE, LIST_OFFSETS,
)  # fmt: skip
"""The APIs of which the gateway reads requests or responses, and one that it only forwards."""
CLIENTS = 4
ANSWER_WITHIN_S = 30.0
SETTLES_S = 20.0
ASKS_EVERY_S = 0.05
"""Interval of the neighbour's requests."""
MOST_GROWTH_MB = 16
WARM_FRAMES = 3_000
NEIGHBOUR = "neighbour"
_LONG = 70_000
_WRONG_LENGTHS = 0.03  # of the frames
_QUOTAS = struct.pack(">h", ALTER_CLIENT_QUOTAS)


def hostile_requests() -> list[bytes]:
    """Return recorded frames, and some with an odd value, of the APIs that the gateway reads."""
    frames = [step.request for step in steps() if step.api_key in READ]
    for api_key in READ:
        api = API_BY_KEY[api_key]
        for version in range(api.min_version, api.max_version + 1):
            frames += [frame for _, frame in list(odd_frames(api_key, version))[::10]]
    return frames


def garbled(rng: random.Random, answer: bytes) -> bytearray:
    """Return a response, its length included, with random bytes, or cut, or with random bytes behind it."""
    made = bytearray(answer)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(8 if rng.random() < 0.9 else 0, len(made))
        made[at] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
    if rng.random() < 0.2:
        made = made[: rng.randrange(8, len(made) + 1)] + rng.randbytes(rng.randrange(80))
        struct.pack_into(">i", made, 0, len(made) - 4)
    if rng.random() < 0.05:
        made += rng.randbytes(_LONG)
        struct.pack_into(">i", made, 0, len(made) - 4)
    return made


class GarblingBroker(LyingBroker):
    """A broker that answers requests of any API and version with garbled responses, some recorded ones among them.

    Requests of the gateway's own and of the neighbour are answered honestly.
    """

    def __init__(self, seed: int) -> None:
        self.answered: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._recorded: dict[tuple[int, int], list[bytes]] = {}
        for step in steps():
            if step.response is not None:
                self._recorded.setdefault((step.api_key, step.version), []).append(step.response)
        super().__init__()

    def answer(self, sock: socket.socket, header: RequestHeader) -> None:
        """Answer a request. With acks=0 none is expected: the gateway closes the connection."""
        if header.client_id in (NEIGHBOUR, "tidegate") and header.api_key in (API_VERSIONS, METADATA):
            super().answer(sock, header)
            return
        rng = self._rng
        chance = rng.random()
        recorded = self._recorded.get(header.api)
        if chance < 0.02:
            kind = "closed"
            sock.shutdown(socket.SHUT_RDWR)
        elif chance < 0.1 or not recorded:
            kind = "noise"
            self._send(sock, struct.pack(">i", header.correlation_id) + rng.randbytes(rng.randrange(200)))
        else:
            answer = struct.pack(">i", header.correlation_id) + rng.choice(recorded)[4:]
            kind = "recorded" if chance < 0.4 else "garbled"
            whole = struct.pack(">i", len(answer)) + answer
            sent = whole if chance < 0.4 else garbled(rng, whole)
            sock.sendall(sent)
            if struct.unpack_from(">i", sent)[0] > len(sent) - 4:
                sock.shutdown(socket.SHUT_WR)  # nothing follows, as the length says
        self.answered[kind] += 1

    def _send(self, sock: socket.socket, body: bytes) -> None:
        sock.sendall(struct.pack(">i", len(body)) + body)


class HostileClients:
    """Threads that send `frames` mutated requests in all, each on a connection until that closes."""

    def __init__(self, seed: int, frames: int, port: int, material: Sequence[bytes]) -> None:
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self._port, self._material = port, material
        self._threads = [
            threading.Thread(
                target=self._run, args=(random.Random(seed + each), frames // CLIENTS), daemon=True
            )
            for each in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def wait_done(self, timeout_s: float) -> bool:
        """Wait until all have ended, for up to `timeout_s` seconds; return whether they have."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, rng: random.Random, frames: int) -> None:
        left = frames
        while left > 0:
            with socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_WITHIN_S) as sock:
                while left > 0:
                    left -= 1
                    outcome = self._outcome(sock, rng)
                    self.outcomes[outcome] += 1
                    if outcome != "answered":
                        break

    def _outcome(self, sock: socket.socket, rng: random.Random) -> str:
        frame = mutated(rng, rng.choice(self._material))
        if frame.startswith(_QUOTAS):
            frame = harmless(frame)
        try:
            if rng.random() < _WRONG_LENGTHS:
                sock.sendall(
                    struct.pack(">i", rng.choice((-1, 0, 3, len(frame) + 9, 1 << 30, 2**31 - 1))) + frame
                )
                sock.shutdown(socket.SHUT_WR)
            else:
                sock.sendall(struct.pack(">i", len(frame)) + frame)
            receive_frame(sock)
        except TimeoutError:
            self.failures.append(f"no answer and no end within {ANSWER_WITHIN_S:.0f} s: {frame[:200]!r}")
            return "silent"
        except OSError:
            return "closed"
        return "answered"


def fuzz(seed: int, frames: int, directory: Path) -> dict[str, int]:
    """Send hostile frames from both sides; return what became of them. Raises `AssertionError`.

    An error is a traceback, a connection without an answer or an end, growth, and a neighbour that is not served.
    """
    quotas = directory / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    broker = GarblingBroker(seed)
    options = ("--quotas", str(quotas), "--override", "tidegate.usage.parquet.enable=false")
    gateway = GatewayProcess(directory / "gateway", broker.address, options).start()
    try:
        material = hostile_requests()
        warm = HostileClients(seed + CLIENTS, min(WARM_FRAMES, frames), gateway.port, material)
        _serve_neighbour(gateway, warm)
        before_mb, before = gateway.resident_mb(), gateway.descriptors()
        clients = HostileClients(seed, frames, gateway.port, material)
        _serve_neighbour(gateway, clients)
        assert not clients.failures, clients.failures[:3]
        growth_mb = gateway.resident_mb() - before_mb
        assert growth_mb < MOST_GROWTH_MB, f"the gateway grew by {growth_mb:.1f} MB"
        wait_until(
            lambda: gateway.descriptors() <= before + 4,
            SETTLES_S,
            told=lambda: f"{gateway.descriptors()} descriptors, before {before}",
        )
        assert "Traceback" not in gateway.log, gateway.log[-5000:]
        assert broker.answered["garbled"] > frames // 100
        return {**clients.outcomes, **{f"responses {kind}": count for kind, count in broker.answered.items()}}
    finally:
        gateway.close()
        broker.close()


def _serve_neighbour(gateway: GatewayProcess, clients: HostileClients) -> None:
    """Ask for Metadata on one connection until the clients are done."""
    neighbour = RawClient(gateway.ports[BROKER_ID], NEIGHBOUR)
    with neighbour:
        while not clients.wait_done(ASKS_EVERY_S):
            assert gateway.process.poll() is None, gateway.log[-5000:]
            assert neighbour.ask(METADATA, 9, plain_message(METADATA, 9))["brokers"]
