"""Tests of topics on disk and in the store."""

import shutil
from pathlib import Path

import pytest
from tests.unit.storage.logs import append, batch, contents
from tests.unit.storage.node import StorageNode

from tidegate.in_slices import run_at_once
from tidegate.storage.errors import StorageError


def directories(node: StorageNode) -> list[str]:
    """Return the names of the directories under the data directory."""
    return sorted(path.name for path in node.storage.directory.iterdir() if path.is_dir())


def test_created_topic_is_found_by_name_and_id(node: StorageNode) -> None:
    """Both ways lead to the same topic."""
    topic_id = node.create("orders", 3)
    topics = node.storage.topics
    assert topics.by_name["orders"] is topics.by_id[topic_id]
    assert [topics.by_id[topic_id].log(at) is None for at in (-1, 0, 2, 3)] == [True, False, False, True]
    assert directories(node) == ["orders-0", "orders-1", "orders-2"]


def test_every_change_has_a_version(node: StorageNode) -> None:
    """Creating, growing and deleting each make what was known stale."""
    topics = node.storage.topics
    versions = [topics.version]
    topic = run_at_once(topics.create_in_slices("orders", 1, {}))
    versions.append(topics.version)
    run_at_once(topics.add_partitions_in_slices(topic, 2))
    versions.append(topics.version)
    run_at_once(topics.delete_in_slices(topic))
    versions.append(topics.version)
    assert versions == sorted(set(versions))


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    """Names, ids, partitions, settings and records come back."""
    node = StorageNode(tmp_path)
    topic_id = node.create("orders", 2, max_message_bytes="500")
    append(node.log("orders", 1), batch())
    run_at_once(node.storage.topics.add_partitions_in_slices(node.storage.topics.by_name["orders"], 4))
    node.storage.close()
    again = StorageNode(tmp_path)
    topic = again.storage.topics.by_id[topic_id]
    assert (topic.name, len(topic.logs), topic.settings.max_message_bytes) == ("orders", 4, 500)
    assert topic.logs[1].end_offset == 1
    again.storage.close()


def test_deleted_topic_leaves_nothing(node: StorageNode) -> None:
    """Directories go off the path at once and off the disk soon."""
    node.create("orders", 2)
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["orders"]))
    assert "orders-0" not in directories(node)
    node.storage.close()
    assert directories(node) == []


def test_topic_made_again_is_empty(node: StorageNode) -> None:
    """A topic of the same name has another id and none of the old records."""
    first = node.create("orders")
    append(node.log("orders"), batch())
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["orders"]))
    assert node.create("orders") != first
    assert node.log("orders").end_offset == 0


def test_half_done_deletion_is_finished_at_the_start(tmp_path: Path) -> None:
    """When the process dies between the store and the disk, the files go at the next start."""
    node = StorageNode(tmp_path)
    node.create("orders", 2)
    topic = node.storage.topics.by_name["orders"]
    node.storage.store.delete_topic(topic.stored())
    node.storage.close()
    again = StorageNode(tmp_path)
    again.storage.close()
    assert directories(again) == []


def test_directory_of_another_topic_is_moved_aside(tmp_path: Path) -> None:
    """Records of a topic that the store does not know are never taken for those of a new one, nor deleted."""
    other = StorageNode(tmp_path / "other")
    topic_id = other.create("orders")
    append(other.log("orders"), batch())
    whole = contents(other.log("orders"))
    other.storage.close()
    node = StorageNode(tmp_path / "data")
    shutil.move(tmp_path / "other" / "orders-0", tmp_path / "data" / "orders-0")
    node.create("orders")
    assert node.log("orders").end_offset == 0
    stray = tmp_path / "data" / f"orders-0.{topic_id}-stray" / "00000000000000000000.log"
    assert stray.read_bytes() == whole
    node.storage.close()


def test_failed_creation_leaves_nothing(node: StorageNode) -> None:
    """When a directory cannot be made the topic does not exist afterwards, neither in memory nor in the store."""
    (node.storage.directory / "orders-1").write_text("in the way")
    with pytest.raises(StorageError, match="cannot create partition 1 of topic 'orders'"):
        run_at_once(node.storage.topics.create_in_slices("orders", 2, {}))
    assert "orders" not in node.storage.topics.by_name
    assert list(node.storage.store.topics()) == []
    node.round()
    assert directories(node) == []


def test_failed_growth_leaves_the_topic_as_it_was(node: StorageNode) -> None:
    """When a new partition cannot be made the topic keeps those it had."""
    node.create("orders", 1)
    (node.storage.directory / "orders-2").write_text("in the way")
    topic = node.storage.topics.by_name["orders"]
    with pytest.raises(StorageError):
        run_at_once(node.storage.topics.add_partitions_in_slices(topic, 3))
    assert len(topic.logs) == 1
    assert [stored.partitions for stored in node.storage.store.topics()] == [1]
