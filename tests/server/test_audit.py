"""The lines of the audit log: who changed what, the old and the new value, bounded, and without secrets."""

import logging
from typing import Any

import pytest

from tidegate.server.audit import HIDDEN, MAX_LINES, Audit
from tidegate.server.repeated_lines import RepeatedLines
from tidegate.server.requests.handler import Connection


def connection(user: str = "admin") -> Connection:
    """Return the connection of a client that has logged in."""
    return Connection(1, "CLIENTS", "10.0.0.7", "10.0.0.1", 9092, user=user)


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return the log, with every line of the audit log."""
    caplog.set_level(logging.INFO, "tidegate.audit")
    return caplog


def test_a_line_has_the_client_and_both_values(audited: pytest.LogCaptureFixture) -> None:
    """The record has the same facts as fields."""
    with Audit(connection()) as audit:
        audit.changed("alter", "quota", "user='x'", key="producer_byte_rate", old=None, new=1024.0)
        audit.changed("delete", "ACL", "ALLOW")
    assert audited.messages == [
        "'User:admin' from 10.0.0.7 (listener CLIENTS) altered quota of user='x': producer_byte_rate none -> 1024.0",
        "'User:admin' from 10.0.0.7 (listener CLIENTS) deleted ACL ALLOW",
    ]
    fields: list[dict[str, Any]] = [vars(record)["audit"] for record in audited.records]
    assert fields[0] == {
        "outcome": "changed",
        "principal": "User:admin",
        "client_host": "10.0.0.7",
        "listener": "CLIENTS",
        "action": "alter",
        "resource": "quota",
        "name": "user='x'",
        "key": "producer_byte_rate",
        "old": None,
        "new": 1024.0,
    }


def test_a_request_with_many_changes_has_few_lines(audited: pytest.LogCaptureFixture) -> None:
    """The last line has the number of the others, also when the work fails halfway."""

    def change_many() -> None:
        with Audit(connection()) as audit:
            for number in range(MAX_LINES + 7):
                audit.changed("create", "ACL", str(number))
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        change_many()
    assert len(audited.messages) == MAX_LINES + 1
    assert audited.messages[-1].endswith("(listener CLIENTS) made 7 more changes in this request")


def test_lines_are_bounded_and_stay_one_line(audited: pytest.LogCaptureFixture) -> None:
    """Names and values that a client chooses cannot make a long line, or a second one."""
    with Audit(connection("u\n" * 50_000)) as audit:
        audit.changed(
            "alter", "topic setting", "n" * 50_000, key="\n" * 50_000, old="o" * 50_000, new="\n\u2028"
        )
    (line,) = audited.messages
    assert len(line) < 2000
    assert line.isprintable()


def test_a_hidden_value_is_shown_as_hidden(audited: pytest.LogCaptureFixture) -> None:
    """It is no text of its own."""
    with Audit(connection()) as audit:
        audit.changed("alter", "setting", "node 1", key="ssl.key.password", old=HIDDEN, new=HIDDEN)
    assert audited.messages[0].endswith("altered setting of node 1: ssl.key.password [hidden] -> [hidden]")


def test_refused_changes_share_a_line(audited: pytest.LogCaptureFixture) -> None:
    """The line of a request names the first; a client that asks again and again gets one in a minute."""
    for _ in range(3):
        with Audit(connection("bob")) as audit:
            audit.refused("create", "topic", "'a'")
            audit.refused("create", "topic", "'b'")
    assert {record.levelno for record in audited.records} == {logging.WARNING}
    assert audited.messages[0] == (
        "'User:bob' from 10.0.0.7 (listener CLIENTS) is not authorized to create topic 'a' (and 1 more in this request)"
    )
    repeated = RepeatedLines(lambda: 0.0)
    assert [repeated.filter(record) for record in audited.records] == [True, False, False]


def test_warnings_are_bounded_with_the_lines(audited: pytest.LogCaptureFixture) -> None:
    """A change without a line has no warning, either."""
    with Audit(connection()) as audit:
        for number in range(MAX_LINES + 1):
            audit.changed("alter", "quota", str(number))
            audit.warn("low")
    assert audited.messages.count("low") == MAX_LINES


def test_without_changes_there_is_no_line(audited: pytest.LogCaptureFixture) -> None:
    """Such as after a request that only validates."""
    with Audit(connection()):
        pass
    assert audited.messages == []
