"""DescribeUserScramCredentials and AlterUserScramCredentials on the wire, and whose right they take."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.authentication.login_client import CLIENTS, SETTINGS, LoginClient
from tests.server.memory_network import MemoryNode

from tidegate.api_keys import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:alice",
}
GOOD: dict[str, Any] = {
    "name": "zoe", "mechanism": 2, "iterations": 4096, "salt": b"salt", "salted_password": bytes(64),
}  # fmt: skip


@pytest.fixture
def client_of(tmp_path: Path) -> Iterator[Callable[[str], LoginClient]]:
    """Return a function that logs a user in at a node with an authorizer."""
    node = MemoryNode(tmp_path / "data", texts={**SETTINGS, **AUTHORIZER})

    def log_in(user: str) -> LoginClient:
        client = LoginClient(node)
        client.log_in(user, f"{user}-secret")
        return client

    yield log_in
    node.close()


def alter(client: LoginClient, deletions: list[Any], upsertions: list[Any]) -> list[dict[str, Any]]:
    """Alter credentials and return the results."""
    message = {"deletions": deletions, "upsertions": upsertions}
    answer = client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, message)
    assert answer is not None
    return list(answer["results"])


def test_a_user_may_log_in_once_it_was_added(client_of: Callable[[str], LoginClient]) -> None:
    """What is set over the wire is described over the wire, and is gone when it is removed."""
    client = client_of("alice")
    assert alter(client, [], [GOOD]) == [{"user": "zoe", "error_code": 0, "error_message": None}]
    for users in (None, [], [{"name": "zoe"}]):
        answer = client.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": users})
        assert answer == {
            "throttle_time_ms": 0, "error_code": 0, "error_message": "",
            "results": [
                {
                    "user": "zoe", "error_code": 0, "error_message": "",
                    "credential_infos": [{"mechanism": 2, "iterations": 4096}],
                }
            ],
        }  # fmt: skip
    deleted = alter(client, [{"name": "zoe", "mechanism": 2}], [])
    assert deleted == [{"user": "zoe", "error_code": 0, "error_message": None}]


def test_who_may_not_is_told(client_of: Callable[[str], LoginClient]) -> None:
    """Without DESCRIBE and ALTER on the cluster: error 31, for each user that is altered; nothing is changed."""
    client = client_of("bob")
    nobody = {"user": "", "error_code": 31, "error_message": None, "credential_infos": []}
    for users, results in (None, []), ([{"name": "zoe"}, {"name": "x"}], [nobody, nobody]):
        answer = client.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": users})
        assert answer is not None
        assert (answer["error_code"], answer["error_message"]) == (31, None)
        assert answer["results"] == results
    refused = alter(client, [{"name": "x", "mechanism": 1}, {"name": "x", "mechanism": 2}], [GOOD])
    assert [(result["user"], result["error_code"]) for result in refused] == [("x", 31), ("zoe", 31)]
    assert client.transport.local_address[0] == CLIENTS
    described = client_of("alice").ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
    assert described is not None
    assert described["results"] == []
