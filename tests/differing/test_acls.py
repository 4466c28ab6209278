"""A real Apache Kafka with StandardAuthorizer and `tidegate serve` allow, refuse and tell the same."""

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.differing.acl_requests import EVERYTHING, TOPICS, changes, create_topics, requests
from tests.differing.acl_sides import ADMIN, AclSide, acl_sides

from tidegate.api_keys import CREATE_ACLS, CREATE_TOPICS, DELETE_ACLS, DESCRIBE_ACLS, METADATA

pytestmark = pytest.mark.java
SEQUENCES, REQUESTS = 25, 30
SETTLED_WITHIN_S = 5.0
_ALL_TOPICS = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}


@pytest.fixture(scope="module", params=["false", "true"], ids=["closed", "open"])
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start both brokers, which refuse or allow what no ACL is for."""
    folder = tmp_path_factory.mktemp("acls")
    with acl_sides(folder, allow_everyone_if_no_acl_found=request.param) as started:
        yield started


def test_users_are_answered_alike(sides: tuple[AclSide, AclSide]) -> None:
    """Between random changes of ACLs, users with some rights ask everything that is asked of an authorizer."""
    found = []
    for number in range(SEQUENCES):
        rng = random.Random(f"acls-{number}")
        changed = changes(rng)
        for side in sides:  # some are there already
            side.ask(ADMIN, CREATE_TOPICS, 7, create_topics(*TOPICS))
        for asked in changed:
            alike(sides, *asked)
        settle(sides)
        for asked in requests(rng, REQUESTS):
            answers = [side.ask(*asked) for side in sides]
            if bag(answers[0]) != bag(answers[1]):
                found.append((number, asked, *answers))
            if asked[1] in (CREATE_ACLS, DELETE_ACLS):
                settle(sides)
    for number, asked, kafka, ours in found:
        print(f"sequence {number}: {asked}\n  kafka    {kafka}\n  tidegate {ours}")
    assert not found


def alike(sides: tuple[AclSide, AclSide], *asked: Any) -> None:
    """Ask both sides, whose answers must be the same."""
    kafka, ours = (side.ask(*asked) for side in sides)
    assert bag(kafka) == bag(ours), asked


def settle(sides: tuple[AclSide, AclSide]) -> None:
    """Wait until Kafka has taken over what was answered: the ACLs and topics that are there."""
    until = time.monotonic() + SETTLED_WITHIN_S
    questions = (DESCRIBE_ACLS, 3, EVERYTHING), (METADATA, 12, _ALL_TOPICS)
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
