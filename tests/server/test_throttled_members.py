"""Members of groups whose connection a quota mutes for longer than their session lasts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.server.whole_node import RawClient, whole_node
from tests.unit.storage.logs import batch

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_TOPICS,
    HEARTBEAT,
    JOIN_GROUP,
    PRODUCE,
    SYNC_GROUP,
)
from tidegate.error_codes import NONE, UNKNOWN_MEMBER_ID
from tidegate.wire import API_BY_KEY, encode_request, read_response

SESSION_MS = 300
RATE = 1000.0
VALUE_BYTES = 11_000  # some 1.2 s of throttle

pytestmark = pytest.mark.alone


async def ask(client: RawClient, api_key: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer in the newest version."""
    api = API_BY_KEY[api_key]
    frame = await client.ask(encode_request(api_key, api.max_version, 1, "c", message)[4:])
    assert frame is not None
    at = 5 if api.has_tagged_response_header(api.max_version) else 4
    return read_response(api_key, api.max_version, frame, at)


async def member_of(client: RawClient) -> dict[str, Any]:
    """Join a group alone; return what a heartbeat says."""
    joining: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 1000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "reason": None,
    }
    joining["member_id"] = (await ask(client, JOIN_GROUP, joining))["member_id"]
    joined = await ask(client, JOIN_GROUP, joining)
    member = {
        "group_id": "g",
        "generation_id": joined["generation_id"],
        "member_id": joining["member_id"],
        "group_instance_id": None,
    }
    synced = await ask(
        client,
        SYNC_GROUP,
        {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": []},
    )
    assert synced["error_code"] == NONE
    return member


@pytest.mark.parametrize(("exact", "code"), [("false", NONE), ("true", UNKNOWN_MEMBER_ID)])
def test_throttled_member_is_not_thrown_out(tmp_path: Path, exact: str, code: int) -> None:
    """Its heartbeat, sent at once and served when the throttle is over, finds it in the group; not so in Kafka."""

    async def main() -> None:
        settings = {
            "group_min_session_timeout_ms": str(SESSION_MS),
            "group_initial_rebalance_delay_ms": "0",
            "tidegate_kafka_exact": exact,
        }
        async with whole_node(tmp_path, **settings) as node:
            other = RawClient(node.client.port)
            topic = {
                "name": "t",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            await ask(other, CREATE_TOPICS, {"topics": [topic], "timeout_ms": 1000, "validate_only": False})
            ops = [{"key": "producer_byte_rate", "value": RATE, "remove": False}]
            entity = [{"entity_type": "client-id", "entity_name": "c"}]
            entries = [{"entity": entity, "ops": ops}]
            await ask(other, ALTER_CLIENT_QUOTAS, {"entries": entries, "validate_only": False})
            await other.close()
            member = await member_of(node.client)
            topic_id = node.storage.topics.by_name["t"].topic_id
            part = {"index": 0, "records": batch(value=bytes(VALUE_BYTES))}
            produced = await ask(
                node.client,
                PRODUCE,
                {
                    "transactional_id": None,
                    "acks": 1,
                    "timeout_ms": 1000,
                    "topic_data": [{"topic_id": topic_id, "partition_data": [part]}],
                },
            )
            assert produced["throttle_time_ms"] > 2 * SESSION_MS
            assert (await ask(node.client, HEARTBEAT, member))["error_code"] == code

    asyncio.run(main())
