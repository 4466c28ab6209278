"""The usage record that a group may read, written by a real broker and its writer."""

import grp
import os
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.e2e.broker import Broker

LOCKS = ("lock", "writer.lock")
NOBODY = 65_534


@pytest.fixture
def group_id() -> int:
    """Return a group that the broker's user may give files to: as root any other than its own."""
    groups = [group.gr_gid for group in grp.getgrall()] if os.geteuid() == 0 else os.getgroups()
    return next((gid for gid in groups if gid != os.getegid()), os.getegid())


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory that every user may pass through; that of pytest is private."""
    with tempfile.TemporaryDirectory(prefix="tidegate-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_a_group_reads_the_record_and_nothing_else(directory: Path, group_id: int) -> None:
    """Every file of the record is the group's to read, in the spool and as Parquet; the data are not."""
    broker = Broker(directory, options=["--usage-group", str(group_id)]).start()
    try:
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce("t", b"x")
        assert producer.flush(20) == 0
        usage = broker.data_dir / "usage"
        assert list(usage.rglob("*.open"))
        check(usage, group_id)
    finally:
        broker.stop()
    broker.start()  # the writer of the first life has converted what it left, or does so now
    try:
        broker.wait_log(re.compile("listening"))
        check(usage, group_id)
        others = [path for path in broker.data_dir.rglob("*") if usage not in (path, *path.parents)]
        assert others
        assert [path for path in others if path.stat().st_mode & 0o077] == []
        assert stat.S_IMODE(broker.data_dir.stat().st_mode) == 0o710
        if os.geteuid() == 0:
            read_as_member(usage, broker.data_dir, group_id)
    finally:
        broker.close()


def check(usage: Path, group_id: int) -> None:
    """Wait until all that is in a usage directory has the modes and the group that it should have."""
    deadline = time.monotonic() + 10
    while (wrong := list(wrong_modes(usage, group_id))) and time.monotonic() < deadline:
        time.sleep(0.02)  # a file gets its mode right after it is made
    assert wrong == []


def wrong_modes(usage: Path, group_id: int) -> Iterator[tuple[Path, str, int]]:
    """Yield what has another mode or group than it should have; lock files are the owner's only."""
    for path in [usage, *usage.rglob("*")]:
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # converted meanwhile
        mode = stat.S_IMODE(status.st_mode)
        if path.name in LOCKS:
            if mode != 0o600:
                yield path, oct(mode), status.st_gid
        elif (mode, status.st_gid) != (0o2750 if path.is_dir() else 0o640, group_id):
            yield path, oct(mode), status.st_gid


def read_as_member(usage: Path, data_dir: Path, group_id: int) -> None:
    """Read as another user, who is a member of the group; and be refused without it."""
    member = {"user": NOBODY, "group": group_id, "extra_groups": []}
    stranger = {"user": NOBODY, "group": NOBODY if group_id != NOBODY else 1, "extra_groups": []}
    (state,) = usage.rglob("state.json")

    def code(command: list[str], who: dict) -> int:
        return subprocess.run(command, capture_output=True, check=False, timeout=20, **who).returncode

    assert code(["cat", str(state)], member) == 0
    assert code(["cat", str(state)], stranger) != 0
    assert code(["ls", str(data_dir)], member) != 0
    assert code(["cat", str(data_dir / "tidegate.db")], member) != 0
