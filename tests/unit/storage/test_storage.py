"""Tests of the data directory as a whole."""

import os
import re
import resource
import shutil
import time
from pathlib import Path

import pytest
from tests.unit.storage.logs import append, batch
from tests.unit.storage.node import StorageNode

from tidegate.open_files import OPEN_FILES_PREPARED
from tidegate.storage import Storage, StorageConfig, StorageError
from tidegate.testing import ManualClock


def test_directory_is_used_by_one_at_a_time(node: StorageNode) -> None:
    """A second broker over the same directory is refused before it touches anything."""
    with pytest.raises(StorageError, match="in use by another process") as raised:
        Storage.open(node.storage.directory, StorageConfig(), ManualClock())
    assert raised.value.hint is not None


def test_producers_are_forgotten_when_the_node_says(tmp_path: Path) -> None:
    """After `producer.id.expiration.ms`, at the next look; also those of a log that was opened at the start."""
    for _ in range(2):
        node = StorageNode(tmp_path, producer_id_expiration_ms=5000)
        if "orders" not in node.storage.topics.by_name:
            node.create("orders")
        log = node.log("orders")
        append(log, batch(producer_id=7, producer_epoch=0, base_sequence=len(log.producers)))
        node.clock.advance(4000)
        node.scheduler.advance(61)
        assert len(log.producers) == 1
        node.clock.advance(2000)
        node.scheduler.advance(61)
        assert len(log.producers) == 0
        node.storage.close()


def test_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    """One clear error where there is no directory to use."""
    (tmp_path / "data").write_text("a file")
    with pytest.raises(StorageError, match="cannot use data directory"):
        Storage.open(tmp_path / "data", StorageConfig(), ManualClock())


