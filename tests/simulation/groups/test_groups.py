"""Consumer groups under whatever happens: seeded clients, restarts and a slow disk; an auditor, and rest at the end."""

import os
import random
from collections import Counter

import pytest
from tests.simulation.groups.world import PARTITIONS, World

from tidegate.groups import rebalances

STEPS = 3_000
"""Of one world, which comes to rest after them."""
SEEDS = 12


@pytest.mark.parametrize("number", range(SEEDS))
def test_groups_whatever_happens(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promises hold at each step; when faults end, every group settles with the clients that are there.

    In every other world a group of two members is a large one, whose members are answered in several turns.
    """
    if number % 2:
        monkeypatch.setattr(rebalances, "_ANSWERED_AT_ONCE", 1)
    given = os.environ.get("TIDEGATE_GROUP_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"\nTIDEGATE_GROUP_SEED={seed}")
    run(seed, STEPS)


def run(seed: int, steps: int) -> dict[str, int]:
    """Let worlds of `STEPS` steps live and come to rest, until so many steps are over; return what was counted.

    Raises `AssertionError`, with a note that says which world it was.
    """
    counted = Counter[str]()
    for number in range(-(-steps // STEPS)):
        of_world = seed + number
        try:
            world = _lived(of_world)
        except Exception as error:
            error.add_note(f"TIDEGATE_GROUP_SEED={of_world}")
            raise
        counted.update(
            steps=STEPS,
            answers=world.answers,
            commits=world.auditor.commits,
            starts=len(world.auditor.starts),
        )
    return dict(counted)


def _lived(seed: int) -> World:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
    check_rest(world)
    assert world.auditor.commits > 50
    assert world.answers > 100
    return world


def check_rest(world: World) -> None:
    """Every group is stable with exactly its clients, each has its part, and nobody waits; or it is empty."""
    for group_id, group in world.coordinator.groups.items():
        clients = [client for client in world.clients if client.group_id == group_id]
        if not group.members:
            assert group.state.value == "Empty"
            assert not clients
            continue
        assert group.state.value == "Stable", f"{group_id!r} is {group.state.value}"
        ids = Counter(client.instance_id for client in clients if client.instance_id)
        if max(ids.values(), default=1) > 1:
            continue  # two that say to be the same static member fence each other for ever
        assigned = b"".join(member.assignment for member in group.members.values())
        assert sorted(assigned) == list(range(PARTITIONS))
        mine = [client for client in world.clients if client.group_id == group_id and client.is_assigned]
        assert {client.member_id for client in mine} == set(group.members)
        assert all(client.generation == group.generation for client in mine)
