"""Events of the usage record from requests for topics and quotas: permits and definitions.

A broker forwards such requests to the controller, which logs them too. If the controller's line is in the log, it gives
the time at which permits were asked for.

Follows: B§5.2 (permits of each API), B§5.1 (first strict version of each API), B§3 (definitions).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tidegate.config.quotas_file import QuotasFile
from tidegate.error_codes import THROTTLING_QUOTA_EXCEEDED
from tidegate.kafka_log.merge import PlacedEvent
from tidegate.kafka_log.requests import LoggedExchange
from tidegate.quota import STRICT_SINCE, sanitize
from tidegate.usage.columns import ENTITY_COLUMNS
from tidegate.usage.files import HOUR_US

__all__ = ["Topics", "events_before", "exchange_events", "move_to_controller", "move_to_handler_start"]

FORWARDED_US_MAX = 60_000_000
"""Longest time between the decision of a controller and the answer of the broker that forwarded to it."""

ANSWERING_US = 500
"""Between the moment that a controller states a throttle time and the end of making the response (measured)."""
LEARNED_US_MAX = 5_000_000
"""Longest time until every broker describes a topic as its controller has changed it."""


class Topics:
    """The partition counts of topics, as far as the log shows them.

    unpriced: number of topic changes whose partition count, and therefore cost, is unknown;
    has_zookeeper: the controller uses ZooKeeper, and does not charge requests that only validate.

    Follows: Kafka 3.6 `ZkAdminManager`, Kafka 4.0 `ReplicationControlManager`.
    """

    def __init__(self, partitions: Mapping[str, int], *, has_zookeeper: bool = False) -> None:
        self.unpriced = 0
        self._has_zookeeper = has_zookeeper
        self.partitions = dict(partitions)
        self._changed_us: dict[str, int] = {}

    def handler_us(self, exchange: LoggedExchange) -> int:
        """Return the time during which topics were charged: with ZooKeeper, the handler writes each one meanwhile."""
        return exchange.handler_us if self._has_zookeeper else 0

    def mutations(self, exchange: LoggedExchange) -> Iterator[tuple[int, bool, bool]]:
        """Yield the permits of each topic in a request, whether they were strict, and whether they were refused.

        The order in which Kafka charged topics is not in the log: a controller shuffles the answer of DeleteTopics, and
        puts errors last in others. Any order with the accepted topics first, and the largest of them last, charges as
        much and accepts the same topics, because a strict request is refused from the first topic on without tokens.
        """
        if self._has_zookeeper and exchange.request.get("validateOnly"):
            return
        strict = exchange.api_version >= STRICT_SINCE.get(exchange.api_key, 0)
        asked = [(error_code != 0, permits) for permits, error_code in self._asked(exchange)
                 if error_code in (0, THROTTLING_QUOTA_EXCEEDED) and permits]  # fmt: skip
        for rejected, permits in sorted(asked):
            yield permits, strict, rejected

    def _asked(self, exchange: LoggedExchange) -> Iterator[tuple[int, int]]:
        match exchange.api_key:
            case int(key) if key == CREATE_TOPICS:
                yield from self._created(exchange.request, exchange.response)
            case int(key) if key == CREATE_PARTITIONS:
                yield from self._extended(exchange)
            case int(key) if key == DELETE_TOPICS:
                yield from self._deleted(exchange.request, exchange.response)
            case _:
                self._described(exchange)

    def _described(self, exchange: LoggedExchange) -> None:
        """Store the partition counts that a broker describes, unless it may not have learned of a change yet.

        With ZooKeeper every described count is stored: the broker charges by its own metadata.
        """
        for name, count in exchange.response.get("partitions", {}).items():
            changed_us = self._changed_us.get(name)
            is_current = (
                self._has_zookeeper or changed_us is None or exchange.asked_us - changed_us > LEARNED_US_MAX
            )
            if is_current or count > self.partitions.get(name, 0):
                self.partitions[name] = count

    def _created(self, request: dict[str, Any], response: dict[str, Any]) -> Iterator[tuple[int, int]]:
        wanted = {topic["name"]: topic for topic in request["topics"]}
        for topic in response["topics"]:
            asked = wanted.get(topic["name"], {})
            count = topic.get("numPartitions", -1)
            if count <= 0:
                count = len(asked.get("assignments") or ()) or asked.get("numPartitions", -1)
            if count <= 0:
                self.unpriced += topic["errorCode"] in (0, THROTTLING_QUOTA_EXCEEDED)
                continue
            if topic["errorCode"] == 0 and not request.get("validateOnly"):
                self.partitions[topic["name"]] = count
                if topic.get("topicId"):
                    self.partitions[topic["topicId"]] = count
            yield count, topic["errorCode"]

    def _extended(self, exchange: LoggedExchange) -> Iterator[tuple[int, int]]:
        request, response = exchange.request, exchange.response
        counts = {topic["name"]: topic["count"] for topic in request["topics"]}
        for topic in response["results"]:
            name, error_code = topic["name"], topic["errorCode"]
            before = self._known(name, error_code)
            if before:
                yield counts[name] - before, error_code
            if error_code == 0 and not request.get("validateOnly"):
                self.partitions[name] = counts[name]
                self._changed_us[name] = exchange.decided_us

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
        if not count and error_code in (0, THROTTLING_QUOTA_EXCEEDED):
            self.unpriced += 1
        return count


def _quota_events(exchange: LoggedExchange) -> Iterator[dict[str, Any]]:
    """Yield what an AlterClientQuotas changed, as columns of `quota` rows."""
    if exchange.api_key != ALTER_CLIENT_QUOTAS or exchange.request.get("validateOnly"):
        return
    answers: Iterable[dict[str, Any]] = exchange.response["entries"]
    accepted = [answer["entity"] for answer in answers if answer["errorCode"] == 0]
    for entry in exchange.request["entries"]:
        if entry["entity"] not in accepted:
            continue
        names = _names((part["entityType"], part["entityName"]) for part in entry["entity"])
        for op in entry["ops"]:
            value = None if op["remove"] else float(op["value"])
            yield {**names, "quota_key": op["key"], "quota_value": value}


def exchange_events(exchange: LoggedExchange, topics: Topics) -> list[PlacedEvent]:
    """Return the events that an exchange states.

    Raises `KeyError`, `TypeError` or `ValueError` for fields of another type;
    `EventError`, which is a `ValueError`, where a value has no room in the record.
    """
    found = []
    mutations = list(topics.mutations(exchange))
    accepted = sum(not rejected for _, _, rejected in mutations)
    for place, (permits, strict, rejected) in enumerate(mutations):
        columns = {
            **exchange.client,
            "kind": "mutation",
            "mutations": permits,
            "strict": strict,
            "rejected": rejected,
        }
        done = min(place, accepted - 1) / accepted if accepted else 0.0
        asked_us = exchange.asked_us + round(done * topics.handler_us(exchange))
        found.append(PlacedEvent(asked_us, exchange.line, False, columns))
    for columns in _quota_events(exchange):
        found.append(PlacedEvent(exchange.decided_us, exchange.line, True, {**columns, "kind": "quota"}))
    for event in found:
        # Checked here, where the caller rejects one line. In `hour_table` an error would end the whole import.
        event.all_columns(node_id=0)
    return found


def events_before(first_us: int, in_force: QuotasFile | None) -> list[PlacedEvent]:
    """Return the events before the first request: a start, a gap of unknown size, and the quotas in force."""
    columns: list[dict[str, Any]] = [{"kind": "start"}, {"kind": "gap", "lost_events": None}]
    if in_force is not None:
        columns += [
            {"kind": "quota", "quota_key": name, "quota_value": float(value)}
            for name, value in in_force.windows.items()
        ]
        for record in in_force.records():
            names = _names(record.entity)
            columns.append({"kind": "quota", **names, "quota_key": record.key, "quota_value": record.value})
    return [PlacedEvent(first_us, place - len(columns), False, each) for place, each in enumerate(columns)]


def move_to_handler_start(exchanges: Sequence[LoggedExchange]) -> None:
    """Move permit times to the start of the handler: a controller that uses ZooKeeper writes while it handles.

    Follows: Kafka 3.9 `ZkAdminManager.createTopics`, `deleteTopics`.
    """
    for each in exchanges:
        each.asked_us -= each.handler_us


def move_to_controller(exchanges: Sequence[LoggedExchange]) -> dict[int, int]:
    """Move mutation requests to the times in their controller's line, if it is in the log.

    Return the new decision times: {line: time in us}.
    """
    at_controller: dict[Any, list[LoggedExchange]] = defaultdict(list)
    for each in sorted(exchanges, key=_decided_us):
        if each.forwarded:
            at_controller[each.key].append(each)
    moved: dict[int, int] = {}
    for each in exchanges:
        others = [] if each.forwarded else at_controller.get(each.key, [])
        place = bisect_right(others, each.decided_us, key=_decided_us)
        if place and each.decided_us - others[place - 1].decided_us <= FORWARDED_US_MAX:
            other = others[place - 1]
            # Rows are sorted and written hour by hour, so a request must not leave its hour.
            if other.asked_us // HOUR_US == each.decided_us // HOUR_US:
                each.asked_us = other.asked_us
                moved[each.line] = each.decided_us = max(other.decided_us - ANSWERING_US, other.asked_us)
    return moved


def _decided_us(exchange: LoggedExchange) -> int:
    return exchange.decided_us


def _names(entity: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the columns of an entity, by its parts."""
    return {
        ENTITY_COLUMNS[part]: "<default>" if name is None else sanitize(name)
        for part, name in entity
        if part in ENTITY_COLUMNS
    }
