"""Tenants that fill the room for committed offsets shut out no other tenant."""

from pathlib import Path
from typing import Any

import pytest
from tests.limits.tenants import TenantConnection, first_operation, tenants_broker

from tidegate import error_codes
from tidegate.api_keys import OFFSET_COMMIT, OFFSET_FETCH
from tidegate.storage.groups.committed_offsets import MAX_OFFSET_BYTES

pytestmark = pytest.mark.alone

PARTITIONS = 1000
METADATA = "m" * 4096


def commit(client: TenantConnection, group_id: str, topic: str, count: int, metadata: str) -> set[int]:
    """Commit in the first partitions of a topic; return the error codes."""
    part: dict[str, Any] = {
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }
    parts = [{**part, "partition_index": index} for index in range(count)]
    message = {"group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = client.ask(OFFSET_COMMIT, 5, {**message, "topics": [{"name": topic, "partitions": parts}]})
    return {part["error_code"] for part in answer["topics"][0]["partitions"]}


def fill(client: TenantConnection, prefix: str = "") -> int:
    """Commit with long metadata, for a new group each time, until a small commit is refused; return the bytes."""
    topic, taken = f"{client.user}-0", 0
    for number in range(2 * MAX_OFFSET_BYTES // (PARTITIONS * len(METADATA))):
        codes = commit(client, f"{client.user}-{prefix}{number}", topic, PARTITIONS, METADATA)
        assert codes <= {0, error_codes.INVALID_COMMIT_OFFSET_SIZE}
        if codes == {error_codes.INVALID_COMMIT_OFFSET_SIZE}:
            break
        taken += PARTITIONS * len(METADATA) * (codes == {0})
    assert commit(client, f"{client.user}-{prefix}more", topic, 1, METADATA) == {
        error_codes.INVALID_COMMIT_OFFSET_SIZE
    }
    return taken


@pytest.mark.parametrize(
    ("attackers", "restart"),
    [(("mallory",), False), (("mallory", "eve"), True)],
    ids=["one", "two, restarted"],
)
def test_another_tenant_commits(tmp_path: Path, attackers: tuple[str, ...], restart: bool) -> None:
    """A newcomer commits within a second, nothing that was committed is lost, and positions may still be moved."""
    with tenants_broker(tmp_path, (*attackers, "victim")) as broker:
        with broker.log_in("victim") as client:
            client.create("victim-0", 4)
        for number, attacker in enumerate(attackers, 1):
            with broker.log_in(attacker) as client:
                client.create(f"{attacker}-0", PARTITIONS)
                taken = fill(client)
                assert 0.8 * MAX_OFFSET_BYTES / 2**number < taken < MAX_OFFSET_BYTES / 2**number
        if restart:
            broker.restart(kill=True)
        for attacker in attackers:
            with broker.log_in(attacker) as client:
                assert fill(client, "again-") == 0
                assert commit(client, f"{attacker}-0", f"{attacker}-0", PARTITIONS, METADATA) == {0}
                wanted = [{"name": f"{attacker}-0", "partition_indexes": [0, PARTITIONS - 1]}]
                found = client.ask(OFFSET_FETCH, 5, {"group_id": f"{attacker}-0", "topics": wanted})
                assert [part["metadata"] for part in found["topics"][0]["partitions"]] == [METADATA] * 2
        with first_operation(), broker.log_in("victim") as client:
            assert commit(client, "victim-0", "victim-0", 4, METADATA) == {0}


def test_a_group_counts_for_its_creator(tmp_path: Path) -> None:
    """Also where another client commits for it, and after a restart."""
    with tenants_broker(tmp_path, ("mallory", "victim")) as broker:
        with broker.log_in("mallory") as client:
            client.create("mallory-0", PARTITIONS)
            assert commit(client, "mallory-shared", "mallory-0", 1, "") == {0}
        broker.restart()
        with broker.log_in("mallory") as client:
            fill(client)
        with broker.log_in("admin") as client:
            refused = commit(client, "mallory-shared", "mallory-0", PARTITIONS, METADATA)
            assert error_codes.INVALID_COMMIT_OFFSET_SIZE in refused
            assert commit(client, "admin-0", "mallory-0", PARTITIONS, METADATA) == {0}
