"""A client on a plain socket that sends messages of any API and version, before a gateway or a broker."""

import socket
from typing import Any

from tests.batches import build_batch
from tests.e2e.plain_client import receive_frame

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    FETCH,
    METADATA,
    PRODUCE,
)
from tidegate.wire import encode_request, read_response
from tidegate.wire.header import decode_response_header

__all__ = ["RawClient", "is_closed"]

TIMEOUT_S = 30.0
NO_ID = "00000000-0000-0000-0000-000000000000"


class RawClient:
    """One connection, from the address `source`. `ask` sends a request and returns its response, decoded."""

    def __init__(self, port: int, client_id: str, *, source: str = "127.0.0.1") -> None:
        self.client_id = client_id
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=TIMEOUT_S, source_address=(source, 0)
        )
        self._sent: list[tuple[int, int, int]] = []
        self._correlation_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its response."""
        self.send(api_key, version, message)
        return self.receive()

    def send(self, api_key: int, version: int, message: dict[str, Any]) -> int:
        """Send a request; return its size without the length."""
        self._correlation_id += 1
        frame = encode_request(api_key, version, self._correlation_id, self.client_id, message)
        self.socket.sendall(frame)
        self._sent.append((api_key, version, self._correlation_id))
        return len(frame) - 4

    def receive(self) -> dict[str, Any]:
        """Return the next response; `frame_bytes` is its size without the length."""
        frame = receive_frame(self.socket)
        api_key, version, correlation_id = self._sent.pop(0)
        found, at = decode_response_header(memoryview(frame), api_key, version)
        assert found == correlation_id
        return {**read_response(api_key, version, memoryview(frame), at), "frame_bytes": len(frame)}

    def produce(self, topic: str, *sizes: int, acks: int = 1, version: int = 9) -> dict[str, Any]:
        """Produce one record of each size, to partition 0, 1 and so on; return the response."""
        return self.ask(PRODUCE, version, produced(topic, *sizes, acks=acks))

    def fetch(self, topic: str, offset: int = 0, *, version: int = 11, **options: Any) -> dict[str, Any]:
        """Fetch from partition 0 of a topic."""
        return self.ask(FETCH, version, fetched({topic: {0: offset}}, **options))

    def set_quotas(self, client_id: str, **values: float | None) -> None:
        """Set quotas of a client id; None removes one."""
        entry = {
            "entity": [{"entity_type": "client-id", "entity_name": client_id}],
            "ops": [
                {"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()
            ],
        }
        answer = self.ask(ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
        assert [each["error_code"] for each in answer["entries"]] == [0], answer

    def quota(self, client_id: str, key: str = "producer_byte_rate") -> float | None:
        """Return a quota of a client id; None where there is none."""
        component = {"entity_type": "client-id", "match_type": 0, "match": client_id}
        answer = self.ask(DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component], "strict": True})
        values = [each for entry in answer["entries"] or () for each in entry["values"]]
        return next((each["value"] for each in values if each["key"] == key), None)

    def create_topics(
        self, *topics: tuple[str, int], version: int = 6, replicas: int = 1, **options: Any
    ) -> dict[str, Any]:
        """Create topics, each a name and a number of partitions."""
        asked = [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": replicas,
                "assignments": [],
                "configs": [],
            }
            for name, partitions in topics
        ]
        message = {"topics": asked, "timeout_ms": 10_000, "validate_only": False, **options}
        return self.ask(CREATE_TOPICS, version, message)

    def topic_ids(self, *names: str) -> dict[str, str]:
        """Return the ids of topics."""
        message = {
            "topics": [{"topic_id": NO_ID, "name": name} for name in names],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        return {
            each["name"]: each["topic_id"]
            for each in self.ask(METADATA, 12, message)["topics"]
            if not each["error_code"]
        }


def is_closed(sock: socket.socket, within_s: float = 5.0) -> bool:
    """Return whether the other end closes a connection. It resets one whose request it has not read."""
    sock.settimeout(within_s)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def produced(topic: str, *sizes: int, acks: int = 1) -> dict[str, Any]:
    """Return a Produce of one record of each size, to partition 0, 1 and so on."""
    partitions = [
        {"index": index, "records": build_batch([(None, bytes(size))])} for index, size in enumerate(sizes)
    ]
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": partitions}],
    }


def fetched(
    topics: dict[str, dict[int, int]],
    *,
    max_bytes: int = 64 << 20,
    max_wait_ms: int = 500,
    session_id: int = 0,
    session_epoch: int = -1,
    min_bytes: int = 1,
) -> dict[str, Any]:
    """Return a Fetch from offsets of partitions of topics."""
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": index,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": max_bytes,
                    }
                    for index, offset in partitions.items()
                ],
            }
            for topic, partitions in topics.items()
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
