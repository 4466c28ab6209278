"""The checkpoint file: written late, never over a later one, nor with what is another topic's by then."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.node import StorageNode

from tidegate.in_slices import run_at_once
from tidegate.storage.checkpoint_file import CHECKPOINT, CheckpointFile


class Disk:
    """What was given to the disk thread, and has not been done."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []

    def submit(self, function: Callable[..., object], *arguments: Any) -> None:
        """Do it later."""
        self.work.append(lambda: function(*arguments))


@pytest.fixture
def node(tmp_path: Path) -> StorageNode:
    """Return a storage with 500 partitions."""
    node = StorageNode(tmp_path / "data")
    node.create("wide", 500)
    return node


def test_it_is_written_on_the_disk_thread_in_the_end(node: StorageNode, tmp_path: Path) -> None:
    """A part of the lines at a time; what it says is read again."""
    file, disk = CheckpointFile(tmp_path), Disk()
    node.log("wide", 3).recovery_point = 7
    node.create("more", 300)
    assert len(list(file.write_later(node.storage.topics, disk.submit))) >= 2
    assert not (tmp_path / CHECKPOINT).exists()
    assert file.names == {"wide", "more"}
    disk.work.pop()()
    again = CheckpointFile(tmp_path)
    assert again.read() == {("wide", at): 7 * (at == 3) for at in range(500)} | {
        ("more", at): 0 for at in range(300)
    }
    assert again.names == {"wide", "more"}


def test_a_later_one_is_not_written_over(node: StorageNode, tmp_path: Path) -> None:
    """A topic is deleted while the disk is slow: what is written for its successor stays."""
    file, disk = CheckpointFile(tmp_path), Disk()
    node.log("wide", 3).recovery_point = 7
    list(file.write_later(node.storage.topics, disk.submit))
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["wide"]))
    assert "wide" in file.names
    file.try_to_write(node.storage.topics)
    disk.work.pop()()
    assert (file.read(), file.names) == ({}, frozenset())


def test_topics_that_change_meanwhile(node: StorageNode, tmp_path: Path) -> None:
    """What was gathered is thrown away: it may be of a topic that has a successor."""
    file, disk = CheckpointFile(tmp_path), Disk()
    node.log("wide", 3).recovery_point = 7
    writing = file.write_later(node.storage.topics, disk.submit)
    next(writing)
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["wide"]))
    node.create("wide", 1)
    assert list(writing) == []
    assert not disk.work
    assert CheckpointFile(tmp_path).read() == {("wide", 0): 0}


def test_a_disk_that_fails(node: StorageNode, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said, and tried again the next time; not where the whole directory is gone, which is said elsewhere."""
    (tmp_path / f"{CHECKPOINT}.tmp").mkdir()
    disk, file = Disk(), CheckpointFile(tmp_path)
    list(file.write_later(node.storage.topics, disk.submit))
    disk.work.pop()()
    assert f"cannot write {CHECKPOINT}" in caplog.text
    caplog.clear()
    CheckpointFile(tmp_path / "gone").try_to_write(node.storage.topics)
    assert not caplog.text
