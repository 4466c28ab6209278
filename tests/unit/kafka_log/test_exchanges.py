"""Permits of mutations: how many, when and in which order."""

from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.unit.kafka_log.samples import line

from tidegate.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, METADATA
from tidegate.kafka_log.exchanges import Topics, exchange_events, move_to_controller, move_to_handler_start
from tidegate.kafka_log.requests import LoggedExchange, RequestColumns

REFUSED = 89
SIZES = {"a": 5, "b": 1, "c": 3, "d": 2}


def exchange(
    time: str, api_key: int, api_version: int, request: Any, response: Any, **others: Any
) -> LoggedExchange:
    """Return an exchange, as the importer reads it from its line."""
    columns = RequestColumns(ZoneInfo("UTC"))
    columns.add_line(
        1,
        line(f"2026-11-21 09:42:{time}", api_key=api_key, api_version=api_version, request=request,
             response=response, **{"remoteTimeMs": 10.0, "localTimeMs": 4.0, **others}),
    )  # fmt: skip
    assert not columns.bad
    return columns.exchanges[0]


def deleted(time: str, *answers: tuple[str, int], **others: Any) -> LoggedExchange:
    """Return a DeleteTopics with its answers in this order."""
    response = {"throttleTimeMs": 0, "responses": [
        {"name": name, "errorCode": error, "errorMessage": None} for name, error in answers]}  # fmt: skip
    request = {"topicNames": [name for name, _ in answers], "timeoutMs": 1}
    return exchange(time, DELETE_TOPICS, 5, request, response, **others)


def created(
    time: str, topics: dict[str, int], *, validate_only: bool = False, **others: Any
) -> LoggedExchange:
    """Return a CreateTopics that was accepted."""
    request = {"timeoutMs": 1, "validateOnly": validate_only, "topics": [
        {"name": name, "numPartitions": count, "replicationFactor": 1, "assignments": [], "configs": []}
        for name, count in topics.items()]}  # fmt: skip
    response = {"throttleTimeMs": 0, "topics": [
        {"name": name, "errorCode": 0, "errorMessage": None} for name in topics]}  # fmt: skip
    return exchange(time, CREATE_TOPICS, 4, request, response, **others)


def extended(time: str, name: str, count: int) -> LoggedExchange:
    """Return a CreatePartitions that was accepted."""
    request = {
        "timeoutMs": 1,
        "validateOnly": False,
        "topics": [{"name": name, "count": count, "assignments": None}],
    }
    response = {"throttleTimeMs": 0, "results": [{"name": name, "errorCode": 0, "errorMessage": None}]}
    return exchange(time, CREATE_PARTITIONS, 1, request, response)


def described(time: str, topics: dict[str, int]) -> LoggedExchange:
    """Return a Metadata that describes topics."""
    part = {"errorCode": 0, "partitionIndex": 0, "leaderId": 1, "replicaNodes": [], "isrNodes": []}
    response = {"brokers": [], "controllerId": 1, "topics": [
        {"errorCode": 0, "name": name, "isInternal": False, "partitions": [part] * count}
        for name, count in topics.items()]}  # fmt: skip
    return exchange(time, METADATA, 1, {"topics": None}, response, remoteTimeMs=0.0)


def permits(topics: Topics, *asked: LoggedExchange) -> list[tuple[int, bool]]:
    """Return the permits of requests, in order, and whether each was refused."""
    events = [event for each in asked for event in exchange_events(each, topics)]
    return [(event.columns["mutations"], event.columns["rejected"]) for event in events]


@pytest.mark.parametrize("order", [("a", "b", "c", "d"), ("d", "c", "b", "a"), ("c", "a", "d", "b")])
def test_accepted_topics_come_first_and_the_largest_of_them_last(order: tuple[str, ...]) -> None:
    """A controller shuffles the answer of DeleteTopics: whatever its order, the same is charged."""
    errors = {"a": 0, "b": REFUSED, "c": REFUSED, "d": 0}
    found = permits(Topics(SIZES), deleted("01,000", *((name, errors[name]) for name in order)))
    assert found == [(2, False), (5, False), (1, True), (3, True)]


def test_other_errors_cost_nothing() -> None:
    """A topic that is not there, or that the client may not delete."""
    assert permits(Topics(SIZES), deleted("01,000", ("b", 3), ("c", 29), ("d", 0))) == [(2, False)]


def test_a_broker_that_has_not_learned_of_a_change_is_not_believed() -> None:
    """Its Metadata shows fewer partitions for a moment; later, and where it shows more, it is."""
    asked = [created("01,000", {"t": 2}), extended("02,000", "t", 6), described("02,500", {"t": 2})]
    assert permits(Topics({}), *asked, deleted("03,000", ("t", 0))) == [(2, False), (4, False), (6, False)]
    later = [created("01,000", {"t": 2}), extended("02,000", "t", 6), described("09,500", {"t": 3})]
    assert permits(Topics({}), *later, deleted("10,000", ("t", 0)))[-1] == (3, False)
    more = [created("01,000", {"t": 2}), extended("02,000", "t", 6), described("02,500", {"t": 7})]
    assert permits(Topics({}), *more, deleted("10,000", ("t", 0)))[-1] == (7, False)


def test_with_zookeeper_a_broker_charges_what_it_believes() -> None:
    """Deleting costs what its own metadata says; a request that only validates costs nothing."""
    topics = Topics({}, has_zookeeper=True)
    asked = [created("01,000", {"t": 2}), extended("02,000", "t", 6), described("02,500", {"t": 2})]
    assert permits(topics, *asked, deleted("03,000", ("t", 0)))[-1] == (2, False)
    assert permits(topics, created("04,000", {"u": 2}, validate_only=True)) == []
    assert permits(Topics({}), created("04,000", {"u": 2}, validate_only=True)) == [(2, False)]


def test_with_zookeeper_topics_are_charged_one_after_the_other() -> None:
    """From the start of the handler on, which writes each of them before it takes the next."""
    request = created("01,000", {"t": 1, "u": 2, "v": 3, "w": 4}, localTimeMs=40.0)
    at_end = [event.decided_us for event in exchange_events(request, Topics({}))]
    assert len(set(at_end)) == 1
    move_to_handler_start([request])
    found = [
        event.decided_us - at_end[0] for event in exchange_events(request, Topics({}, has_zookeeper=True))
    ]
    assert found == [-40_000, -30_000, -20_000, -10_000]


def test_a_controller_tells_the_throttle_time_before_its_response_is_made() -> None:
    """Half a millisecond, but not before it asked for permits."""
    for remote_ms, before_us in ((10.0, 500), (0.2, 200)):
        asked = [
            created("01,000", {"t": 1}),
            created("01,000", {"t": 1}, isForwarded=True, remoteTimeMs=remote_ms),
        ]
        at_us = asked[1].decided_us
        assert list(move_to_controller(asked).values()) == [at_us - before_us]
