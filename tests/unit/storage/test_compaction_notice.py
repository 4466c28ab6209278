"""Tests of the warning that compacted topics grow, and of what is deleted of them."""

import logging
from pathlib import Path

import pytest
from tests.unit.storage.logs import NOW_MS, append, batch
from tests.unit.storage.node import StorageNode

from tidegate.in_slices import run_at_once

WEEK_MS = 7 * 86_400_000


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about compaction, and forget them."""
    found = [each.getMessage() for each in caplog.records if "compact" in each.getMessage()]
    caplog.clear()
    return found


def test_one_warning_for_a_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first topic that is only compacted is named; hundreds of others add no lines. The next start names them."""
    caplog.set_level(logging.WARNING)
    node = StorageNode(tmp_path)
    node.create("plain")
    node.create("both", cleanup_policy="compact,delete")
    assert warnings(caplog) == []
    for number in range(7):
        node.create(f"compacted-{number}", cleanup_policy="compact")
    (line,) = warnings(caplog)
    assert "all records are kept in topics with cleanup.policy=compact, such as compacted-0" in line
    assert "hint: use cleanup.policy=compact,delete" in line
    node.storage.close()
    again = StorageNode(tmp_path)
    (line,) = warnings(caplog)
    assert "compacted-0, compacted-1, compacted-2, compacted-3, compacted-4 and 2 more" in line
    again.storage.close()


def test_an_altered_topic_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A topic that is given the policy later is warned about then."""
    node = StorageNode(tmp_path)
    node.create("orders")
    topic = node.storage.topics.by_name["orders"]
    run_at_once(node.storage.topics.alter_in_slices(topic, {"cleanup.policy": "compact"}))
    assert len(warnings(caplog)) == 1
    node.storage.close()


@pytest.mark.parametrize(
    ("default", "policy", "kept"),
    [
        ("delete", "compact", True),
        ("delete", "compact,delete", False),
        ("compact", "", True),
        ("compact", "delete", False),
        ("compact,delete", "", False),
    ],
)
def test_records_past_their_retention(tmp_path: Path, default: str, policy: str, kept: bool) -> None:
    """They stay where the policy, the topic's or the node's (`log.cleanup.policy`), is compact alone."""
    node = StorageNode(tmp_path, log_cleanup_policy=default, log_retention_bytes=0)
    node.create("orders", **({"cleanup_policy": policy} if policy else {}))
    for _ in range(3):
        append(node.log("orders"), batch(2), NOW_MS)
    for _ in node.storage.clean(NOW_MS + 2 * WEEK_MS):
        pass
    assert node.log("orders").start_offset == (0 if kept else 6)
    node.storage.close()
