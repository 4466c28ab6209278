"""Requests of simulated clients, ready to be sent: bytes, and what is to be expected of them."""

import struct
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from tests.batches import build_batch
from tests.simulation.auditor import Auditor, Line, Sent
from tests.simulation.clock import START_MS

from tidegate.api_keys import (
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
)
from tidegate.wire import encode_request

__all__ = ["LASTING_TOPICS", "SYNCED_TOPIC", "Requests"]

LASTING_TOPICS = {"t0": 1, "t1": 1, "t2": 2, "t3": 3}
"""Topics that nobody deletes, and their partitions."""
SYNCED_TOPIC = "t1"
"""Each append to it makes a sync due: acks=all waits for the disk."""
MISSING_TOPIC = "nowhere"
_BORN_TOPICS = tuple(f"m{number}" for number in range(12))
_SYNC_MS = 2000
_CORRELATION_ID_AT = 8
_BATCH_BYTES = (1, 100, 900, 4_000, 15_000, 60_000)
_NO_ID = "00000000-0000-0000-0000-000000000000"

_Body = dict[str, Any]


@cache
def _batch(size: int) -> bytes:
    return build_batch([(None, bytes(size))], timestamp_ms=START_MS - 3_600_000)


def _topic_partition(rng: Random) -> tuple[str, int]:
    topic = rng.choice(tuple(LASTING_TOPICS))
    return topic, rng.randrange(LASTING_TOPICS[topic])


