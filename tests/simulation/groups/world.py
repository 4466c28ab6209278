"""A coordinator on a virtual clock under seeded clients: they join, assign, commit, stall, crash, come back and leave.

Every answer goes to the auditor. The coordinator dies and starts again with what its store has kept; the store takes
its time, and fails now and then.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.groups.auditor import Auditor

from tidegate.error_codes import (
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
)
from tidegate.groups import GroupCoordinator, GroupSettings, JoinRequest, StoredGroup, SyncRequest

PARTITIONS = 7
"""What the leader of a group gives out."""
START_MS = 1_700_000_000_000
GROUPS = ("a", "b", "c")
SESSION_MS = 6_000
REBALANCE_MS = 9_000


@dataclass
class Connection:
    """A `Source`."""

    throttled_ms: int = 0
    muted_until_ms: int = 0


@dataclass(eq=False)
class Client:
    """One process of an application: at most one request of it is under way."""

    number: int
    group_id: str
    instance_id: str | None
    protocols: list[tuple[str, bytes]]
    member_id: str = ""
    generation: int = -1
    is_assigned: bool = False
    waits: object | None = None
    next_ms: int = 0
    is_alive: bool = True
    connection: Connection = field(default_factory=Connection)

    def forget(self) -> None:
        """Begin anew, without an id."""
        self.member_id, self.generation, self.is_assigned = "", -1, False


class Store:
    """A `GroupStore` that takes its time."""

    max_bytes = 1_048_588

    def __init__(self, world: "World") -> None:
        self.kept: dict[str, StoredGroup] = {}
        self._world = world
        self._waiting: list[tuple[int, StoredGroup, Callable[[bool, int], None]]] = []

    def save(self, group: StoredGroup, on_stored: Callable[[bool, int], None]) -> None:
        """Keep a group in some milliseconds."""
        self._waiting.append((self._world.now_ms + self._world.rng.choice((0, 1, 20)), group, on_stored))

    def owner(self, group_id: str) -> str | None:
        """Return that no positions are kept of a group."""
        return None

    def forget(self, group_id: str) -> None:
        """Keep a group no longer: there are never so many here."""
        raise AssertionError(group_id)

    def run(self) -> None:
        """Keep what is due, in order."""
        while self._waiting and self._waiting[0][0] <= self._world.now_ms:
            _, group, on_stored = self._waiting.pop(0)
            is_kept = self._world.rng.random() >= self._world.failures
            if is_kept:
                self.kept[group.group_id] = group
            on_stored(is_kept, self._world.now_ms)

    def crash(self) -> None:
        """Lose what is not kept yet, but for what had been on its way to the disk."""
        for _, group, _ in self._waiting[: self._world.rng.randrange(len(self._waiting) + 1)]:
            self.kept[group.group_id] = group
        self._waiting.clear()


class World:
    """The coordinator, its clients and their auditor, driven by one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = START_MS
        self.failures = 0.02
        self.faults = 1.0
        self.settings = GroupSettings(
            initial_rebalance_delay_ms=self.rng.choice((0, 500, 3_000)),
            max_size=self.rng.choice((3, 2**31 - 1)),
        )
        self.store = Store(self)
        self.auditor = Auditor()
        self.clients: list[Client] = []
        self.answers = 0
        self.start()

    def start(self) -> None:
        """Start the coordinator with what was kept."""
        numbers = iter(range(1 << 60))
        lives = len(self.auditor.starts)
        self.coordinator = GroupCoordinator(
            self.settings, self.store, new_id=lambda: f"{lives}-{next(numbers)}"
        )
        self.auditor.start({group_id: kept.generation for group_id, kept in self.store.kept.items()})
        for stored in list(self.store.kept.values()):
            self.coordinator.restore(stored, self.now_ms)

    def step(self) -> None:
        """Let one thing happen, and some time pass."""
        self.now_ms += self.rng.choice((0, 1, 10, 50, 300))
        self.store.run()
        self.coordinator.run(self.now_ms)
        chance = self.rng.random() / self.faults if self.faults else 1.0
        if chance < 0.0015:
            self._restart()
        elif chance < 0.012 and len(self.clients) < 12:
            self._new_client()
        elif chance < 0.02:
            self._hurt()
        for client in self.clients:
            if client.is_alive and client.waits is None and client.next_ms <= self.now_ms:
                self._act(client)
        self.auditor.look(self.coordinator, self.now_ms)

    def settle(self) -> None:
        """Let no more faults happen, until all groups should have come to rest."""
        self.faults = self.failures = 0.0
        for client in self.clients:
            client.next_ms = min(client.next_ms, self.now_ms)
        end_ms = self.now_ms + 20 * REBALANCE_MS
        while self.now_ms < end_ms:
            self.step()

    # --- faults

    def _restart(self) -> None:
        """The broker is killed: connections are gone, and what was not on the disk."""
        self.store.crash()
        for client in self.clients:
            client.waits = None
            client.next_ms = self.now_ms + self.rng.choice((1, 100, 3_000))
            client.connection = Connection()
        self.start()

    def _new_client(self) -> None:
        number = self.auditor.next_number()
        self.clients.append(
            Client(
                number=number,
                group_id=self.rng.choice(GROUPS),
                instance_id=f"static-{number % 4}" if self.rng.random() < 0.3 else None,
                protocols=[
                    (name, b"%d" % number) for name in self.rng.choice((("r",), ("r", "s"), ("s", "r")))
                ],
            )
        )

    def _hurt(self) -> None:
        """Something happens to a client: it dies, stalls, loses its connection, is throttled or leaves."""
        if not self.clients:
            return
        client = self.rng.choice(self.clients)
        kind = self.rng.choice(("die", "stall", "reconnect", "throttle", "leave", "restart", "change"))
        if kind in ("die", "leave", "restart"):
            if kind == "leave" and client.member_id and client.waits is None:
                code = self.coordinator.leave(client.group_id, client.member_id, client.instance_id)
                if code == NONE:
                    self.auditor.left(client.group_id, client.member_id)
                    self.coordinator.rebalance_without(client.group_id, "enough", self.now_ms)
            if kind == "restart":
                client.waits = None
                client.forget()
                client.next_ms = self.now_ms + 100
            else:
                client.is_alive = False
                self.clients.remove(client)
        elif kind == "stall":
            client.next_ms = self.now_ms + self.rng.choice((1_000, SESSION_MS + 1, 2 * REBALANCE_MS))
        elif kind == "reconnect":
            client.waits = None
            client.connection = Connection()
            client.next_ms = self.now_ms + self.rng.choice((1, 200))
        elif kind == "throttle" and client.waits is None and client.connection.muted_until_ms <= self.now_ms:
            throttle_ms = self.rng.choice((100, 3_000, 2 * SESSION_MS))
            client.connection.throttled_ms += throttle_ms
            client.connection.muted_until_ms = self.now_ms + throttle_ms
            client.next_ms = max(client.next_ms, self.now_ms + throttle_ms)
        elif kind == "change":
            client.protocols = [(name, data + b"!") for name, data in client.protocols]
            client.is_assigned = False

    # --- what clients do

    def _act(self, client: Client) -> None:
        if not client.is_assigned:
            self._join(client)
        elif self.rng.random() < 0.5:
            self._beat(client)
        else:
            self._commit(client)

    def _join(self, client: Client) -> None:
        client.waits = token = object()
        needs_known_id = client.number % 5 != 0

        def on_answer(answer: dict[str, Any]) -> None:
            self.auditor.joined(client.group_id, answer, self.coordinator)
            if client.waits is not token:
                return
            client.waits = None
            client.next_ms = self.now_ms + self.rng.choice((0, 1, 50))
            code = answer["error_code"]
            if code == MEMBER_ID_REQUIRED:
                client.member_id = answer["member_id"]
            elif code == NONE:
                client.member_id, client.generation = answer["member_id"], answer["generation_id"]
                self._sync(client, answer)
            elif code != REBALANCE_IN_PROGRESS:
                client.forget()
                client.next_ms = self.now_ms + 500

        member_id = "" if client.instance_id is not None and not client.generation > 0 else client.member_id
        self.coordinator.join(
            JoinRequest(
                group_id=client.group_id,
                member_id=member_id,
                instance_id=client.instance_id,
                client_id=f"c{client.number}",
                client_host="/h",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocol_type="consumer",
                protocols=client.protocols,
                needs_known_id=needs_known_id,
                skips_assignment=bool(client.number % 2),
                source=client.connection,
                owner=f"User:{self.rng.choice((client.number % 3, 3))}",
            ),
            self._once(on_answer),
            self.now_ms,
        )

    def _sync(self, client: Client, joined: dict[str, Any]) -> None:
        assignments = {}
        if joined["leader"] == client.member_id and not joined["skip_assignment"]:
            ids = [member["member_id"] for member in joined["members"]]
            parts: dict[str, list[int]] = {member_id: [] for member_id in ids}
            for partition in range(PARTITIONS):
                parts[ids[(partition + joined["generation_id"]) % len(ids)]].append(partition)
            assignments = {member_id: bytes(mine) for member_id, mine in parts.items()}
        client.waits = token = object()
        generation, member_id = client.generation, client.member_id

        def on_answer(answer: dict[str, Any]) -> None:
            self.auditor.synced(client.group_id, generation, member_id, client.instance_id, answer)
            if client.waits is not token:
                return
            client.waits = None
            client.next_ms = self.now_ms + self.rng.choice((1, 1_000))
            if answer["error_code"] == NONE:
                client.is_assigned = True
            elif answer["error_code"] not in (REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION):
                client.forget()

        self.coordinator.sync(
            SyncRequest(
                group_id=client.group_id,
                member_id=client.member_id,
                instance_id=client.instance_id,
                generation=client.generation,
                assignments=assignments,
                source=client.connection,
            ),
            self._once(on_answer),
            self.now_ms,
        )

    def _beat(self, client: Client) -> None:
        code = self.coordinator.heartbeat(
            client.group_id,
            client.member_id,
            client.instance_id,
            client.generation,
            self.now_ms,
            client.connection,
        )
        self._heard(client, code)

    def _commit(self, client: Client) -> None:
        code = self.coordinator.commit_problem(
            client.group_id,
            client.member_id,
            client.instance_id,
            client.generation,
            self.now_ms,
            client.connection,
        )
        if code == NONE:
            self.auditor.committed(client.group_id, client.member_id, client.generation)
        self._heard(client, code)

    def _heard(self, client: Client, code: int | None) -> None:
        client.next_ms = self.now_ms + self.rng.choice((500, 2_000))
        if code == NONE:
            self.auditor.heard(client.group_id, client.member_id, client.generation)
        elif code in (REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION):
            client.is_assigned = False
            client.next_ms = self.now_ms
        else:
            client.forget()
            if code == FENCED_INSTANCE_ID:
                client.is_alive = False
                self.clients.remove(client)

    def _once(self, on_answer: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """Return what must be called once at the most."""
        lives, called = len(self.auditor.starts), [False]

        def answered(answer: dict[str, Any]) -> None:
            assert not called[0], "a request was answered twice"
            called[0] = True
            self.answers += 1
            if lives == len(self.auditor.starts):
                on_answer(answer)

        return answered
