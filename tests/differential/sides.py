"""The two brokers that are asked the same: connections, answers in a form that can be compared."""

import re
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from tests.differential.requests import NOW_MS, RECORDS, TOPICS, Made

from tidegate.wire import API_BY_KEY, encode_request, read_response
from tidegate.wire.batch_builder import build_batch

TIMEOUT_S = 30.0
CLOSED = "closed"
SILENT = "no answer"
_OWN = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.,]+Z?")


@dataclass
class Side:
    """One broker: what it is called, where it listens, and the ids of its topics."""

    name: str
    port: int
    ids: dict[str, str] = field(default_factory=dict)
    sock: socket.socket | None = None

    def prepare(self) -> None:
        """Create the topics and write some records into them."""
        topics = [
            {
                "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": [],
            }
            for name, partitions in TOPICS.items()
        ]  # fmt: skip
        created = self.ask(19, 7, {"topics": topics, "timeout_ms": 30_000, "validate_only": False})
        assert [topic["error_code"] for topic in created["topics"]] == [0] * len(TOPICS), created
        self.ids = {topic["name"]: topic["topic_id"] for topic in created["topics"]}
        for name in ("one", "three"):
            for partition in range(TOPICS[name]):
                for number in range(RECORDS):
                    records = build_batch([(b"k", b"v" * 20)], timestamp_ms=NOW_MS + number)
                    part = {"index": partition, "records": records}
                    message = {
                        "transactional_id": None, "acks": -1, "timeout_ms": 10_000,
                        "topic_data": [{"name": name, "partition_data": [part]}],
                    }  # fmt: skip
                    while self.ask(0, 9, message)["responses"][0]["partition_responses"][0]["error_code"]:
                        pass

        while self.ask(10, 3, {"key": "g1", "key_type": 0})["error_code"]:
            time.sleep(0.2)

    def ask(self, api_key: int, version: int, message: dict[str, Any]) -> Any:
        """Send a request and return the answer's message, `CLOSED`, or `SILENT`."""
        frame = encode_request(api_key, version, 1, "differential", message)
        try:
            if self.sock is None:
                self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)
            self.sock.sendall(frame)
            answer = self._receive()
        except TimeoutError:
            self.hang_up()
            return SILENT
        except OSError:
            self.hang_up()
            return CLOSED
        at = 4 + API_BY_KEY[api_key].has_tagged_response_header(version)
        return read_response(api_key, version, answer, at)

    def answer(self, made: Made) -> Any:
        """Return the answer to a request that was made, without what each broker has of its own."""
        message = _put_ids(made.message, self.ids)
        return comparable(self.ask(made.api_key, made.version, message), {v: k for k, v in self.ids.items()})

    def hang_up(self) -> None:
        """Close the connection; the next request has another."""
        if self.sock is not None:
            self.sock.close()
        self.sock = None

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        assert self.sock is not None
        parts = bytearray()
        while len(parts) < size:
            got = self.sock.recv(size - len(parts))
            if not got:
                raise ConnectionError
            parts += got
        return bytes(parts)


def _put_ids(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _put_ids(item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_ids(item, ids) for item in value]
    if isinstance(value, str) and value.startswith("id:"):
        return ids[value[3:]]
    return value


_VARIABLE = {
    "throttle_time_ms", "cluster_id", "host", "port", "log_append_time_ms", "member_id", "rack", "controller_id",
}  # fmt: skip


def comparable(value: Any, names: dict[str, str], key: str = "") -> Any:
    """Return an answer without times, addresses and ids of one broker; records as the values of their bytes."""
    if isinstance(value, dict):
        return {name: comparable(item, names, name) for name, item in value.items() if name not in _VARIABLE}
    if isinstance(value, list):
        items = [comparable(item, names, key) for item in value if not _is_internal(item)]
        return sorted(items, key=repr) if key in _BAGS else items
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if key == "topic_id" and isinstance(value, str):
        return names.get(value, "another id" if value.strip("0-") else value)
    if isinstance(value, float):
        return repr(value)
    return _OWN.sub("<time>", value) if isinstance(value, str) else value


def _is_internal(item: Any) -> bool:
    """Return whether this is a topic of the broker's own, which only Kafka has."""
    return isinstance(item, dict) and item.get("name") == "__consumer_offsets"


_BAGS = {
    "topics",
    "responses",
    "partitions",
    "results",
    "api_keys",
    "partition_responses",
    "entries",
    "entity",
    "values",
    "configs",
}
