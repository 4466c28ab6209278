"""Damage in the write-ahead log is named when the store is opened, and what a crash leaves behind is not."""

import logging
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.storage.metadata.store import MetadataStore
from tidegate.storage.metadata.write_ahead_log import LogDamage, find_damage

HEADER_BYTES, FRAME_HEADER_BYTES, PAGE_BYTES = 32, 24, 4096
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES
Damage = Callable[[Path], None]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the database of a store that was killed with some commits in its log."""
    live = tmp_path / "live"
    live.mkdir()
    opened = MetadataStore(live / "tidegate.db")
    for number in range(30):
        opened.set_meta(f"fact {number}", "x" * 1000)
    killed = tmp_path / "killed"
    shutil.copytree(live, killed)
    opened.close()
    return killed / "tidegate.db"


def frame(number: int, offset: int = 0) -> int:
    """Return where a byte of a frame lies."""
    return HEADER_BYTES + number * FRAME_BYTES + offset


def overwrite(offset: int, data: bytes) -> Damage:
    """Return damage that puts other bytes at an offset; from the end where it is below 0."""

    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(offset, 2 if offset < 0 else 0)
            file.write(data)

    return damage


def cut(size: int) -> Damage:
    """Return damage that cuts off the end."""

    def damage(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - size])

    return damage


def found(path: Path) -> LogDamage | None:
    """Return what is found in the log of a database, after SQLite has read it."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        _, frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return find_damage(path.with_name("tidegate.db-wal"), max(frames, 0))
    finally:
        db.close()


@pytest.mark.parametrize("offset", [8, 16, 24, 500, FRAME_BYTES - 1], ids=str)
@pytest.mark.parametrize("number", [0, 20])
def test_damage_in_the_middle_is_found(store: Path, number: int, offset: int) -> None:
    """A wrong byte anywhere in a frame: its salts, its checksum, its page."""
    log = store.with_name("tidegate.db-wal")
    place = frame(number, offset)
    right = log.read_bytes()[place]  # random in salts and checksums: a fixed byte may be the right one
    overwrite(place, bytes([right ^ 0xFF]))(log)
    damage = found(store)
    assert damage is not None
    assert damage.offset <= frame(number)  # a commit is read whole or not at all
    assert damage.lost_frames is not None
    assert damage.lost_frames > 1


def test_a_damaged_header_is_found(store: Path) -> None:
    """SQLite takes such a log for empty."""
    overwrite(4, b"\x7f")(store.with_name("tidegate.db-wal"))
    assert found(store) == LogDamage(0, None)


@pytest.mark.parametrize("damage", [cut(0), cut(1000), cut(3 * FRAME_BYTES)])
def test_an_end_that_a_crash_cut_off_is_no_damage(store: Path, damage: Damage) -> None:
    """The last commit was not acknowledged before it was written whole."""
    damage(store.with_name("tidegate.db-wal"))
    assert found(store) is None


@pytest.mark.parametrize("damage", [overwrite(-3000, b"\x7f" * 3000), overwrite(-1, b"\x7f")])
def test_a_torn_end_is_mentioned(store: Path, damage: Damage, caplog: pytest.LogCaptureFixture) -> None:
    """No commit follows: ordinary after a power failure, so the line is no warning, and no copy is kept."""
    damage(store.with_name("tidegate.db-wal"))
    with caplog.at_level(logging.INFO):
        MetadataStore(store).close()
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "ignored an incomplete commit at the end of" in record.message
    assert not store.with_name("tidegate.db-wal.damaged").exists()


def test_frames_that_were_rolled_back_are_no_damage(tmp_path: Path) -> None:
    """A large transaction writes frames before it ends; rolled back, all but those written over stay in the log."""
    live = tmp_path / "live"
    live.mkdir()
    db = sqlite3.connect(live / "tidegate.db", isolation_level=None)
    for statement in (
        "PRAGMA journal_mode=WAL",
        "PRAGMA cache_size=5",
        "CREATE TABLE facts (value BLOB)",
        "BEGIN",
    ):
        db.execute(statement)
    for _ in range(100):
        db.execute("INSERT INTO facts VALUES (zeroblob(3000))")
    db.execute("ROLLBACK")
    db.execute("INSERT INTO facts VALUES (1)")
    shutil.copytree(live, tmp_path / "killed")
    db.close()
    damage = found(tmp_path / "killed" / "tidegate.db")
    assert damage is None or damage.is_end


@pytest.mark.parametrize("data", [b"", bytes(100), b"x"], ids=["empty", "zeros", "short"])
def test_a_log_that_holds_nothing_is_no_damage(store: Path, data: bytes) -> None:
    """As after a clean end, or when the file was just made."""
    store.with_name("tidegate.db-wal").write_bytes(data)
    assert found(store) is None


def test_frames_of_an_earlier_log_are_no_damage(tmp_path: Path) -> None:
    """A log that is begun anew after a checkpoint is followed by frames of the one before."""
    live = tmp_path / "live"
    live.mkdir()
    opened = MetadataStore(live / "tidegate.db")
    for number in range(30):
        opened.set_meta(f"fact {number}", "x" * 1000)
    opened.checkpoint()
    opened.set_meta("one more", "x")
    shutil.copytree(live, tmp_path / "killed")
    opened.close()
    assert found(tmp_path / "killed" / "tidegate.db") is None


def test_a_damaged_log_is_named_and_kept(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line when the store is opened: file, place, what is lost, what to do; the file is kept."""
    log = store.with_name("tidegate.db-wal")
    overwrite(frame(20, 500), b"\x7f")(log)
    data = log.read_bytes()
    MetadataStore(store).close()
    (record,) = caplog.records
    assert f"{log} is damaged at byte " in record.message
    assert "hint: " in record.message
    copy = store.with_name("tidegate.db-wal.damaged")
    assert (copy.read_bytes(), copy.stat().st_mode & 0o777) == (data, 0o600)
    caplog.clear()
    MetadataStore(store).close()
    assert caplog.records == []
