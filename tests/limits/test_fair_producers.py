"""Tenants that make up producer ids evict no other tenant's producer state: its retry is not stored twice."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.batches import build_batch
from tests.limits.frames import LIST_OFFSETS, PRODUCE, list_offsets, produce, request
from tests.limits.tenants import (
    ADMIN,
    TenantConnection,
    TenantsBroker,
    first_operation,
    grant,
    tenants_broker,
)

from tidegate.acl import codes as acl
from tidegate.storage.log.producers import MAX_PRODUCER_BYTES, MAX_PRODUCERS

pytestmark = pytest.mark.alone

PARTITIONS = 80
IDS = 1500
LEAST_STATE_BYTES = 600
VICTIM_ID = 77
MADE_UP = 10**12


def batch(producer_id: int, sequence: int = 0) -> bytes:
    """Return a batch with one record of a producer."""
    now_ms = time.time_ns() // 1_000_000
    return build_batch(
        [(None, b"")],
        timestamp_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )


def flood(
    client: TenantConnection, topic: str, *, ids: int, first: int = MADE_UP, partitions: int = 1
) -> None:
    """Write one batch of each of many producers to each partition of a topic."""
    frames = []
    for producer_id in range(first, first + ids):
        records = batch(producer_id)
        parts = [{"index": index, "records": records} for index in range(partitions)]
        message = {**produce(topic, []), "topic_data": [{"name": topic, "partition_data": parts}]}
        frames.append(request(PRODUCE, 8, message))
    client.ask_all(frames, together=10)


def send(client: TenantConnection, topic: str, sequence: int) -> dict[str, Any]:
    """Write the victim's batch with a sequence number and return the answer for its partition."""
    answer = client.ask(PRODUCE, 8, produce(topic, [batch(VICTIM_ID, sequence)], acks=-1))
    (part,) = answer["responses"][0]["partition_responses"]
    assert part["error_code"] == 0, part
    return part


def stored(client: TenantConnection, topic: str) -> int:
    """Return how many records the victim's partition holds."""
    answer = client.ask(LIST_OFFSETS, 5, list_offsets(topic, [-1]))
    return answer["topics"][0]["partitions"][0]["offset"]


def attack(broker: TenantsBroker, attackers: tuple[str, ...], first: int = MADE_UP) -> None:
    """Make up more producers than the node remembers, on topics of the attackers' own."""
    ids = IDS // len(attackers) + 100
    assert len(attackers) * ids * PARTITIONS * LEAST_STATE_BYTES > MAX_PRODUCER_BYTES
    for attacker in attackers:
        with broker.log_in(attacker) as client:
            flood(client, f"{attacker}-t", ids=ids, first=first, partitions=PARTITIONS)


@pytest.mark.parametrize("attackers", [("mallory",), ("mallory", "eve")], ids=len)
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_a_retry_is_not_stored_twice(tmp_path: Path, attackers: tuple[str, ...], restart: bool) -> None:
    """1,500 producer ids on each of 80 partitions fill the node's bound; another tenant's state stays."""
    with tenants_broker(tmp_path, (*attackers, "victim")) as broker:
        with broker.log_in("victim") as client:
            client.create("victim-t")
            send(client, "victim-t", 0)
        for attacker in attackers:
            with broker.log_in(attacker) as client:
                client.create(f"{attacker}-t", PARTITIONS)
        attack(broker, attackers)
        if restart:
            broker.restart(kill=True)
            attack(broker, attackers, first=2 * MADE_UP)
        with first_operation(), broker.log_in("victim") as client:
            assert send(client, "victim-t", 0)["base_offset"] == 0
            assert stored(client, "victim-t") == 1
            assert send(client, "victim-t", 1)["base_offset"] == 1


@pytest.mark.parametrize("attackers", [("mallory",), ("mallory", "eve")], ids=len)
def test_tenants_of_one_partition_keep_their_producers(tmp_path: Path, attackers: tuple[str, ...]) -> None:
    """Where several tenants write to one partition, none evicts another's producers by making up its own."""
    with tenants_broker(tmp_path, (*attackers, "victim")) as broker:
        with broker.log_in(ADMIN) as admin:
            admin.create("shared")
            for tenant in (*attackers, "victim"):
                grant(admin, tenant, acl.TOPIC, "shared", acl.READ, acl.WRITE)
        with broker.log_in("victim") as client:
            send(client, "shared", 0)
        for number, attacker in enumerate(attackers, 1):
            with broker.log_in(attacker) as client:
                flood(client, "shared", ids=MAX_PRODUCERS + 500, first=number * MADE_UP)
        with first_operation(), broker.log_in("victim") as client:
            before = stored(client, "shared")
            assert send(client, "shared", 0)["base_offset"] == 0
            assert stored(client, "shared") == before