def test_refused_directory_is_not_kept_locked(tmp_path: Path) -> None:
    """After a failed start the next one may succeed."""
    (tmp_path / "tidegate.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(StorageError):
        Storage.open(tmp_path, StorageConfig(), ManualClock())
    (tmp_path / "tidegate.db").unlink()
    Storage.open(tmp_path, StorageConfig(), ManualClock()).close()


def test_clean_end_leaves_kafkas_marker(tmp_path: Path) -> None:
    """The marker stands while the directory is not used, and only after a clean end."""
    marker = tmp_path / ".kafka_cleanshutdown"
    storage = Storage.open(tmp_path, StorageConfig(), ManualClock())
    assert not marker.exists()
    storage.close()
    assert marker.exists()
    Storage.open(tmp_path, StorageConfig(), ManualClock()).close()


def test_checkpoint_is_kafkas_file(tmp_path: Path) -> None:
    """After a clean end every log is synced to its end, and the checkpoint says so."""
    node = StorageNode(tmp_path)
    node.create("orders", 2)
    append(node.log("orders", 1), batch(3))
    node.storage.close()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n2\norders 0 0\norders 1 3\n"


def test_killed_node_comes_back(tmp_path: Path) -> None:
    """A copy of a directory in use opens with every acknowledged record, topic and quota."""
    node = StorageNode(tmp_path / "data")
    node.create("orders", 2)
    for _ in range(20):
        append(node.log("orders", 1), batch(2))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    again = StorageNode(tmp_path / "copy")
    assert again.log("orders", 1).end_offset == 40
    assert again.storage.cluster_id == node.storage.cluster_id
    again.storage.close()
    node.storage.close()


def test_broken_checkpoint_is_ignored(tmp_path: Path) -> None:
    """Without the checkpoint more is walked, nothing else."""
    node = StorageNode(tmp_path)
    node.create("orders")
    append(node.log("orders"), batch())
    node.storage.close()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("7\nnonsense")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    again = StorageNode(tmp_path)
    assert again.log("orders").end_offset == 1
    again.storage.close()


def test_producer_ids_are_unique_over_restarts(tmp_path: Path) -> None:
    """No id is given out twice, neither within nor across blocks or starts."""
    seen: set[int] = set()
    for _ in range(3):
        storage = Storage.open(tmp_path, StorageConfig(), ManualClock())
        ids = [storage.take_producer_id() for _ in range(1500)]
        assert seen.isdisjoint(ids)
        seen.update(ids)
        storage.close()
    assert len(seen) == 4500


def test_housekeeping_runs_until_the_end(node: StorageNode) -> None:
    """Expired segments go when time passes, and nothing runs after the storage is closed."""
    node.create("orders", segment_bytes="1048576", retention_ms="1000")
    log = node.log("orders")
    for _ in range(3):
        append(log, batch(value=bytes(700_000)))
    node.clock.advance(10_000)
    node.scheduler.advance(61)
    assert log.start_offset == 3
    node.storage.close()
    node.scheduler.advance(61)
    assert node.scheduler.waiting() == 0


def test_there_is_room_for_descriptors_from_the_start(node: StorageNode) -> None:
    """The kernel's table of them does not grow later, when everybody would wait for it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    (size,) = re.findall(r"FDSize:\s+(\d+)", Path("/proc/self/status").read_text())
    assert int(size) >= (OPEN_FILES_PREPARED if hard < 0 else min(hard, OPEN_FILES_PREPARED))


def test_logs_are_synced_together_at_the_end(node: StorageNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of partitions end in seconds, and start again as what they were."""
    node.create("many", 40)
    logs = [node.log("many", index) for index in range(40)]
    for log in logs:
        append(log, batch())
    running: list[int] = []
    most = 0

    def slow_sync(fd: int) -> None:
        nonlocal most
        running.append(fd)
        most = max(most, len(running))
        time.sleep(0.01)
        running.remove(fd)

    monkeypatch.setattr(os, "fsync", slow_sync)
    node.storage.close()
    assert most > 1
    assert {log.recovery_point for log in logs} == {1}
    assert (node.storage.directory / ".kafka_cleanshutdown").exists()


def test_closing_twice_is_harmless(node: StorageNode) -> None:
    """The end is the end."""
    node.storage.close()
    node.storage.close()


def test_closed_segments_are_synced_in_order(tmp_path: Path) -> None:
    """The recovery point follows closed segments once the disk thread has synced them."""
    node = StorageNode(tmp_path)
    node.create("orders", segment_bytes="1048576")
    for _ in range(3):
        append(node.log("orders"), batch(value=bytes(700_000)))
    node.storage._worker.submit(lambda: None).result()
    assert node.log("orders").recovery_point == 2
    node.storage.close()


def test_broken_off_recovery_begins_anew(tmp_path: Path) -> None:
    """The logs of another boot count as checked only when all of them have been."""
    node = StorageNode(tmp_path)
    node.create("orders")
    append(node.log("orders"), batch())
    node.storage.store.set_meta("boot_id", "another boot")
    node.storage.close()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    log = tmp_path / "orders-0" / "00000000000000000000.log"
    log.rename(tmp_path / "kept")
    log.mkdir()
    with pytest.raises(StorageError, match="cannot open data directory"):
        Storage.open(tmp_path, StorageConfig(), ManualClock())
    log.rmdir()
    (tmp_path / "kept").rename(log)
    with open(log, "r+b") as file:
        file.seek(65)
        file.write(b"\xff")
    again = StorageNode(tmp_path)
    assert again.log("orders").end_offset == 0
    again.storage.close()


def test_too_few_open_files_for_all_partitions_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The hard limit of open files must leave room for the partitions that the setting allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for partitions, said in ((1, False), (hard + 1, True)):
        caplog.clear()
        Storage.open(tmp_path, StorageConfig(max_partitions=partitions), ManualClock()).close()
        told = (
            f"limit of open files is {hard}, too low for tidegate.max.partitions={partitions}" in caplog.text
        )
        assert told is (said and hard != resource.RLIM_INFINITY)
