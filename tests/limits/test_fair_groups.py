"""Tenants that fill the room for members of consumer groups shut out no other tenant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.limits.frames import request
from tests.limits.tenants import TenantConnection, first_operation, tenants_broker
from tests.limits.watched import Connection

from tidegate import error_codes
from tidegate.api_keys import JOIN_GROUP, OFFSET_COMMIT, SYNC_GROUP
from tidegate.groups.settings import MAX_EMPTY_GROUP_BYTES, MAX_MEMBERS, MAX_METADATA_BYTES, MAX_PENDING_BYTES

pytestmark = pytest.mark.alone

SESSION_MS = 1_800_000
AT_ONCE = 500


def joining(group_id: str, metadata: bytes = b"", **fields: Any) -> dict[str, Any]:
    """Return a JoinGroup of a new member, whose session is as long as it may be."""
    return {
        "group_id": group_id,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "x",
        "protocols": [{"name": "x", "metadata": metadata}],
        **fields,
    }


def assigning(group_id: str, member_id: str) -> dict[str, Any]:
    """Return the SyncGroup of the leader of a first generation."""
    ids = {"group_id": group_id, "generation_id": 1, "member_id": member_id}
    return {**ids, "assignments": [{"member_id": member_id, "assignment": b""}]}


def fill(client: TenantConnection, number: int, metadata: bytes) -> int:
    """Join groups of one member each until the broker refuses; return how many members that makes."""
    for at in range(number):
        group_id = f"{client.user}-{at}"
        answer = client.ask(JOIN_GROUP, 3, joining(group_id, metadata))
        if answer["error_code"] != 0:
            assert answer["error_code"] == error_codes.GROUP_MAX_SIZE_REACHED
            return at
        assert client.ask(SYNC_GROUP, 1, assigning(group_id, answer["member_id"]))["error_code"] == 0
    return number


def fill_members(client: TenantConnection) -> None:
    """Join as many members as there may be."""
    assert fill(client, MAX_MEMBERS, b"") in (MAX_MEMBERS // 2, MAX_MEMBERS // 4)


def fill_bytes(client: TenantConnection) -> None:
    """Join members with as much metadata as there may be: a megabyte each."""
    joined = fill(client, MAX_METADATA_BYTES >> 20, bytes(1_000_000))
    assert (joined << 20) * 5 > MAX_METADATA_BYTES, "the first gets half, the second a quarter"


def fill_pending(client: TenantConnection) -> None:
    """Ask for ids, and use none of them."""
    number = MAX_PENDING_BYTES // 500
    client.ask_all(
        [request(JOIN_GROUP, 5, joining(f"{client.user}-{at % 50}")) for at in range(number)], AT_ONCE
    )


def fill_empty(client: TenantConnection) -> None:
    """Leave as many groups behind as there may be, each with an id that is not used."""
    number = MAX_EMPTY_GROUP_BYTES // 1000
    client.ask_all([request(JOIN_GROUP, 5, joining(f"{client.user}-{at}")) for at in range(number)], AT_ONCE)


def join_and_commit(client: Connection, group_id: str, topic: str) -> None:
    """Join a new group, be assigned, and commit an offset."""
    known = client.ask(JOIN_GROUP, 5, joining(group_id))
    assert known["error_code"] == error_codes.MEMBER_ID_REQUIRED
    member_id = known["member_id"]
    joined = client.ask(JOIN_GROUP, 5, joining(group_id, member_id=member_id))
    assert joined["error_code"] == 0, joined
    assert client.ask(SYNC_GROUP, 1, assigning(group_id, member_id))["error_code"] == 0
    part = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    commit = {"group_id": group_id, "generation_id_or_member_epoch": 1, "member_id": member_id}
    topics = client.ask(OFFSET_COMMIT, 5, {**commit, "topics": [{"name": topic, "partitions": [part]}]})
    assert topics["topics"][0]["partitions"][0]["error_code"] == 0, topics


@pytest.mark.parametrize("filled", [fill_members, fill_bytes, fill_pending, fill_empty])
@pytest.mark.parametrize(
    ("attackers", "restart"),
    [(("mallory",), False), (("mallory", "eve"), True)],
    ids=["one", "two, restarted"],
)
def test_another_tenant_joins(
    tmp_path: Path, filled: Callable[[TenantConnection], None], attackers: tuple[str, ...], restart: bool
) -> None:
    """A newcomer joins and commits within a second; also where the attackers have left, and after a restart."""
    with tenants_broker(tmp_path, (*attackers, "victim")) as broker:
        with broker.log_in("victim") as client:
            client.create("victim-0")
        for attacker in attackers:
            with broker.log_in(attacker) as client:
                filled(client)
        if restart:
            broker.restart(kill=True)
            for attacker in attackers if filled in (fill_members, fill_bytes) else ():
                with broker.log_in(attacker) as client:
                    metadata = b"" if filled is fill_members else bytes(1_000_000)
                    answer = client.ask(JOIN_GROUP, 3, joining(f"{attacker}-more", metadata))
                    assert answer["error_code"] == error_codes.GROUP_MAX_SIZE_REACHED, "members are kept"
        with broker.log_in("victim") as client, first_operation():
            join_and_commit(client, "victim-0", "victim-0")
        with broker.log_in("victim") as client, first_operation():
            join_and_commit(client, "victim-1", "victim-0")
