"""Clients: obedient and not, patient and not, each for itself."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.server.memory_network import UNLIMITED
from tests.simulation.auditor import Auditor, Line
from tests.simulation.clock import NS_PER_MS
from tests.simulation.requests import Requests

__all__ = ["CLIENT_IDS", "HOSTS", "USERS", "Client", "Connected", "Habits"]

USERS = ("ANONYMOUS", "alice", "bob b", "carol")
CLIENT_IDS = ("c1", "c2", "c*3", "")
HOSTS = tuple(f"192.0.2.{number}" for number in range(1, 5))
_RECONNECT_MS = 200

Connect = Callable[[str, str, int, int, int | None], Line]
"""Returns a new connection of a user and a host, with the most bytes of one call and the room to begin with, to the
node of that number, or to any."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a client goes about.

    client_ids: which it has; none: it makes them up. obeys: holds back for a throttle time. depth: most requests
    without an answer. pause_ms: between two looks, on average. takes: most bytes that it reads at a look, None: all
    there are. most_bytes: what one call of the network moves. halts: sends in parts. lifetime: requests of a
    connection, on average. ends: how it leaves.
    """

    user: str
    host: str
    client_ids: list[str]
    kinds: dict[str, int]
    obeys: bool
    depth: int
    pause_ms: int
    takes: int | None
    most_bytes: int
    halts: bool
    lifetime: int
    ends: tuple[str, ...]

    @classmethod
    def random(cls, rng: Random, *, makes_up_names: bool = False) -> "Habits":
        """Return those of one more client."""
        kinds = rng.choice(
            (
                {"produce": 60, "metadata": 3, "other": 5},
                {"produce": 200, "produce to nowhere": 1, "nonsense": 1},
                {"fetch": 30, "poll": 20, "other": 2},
                {"create": 3, "delete": 3, "grow": 1, "metadata": 30, "fetch": 10, "wander": 20},
                {
                    "produce": 20,
                    "fetch": 20,
                    "poll": 10,
                    "metadata": 10,
                    "other": 10,
                    "create": 1,
                    "wander": 5,
                },
            )
        )
        return cls(
            user=rng.choice(USERS), host=rng.choice(HOSTS),
            client_ids=[] if makes_up_names else rng.sample(CLIENT_IDS, rng.choice((1, 1, 2))),
            kinds=kinds, obeys=rng.random() < 0.5, depth=rng.choice((1, 1, 2, 5, 20, 50)),
            pause_ms=rng.choice((50, 200, 500, 2000)), takes=rng.choice((None, None, None, None, 0, 700, 20_000)),
            most_bytes=rng.choice((UNLIMITED, UNLIMITED, 1448, 65_536)), halts=rng.random() < 0.2,
            lifetime=rng.choice((20, 300, 10_000)),
            ends=rng.choice((("half", "break"), ("half",), ("close",))),
        )  # fmt: skip


class Connected:
    """Someone with a connection: answers are taken apart, and it is made anew when it is gone."""

    def __init__(self, auditor: Auditor, connect: Connect, rng: Random) -> None:
        self._auditor, self._connect, self._rng = auditor, connect, rng
        self.line: Line | None = None
        self._received = bytearray()

    def _take(self, room: int) -> list[tuple[bytes, int]]:
        """Take what has come; return the answers that are whole, each with its throttle time."""
        assert self.line is not None
        received = self._received
        received += self.line.client_take(room)
        answers, at = [], 0
        while len(received) - at >= 4:
            (size,) = struct.unpack_from(">i", received, at)
            if len(received) - at - 4 < size:
                break
            answer = bytes(received[at + 4 : at + 4 + size])
            answers.append((answer, self._auditor.on_answer(self.line, answer)))
            at += 4 + size
        del received[:at]
        return answers

    def _let_go(self) -> None:
        """Take leave of a connection that the node has closed, and of which all was taken."""
        assert self.line is not None
        self._auditor.on_last_answer(self.line)
        self.line = None
        self._received.clear()


class Client(Connected):
    """One client, with one connection at a time."""

    def __init__(self, auditor: Auditor, connect: Connect, rng: Random, habits: Habits) -> None:
        super().__init__(auditor, connect, rng)
        self.habits = habits
        self._requests = Requests(auditor, rng, habits.client_ids, habits.kinds)
        self._held_until_ns = 0
        self._rest = b""
        self.resting = False

    def take_up(self, habits: Habits) -> None:
        """Go about in another way, but for the connection that there is."""
        self.habits = habits
        self._requests = Requests(self._auditor, self._rng, habits.client_ids, habits.kinds)

    def act(self) -> int:
        """Do the next thing; return in how many ms to come again."""
        rng, habits = self._rng, self.habits
        if self.line is None:
            if not self.resting:
                room = UNLIMITED if habits.takes is None else rng.randint(0, habits.takes)
                self.line = self._connect(habits.user, habits.host, habits.most_bytes, room, None)
            return rng.randrange(_RECONNECT_MS)
        closed = self.line.closed
        takes_all = closed or habits.takes is None or self.resting
        answers = self._take(UNLIMITED if takes_all else rng.randint(0, habits.takes))
        if closed:
            self._let_go()
            self._rest = b""
            return rng.randrange(_RECONNECT_MS)
        if self._rest:
            self.line.client_send(self._rest)
            self._rest = b""
        if habits.obeys:
            for _, throttle_ms in answers:
                self._held_until_ns = max(
                    self._held_until_ns, self._auditor.clock.ns + throttle_ms * NS_PER_MS
                )
        held_ms = (self._held_until_ns - self._auditor.clock.ns) // NS_PER_MS
        if not self.line.left and not self.resting:
            if held_ms > 0:
                return min(held_ms, 20_000) + 1
            self._send()
        return 1 + int(rng.expovariate(1 / habits.pause_ms))

    def _send(self) -> None:
        line, rng, habits = self.line, self._rng, self.habits
        assert line is not None
        count = rng.randint(0, habits.depth) - len(line.awaiting)
        if count > 0:
            made = [self._requests.make(line) for _ in range(count)]
            line.client_plan([sent for _, sent in made])
            data = b"".join(frame for frame, _ in made)
            cut = rng.randrange(len(data)) if habits.halts else len(data)
            self._rest = data[cut:]
            line.client_send(data[:cut])
            self._auditor.seen["requests"] += count
        if not self._rest and rng.random() < max(count, 0) / habits.lifetime:
            how = rng.choice(habits.ends)
            if how == "break":
                line.client_break()
            elif how == "half" or not line.awaiting:
                line.client_end()
            self._auditor.seen[how if line.left else "stays"] += 1
