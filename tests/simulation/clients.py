"""Clients: obedient and not, patient and not, each for itself; and one who changes the quotas."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.server.memory_network import UNLIMITED
from tests.simulation.auditor import Auditor, Line, Sent
from tests.simulation.clock import NS_PER_MS
from tests.simulation.requests import Requests

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from tidegate.wire import encode_request, read_response

__all__ = ["CLIENT_IDS", "HOSTS", "USERS", "Administrator", "Client", "Habits"]

USERS = ("ANONYMOUS", "alice", "bob b", "carol")
CLIENT_IDS = ("c1", "c2", "c*3", "")
HOSTS = tuple(f"192.0.2.{number}" for number in range(1, 5))
_RECONNECT_MS = 200

Connect = Callable[[str, str, int, int], Line]
"""Returns a new connection of a user and a host, with the most bytes of one call and the room to begin with."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a client goes about.

    obeys: holds back for a throttle time. depth: most requests without an answer. pause_ms: between two looks, on
    average. takes: most bytes that it reads at a look, None: all there are. most_bytes: what one call of the network
    moves. halts: sends in parts. lifetime: requests of a connection, on average. ends: how it leaves.
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
    def random(cls, rng: Random) -> "Habits":
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
            user=rng.choice(USERS), host=rng.choice(HOSTS), client_ids=rng.sample(CLIENT_IDS, rng.choice((1, 1, 2))),
            kinds=kinds, obeys=rng.random() < 0.5, depth=rng.choice((1, 1, 2, 5, 20, 50)),
            pause_ms=rng.choice((50, 200, 500, 2000)), takes=rng.choice((None, None, None, None, 0, 700, 20_000)),
            most_bytes=rng.choice((UNLIMITED, UNLIMITED, 1448, 65_536)), halts=rng.random() < 0.2,
            lifetime=rng.choice((20, 300, 10_000)),
            ends=rng.choice((("half", "break"), ("half",), ("close",))),
        )  # fmt: skip


class _Connected:
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


class Client(_Connected):
    """One client, with one connection at a time."""

    def __init__(self, auditor: Auditor, connect: Connect, rng: Random, habits: Habits) -> None:
        super().__init__(auditor, connect, rng)
        self.habits = habits
        self._requests = Requests(auditor, rng, habits.client_ids, habits.kinds)
        self._held_until_ns = 0
        self._rest = b""
        self.resting = False

    def act(self) -> int:
        """Do the next thing; return in how many ms to come again."""
        rng, habits = self._rng, self.habits
        if self.line is None:
            if not self.resting:
                room = UNLIMITED if habits.takes is None else rng.randint(0, habits.takes)
                self.line = self._connect(habits.user, habits.host, habits.most_bytes, room)
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


Entity = tuple[tuple[str, str | None], ...]
_RATES = {
    "producer_byte_rate": (2_000.0, 20_000.0, 200_000.0, 2e6),
    "consumer_byte_rate": (2_000.0, 20_000.0, 200_000.0, 2e6),
    "request_percentage": (0.01, 0.5, 5.0, 50.0),
    "controller_mutation_rate": (0.1, 1.0, 5.0),
    "connection_creation_rate": (1.0, 2.0, 10.0),
}
_ENTITY_TYPES = ("user", "client-id")


class Administrator(_Connected):
    """Sets and removes quotas of all levels, one at a time, and knows which hold."""

    USER, CLIENT_ID, HOST = "admin", "admin", "192.0.2.99"

    def __init__(self, auditor: Auditor, connect: Connect, rng: Random) -> None:
        super().__init__(auditor, connect, rng)
        self.quotas: dict[tuple[Entity, str], float] = {}
        self._unsure: tuple[tuple[Entity, str], float | None] | None = None
        self._asked: str | None = None

    def act(self) -> int:
        """Change a quota, or look whether those that were acknowledged hold."""
        rng = self._rng
        if self.line is None:
            self.line = self._connect(self.USER, self.HOST, UNLIMITED, UNLIMITED)
            self._asked = None
            return 1
        for answer, _ in self._take(UNLIMITED):
            self._on_answer(answer)
        if self.line.closed:
            self._let_go()
            return 50
        if self._asked is None:
            self._ask("describe" if self._unsure or rng.random() < 0.1 else "alter")
        return 1 + int(rng.expovariate(1 / (50 if len(self.quotas) < 10 else 3000)))

    def _ask(self, what: str) -> None:
        assert self.line is not None
        body = {"components": [], "strict": False} if what == "describe" else self._alteration()
        api_key = DESCRIBE_CLIENT_QUOTAS if what == "describe" else ALTER_CLIENT_QUOTAS
        number = self._auditor.next_id()
        frame = encode_request(api_key, 1, number, self.CLIENT_ID, body)
        sent = Sent(number, api_key, 1, self.line, len(frame))
        self._asked = what
        self._auditor.on_sent(sent)
        self.line.client_plan([sent])
        self.line.client_send(frame)

    def _alteration(self) -> dict[str, Any]:
        """Return a change of one quota of anybody but the administrator."""
        rng = self._rng
        if rng.random() < len(self.quotas) / 24:
            (entity, key), value = rng.choice(sorted(self.quotas, key=repr)), None
        else:
            entity, key = self._some_entity(), rng.choice(tuple(_RATES)[:4])
            if entity[0][0] == "ip":
                key = "connection_creation_rate"
            value = rng.choice(_RATES[key])
        self._unsure = (entity, key), value
        self._auditor.note(f"quota {entity} {key} {value}")
        self._auditor.seen[
            "level " + ", ".join(kind if name else f"default {kind}" for kind, name in entity)
        ] += 1
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
        op = {"key": key, "value": value or 0.0, "remove": value is None}
        return {"entries": [{"entity": parts, "ops": [op]}], "validate_only": False}

    def _some_entity(self) -> Entity:
        rng = self._rng
        if rng.random() < 0.1:
            return (("ip", rng.choice((None, *HOSTS))),)
        kinds = rng.choice((("user",), ("client-id",), _ENTITY_TYPES, _ENTITY_TYPES))
        names = {"user": (None, *USERS), "client-id": (None, *filter(None, CLIENT_IDS))}
        return tuple((kind, rng.choice(names[kind])) for kind in kinds)

    def _on_answer(self, answer: bytes) -> None:
        asked, self._asked = self._asked, None
        if asked == "alter":
            (entry,) = read_response(ALTER_CLIENT_QUOTAS, 1, answer, 5)["entries"]
            assert entry["error_code"] == 0, entry
            assert self._unsure is not None
            self._hold(*self._unsure)
            self._unsure = None
        else:
            self._compare(read_response(DESCRIBE_CLIENT_QUOTAS, 1, answer, 5)["entries"])

    def _hold(self, which: tuple[Entity, str], value: float | None) -> None:
        if value is None:
            self.quotas.pop(which, None)
        else:
            self.quotas[which] = value

    def _compare(self, entries: list[dict[str, Any]]) -> None:
        """What was acknowledged holds; what was not may hold."""
        found = {}
        for entry in entries:
            parts = {part["entity_type"]: part["entity_name"] for part in entry["entity"]}
            entity = tuple((kind, parts[kind]) for kind in ("user", "client-id", "ip") if kind in parts)
            found.update({(entity, value["key"]): value["value"] for value in entry["values"]})
        if self._unsure is not None and found.get(self._unsure[0]) == self._unsure[1]:
            self._hold(*self._unsure)
        self._unsure = None
        if found != self.quotas:
            self._auditor.fail(self.line, f"quotas are {found}, {self.quotas} were acknowledged")
