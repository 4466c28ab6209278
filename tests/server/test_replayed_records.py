"""The record of whole nodes is enough to repeat their decisions, whatever was exchanged, changed or restarted.

The nodes are real, and so are the handlers and the times that these take. What they recorded is decided again twice: by
the engine, and where nothing beyond its rules was on by a plain port of Kafka's classes.
"""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.oracles.recorded import ported_differences
from tests.replaying.engine import decisions, replay_with_engine
from tests.server.nodes import MemoryStore, running_node, spool_events
from tests.server.test_dynamic_settings import alter, callback_of
from tests.server.whole_node import RawClient, WholeNode, spool_of, whole_node
from tests.unit.storage.logs import batch

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    METADATA,
    PRODUCE,
)
from tidegate.callbacks import LimitsByLedPartitions, QuotaGroups
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaRecord
from tidegate.server.settings.setting_changes import DELETE, SET
from tidegate.usage.readers import read_segment
from tidegate.wire import encode_request

CLIENT_IDS = ("c1", "c2", "c3", "")
CLASS, GROUP = "client.quota.callback.class", "client.quota.callback.group.etl"
THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")
QUOTAS = {
    "producer_byte_rate": (300.0, 2000.0),
    "consumer_byte_rate": (300.0, 2000.0),
    "request_percentage": (0.01, 0.05),
    "controller_mutation_rate": (0.2, 2.0),
}
GROUPS = {
    CLASS: "tidegate.callbacks:QuotaGroups",
    f"{GROUP}.members": "client-id:c1, client-id:c2",
    f"{GROUP}.producer_byte_rate": "700",
    f"{GROUP}.consumer_byte_rate": "700",
    f"{GROUP}.request_percentage": "0.02",
    f"{GROUP}.controller_mutation_rate": "1",
}
LED = {CLASS: "tidegate.callbacks:LimitsByLedPartitions"}
EXTENSIONS = {
    "tidegate.quota.observe": "client-id=c1",
    "tidegate.quota.exempt": "client-id=c3",
    "tidegate.quota.throttle.max.ms": "900",
}
BEYOND_THE_PORT = {
    "tidegate.quota.smooth": "client-id=c2",
    "tidegate.quota.debt.max.seconds": "5",
}
NO_ID = "00000000-0000-0000-0000-000000000000"
Event = dict[str, Any]


