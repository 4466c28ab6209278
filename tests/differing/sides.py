"""The two brokers that are asked the same: connections, answers in a form that can be compared."""

import re
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from tests.differing.requests import BY_NAME, KNOWN_GROUPS, NOW_MS, PRODUCE, RECORDS, TOPICS, Made
from tests.e2e.plain_client import receive_frame

from tidegate.wire import API_BY_KEY, encode_request, read_response
from tidegate.wire.batch_builder import build_batch

TIMEOUT_S = 30.0
HANGING_S = 3.0  # for what Kafka is known to leave without an answer (see `declared.py`)
LOADING = (14, 15, 16)  # the error codes of a coordinator that is not ready yet
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
                "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
                # The records are older than the retention that is set by default, and each broker has times of its
                # own for looking.
                "configs": [{"name": "retention.ms", "value": "-1"}],
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
        self._await_coordinators()
        for group_id in KNOWN_GROUPS:
            self._commit(group_id)

    def _commit(self, group_id: str) -> None:
        part = {
            "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "",
        }  # fmt: skip
        message = {
            "group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": "one", "partitions": [part]}],
        }  # fmt: skip
        answer = self.ask(8, 9, message)
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer

    def _await_coordinators(self) -> None:
        """Wait until every group's coordinator has loaded and there are producer ids: Kafka begins without."""
        producer = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        asked = [(22, 1, producer), (10, 3, {"key": "t", "key_type": 1})]
        for group_id in BY_NAME["group_id"]:
            asked.append((10, 3, {"key": group_id, "key_type": 0}))
            asked.append((9, 7, {"group_id": group_id, "topics": [], "require_stable": False}))
        for request in asked:
            while self.ask(*request)["error_code"] in LOADING:
                time.sleep(0.1)

    def ask(
        self, api_key: int, version: int, message: dict[str, Any], *, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """Send a request and return the answer's message, `CLOSED`, or `SILENT`."""
        frame = encode_request(api_key, version, 1, "differential", message)
        try:
            if self.sock is None:
                self.sock = socket.create_connection(("127.0.0.1", self.port))
            self.sock.settimeout(timeout_s)
            self.sock.sendall(frame)
            answer = receive_frame(self.sock)
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
        timeout_s = HANGING_S if has_null_records(made) else TIMEOUT_S
        answer = self.ask(made.api_key, made.version, message, timeout_s=timeout_s)
        return comparable(answer, {v: k for k, v in self.ids.items()})

    def hang_up(self) -> None:
        """Close the connection; the next request has another."""
        if self.sock is not None:
            self.sock.close()
        self.sock = None


def _put_ids(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _put_ids(item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_ids(item, ids) for item in value]
    if isinstance(value, str) and value.startswith("id:"):
        return ids[value[3:]]
    return value


def has_null_records(made: Made) -> bool:
    """Return whether this is a Produce request in which a partition's records are null."""
    return made.api_key == PRODUCE and any(
        part["records"] is None for topic in made.message["topic_data"] for part in topic["partition_data"]
    )


_VARIABLE = {
    "throttle_time_ms", "cluster_id", "host", "port", "log_append_time_ms", "member_id", "rack", "controller_id",
}  # fmt: skip


def comparable(value: Any, names: dict[str, str], key: str = "") -> Any:
    """Return an answer without times, addresses and ids of one broker; records as the values of their bytes."""
    if isinstance(value, dict):
        return {name: comparable(item, names, name) for name, item in value.items() if name not in _VARIABLE}
    if isinstance(value, list):
        items = [comparable(item, names, key) for item in value if not _is_left_out(item)]
        return sorted(items, key=repr) if key in _BAGS else items
    if key == "producer_id" and value >= 0:
        return "an id"  # each broker gives out its own
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if key == "topic_id" and isinstance(value, str):
        return names.get(value, "another id" if value.strip("0-") else value)
    if isinstance(value, float):
        return repr(value)
    return _OWN.sub("<time>", value) if isinstance(value, str) else value


_LEFT_OUT = ("__consumer_offsets", "__transaction_state", "file.delete.delay.ms")
"""Topics of the broker's own, which only Kafka has, and a setting that it is started with here."""


def _is_left_out(item: Any) -> bool:
    return isinstance(item, dict) and item.get("name") in _LEFT_OUT


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
