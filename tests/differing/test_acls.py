"""A real Apache Kafka with StandardAuthorizer and `tidegate serve` allow, refuse and tell the same."""

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.differing.acl_names import GROUPS, NAMES, TOPICS
from tests.differing.acl_requests import (
    EVERYTHING,
    MADE,
    Asked,
    changes,
    create_topics,
    positions,
    requests,
)
from tests.differing.acl_sides import ADMIN, AclSide, acl_sides
from tests.differing.declared import declared
from tests.differing.play import Difference
from tests.differing.requests import COMPARED, Made

from tidegate.api_keys import (
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
)

pytestmark = pytest.mark.java
SEQUENCES, REQUESTS = 25, 30
SETTLED_WITHIN_S = 5.0
OF_KAFKA_ALONE = (8, 16, 32)
"""Types of resources: loggers, subscriptions, groups."""
REFUSALS = (29, 30, 31)
_ALL_TOPICS = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}
_ENDS = {
    "replica_id": -1,
    "isolation_level": 0,
    "topics": [
        {"name": name, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
        for name in NAMES
    ],
}


@pytest.fixture(scope="module", params=["false", "true"], ids=["closed", "open"])
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start both brokers, which refuse or allow what no ACL is for."""
    folder = tmp_path_factory.mktemp("acls")
    with acl_sides(folder, allow_everyone_if_no_acl_found=request.param) as started:
        yield started


def test_users_ask_all_that_is_compared() -> None:
    """And thereby all that is served, see `test_differing`."""
    assert {*COMPARED, DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS} == MADE


def test_users_are_answered_alike(sides: tuple[AclSide, AclSide]) -> None:
    """Between random changes of ACLs, users with some rights ask everything that is asked of an authorizer."""
    found = []
    for number in range(SEQUENCES):
        rng = random.Random(f"acls-{number}")
        changed = changes(rng)
        for side in sides:  # some are there already
            side.ask(ADMIN, CREATE_TOPICS, 7, create_topics(*TOPICS))
        settle(sides)
        for group_id in GROUPS:
            alike(sides, ADMIN, OFFSET_COMMIT, 8, positions(group_id))
        for asked in changed:
            alike(sides, *asked)
        settle(sides)
        for asked in requests(rng, REQUESTS):
            kafka, ours = (side.ask(*asked) for side in sides)
            if bag(rights(kafka)) != bag(rights(ours)) and not is_declared(number, asked, kafka, ours):
                found.append((number, asked, kafka, ours))
            if may_change(asked):
                settle(sides)
    for number, asked, kafka, ours in found:
        print(f"sequence {number}: {asked}\n  kafka    {kafka}\n  tidegate {ours}")
    assert not found


def is_declared(number: int, asked: Asked, kafka: Any, ours: Any) -> bool:
    """Return whether a row says that answers differ so."""
    _, api_key, version, message = asked
    made = Made(api_key=api_key, version=version, message=message)
    difference = Difference(number=number, place=0, made=made, what="answer", kafka=kafka, tidegate=ours)
    found = declared(difference)
    return found is not None and found.row == "L7"


def rights(answer: Any) -> Any:
    """Return an answer in which of settings that Kafka alone changes (row D4) only refusals are told.

    And without sizes of logs: Kafka deletes files when it looks next, here and there.
    """
    if isinstance(answer, list):
        return [rights(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    answer = {name: rights(item) for name, item in answer.items() if name != "partition_size"}
    if "responses" not in answer:
        return answer
    told = [
        {**one, "error_code": 0, "error_message": None}
        if one.get("resource_type") in OF_KAFKA_ALONE and one["error_code"] not in REFUSALS
        else one
        for one in answer["responses"]
    ]
    return {**answer, "responses": told}


def alike(sides: tuple[AclSide, AclSide], *asked: Any) -> None:
    """Ask both sides, whose answers must be the same."""
    kafka, ours = (side.ask(*asked) for side in sides)
    assert bag(kafka) == bag(ours), asked


def may_change(asked: Asked) -> bool:
    """Return whether a request may change ACLs, or which topics there are; Metadata before version 4 creates them."""
    _, api_key, version, _ = asked
    return api_key in (CREATE_ACLS, DELETE_ACLS, DELETE_TOPICS) or (api_key == METADATA and version < 4)


def settle(sides: tuple[AclSide, AclSide]) -> None:
    """Wait until Kafka has taken over what was answered: the ACLs and topics that are there, and can be read."""
    until = time.monotonic() + SETTLED_WITHIN_S
    questions = (DESCRIBE_ACLS, 3, EVERYTHING), (METADATA, 12, _ALL_TOPICS), (LIST_OFFSETS, 5, _ENDS)
    while True:
        told = [[bag(side.ask(ADMIN, *question)) for question in questions] for side in sides]
        if told[0] == told[1]:
            return
        assert time.monotonic() < until, told
        time.sleep(0.01)


def bag(value: Any) -> Any:
    """Return an answer in which no order is left, which means nothing here; of configs, which there are."""
    if isinstance(value, dict):
        return {
            name: sorted(each["name"] for each in item) if name == "configs" else bag(item)
            for name, item in value.items()
        }
    return sorted(map(bag, value), key=repr) if isinstance(value, list) else value
