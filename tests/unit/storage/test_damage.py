"""Tests of files that are lost: at the start, while they are in use, and what a kill leaves, which is no damage."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.logs import append, batch, contents, new_log
from tests.unit.storage.node import StorageNode

from tidegate import error_codes
from tidegate.in_slices import run_at_once
from tidegate.storage import StorageError
from tidegate.storage.errors import AppendError, LogDamagedError

MIB = 1024 * 1024


def filled(directory: Path, *, closed: bool = True) -> Path:
    """Return a data directory with two partitions of four segments each, as an end or a kill leaves it."""
    node = StorageNode(directory)
    node.create("orders", 2, segment_bytes=str(MIB))
    for partition in range(2):
        for _ in range(4):
            for _ in range(5):
                append(node.log("orders", partition), batch(2, value=bytes(100_000)))
    assert len(node.log("orders").segments) > 3
    if not closed:
        shutil.copytree(directory, directory.with_name("killed"))
    node.storage.close()
    return directory if closed else directory.with_name("killed")


def segments(directory: Path) -> list[Path]:
    """Return the segment files of partition 0."""
    return sorted((directory / "orders-0").glob("*.log"))


def flip(path: Path, at: int) -> None:
    """Turn a few bytes around."""
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(20)
        file.seek(at)
        file.write(bytes(255 - byte for byte in old))


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a segment in the middle is missing": (
        lambda data: segments(data)[1].unlink(),
        "is missing|without its records",
    ),
    "all files of a segment in the middle are missing": (
        lambda data: [path.unlink() for path in (data / "orders-0").glob(f"{segments(data)[1].stem}.*")],
        "are missing or damaged",
    ),
    "a segment in the middle is cut": (
        lambda data: os.truncate(segments(data)[1], 300_000),
        "are missing or damaged",
    ),
    "a segment in the middle is cut between two batches": (
        lambda data: os.truncate(segments(data)[1], len(batch(2, value=bytes(100_000)))),
        "are missing or damaged",
    ),
    "a segment in the middle is empty": (
        lambda data: os.truncate(segments(data)[1], 0),
        "are missing or damaged",
    ),
    "a directory is missing": (lambda data: shutil.rmtree(data / "orders-1"), "is missing"),
    "all segments are missing": (
        lambda data: [path.unlink() for path in segments(data)],
        "without its records|contains no",
    ),
    "a directory is another topic's": (
        lambda data: (data / "orders-1" / "partition.metadata").write_text("version: 0\ntopic_id: other\n"),
        "belongs to topic id other",
    ),
    "the database is missing": (
        lambda data: [path.unlink() for path in data.glob("tidegate.db*")],
        "tidegate.db' is missing or empty",
    ),
    "the database is empty": (
        lambda data: (
            [path.unlink() for path in data.glob("tidegate.db-*")],
            os.truncate(data / "tidegate.db", 0),
        ),
        "tidegate.db' is missing or empty",
    ),
    "the database is of another directory": (
        lambda data: (
            StorageNode(data.parent / "other").storage.close(),
            shutil.copy(data.parent / "other" / "tidegate.db", data / "tidegate.db"),
            [path.unlink() for path in data.glob("tidegate.db-*")],
        ),
        "contains records of a partition that is not in the database",
    ),
}


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("what", REFUSED)
def test_start_is_refused_where_something_was_lost(tmp_path: Path, what: str, closed: bool) -> None:
    """One error that names what and where, with what to do, instead of beginning empty; nothing is changed by it."""
    data = filled(tmp_path / "data", closed=closed)
    damage, told = REFUSED[what]
    damage(data)
    before = {path: path.stat().st_size for path in data.rglob("*.log")}
    for _ in range(2):
        with pytest.raises(StorageError, match=told) as raised:
            StorageNode(data)
        assert str(data) in str(raised.value)
        assert raised.value.hint is not None
        assert "\n" not in str(raised.value)
    assert {path: path.stat().st_size for path in data.rglob("*.log")} == before


def test_operator_can_give_a_partition_up(tmp_path: Path) -> None:
    """As the hint says: an empty directory in the place of a lost one begins anew, the others are as they were."""
    data = filled(tmp_path / "data")
    shutil.rmtree(data / "orders-1")
    (data / "orders-1").mkdir()
    node = StorageNode(data)
    assert [node.log("orders", partition).end_offset for partition in range(2)] == [40, 0]
    node.storage.close()


def test_operator_can_give_the_beginning_up(tmp_path: Path) -> None:
    """As the hint says: with the segments up to the damaged one away, the log begins after them."""
    data = filled(tmp_path / "data")
    second, third = segments(data)[1:3]
    os.truncate(second, 5)
    with pytest.raises(StorageError) as raised:
        StorageNode(data)
    assert f"start the log at offset {int(third.stem)}" in (raised.value.hint or "")
    for path in (data / "orders-0").iterdir():
        if path.stem.isdigit() and int(path.stem) < int(third.stem) and path.suffix != ".snapshot":
            path.unlink()
    node = StorageNode(data)
    assert (node.log("orders").start_offset, node.log("orders").end_offset) == (int(third.stem), 40)
    node.storage.close()


def test_creation_that_was_broken_off_is_finished(tmp_path: Path) -> None:
    """A topic that is in the store while some of its directories are not there yet is opened with all of them."""
    for on_disk in range(4):
        node = StorageNode(tmp_path / str(on_disk))
        node.create("orders", 3)
        topic = node.storage.topics.by_name["orders"].stored()
        node.storage.store.put_topic(topic, on_disk=0)
        node.storage.close()
        for partition in range(on_disk, 3):
            shutil.rmtree(tmp_path / str(on_disk) / f"orders-{partition}")
        node = StorageNode(tmp_path / str(on_disk))
        assert len(node.storage.topics.by_name["orders"].logs) == 3
        node.storage.close()
        shutil.rmtree(tmp_path / str(on_disk) / "orders-2")
        with pytest.raises(StorageError, match="orders-2' is missing"):
            StorageNode(tmp_path / str(on_disk))


def test_growth_that_was_broken_off_is_finished(tmp_path: Path) -> None:
    """The same for partitions that were being added; those that were there before must still be."""
    node = StorageNode(tmp_path)
    node.create("orders", 2)
    topic = node.storage.topics.by_name["orders"]
    node.storage.store.put_topic(replace(topic.stored(), partitions=4), on_disk=2)
    node.storage.close()
    shutil.rmtree(tmp_path / "orders-0")
    with pytest.raises(StorageError, match="orders-0' is missing"):
        StorageNode(tmp_path)
    (tmp_path / "orders-0").mkdir()
    node = StorageNode(tmp_path)
    assert len(node.storage.topics.by_name["orders"].logs) == 4
    node.storage.close()


def test_deletion_that_the_store_has_lost_is_finished(tmp_path: Path) -> None:
    """When the machine goes down, directories may have gone that the store still knows: they were deleted."""
    node = StorageNode(tmp_path)
    topic_id = node.create("orders", 2)
    node.storage.close()
    (tmp_path / "orders-0").rename(tmp_path / f"{topic_id}-0.deleted")
    node = StorageNode(tmp_path)
    assert list(node.storage.topics) == []
    node.storage.close()
    assert not list(tmp_path.glob("orders*"))
    assert not list(tmp_path.glob("*.deleted"))


def test_segments_that_were_being_removed_are_gone(tmp_path: Path) -> None:
    """What retention has renamed when the process dies is no part of the log, and is removed."""
    log = new_log(tmp_path, segment_bytes=100)
    for _ in range(3):
        append(log, batch())
    log.on_set_aside = lambda paths: None
    log.drop_oldest()
    assert list(tmp_path.glob("*.deleted"))
    log = new_log(tmp_path, segment_bytes=100)
    assert (log.start_offset, log.end_offset) == (1, 3)
    assert not list(tmp_path.glob("*.deleted"))


@pytest.mark.parametrize("what", ["removed", "cut"])
def test_older_segment_that_is_lost_in_use_is_noticed_when_it_is_read(tmp_path: Path, what: str) -> None:
    """The first read of what has gone is an error, not an empty answer."""
    log = new_log(tmp_path, segment_bytes=100)
    for _ in range(4):
        append(log, batch())
    assert log.read(3, MIB) is not None
    older = log.segments[1].path
    if what == "removed":
        older.unlink()
    else:
        os.truncate(older, 10)
    with pytest.raises(LogDamagedError):
        log.read(1, MIB)
    with pytest.raises(AppendError) as raised:
        append(log, batch())
    assert raised.value.error_code == error_codes.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("what", ["database", "directory", "write-ahead log"])
def test_lost_database_is_noticed_and_nothing_more_is_promised(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics and offsets are refused instead of being kept in a file that nobody will find; said once."""
    node = StorageNode(tmp_path / "data")
    data = tmp_path / "data"
    if what == "directory":
        shutil.rmtree(data)
    else:
        for path in data.glob("tidegate.db-wal" if what == "write-ahead log" else "tidegate.db*"):
            path.unlink()
    for _ in range(3):
        node.scheduler.advance(0.6)
    with pytest.raises(StorageError):
        run_at_once(node.storage.topics.create_in_slices("new", 1, {}))
    with pytest.raises(StorageError):
        node.storage.take_producer_id()
    assert not (data / "new-0").exists()
    assert sum("topics, quotas and offsets fail now" in record.getMessage() for record in caplog.records) == 1
    node.storage.close()


def test_bits_that_flip_in_an_older_segment_are_for_its_readers(tmp_path: Path) -> None:
    """Older segments are not read at the start: their readers check the CRC."""
    data = filled(tmp_path / "data")
    node = StorageNode(data)
    whole = contents(node.log("orders"))
    node.storage.close()
    flip(segments(data)[1], 700_000)
    node = StorageNode(data)
    assert len(contents(node.log("orders"))) == len(whole)
    node.storage.close()
