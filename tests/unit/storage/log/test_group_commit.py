"""Syncs that nobody waits for: of closed segments, and of what a killed process left."""

from pathlib import Path

import pytest
from tests.unit.storage.disk import Disk
from tests.unit.storage.logs import append, batch
from tests.unit.storage.node import StorageNode


def test_failing_sync_of_a_closed_segment_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A segment that cannot be synced when it is full ends the log too."""
    disk = Disk()
    node = StorageNode(tmp_path, sync=disk, log_flush_interval_messages=1)
    node.create("orders", segment_bytes="1048576", flush_messages="1000000")
    disk.failing.add(node.inode("orders"))
    for _ in range(2):
        append(node.log("orders"), batch(value=bytes(700_000)))
    node.round()
    assert (node.log("orders").failed, len(caplog.records)) == (True, 1)
    node.storage.close()


def test_what_a_killed_process_left_is_synced_at_the_start(tmp_path: Path) -> None:
    """Records that survived `kill -9` in the kernel's memory alone go to the disk with the first round."""
    node = StorageNode(tmp_path, log_flush_interval_messages=1)
    node.create("orders")
    append(node.log("orders"), batch(4))
    node.storage.close()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 0\n")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    disk = Disk()
    again = StorageNode(tmp_path, sync=disk, log_flush_interval_messages=1)
    again.round()
    assert (again.log("orders").recovery_point, len(disk.synced)) == (4, 1)
    again.storage.close()
