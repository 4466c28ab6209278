"""Tenants that fill the cache of fetch sessions take no other tenant's session, nor the room for a new one."""

import contextlib
from pathlib import Path

import pytest
from tests.limits.frames import FETCH, fetch, request
from tests.limits.tenants import TenantConnection, TenantsBroker, first_operation, tenants_broker

from tidegate.storage.config import MAX_PARTITIONS

pytestmark = pytest.mark.alone

SLOTS = 1000
LARGE_SESSIONS = ((MAX_PARTITIONS, 40), (100, 60), (1, 60))
"""Partitions of a session, and how many such sessions: the first take all memory but for little, the last the rest."""


def begin(client: TenantConnection, partitions: int = 1) -> int:
    """Begin a session on the tenant's topic and return its id, 0 where there is none."""
    asked = {**fetch(f"{client.user}-t", range(partitions)), "min_bytes": 0, "session_epoch": 0}
    answer = client.ask(FETCH, 11, asked)
    assert answer["error_code"] == 0, answer
    return answer["session_id"]


def attack(broker: TenantsBroker, attackers: tuple[str, ...], *, large: bool) -> None:
    """Begin more sessions than there is room for: many small ones, or few large ones."""
    for attacker in attackers:
        with broker.log_in(attacker) as client:
            for partitions, count in LARGE_SESSIONS if large else ((1, SLOTS + 100),):
                asked = fetch(f"{attacker}-t", range(partitions))
                frame = request(FETCH, 11, {**asked, "min_bytes": 0, "session_epoch": 0})
                client.ask_all([frame] * count, together=4)


@pytest.mark.parametrize("attackers", [("mallory",), ("mallory", "eve")], ids=len)
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("large", [False, True], ids=["slots", "bytes"])
def test_another_tenant_gets_a_session(
    tmp_path: Path, attackers: tuple[str, ...], restart: bool, large: bool
) -> None:
    """A tenant gets a session beside full slots, or full memory, and keeps it while the others go on."""
    with tenants_broker(tmp_path, (*attackers, "victim")) as broker, contextlib.ExitStack() as opened:
        for tenant in (*attackers, "victim"):
            with broker.log_in(tenant) as client:
                client.create(f"{tenant}-t")
        attack(broker, attackers, large=large)
        if restart:
            broker.restart(kill=True)
            attack(broker, attackers, large=large)
        with first_operation():
            client = opened.enter_context(broker.log_in("victim"))
            session_id = begin(client)
        assert session_id
        attack(broker, attackers, large=large)
        asked = {**fetch("victim-t"), "min_bytes": 0, "session_id": session_id, "session_epoch": 1}
        answer = client.ask(FETCH, 11, {**asked, "topics": []})
        assert (answer["error_code"], answer["session_id"]) == (0, session_id)
