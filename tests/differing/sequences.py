"""Sequences of requests that need nothing but themselves: they create what they ask for.

A sequence comes from its seed and number alone, and its names are its own, so that it can be played again and again.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.differing.requests import (
    ANONYMOUS,
    COMPARED,
    CONTROL,
    KNOWN_GROUPS,
    NODE,
    OF_MEMBERS,
    OWN_IP,
    RECORDS,
    TOPICS,
    Made,
    make,
    probe,
    records,
)

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_GROUPS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    PRODUCE,
)
from tidegate.wire import API_BY_KEY

__all__ = ["begun", "is_sharing", "make_sequence", "produce"]

LENGTHS = (5, 20, 40, 60)
THROTTLED = 0.04
"""The part of the sequences in which quotas are in force: each takes a second or two."""
CONNECTING = 0.01
"""The part in which connections are limited."""
ENTITIES: tuple[dict[str, str | None], ...] = (
    {"client-id": "c@"}, {"client-id": "c@"}, {"client-id": None}, {"user": ANONYMOUS, "client-id": "c@"},
    {"user": ANONYMOUS, "client-id": None}, {"user": None, "client-id": "c@"}, {"user": None, "client-id": None},
    {"user": "alice", "client-id": "c@"}, {"client-id": "d@"}, {"user": ANONYMOUS, "client-id": "d@"},
)  # fmt: skip
"""Whose quotas."""
SHARED_ENTITIES: tuple[dict[str, str | None], ...] = (
    {"user": ANONYMOUS}, {"user": ANONYMOUS}, {"user": None}, {"client-id": "<default>"},
    {"user": ANONYMOUS, "client-id": "<default>"}, {"user": "<default>"}, {"client-id": ""},
)  # fmt: skip
"""Whose quotas are those of clients of other sequences too: of a user alone, or a client with a name of its own."""
SHARING = 0.2
"""The part of the throttled sequences that has some of them."""
THROTTLED_CLIENTS = (*["c@"] * 7, "d@", "", "a b/ü%@")
QUOTAS: dict[str, tuple[float, ...]] = {
    "producer_byte_rate": (1000.0, 1010.0, 1.0, 1e6),
    "consumer_byte_rate": (1000.0, 400.0, 100.0, 1e6),
    "controller_mutation_rate": (1.1, 0.5, 1.25, 100.0),
    "request_percentage": (1e-6, 1e5),
}
"""With the first of each, requests as they are made here are throttled for some 100 ms; with 1e-6 for a second."""
VALUE_BYTES = (50, 200, 9_800, 10_000, 10_300)


def make_sequence(seed: int, number: int, keys: Sequence[int] = COMPARED) -> list[Made]:
    """Return the requests of sequence `number`, with those of `keys` only, but for what they need to begin with."""
    rng = random.Random(f"{seed}-{number}")
    throttled = sorted(set(_THROTTLED) & set(keys))
    if throttled and rng.random() < THROTTLED:
        return _throttled(rng, throttled)
    if INCREMENTAL_ALTER_CONFIGS in keys and rng.random() < CONNECTING:
        return _connecting(rng)
    made = [make(rng.choice(keys), rng) for _ in range(rng.choice(LENGTHS))]
    return [*begun(groups=any(one.api_key in _OF_GROUPS for one in made)), *made]


_OF_GROUPS = (
    OFFSET_COMMIT, OFFSET_FETCH, OFFSET_DELETE, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, *OF_MEMBERS,
)  # fmt: skip


def begun(*, groups: bool) -> list[Made]:
    """Return what creates the topics of the beginning, with some records, and groups with a position."""
    made = [create_topics(TOPICS), *(_filled(number) for number in range(RECORDS))]
    return made + [_commit(group_id) for group_id in KNOWN_GROUPS] if groups else made


def create_topics(topics: dict[str, int], **options: Any) -> Made:
    """Return what creates topics; they keep records that are older than the retention of the default."""
    return _made(
        CREATE_TOPICS,
        API_BY_KEY[CREATE_TOPICS].max_version,
        topics=[
            {
                "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
                "configs": [{"name": "retention.ms", "value": "-1"}],
            }
            for name, partitions in topics.items()
        ],
        **{"timeout_ms": 30_000, "validate_only": False, **options},
    )  # fmt: skip


def produce(parts: dict[tuple[str, int], Any], *, acks: int = -1) -> Made:
    """Return a request with these records by topic and partition."""
    topics = dict.fromkeys(name for name, _ in parts)
    return _made(
        PRODUCE,
        9,
        transactional_id=None,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            {
                "name": topic,
                "partition_data": [
                    {"index": index, "records": batch}
                    for (name, index), batch in parts.items()
                    if name == topic
                ],
            }
            for topic in topics
        ],
    )


def _filled(number: int) -> Made:
    parts = [(name, index) for name in ("one@", "three@") for index in range(TOPICS[name])]
    return produce(dict.fromkeys(parts, records(20, later_ms=number)))


def _commit(group_id: str) -> Made:
    part = {
        "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "",
    }  # fmt: skip
    return _made(
        OFFSET_COMMIT, 9, group_id=group_id, generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None, topics=[{"name": "one@", "partitions": [part]}],
    )  # fmt: skip


def _throttled(rng: random.Random, keys: list[int]) -> list[Made]:
    """Return requests of which some are throttled, between changes of the quotas, most of them of one type."""
    big = produce({("one@", 0): records(3_400)})
    entities, clients = ENTITIES, THROTTLED_CLIENTS
    if rng.random() < SHARING:
        entities, clients = (*SHARED_ENTITIES, *ENTITIES[:4]), (*clients, "<default>")
    mostly = rng.choice(tuple(QUOTAS))
    of_type = [key for key in _OF_TYPE[mostly] if key in keys] or keys
    alterations = [_alter(rng, entities, rng.choice((mostly, mostly, None))) for _ in range(3)]
    made = [create_topics({"one@": 1, "three@": 3}), big, big, big, *alterations]
    for _ in range(rng.choice((4, 7, 10))):
        one = _THROTTLED[rng.choice(of_type if rng.random() < 0.7 else keys)](rng)
        named = clients if one.api_key in (PRODUCE, FETCH) else THROTTLED_CLIENTS
        made.append(replace(one, client=rng.choice(named)))
        if rng.random() < 0.2:
            made.append(_alter(rng, entities, rng.choice((mostly, None))))
    return made


def _alter(
    rng: random.Random,
    entities: Sequence[dict[str, str | None]] = ENTITIES,
    key: str | None = None,
) -> Made:
    key = key or rng.choice(tuple(QUOTAS))
    op = {"key": key, "value": rng.choice(QUOTAS[key]), "remove": rng.random() < 0.1}
    return _alter_quota(rng.choice(entities), op)


def _alter_quota(entity: dict[str, str | None], op: dict[str, Any]) -> Made:
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    return _made(ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": parts, "ops": [op]}], validate_only=False)


def _connecting(rng: random.Random) -> list[Made]:
    """Return requests on many connections, between changes of what limits connections of their address."""
    made, number = [], 0
    for _ in range(rng.choice((2, 3))):
        made += [_limit(rng) for _ in range(rng.choice((1, 1, 2)))]
        for _ in range(rng.choice((3, 6, 11))):
            number += 1
            made.append(probe(f"k{number}@"))
    return made


def _limit(rng: random.Random) -> Made:
    """Return what limits the connections of the sequence's address: their rate, or how many there may be."""
    if rng.random() < 0.6:
        entity = {"ip": rng.choice((OWN_IP, OWN_IP, None))}
        value = rng.choice((1.0, 1.0, 1.0000001, 2.0, 1000.0))
        op = {"key": "connection_creation_rate", "value": value, "remove": rng.random() < 0.15}
        return replace(_alter_quota(entity, op), client=CONTROL)
    name, value = rng.choice(
        (
            ("max.connections.per.ip", rng.choice(("8", "12", "20", "100"))),
            ("max.connections.per.ip.overrides", f"{OWN_IP}:{rng.choice((3, 5, 10, 50))}"),
            ("max.connections.per.ip.overrides", "10.0.0.1:1"),
        )
    )
    config = {"name": name, "config_operation": 1 if rng.random() < 0.15 else 0, "value": value}
    resource = {"resource_type": NODE, "resource_name": rng.choice(("1", "")), "configs": [config]}
    return replace(
        _made(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False), client=CONTROL
    )


