"""Tests of the journal's files: what is read back after a kill, a torn end, and when disk or files are full."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.storage.groups.group_journal import FULL_BYTES, MAX_RECORD_BYTES, SWITCH_BYTES, GroupJournal

LONG = bytes(MAX_RECORD_BYTES)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[GroupJournal]:
    """Return a new journal."""
    journal = GroupJournal(tmp_path)
    assert journal.read(0) == []
    yield journal
    journal.close()


def read(directory: Path, after: int = 0) -> list[bytes]:
    """Return what another process finds."""
    journal = GroupJournal(directory)
    try:
        return journal.read(after)
    finally:
        journal.close()


def fill(journal: GroupJournal, most_bytes: int) -> int:
    """Append long records until one is refused, or there are so many bytes; return how many."""
    count = 0
    while count * len(LONG) < most_bytes and journal.append(LONG) is not None:
        count += 1
    return count


def test_records_are_read_back_in_order(journal: GroupJournal, tmp_path: Path) -> None:
    """Numbers go on where they ended, also for a journal that is opened again."""
    assert [journal.append(record) for record in (b"a", b"", b"c")] == [1, 2, 3]
    assert (read(tmp_path), read(tmp_path, 2), read(tmp_path, 9)) == ([b"a", b"", b"c"], [b"c"], [])
    again = GroupJournal(tmp_path)
    again.read(7)
    assert again.append(b"d") == 8
    again.close()
    assert read(tmp_path, 3) == [b"d"]


def test_files_are_private(journal: GroupJournal, tmp_path: Path) -> None:
    """They hold names of groups and what clients commit."""
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_records_of_both_files_are_read(journal: GroupJournal, tmp_path: Path) -> None:
    """The second file is used when the first has some size, and emptied when it is retired."""
    count = fill(journal, 2 * SWITCH_BYTES)
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert min(sizes) >= SWITCH_BYTES
    assert len(read(tmp_path)) == count == journal.number
    assert not journal.can_retire(1)
    assert journal.can_retire(count)
    journal.retire()
    assert not journal.can_retire(count)
    assert 0 < len(read(tmp_path)) < count
    assert read(tmp_path, count) == []


def test_a_full_journal_takes_nothing(journal: GroupJournal, tmp_path: Path) -> None:
    """It takes records again once a file was retired."""
    count = fill(journal, 4 * FULL_BYTES)
    assert SWITCH_BYTES + FULL_BYTES <= count * len(LONG) < SWITCH_BYTES + FULL_BYTES + 4 * MAX_RECORD_BYTES
    assert journal.append(b"small") is None
    journal.retire()
    assert journal.append(b"small") == count + 1
    assert read(tmp_path, count) == [b"small"]
    assert journal.append(LONG + b"x") is None


@pytest.mark.parametrize("cut", [1, 10, 17])
def test_a_torn_end_is_ignored(
    journal: GroupJournal, tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The records before it are read, and a warning names the bytes that are not."""
    journal.append(b"first")
    journal.append(b"torn")
    path = tmp_path / "groups-0.journal"
    os.truncate(path, path.stat().st_size - cut)
    assert read(tmp_path) == [b"first"]
    assert f"({20 - cut} bytes, from byte 21)" in caplog.text


def test_damage_is_told(journal: GroupJournal, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A changed byte in the middle hides the records behind it."""
    for record in (b"first", b"second", b"third"):
        journal.append(record)
    path = tmp_path / "groups-0.journal"
    data = bytearray(path.read_bytes())
    data[data.index(b"second")] ^= 1
    path.write_bytes(data)
    assert read(tmp_path) == [b"first"]
    assert "(43 bytes, from byte 21)" in caplog.text


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_write_that_fails_is_taken_back(
    journal: GroupJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stuck: bool
) -> None:
    """A full disk takes half a record: nothing of it is left, or the file is not used until it was emptied."""
    assert journal.append(b"first") == 1
    write, truncate = os.write, os.ftruncate
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
    if is_stuck:
        monkeypatch.setattr(os, "ftruncate", lambda fd, size: os.fstat(-1))
    assert journal.append(b"second") is None
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "ftruncate", truncate)
    assert journal.append(b"third") == 2
    assert (tmp_path / "groups-1.journal").stat().st_size == (21 if is_stuck else 0)
    assert read(tmp_path) == [b"first", b"third"]
    if is_stuck:
        assert journal.can_retire(2)
        journal.retire()
        assert read(tmp_path) == [b"third"]


def test_an_error_of_the_disk_is_logged(
    journal: GroupJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller writes the change elsewhere."""

    def fails(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fails)
    assert journal.append(b"first") is None
    assert "groups-0.journal: [Errno 28] No space left on device" in caplog.text


def test_a_removed_file_is_not_used(
    journal: GroupJournal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records in it would be lost; one line says so."""
    (tmp_path / "groups-1.journal").unlink()
    for _ in range(2):
        journal.check_files()
    assert journal.append(b"first") is None
    assert caplog.text.count("groups-1.journal was deleted while in use") == 1


def test_an_emptied_journal(journal: GroupJournal, tmp_path: Path) -> None:
    """Nothing is left for another version of the program to misread."""
    journal.append(b"first")
    journal.sync()
    journal.empty()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0
    assert journal.append(b"second") == 2
