"""What single requests told of topics and quotas, as events of the usage record: permits and definitions.

Follows: B§5.2 (permits of each API), B§5.1 (strict from which version), B§3 (definitions).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tidegate.kafka_log.requests import Told
from tidegate.quota import sanitize

__all__ = ["Topics", "quota_events"]

_STRICT_SINCE = {CREATE_TOPICS: 6, CREATE_PARTITIONS: 3, DELETE_TOPICS: 5}
_THROTTLING_QUOTA_EXCEEDED = 89
_COLUMNS = {"user": "quota_user", "client-id": "quota_client_id", "ip": "quota_ip"}


class Topics:
    """How many partitions topics have, as far as the log has said so.

    unpriced: how many topics were changed of which that is not known, and so not what the change cost.
    """

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self.unpriced = 0
        self.partitions = dict(partitions)

    def mutations(self, told: Told) -> Iterator[tuple[int, bool, bool]]:
        """Yield the permits that a request asked for, topic by topic, whether strictly, and whether in vain."""
        strict = told.api_version >= _STRICT_SINCE.get(told.api_key, 0)
        for permits, error_code in self._asked(told):
            if error_code in (0, _THROTTLING_QUOTA_EXCEEDED) and permits:
                yield permits, strict, error_code != 0

    def _asked(self, told: Told) -> Iterator[tuple[int, int]]:
        match told.api_key:
            case int(key) if key == CREATE_TOPICS:
                yield from self._created(told.request, told.response)
            case int(key) if key == CREATE_PARTITIONS:
                yield from self._extended(told.request, told.response)
            case int(key) if key == DELETE_TOPICS:
                yield from self._deleted(told.request, told.response)
            case _:
                self.partitions.update(told.response.get("partitions", ()))

    def _created(self, request: dict[str, Any], response: dict[str, Any]) -> Iterator[tuple[int, int]]:
        wanted = {topic["name"]: topic for topic in request["topics"]}
        for topic in response["topics"]:
            asked = wanted.get(topic["name"], {})
            count = topic.get("numPartitions", -1)
            if count <= 0:
                count = len(asked.get("assignments") or ()) or asked.get("numPartitions", -1)
            if count <= 0:
                self.unpriced += topic["errorCode"] in (0, _THROTTLING_QUOTA_EXCEEDED)
                continue
            if topic["errorCode"] == 0 and not request.get("validateOnly"):
                self.partitions[topic["name"]] = count
                if topic.get("topicId"):
                    self.partitions[topic["topicId"]] = count
            yield count, topic["errorCode"]

    def _extended(self, request: dict[str, Any], response: dict[str, Any]) -> Iterator[tuple[int, int]]:
        counts = {topic["name"]: topic["count"] for topic in request["topics"]}
        for topic in response["results"]:
            name, error_code = topic["name"], topic["errorCode"]
            before = self._known(name, error_code)
            if before:
                yield counts[name] - before, error_code
            if error_code == 0 and not request.get("validateOnly"):
                self.partitions[name] = counts[name]

    def _deleted(self, request: dict[str, Any], response: dict[str, Any]) -> Iterator[tuple[int, int]]:
        for topic in response["responses"]:
            name, error_code = topic.get("name") or topic.get("topicId", ""), topic["errorCode"]
            before = self._known(name, error_code)
            if before:
                yield before, error_code
            if error_code == 0:
                self.partitions.pop(name, None)

    def _known(self, name: str, error_code: int) -> int:
        count = self.partitions.get(name, 0)
        if not count and error_code in (0, _THROTTLING_QUOTA_EXCEEDED):
            self.unpriced += 1
        return count


def quota_events(told: Told) -> Iterator[dict[str, Any]]:
    """Yield what an AlterClientQuotas changed, as columns of `quota` rows."""
    if told.api_key != ALTER_CLIENT_QUOTAS or told.request.get("validateOnly"):
        return
    answers: Iterable[dict[str, Any]] = told.response["entries"]
    accepted = [answer["entity"] for answer in answers if answer["errorCode"] == 0]
    for entry in told.request["entries"]:
        if entry["entity"] not in accepted:
            continue
        names = {
            _COLUMNS[part["entityType"]]: "<default>"
            if part["entityName"] is None
            else sanitize(part["entityName"])
            for part in entry["entity"]
            if part["entityType"] in _COLUMNS
        }
        for op in entry["ops"]:
            value = None if op["remove"] else float(op["value"])
            yield {**names, "quota_key": op["key"], "quota_value": value}
