"""Tests of the rights that the handlers of groups ask for."""

from typing import Any

import pytest
from tests.unit.broker.handlers.test_group_members import (
    beating,
    commit_request,
    joining,
    syncing,
)
from tests.unit.broker.node import CONNECTION, Node

from tidegate.api_keys import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    SYNC_GROUP,
)

NOT_THE_GROUP, NOT_THE_TOPIC = 30, 29


class Rights:
    """An authorizer: what may be done, as (resource type, name, operation)."""

    def __init__(self) -> None:
        self.granted: set[tuple[int, str, int]] = set()

    def permitted(self, user: str, host: str, resource_type: int, name: str) -> int:
        """Return a bit set."""
        return sum(1 << op for kind, what, op in self.granted if (kind, what) == (resource_type, name))


@pytest.fixture
def rights() -> Any:
    """Return the rights of the client, who has none."""
    rights = Rights()
    CONNECTION.authorizer = rights
    yield rights
    CONNECTION.authorizer = None


def test_nobody_without_rights_is_answered(node: Node, rights: Rights) -> None:
    """Error 30 for whatever is asked of a group; nothing is listed."""
    node.create("orders")
    found = node.call(JOIN_GROUP, 9, joining("m"))
    assert (found["error_code"], found["member_id"]) == (NOT_THE_GROUP, "")
    assert node.call(SYNC_GROUP, 5, syncing("m", 1))["error_code"] == NOT_THE_GROUP
    assert node.call(HEARTBEAT, 4, beating("m", 1))["error_code"] == NOT_THE_GROUP
    assert node.call(LEAVE_GROUP, 5, {"group_id": "g", "members": []})["error_code"] == NOT_THE_GROUP
    assert node.call(LEAVE_GROUP, 2, {"group_id": "g", "member_id": "m"})["error_code"] == NOT_THE_GROUP
    described = node.call(DESCRIBE_GROUPS, 6, {"groups": ["g"], "include_authorized_operations": True})
    assert described["groups"][0]["error_code"] == NOT_THE_GROUP
    assert node.call(DELETE_GROUPS, 2, {"groups_names": ["g"]})["results"][0]["error_code"] == NOT_THE_GROUP
    assert node.call(OFFSET_DELETE, 0, {"group_id": "g", "topics": []})["error_code"] == NOT_THE_GROUP
    assert "g" not in node.storage.offsets


def test_rights_are_asked_one_by_one(node: Node, rights: Rights) -> None:
    """READ to be a member, DESCRIBE to see, DELETE to delete; offsets need READ on their topic, too."""
    group, topic = 3, 2
    read, delete, describe = 3, 6, 8
    node.create("orders")
    rights.granted = {(group, "g", read), (topic, "orders", read)}
    node.call(OFFSET_COMMIT, 9, commit_request(node))
    assert node.call(JOIN_GROUP, 9, joining())["error_code"] == 79
    assert node.call(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})["groups"] == []
    rights.granted = {(group, "g", describe)}
    described = node.call(DESCRIBE_GROUPS, 6, {"groups": ["g"], "include_authorized_operations": True})
    assert described["groups"][0]["authorized_operations"] == 1 << describe
    listed = node.call(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})["groups"]
    assert [one["group_id"] for one in listed] == ["g"]
    rights.granted = {(group, "g", delete)}
    wanted = {"group_id": "g", "topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}]}
    (found,) = node.call(OFFSET_DELETE, 0, wanted)["topics"]
    assert found["partitions"][0]["error_code"] == NOT_THE_TOPIC
    rights.granted.add((topic, "orders", read))
    (found,) = node.call(OFFSET_DELETE, 0, wanted)["topics"]
    assert found["partitions"][0]["error_code"] == 0
    assert node.call(DELETE_GROUPS, 2, {"groups_names": ["g"]})["results"][0]["error_code"] == 0


def test_cluster_rights_show_all_groups(node: Node, rights: Rights) -> None:
    """DESCRIBE on the cluster lists every group."""
    CONNECTION.authorizer = None
    node.create("orders")
    node.call(OFFSET_COMMIT, 9, commit_request(node))
    CONNECTION.authorizer = rights
    rights.granted = {(4, "kafka-cluster", 8)}
    listed = node.call(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})["groups"]
    assert [one["group_id"] for one in listed] == ["g"]