def _produce(rng: Random) -> tuple[int, int, Event]:
    data = [{"index": number, "records": batch(value=bytes(rng.randrange(4000)))} for number in range(3)]
    topics = [{"name": "t", "partition_data": data}]
    return PRODUCE, 9, {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": topics}


def _fetch(rng: Random) -> tuple[int, int, Event]:
    parts = [
        {
            "partition": number, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
            "log_start_offset": -1, "partition_max_bytes": 9000,
        }
        for number in range(3)
    ]  # fmt: skip
    return FETCH, 12, {
        "replica_id": -1, "max_wait_ms": rng.choice((0, 5)), "min_bytes": 1, "max_bytes": 9000, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "topics": [{"topic": "t", "partitions": parts}],
        "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip


def _topic(rng: Random) -> str:
    return f"topic-{rng.randrange(20)}"


def _create(rng: Random) -> tuple[int, int, Event]:
    topics = [
        {"name": _topic(rng), "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}
        for _ in range(2)
    ]
    return CREATE_TOPICS, rng.choice((5, 7)), {"topics": topics, "timeout_ms": 1000, "validate_only": False}


def _delete(rng: Random) -> tuple[int, int, Event]:
    return DELETE_TOPICS, rng.choice((4, 5)), {"topic_names": [_topic(rng)], "timeout_ms": 1000}


def _grow(rng: Random) -> tuple[int, int, Event]:
    topics = [{"name": _topic(rng), "count": rng.randrange(4, 7), "assignments": None}]
    message = {"topics": topics, "timeout_ms": 1000, "validate_only": False}
    return CREATE_PARTITIONS, rng.choice((2, 3)), message


def _metadata(rng: Random) -> tuple[int, int, Event]:
    return METADATA, 12, {
        "topics": [{"topic_id": NO_ID, "name": _topic(rng)}], "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": False,
    }  # fmt: skip


def _quota(rng: Random) -> tuple[int, int, Event]:
    key = rng.choice(list(QUOTAS))
    op = {"key": key, "value": rng.choice(QUOTAS[key]), "remove": rng.random() < 0.2}
    return _alter(rng.choice((None, "c2", "c3")), [op])


def _quotas_of_c1(rng: Random) -> tuple[int, int, Event]:
    return _alter("c1", [{"key": key, "value": values[0], "remove": False} for key, values in QUOTAS.items()])


def _alter(client_id: str | None, ops: list[Event]) -> tuple[int, int, Event]:
    entity = [{"entity_type": "client-id", "entity_name": client_id}]
    return ALTER_CLIENT_QUOTAS, 0, {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}


_REQUESTS = (_produce, _produce, _fetch, _fetch, _create, _delete, _grow, _metadata, _metadata, _quota)


async def _ask(nodes: WholeNode, rng: Random) -> None:
    """Have some node answer some client."""
    await _ask_for(
        nodes, rng, rng.choice(_REQUESTS), rng.choice(CLIENT_IDS), rng.randrange(len(nodes.clients))
    )


async def _ask_for(nodes: WholeNode, rng: Random, make: Any, client_id: str = "c1", at: int = 0) -> None:
    """Have a node answer a client, on a connection of its own: others may be muted."""
    api_key, version, message = make(rng)
    client = RawClient(nodes.clients[at].port)
    assert await client.ask(encode_request(api_key, version, 1, client_id, message)[4:])
    await client.close()


async def _set(nodes: WholeNode, settings: dict[str, str], operation: int = SET) -> None:
    """Change settings of all nodes, or delete them."""
    ops = [(name, operation, value if operation == SET else None) for name, value in settings.items()]
    assert (await alter(nodes.client, *ops, name=""))[0] == 0


async def _live(nodes: WholeNode, rng: Random, extensions: dict[str, str]) -> None:
    """Go through everything, with requests of all kinds in between."""
    kinds = None, QuotaGroups, LimitsByLedPartitions, None
    for settings, kind in zip(({}, GROUPS, LED, None), kinds, strict=True):
        if settings is None:
            await _set(nodes, {**GROUPS, **LED}, DELETE)
        elif settings:
            await _set(nodes, settings)
        assert kind is None or isinstance(callback_of(nodes), kind)
        for make in (_produce, _fetch, _create) * 3:
            await _ask_for(nodes, rng, make)
        for number in range(50):
            if number == 25 and extensions:
                await _set(nodes, extensions)
            await _ask(nodes, rng)
        if extensions:
            await _set(nodes, extensions, DELETE)
    await _set(nodes, GROUPS)  # the next life begins with it


def _record(directory: Path, node_id: int) -> list[Event]:
    paths = spool_of(directory, node_id).glob("*.closed")
    return sorted((row for path in paths for row in read_segment(path)), key=lambda row: row["seq"])


@pytest.mark.parametrize(
    ("count", "extensions"),
    [(1, {}), (3, EXTENSIONS), (1, {**EXTENSIONS, **BEYOND_THE_PORT})],
    ids=["one", "three nodes", "smooth"],
)
def test_the_record_alone_repeats_every_decision(
    tmp_path: Path, count: int, extensions: dict[str, str]
) -> None:
    """Every throttle time, refusal and observed request of each node, over two lives of it."""
    rng = Random(count)

    async def main() -> None:
        for life in range(2):
            async with whole_node(tmp_path, count) as nodes:
                if life == 0:
                    run_at_once(nodes.storage.topics.create_in_slices("t", 3, {}))
                    await _ask_for(nodes, rng, _quotas_of_c1)
                await _live(nodes, rng, extensions)

    asyncio.run(main())
    seen: Counter[str] = Counter()
    for node_id in range(1, count + 1):
        events = _record(tmp_path, node_id)
        assert decisions(replay_with_engine(events)) == decisions(events)
        if not extensions.keys() & BEYOND_THE_PORT.keys():
            assert ported_differences(events) == []
        callback = None
        for event in events:
            seen[event["kind"]] += 1
            if event["kind"] in ("start", "callback"):
                callback = event["callback"]
            seen["observed"] += event["observed_only"]
            for name in THROTTLES:
                seen[name, callback] += event[name] > 0
    classes = (None, GROUPS[CLASS], LED[CLASS])
    assert {(name, one) for name in THROTTLES for one in classes if not seen[name, one]} == set(), seen
    assert seen["start"] == 2 * count
    assert seen["callback"] == 8 * count, "four times in a life: the second begins with one"
    assert seen["tags"] > 30
    assert (seen["observed"] > 0) == bool(extensions)


def test_a_throttle_time_below_zero_is_in_the_row(tmp_path: Path) -> None:
    """What Kafka makes of one beyond 32 bits (B§2.1): nobody is told of it, and a replay finds it again."""
    store = MemoryStore()
    store.records.append(QuotaRecord(entity=(("client-id", "c1"),), key="producer_byte_rate", value=0.01))
    events: list[Event] = []

    async def main() -> None:
        async with running_node(tmp_path, store, {}) as node:
            client = await node.connect()
            client.send_produce(padding=30_000)
            assert (await client.receive())[1]["throttle_time_ms"] == 0
            events.extend(spool_events(node))

    asyncio.run(main())
    (row,) = [event for event in events if event["kind"] == "request"]
    assert -(2**31) <= row["produce_throttle_ms"] < 0
    assert decisions(replay_with_engine(events)) == decisions(events)
    assert ported_differences(events) == []