def is_sharing(sequence: Sequence[Made]) -> bool:
    """Return whether quotas of a sequence are also those of clients of other sequences."""
    return any(
        {part["entity_type"]: part["entity_name"] for part in entry["entity"]} in SHARED_ENTITIES
        for made in sequence
        if made.api_key == ALTER_CLIENT_QUOTAS and not made.message["validate_only"]
        for entry in made.message["entries"]
    )


def _produce(rng: random.Random) -> Made:
    acks = rng.choice((-1, 1, 1, 0))
    name = rng.choice(("one@", "one@", "three@", "missing@"))
    return produce({(name, 0): records(rng.choice(VALUE_BYTES))}, acks=acks)


def _fetch(rng: random.Random) -> Made:
    version = rng.randint(4, 12)
    part = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": rng.choice((0, 0, 1)), "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": rng.choice((1, 5000, 1 << 20)),
    }  # fmt: skip
    return _made(
        FETCH, version, replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, topics=[{"topic": "one@", "partitions": [part]}],
        forgotten_topics_data=[], rack_id="",
    )  # fmt: skip


def _create_topics(rng: random.Random) -> Made:
    topics = {f"new.{number}@": rng.choice((1, 5, 12, 13)) for number in range(rng.choice((1, 1, 2, 3)))}
    message = create_topics(topics, validate_only=True).message
    return Made(api_key=CREATE_TOPICS, version=rng.randint(2, 7), message=message)


