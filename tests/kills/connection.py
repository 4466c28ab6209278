"""One connection to the broker on which each request is known to be answered or not, and what administrators ask."""

import socket
import time
from collections.abc import Hashable, Mapping
from typing import Any

from tests.batches import build_batch
from tests.e2e.plain_client import receive_frame
from tests.wire.messages import response_body_at

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
)
from tidegate.wire import encode_request, read_response

__all__ = ["ANONYMOUS", "Connection", "Entity", "own_quotas"]

ANONYMOUS = "ANONYMOUS"
BROKER = 4  # DescribeConfigs: the type of a node
OF_NODE, OF_ALL = 2, 3  # DescribeConfigs: the source of a setting that was changed
SET, DELETE = 0, 1  # IncrementalAlterConfigs
TIMEOUT_S = 120.0
_TIMEOUT_MS = 30_000
_VERSIONS = {
    PRODUCE: 9, METADATA: 9, OFFSET_FETCH: 7, FIND_COORDINATOR: 3, CREATE_TOPICS: 5, DELETE_TOPICS: 5,
    DESCRIBE_CONFIGS: 3, CREATE_PARTITIONS: 3, INCREMENTAL_ALTER_CONFIGS: 1, DESCRIBE_CLIENT_QUOTAS: 1,
    ALTER_CLIENT_QUOTAS: 1,
}  # fmt: skip

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of type and name; None is the default entity."""


def own_quotas(client_id: str) -> Entity:
    """Return the entity of a client that nobody else is."""
    return (("client-id", client_id), ("user", ANONYMOUS))


class Connection:
    """Ask one request after the other. All raise `OSError` where the broker goes away.

    sent, answered: how many requests so far. last_request_bytes: without the length.
    """

    def __init__(self, port: int, client_id: str) -> None:
        self.sent = self.answered = self.last_request_bytes = 0
        self.port = port
        self._client_id = client_id
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def ask(self, api_key: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer."""
        version = _VERSIONS[api_key]
        frame = encode_request(api_key, version, self.sent, self._client_id, message)
        self.sent += 1
        self.last_request_bytes = len(frame) - 4
        self._socket.sendall(frame)
        answer = receive_frame(self._socket)
        self.answered += 1
        return read_response(api_key, version, answer, response_body_at(api_key, version))

    def produce(self, topic: str, partition: int, value: bytes) -> tuple[int, int]:
        """Produce a record with acks=all; return its offset and the throttle time in ms."""
        records = {
            "index": partition,
            "records": build_batch([(None, value)], timestamp_ms=time.time_ns() // 1_000_000),
        }
        message = {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": _TIMEOUT_MS,
            "topic_data": [{"name": topic, "partition_data": [records]}],
        }
        answer = self.ask(PRODUCE, message)
        (found,) = answer["responses"][0]["partition_responses"]
        assert found["error_code"] == 0, found
        return found["base_offset"], answer["throttle_time_ms"]

    def leaders(self, topics: list[str] | None = None) -> dict[str, dict[int, int]]:
        """Return the node that leads each partition of the topics that there are, by topic."""
        asked = None if topics is None else [{"name": name} for name in topics]
        answer = self.ask(
            METADATA,
            {
                "topics": asked,
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        return {
            topic["name"]: {part["partition_index"]: part["leader_id"] for part in topic["partitions"]}
            for topic in answer["topics"]
            if topic["error_code"] == 0
        }

    def create_topic(self, name: str, partitions: int, **configs: str) -> int:
        """Create a topic, `a_b` being its setting `a.b`; return the error code."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        message = {"topics": [topic], "timeout_ms": _TIMEOUT_MS, "validate_only": False}
        return self.ask(CREATE_TOPICS, message)["topics"][0]["error_code"]

    def add_partitions(self, name: str, count: int) -> int:
        """Give a topic more partitions, `count` in all; return the error code."""
        topic = {"name": name, "count": count, "assignments": None}
        message = {"topics": [topic], "timeout_ms": _TIMEOUT_MS, "validate_only": False}
        return self.ask(CREATE_PARTITIONS, message)["results"][0]["error_code"]

    def delete_topic(self, name: str) -> int:
        """Delete a topic; return the error code."""
        answer = self.ask(DELETE_TOPICS, {"topic_names": [name], "timeout_ms": _TIMEOUT_MS})
        return answer["responses"][0]["error_code"]

    def alter_quotas(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        """Set quotas, or remove those that are None, in one request."""
        entries = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "ops": [
                    {"key": key, "value": value or 0.0, "remove": value is None}
                    for key, value in values.items()
                ],
            }
            for entity, values in changes.items()
        ]
        answer = self.ask(ALTER_CLIENT_QUOTAS, {"entries": entries, "validate_only": False})
        refused = [entry for entry in answer["entries"] if entry["error_code"]]
        assert not refused, refused

    def quotas(self) -> dict[Hashable, float]:
        """Return all quotas by entity (pairs in order of type) and key."""
        answer = self.ask(DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
        assert answer["error_code"] == 0, answer
        found: dict[Hashable, float] = {}
        for entry in answer["entries"]:
            entity = tuple(sorted((part["entity_type"], part["entity_name"]) for part in entry["entity"]))
            found |= {(entity, value["key"]): value["value"] for value in entry["values"]}
        return found

    def alter_settings(self, node: str, changes: Mapping[str, str | None]) -> None:
        """Change settings of a node, or of all ("")."""
        configs = [
            {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
            for name, value in changes.items()
        ]
        resource = {"resource_type": BROKER, "resource_name": node, "configs": configs}
        answer = self.ask(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
        (found,) = answer["responses"]
        assert found["error_code"] == 0, found

    def settings(self, node: str) -> dict[str, str]:
        """Return what was changed of a node itself, or for all ("")."""
        resource = {"resource_type": BROKER, "resource_name": node, "configuration_keys": None}
        message = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
        (found,) = self.ask(DESCRIBE_CONFIGS, message)["results"]
        assert found["error_code"] == 0, found
        source = OF_NODE if node else OF_ALL
        return {
            config["name"]: config["value"]
            for config in found["configs"]
            if config["config_source"] == source
        }

    def positions(self, group_id: str, topics: Mapping[str, int]) -> dict[tuple[str, int], int]:
        """Return a group's committed offsets; topics: how many partitions each has. Of the coordinator alone."""
        asked = [{"name": name, "partition_indexes": list(range(count))} for name, count in topics.items()]
        answer = self.ask(OFFSET_FETCH, {"group_id": group_id, "topics": asked, "require_stable": False})
        assert answer["error_code"] == 0, answer
        return {
            (topic["name"], part["partition_index"]): part["committed_offset"]
            for topic in answer["topics"]
            for part in topic["partitions"]
        }

    def coordinator(self, group_id: str) -> int:
        """Return the number of the node that keeps a group's offsets."""
        return self.ask(FIND_COORDINATOR, {"key": group_id, "key_type": 0})["node_id"]
