"""A coordinator on a clock that is moved by hand, with a store that keeps in memory, at once or when it is told to."""

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.groups import GroupCoordinator, GroupSettings, JoinRequest, StoredGroup, SyncRequest

NOW_MS = 1_700_000_000_000


class Store:
    """A `GroupStore`. `holds`: what is saved waits for `release`."""

    max_bytes = 1_048_588

    def __init__(self, world: "World") -> None:
        self.world = world
        self.kept: dict[str, StoredGroup] = {}
        self.holds = self.fails = False
        self._waiting: list[tuple[StoredGroup, Callable[[bool, int], None]]] = []

    def save(self, group: StoredGroup, on_stored: Callable[[bool, int], None]) -> None:
        """Keep a group."""
        self._waiting.append((group, on_stored))
        if not self.holds:
            self.release()

    def owner(self, group_id: str) -> str | None:
        """Return that no positions are kept of a group."""
        return None

    def forget(self, group_id: str) -> None:
        """Keep a group no longer, when what waits before is kept."""
        self.release()
        self.kept.pop(group_id, None)

    def release(self) -> None:
        """Say of all that waits that it is kept, or that it failed."""
        waiting, self._waiting = self._waiting, []
        for group, on_stored in waiting:
            if not self.fails:
                self.kept[group.group_id] = group
            on_stored(not self.fails, self.world.now_ms)


class Connection:
    """A `Source`."""

    def __init__(self) -> None:
        self.throttled_ms = 0


class Asked(list[dict[str, Any]]):
    """The answers to one request: none yet, or one."""

    @property
    def answer(self) -> dict[str, Any]:
        """Return the only answer."""
        (answer,) = self
        return answer

    @property
    def code(self) -> int:
        """Return the error code of the only answer."""
        return int(self.answer["error_code"])


class World:
    """The coordinator, its store and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = NOW_MS
        self.settings = GroupSettings(**settings)
        self.store = Store(self)
        self.start()

    def start(self) -> None:
        """Start the coordinator, with what was kept."""
        numbers = iter(range(1, 1_000_000))
        self.coordinator = GroupCoordinator(self.settings, self.store, new_id=lambda: f"{next(numbers):04}")
        for stored in list(self.store.kept.values()):
            self.coordinator.restore(stored, self.now_ms)

    @property
    def member_count(self) -> int:
        """Return the number of members, including ids that were given out and not used yet."""
        table = self.coordinator.table
        return table.members.used + len(table.pending)

    def advance(self, ms: int) -> None:
        """Let time pass; the coordinator is called when it wants to be."""
        end_ms = self.now_ms + ms
        while (next_ms := self.coordinator.next_ms()) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self.coordinator.run(self.now_ms)
        self.now_ms = end_ms

    def join(self, member_id: str = "", **fields: Any) -> Asked:
        """Ask to join group g; fields as of `JoinRequest`."""
        asked = Asked()
        request: dict[str, Any] = {
            "group_id": "g",
            "member_id": member_id,
            "instance_id": None,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [("range", b"m")],
            **fields,
        }
        self.coordinator.join(JoinRequest(**request), asked.append, self.now_ms)
        return asked

    def enter(self, **fields: Any) -> tuple[str, Asked]:
        """Ask for a member id and join with it; return it and the answers to the second request."""
        member_id = self.join(**fields).answer["member_id"]
        return member_id, self.join(member_id, **fields)

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> Asked:
        """Ask for an assignment; fields as of `SyncRequest`."""
        asked = Asked()
        request: dict[str, Any] = {
            "group_id": "g",
            "member_id": member_id,
            "instance_id": None,
            "generation": generation,
            "assignments": assignments or {},
            **fields,
        }
        self.coordinator.sync(SyncRequest(**request), asked.append, self.now_ms)
        return asked

    def beat(
        self, member_id: str, generation: int, instance_id: str | None = None, source: Any = None
    ) -> int:
        """Send a heartbeat; return its error code."""
        return self.coordinator.heartbeat("g", member_id, instance_id, generation, self.now_ms, source)

    def commit(self, member_id: str = "", generation: int = -1, instance_id: str | None = None) -> int | None:
        """Return the error for a commit."""
        return self.coordinator.commit_problem("g", member_id, instance_id, generation, self.now_ms)

    def leave(self, *members: tuple[str, str | None], group_id: str = "g") -> list[int]:
        """Let members leave; return their error codes."""
        codes = [self.coordinator.leave(group_id, *member) for member in members]
        if 0 in codes:
            self.coordinator.rebalance_without(group_id, None, self.now_ms)
        return codes

    def stable(self, count: int = 1, **fields: Any) -> tuple[list[str], int]:
        """Bring `count` members into a stable group; return their ids, the leader's first, and the generation."""
        entered = [self.enter(**fields) for _ in range(count)]
        self.advance(self.settings.initial_rebalance_delay_ms * count)
        ids = [member_id for member_id, _ in entered]
        answers = [asked.answer for _, asked in entered]
        assert {answer["error_code"] for answer in answers} == {0}
        leader, generation = answers[0]["leader"], answers[0]["generation_id"]
        self.synced(ids, leader, generation)
        return sorted(ids, key=lambda member_id: member_id != leader), generation

    def synced(self, ids: Sequence[str], leader: str, generation: int) -> None:
        """Assign each member its own id."""
        asked = [
            self.sync(
                member_id, generation, {each: each.encode() for each in ids} if member_id == leader else None
            )
            for member_id in ids
        ]
        assert [one.answer["assignment"] for one in asked] == [member_id.encode() for member_id in ids]

    @property
    def state(self) -> str:
        """Return the state of group g."""
        return str(self.coordinator.groups["g"].state.value)

    @property
    def members(self) -> list[str]:
        """Return the ids of the members of group g."""
        return list(self.coordinator.groups["g"].members)