def _create_partitions(rng: random.Random) -> Made:
    topics = [{"name": "three@", "count": rng.choice((3, 4, 10, 17)), "assignments": None}]
    return _made(
        CREATE_PARTITIONS, rng.randint(0, 3), topics=topics, timeout_ms=30_000, validate_only=True
    )  # fmt: skip


def _delete_topics(rng: random.Random) -> Made:
    names = [rng.choice(("three@", "missing@"))]
    return _made(DELETE_TOPICS, rng.randint(1, 5), topic_names=names, timeout_ms=30_000)


def _metadata(rng: random.Random) -> Made:
    return _made(
        METADATA, rng.randint(4, 7), topics=[{"name": rng.choice(("one@", "auto@"))}],
        allow_auto_topic_creation=True,
    )  # fmt: skip


def _plain(api_key: int) -> Any:
    return lambda rng: make(api_key, rng)


_THROTTLED: dict[int, Any] = {
    PRODUCE: _produce,
    FETCH: _fetch,
    CREATE_TOPICS: _create_topics,
    CREATE_PARTITIONS: _create_partitions,
    DELETE_TOPICS: _delete_topics,
    METADATA: _metadata,
    LIST_OFFSETS: _plain(LIST_OFFSETS),
    ALTER_CLIENT_QUOTAS: _alter,
    DESCRIBE_CLIENT_QUOTAS: _plain(DESCRIBE_CLIENT_QUOTAS),
}
"""What makes requests between which throttles occur."""
_OF_TYPE: dict[str, tuple[int, ...]] = {
    "producer_byte_rate": (PRODUCE,),
    "consumer_byte_rate": (FETCH,),
    "controller_mutation_rate": (CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS),
    "request_percentage": (LIST_OFFSETS, PRODUCE, FETCH, METADATA),
}
"""The requests that a quota throttles."""


def _made(api_key: int, version: int, **message: Any) -> Made:
    return Made(api_key=api_key, version=version, message=message)
