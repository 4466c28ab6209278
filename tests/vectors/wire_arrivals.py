"""Wait until a broker shows the change that it has acknowledged: a busy Kafka may take longer than it was recorded.

A recording says how long to wait behind a change. That is waited for in any case; what follows here is the rest, until
quotas are described as they were set, and topics are there, or gone, with all their partitions.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.vectors.wire_brokers import Login, ask
from tests.vectors.wire_player import Address, Step

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    LIST_OFFSETS,
    METADATA,
)
from tidegate.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from tidegate.errors import TidegateError
from tidegate.wire import decode_request_header, read_request

__all__ = ["Arrivals"]

WITHIN_S = 10.0
"""What is not there by then shows in the answers that follow."""
_EVERY_S = 0.01
_IN_FORCE_S = 0.05  # from when Kafka describes a quota until it is in force
_SOURCE = "127.0.0.2"  # where connections are counted by address, these are not those of a recording

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What a broker at an address is asked, with a login where it takes one, until it shows a change."""

    address: Address
    login: Login | None = None

    def await_change(self, step: Step, answer: Message) -> None:
        """Return when the broker shows what a step has asked for and `answer` acknowledges, or after `WITHIN_S`."""
        shows = _SHOWS.get(step["api_key"])
        frame = bytes.fromhex(step["request_hex"])
        header = decode_request_header(frame)
        request = read_request(header.api_key, header.api_version, frame, header.body_at)
        if shows is None or request.get("validate_only"):
            return
        give_up_at = time.monotonic() + WITHIN_S
        with suppress(OSError, TidegateError):  # what follows notices that the broker is gone
            while not shows(self, request, answer) and time.monotonic() < give_up_at:
                time.sleep(_EVERY_S)
        if step["api_key"] == ALTER_CLIENT_QUOTAS:
            time.sleep(_IN_FORCE_S)

    def _shows_quotas(self, request: Message, answer: Message) -> bool:
        """Return whether each value is described as it was set, or no longer."""
        accepted = [_named(entry) for entry in answer["entries"] if entry["error_code"] == 0]
        wanted = {
            (_named(entry), op["key"]): "None" if op["remove"] else repr(op["value"])
            for entry in request["entries"]
            for op in entry["ops"]
            if _named(entry) in accepted
        }
        described = self._ask(DESCRIBE_CLIENT_QUOTAS, 1, components=[], strict=False)
        shown = {
            (_named(entry), value["key"]): repr(value["value"])
            for entry in described["entries"] or ()
            for value in entry["values"]
        }
        return all(shown.get(key, "None") == value for key, value in wanted.items())

    def _shows_topics(self, request: Message, answer: Message) -> bool:
        """Return whether each topic that was created or has grown has all its partitions, and they answer."""
        accepted = _accepted(answer)
        least = {
            topic["name"]: topic.get("num_partitions", topic.get("count"))
            for topic in request["topics"]
            if topic["name"] in accepted
        }
        shown = self._topics(accepted)
        if any(len(topic["partitions"]) < max(least[topic["name"]], 1) for topic in shown):
            return False
        asked = [
            {
                "name": topic["name"],
                "partitions": [
                    {"partition_index": part["partition_index"], "current_leader_epoch": -1, "timestamp": -1}
                    for part in topic["partitions"]
                ],
            }
            for topic in shown
        ]
        found = self._ask(LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=asked)
        return not any(part["error_code"] for topic in found["topics"] for part in topic["partitions"])

    def _shows_no_topics(self, request: Message, answer: Message) -> bool:
        """Return whether the topics are gone that were deleted."""
        return all(
            topic["error_code"] == UNKNOWN_TOPIC_OR_PARTITION for topic in self._topics(_accepted(answer))
        )

    def _topics(self, names: list[str]) -> list[Message]:
        named = [{"name": name} for name in names]
        topics: list[Message] = self._ask(
            METADATA, 9, topics=named, allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
        )["topics"]  # fmt: skip
        return topics

    def _ask(self, api_key: int, version: int, **message: Any) -> Message:
        source = _SOURCE if self.address[0].startswith("127.") else ""
        return ask(self.address, api_key, version, message, login=self.login, source=source)


_SHOWS: dict[int, Callable[[Arrivals, Message, Message], bool]] = {
    ALTER_CLIENT_QUOTAS: Arrivals._shows_quotas,
    CREATE_TOPICS: Arrivals._shows_topics,
    CREATE_PARTITIONS: Arrivals._shows_topics,
    DELETE_TOPICS: Arrivals._shows_no_topics,
}


def _accepted(answer: Message) -> list[str]:
    """Return the names of the topics for which an answer has no error."""
    results = next(answer[array] for array in ("topics", "results", "responses") if array in answer)
    return [topic["name"] for topic in results if topic["error_code"] == 0 and topic["name"]]


def _named(entry: Message) -> str:
    return repr(sorted((part["entity_type"], part["entity_name"]) for part in entry["entity"]))