class Requests:
    """Makes requests for one client; `kinds` says which, each as often as its number says."""

    def __init__(self, auditor: Auditor, rng: Random, client_ids: list[str], kinds: dict[str, int]) -> None:
        self._auditor = auditor
        self._rng = rng
        self._client_ids = client_ids
        self._kinds = [name for name, count in kinds.items() for _ in range(count)]
        self._make: dict[str, Callable[[Line, str], tuple[bytes, Sent]]] = {
            "produce": self._produce,
            "produce to nowhere": self._produce_to_nowhere,
            "nonsense": self._nonsense,
            "wander": self._wander,
            "fetch": self._fetch,
            "poll": self._poll,
            "create": self._create,
            "delete": self._delete,
            "grow": self._grow,
            "metadata": self._metadata,
            "other": self._other,
        }
        self._frames: dict[Any, bytes] = {}

    def make(self, line: Line) -> tuple[bytes, Sent]:
        """Return one more request for `line`."""
        client_id = (
            self._rng.choice(self._client_ids) if self._client_ids else f"made-up-{self._rng.randrange(2000)}"
        )
        frame, sent = self._make[self._rng.choice(self._kinds)](line, client_id)
        self._auditor.on_sent(sent)
        return frame, sent

    def _request(
        self,
        line: Line,
        client_id: str,
        api_key: int,
        version: int,
        body: _Body,
        key: Any = None,
        **expected: Any,
    ) -> tuple[bytes, Sent]:
        """Return a request; with a `key` its bytes are kept for the next of that key."""
        number = self._auditor.next_id()
        kept = None if key is None else self._frames.get((client_id, version, key))
        if kept is None:
            kept = encode_request(api_key, version, number, client_id, body)
            if key is not None:
                self._frames[client_id, version, key] = kept
        frame = bytearray(kept)
        struct.pack_into(">i", frame, _CORRELATION_ID_AT, number)
        return bytes(frame), Sent(number, api_key, version, line, len(frame), **expected)

    def _produce(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        rng = self._rng
        topic, partition = _topic_partition(rng)
        acks, size, version = rng.choice((-1, 1, 1, 0)), rng.choice(_BATCH_BYTES), rng.choice((7, 9))
        if acks == 0 and self._auditor.leader(topic, partition) != line.node.node_id:
            acks = 1  # the node would close the connection
        return self._request(
            line, client_id, PRODUCE, version, _produce_body(topic, partition, acks, size),
            ("produce", topic, partition, acks, size),
            expects_answer=acks != 0,
            wait_ms=_SYNC_MS if topic == SYNCED_TOPIC and acks == -1 else 0,
            floor=self._auditor.acked.get((topic, partition), -1),
            partition=(topic, partition),
        )  # fmt: skip

    def _produce_to_nowhere(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        body = _produce_body(MISSING_TOPIC, 0, 0, 1)
        return self._request(line, client_id, PRODUCE, 9, body, expects_answer=False, ends_connection=True)

    def _nonsense(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        """Return bytes that are no request."""
        line.doomed = True
        return b"\xff" * 4, Sent(self._auditor.next_id(), PRODUCE, 9, line, 4, expects_answer=False)

    def _wander(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        """Return a request about a topic that may come and go meanwhile."""
        topic = self._rng.choice(_BORN_TOPICS)
        if self._rng.random() < 0.5:
            return self._fetch_of(
                line, client_id, topic, 0, 0, 50_000, self._rng.choice((0, 3000)), lasts=False
            )
        body = _produce_body(topic, 0, self._rng.choice((1, -1)), 900)
        return self._request(line, client_id, PRODUCE, 9, body)

    def _fetch(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        """Return a fetch from somewhere near the end."""
        topic, partition = _topic_partition(self._rng)
        acked = self._auditor.acked.get((topic, partition), -1)
        offset = max(acked - self._rng.randrange(20), 0)
        return self._fetch_of(
            line, client_id, topic, partition, offset, self._rng.choice((1, 5000, 200_000)), 0
        )

    def _poll(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        """Return a fetch that waits for records."""
        topic, partition = _topic_partition(self._rng)
        offset = self._auditor.acked.get((topic, partition), -1) + 1
        wait_ms = self._rng.choice((10, 100, 500, 3000))
        return self._fetch_of(line, client_id, topic, partition, offset, 50_000, wait_ms)

    def _fetch_of(
        self,
        line: Line,
        client_id: str,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        wait_ms: int,
        *,
        lasts: bool = True,
    ) -> tuple[bytes, Sent]:
        part = {
            "partition": partition, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
            "log_start_offset": -1, "partition_max_bytes": max_bytes,
        }  # fmt: skip
        body = {
            "replica_id": -1, "max_wait_ms": wait_ms, "min_bytes": 1, "max_bytes": max_bytes, "isolation_level": 0,
            "session_id": 0, "session_epoch": -1, "topics": [{"topic": topic, "partitions": [part]}],
            "forgotten_topics_data": [], "rack_id": "",
        }  # fmt: skip
        floor = self._auditor.acked.get((topic, partition), -1)
        version = self._rng.choice((11, 12))
        expected: dict[str, Any] = {"floor": floor, "partition": (topic, partition)} if lasts else {}
        return self._request(line, client_id, FETCH, version, body, wait_ms=wait_ms, **expected)

    def _create(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        """Return a request for topics, strict or permissive."""
        topics = [
            {
                "name": name, "num_partitions": self._rng.choice((1, 1, 2, 4)), "replication_factor": 1,
                "assignments": [], "configs": [],
            }
            for name in self._rng.sample(_BORN_TOPICS, self._rng.randrange(1, 4))
        ]  # fmt: skip
        body = {"topics": topics, "timeout_ms": 1000, "validate_only": self._rng.random() < 0.2}
        return self._request(line, client_id, CREATE_TOPICS, self._rng.choice((5, 7)), body)

    def _delete(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        names = self._rng.sample(_BORN_TOPICS, self._rng.randrange(1, 4))
        body = {"topic_names": names, "timeout_ms": 1000}
        return self._request(line, client_id, DELETE_TOPICS, self._rng.choice((4, 5)), body)

    def _grow(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        topics = [
            {"name": self._rng.choice(_BORN_TOPICS), "count": self._rng.randrange(2, 8), "assignments": None}
        ]
        body = {"topics": topics, "timeout_ms": 1000, "validate_only": False}
        return self._request(line, client_id, CREATE_PARTITIONS, self._rng.choice((2, 3)), body)

    def _metadata(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        """Return a request that may create the topic it asks about."""
        name, creates = self._rng.choice((*LASTING_TOPICS, *_BORN_TOPICS)), self._rng.random() < 0.1
        body = {
            "topics": [{"topic_id": _NO_ID, "name": name}], "allow_auto_topic_creation": creates,
            "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False,
        }  # fmt: skip
        return self._request(line, client_id, METADATA, 9, body, ("metadata", name, creates))

    def _other(self, line: Line, client_id: str) -> tuple[bytes, Sent]:
        api_key, version, body = self._rng.choice(_OTHERS)
        return self._request(line, client_id, api_key, version, body, ("other", api_key, str(body)))


def _produce_body(topic: str, partition: int, acks: int, size: int) -> _Body:
    data = [{"index": partition, "records": _batch(size)}]
    return {
        "transactional_id": None, "acks": acks, "timeout_ms": 1000,
        "topic_data": [{"name": topic, "partition_data": data}],
    }  # fmt: skip


def _described(node: str) -> _Body:
    resource = {"resource_type": 4, "resource_name": node, "configuration_keys": None}
    return {"resources": [resource], "include_synonyms": False, "include_documentation": False}


_OTHERS: list[tuple[int, int, _Body]] = [
    (API_VERSIONS, 3, {"client_software_name": "simulated", "client_software_version": "1"}),
    (FIND_COORDINATOR, 2, {"key": "g", "key_type": 0}),
    (DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False}),
    (DESCRIBE_CONFIGS, 4, _described("")),
    (DESCRIBE_CONFIGS, 4, _described("1")),
    (
        LIST_OFFSETS, 5,
        {
            "replica_id": -1, "isolation_level": 0,
            "topics": [
                {"name": "t0", "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
            ],
        },
    ),
]  # fmt: skip
