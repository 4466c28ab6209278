"""Tenants that fill the bound of partitions shut out no other tenant."""

from pathlib import Path

import pytest
from tests.limits.frames import CREATE_PARTITIONS, CREATE_TOPICS, METADATA, create_topics, metadata, new_topic
from tests.limits.tenants import TenantConnection, first_operation, tenants_broker

from tidegate import error_codes
from tidegate.storage.config import MAX_PARTITIONS

pytestmark = pytest.mark.alone

PER_REQUEST = 100


def fill(client: TenantConnection, prefix: str = "") -> int:
    """Create topics until the broker refuses one with a single partition; return how many partitions that made."""
    created, partitions = 0, PER_REQUEST
    while True:
        name = f"{client.user}-{prefix}{created}"
        answer = client.ask(CREATE_TOPICS, 5, create_topics([new_topic(name, partitions)]))
        (topic,) = answer["topics"]
        if topic["error_code"] == 0:
            created += partitions
        elif partitions == 1:
            assert topic["error_code"] == error_codes.POLICY_VIOLATION, topic
            assert f"User:{client.user}" in topic["error_message"], topic
            return created
        else:
            partitions = max(partitions // 2, 1)


@pytest.mark.parametrize("attackers", [("mallory",), ("mallory", "eve")], ids=len)
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_another_tenant_creates_a_topic(tmp_path: Path, attackers: tuple[str, ...], restart: bool) -> None:
    """The first one gets half of the partitions, the next half of the rest; a newcomer creates one within a second."""
    with tenants_broker(tmp_path, (*attackers, "victim")) as broker:
        left = MAX_PARTITIONS
        for attacker in attackers:
            with broker.log_in(attacker) as client:
                created = fill(client)
            assert created == left // 2
            left -= created
        if restart:
            broker.restart(kill=True)
            for attacker in attackers:
                with broker.log_in(attacker) as client:
                    assert fill(client, "again-") == 0
        with first_operation(), broker.log_in("victim") as client:
            client.create("victim-0", 4)


def test_automatic_creation_and_growth_are_divided(tmp_path: Path) -> None:
    """A tenant gets no more partitions by Metadata or by CreatePartitions; the log and the text say why."""
    overrides = {"tidegate.max.partitions": "100", "num.partitions": "10"}
    with tenants_broker(tmp_path, ("mallory", "victim"), overrides) as broker:
        with broker.log_in("mallory") as client:
            names = [f"mallory-{number}" for number in range(10)]
            for name in names:
                client.ask(METADATA, 7, metadata([name], create=True))
            listed = client.ask(METADATA, 7, metadata(None))["topics"]
            assert sum(len(topic["partitions"]) for topic in listed) == 50
            grown = {"topics": [{"name": names[0], "count": 11, "assignments": None}], "timeout_ms": 9000}
            (result,) = client.ask(CREATE_PARTITIONS, 1, {**grown, "validate_only": False})["results"]
            assert result["error_code"] == error_codes.POLICY_VIOLATION
            assert "User:mallory has 50 partitions" in result["error_message"]
        assert "rejected automatic creation of topic 'mallory-5'" in broker.log
        with first_operation(), broker.log_in("victim") as client:
            client.ask(METADATA, 7, metadata(["victim-0"], create=True))
            (topic,) = client.ask(METADATA, 7, metadata(["victim-0"]))["topics"]
            assert len(topic["partitions"]) == 10
