"""Tests of removing files on a thread of its own."""

import threading
from pathlib import Path

from tests.unit.storage.logs import append, batch
from tests.unit.storage.node import StorageNode

from tidegate.in_slices import run_at_once
from tidegate.storage.removal import FileRemoval


def directories(tmp_path: Path, count: int) -> list[Path]:
    """Return so many directories, each with a file."""
    made = [tmp_path / f"{number}.deleted" for number in range(count)]
    for directory in made:
        directory.mkdir()
        (directory / "0.log").touch()
    return made


def test_directories_and_files_are_removed(tmp_path: Path) -> None:
    """Those that came together share one sync."""
    began, go_on, syncs = threading.Event(), threading.Event(), []

    def sync() -> None:
        syncs.append(1)
        began.set()
        assert go_on.wait(10)

    removal = FileRemoval(sync)
    made = directories(tmp_path, 20)
    file = tmp_path / "0.log.deleted"
    file.touch()
    removal.remove_directory(made[0])
    assert began.wait(10)
    for directory in made[1:]:
        removal.remove_directory(directory)
    removal.remove_files([file])
    go_on.set()
    removal.wait()
    assert list(tmp_path.iterdir()) == []
    assert len(syncs) == 2
    removal.close()


def test_nothing_is_removed_that_may_not_be_deleted_on_the_disk(tmp_path: Path) -> None:
    """Where the sync fails, the next start removes it."""

    def fail() -> None:
        raise OSError("the disk is gone")

    removal = FileRemoval(fail)
    (directory,) = directories(tmp_path, 1)
    removal.remove_directory(directory)
    removal.wait()
    assert directory.is_dir()
    removal.close()


def test_others_are_synced_while_files_are_removed(tmp_path: Path) -> None:
    """A client that deletes topics with many partitions keeps nobody waiting for the disk."""
    node = StorageNode(tmp_path)
    go_on = threading.Event()
    node.storage._removal._thread.submit(go_on.wait)
    node.create("victim", flush_messages="1")
    node.create("large", 50)
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["large"]))
    append(node.log("victim"), batch())
    node.scheduler.turn()
    node.storage._worker.submit(lambda: None).result(10)
    node.scheduler.turn()
    assert node.log("victim").recovery_point == node.log("victim").end_offset == 1
    assert len(list(tmp_path.glob("*.deleted"))) == 50
    go_on.set()
    node.round()
    assert list(tmp_path.glob("*.deleted")) == []
    node.storage.close()
