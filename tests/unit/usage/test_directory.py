"""A node's spool directory: one owner, numbers that do not repeat, and what a dead process left."""

import json
import os

import pytest
from tests.unit.usage.recording import START_MS, client, closed_events, open_recorder, record, spool_directory

from tidegate.errors import ConfigError
from tidegate.usage.directory import (
    RESERVED_NUMBERS,
    SpoolDirectory,
    lock_file,
    make_private_directory,
    node_of,
    share_directory,
    write_private_file,
)
from tidegate.usage.segment import CLOSED_SUFFIX, NAMES_SUFFIX, OPEN_SUFFIX, segment_path, segment_paths


def open_directory(path, node_id=1, now_ms=START_MS):
    return SpoolDirectory(path, node_id=node_id, now_ms=now_ms)


def test_second_owner_is_refused(tmp_path):
    """Two recorders never share a spool, and the error says what to do."""
    first = open_directory(tmp_path)
    with pytest.raises(ConfigError, match="is in use by another process") as caught:
        open_directory(tmp_path)
    assert caught.value.hint == "stop the other process, or give this node another usage directory"
    first.close()
    open_directory(tmp_path).close()


def test_other_node_is_refused(tmp_path):
    """A directory belongs to the node that first used it."""
    open_directory(tmp_path).close()
    with pytest.raises(ConfigError, match="belongs to node 1, expected node 2"):
        open_directory(tmp_path, node_id=2)
    open_directory(tmp_path).close()


def test_numbers_are_reserved_before_use(tmp_path):
    """The note on disk is past every number that the process can give away."""
    directory = open_directory(tmp_path)
    state = json.loads((tmp_path / "state.json").read_text())
    assert directory.next_number == START_MS * 1000
    assert state == {"node_id": 1, "next_number": START_MS * 1000 + RESERVED_NUMBERS}
    directory.reserve(state["next_number"] + 5)
    assert json.loads((tmp_path / "state.json").read_text())["next_number"] == directory.reserved
    assert directory.reserved > state["next_number"] + 5
    directory.close()


def test_numbers_go_on_though_the_clock_fell(tmp_path):
    """A restart takes the next block, whatever the clock says."""
    first = open_directory(tmp_path)
    first.close()
    second = open_directory(tmp_path, now_ms=0)
    assert second.next_number == first.reserved
    second.close()


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"[]",
        b"{",
        b'{"node_id": 1}',
        b"\xff",
        b"9" * 5000,
        b'{"node_id": 1, "next_number": -5}',
        b'{"node_id": 1, "next_number": 99999999999999999999}',
    ],
)
def test_damaged_state_goes_on_from_the_segments(tmp_path, state):
    """Where the note cannot be read, numbers begin past the clock and past every segment."""
    open_directory(tmp_path).close()
    (tmp_path / "state.json").write_bytes(state)
    segment_path(tmp_path, 10**17, CLOSED_SUFFIX).write_bytes(bytes(1280))
    directory = open_directory(tmp_path)
    assert directory.next_number >= 10**17 + 9
    directory.close()


def test_open_segments_of_a_dead_process_are_closed(tmp_path):
    """What was recorded before a process died is handed to the writer at the next start."""
    recorder = open_recorder(tmp_path)
    for index in range(5):
        record(recorder, client(), START_MS, index)
    spool = spool_directory(tmp_path, 1)
    dead = tmp_path / "copy"
    dead.mkdir()
    for path in spool.iterdir():
        (dead / path.name).write_bytes(path.read_bytes())
    recorder.close()
    directory = open_directory(dead)
    assert segment_paths(dead, OPEN_SUFFIX) == []
    (left,) = segment_paths(dead, CLOSED_SUFFIX)
    (closed,) = segment_paths(spool, CLOSED_SUFFIX)
    assert left.read_bytes() == closed.read_bytes()
    assert [event["request_bytes"] for event in closed_events(tmp_path)] == [0, 1, 2, 3, 4]
    directory.close()


def test_empty_and_orphaned_files_are_removed(tmp_path):
    """A segment that was being made, and names whose rows are converted, go at the next start."""
    segment_path(tmp_path, 5, OPEN_SUFFIX).write_bytes(bytes(4096))
    segment_path(tmp_path, 5, NAMES_SUFFIX).touch()
    segment_path(tmp_path, 6, NAMES_SUFFIX).touch()
    directory = open_directory(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "state.json"]
    directory.close()


def test_node_of(tmp_path):
    """A spool says whose it is; any other directory is refused."""
    open_directory(tmp_path).close()
    assert node_of(tmp_path) == 1
    with pytest.raises(ConfigError, match="is not a usage spool"):
        node_of(tmp_path / "elsewhere")


def test_directories_are_private(tmp_path):
    """What is made on the way belongs to the owner only."""
    make_private_directory(tmp_path / "a" / "b")
    modes = {os.stat(path).st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")}
    assert modes == {0o700}


def test_a_shared_directory_shares_what_is_made_in_it(tmp_path):
    """The group may read files and list directories, those that are there and those that come; locks stay private."""
    usage = tmp_path / "usage"
    make_private_directory(usage / "old")
    write_private_file(usage / "old" / "state.json", b"{}")
    os.close(lock_file(usage / "old" / "lock"))
    (usage / "link").symlink_to(tmp_path / "elsewhere")
    share_directory(usage, os.getgid())
    make_private_directory(usage / "new" / "deeper")
    write_private_file(usage / "new" / "deeper" / "f", b"")
    os.close(lock_file(usage / "new" / "writer.lock"))
    found = {path.relative_to(usage).as_posix(): path.lstat() for path in usage.rglob("*")}
    modes = {name: oct(status.st_mode & 0o7777) for name, status in found.items() if name != "link"}
    assert modes == {
        "old": "0o2750",
        "old/state.json": "0o640",
        "old/lock": "0o600",
        "new": "0o2750",
        "new/deeper": "0o2750",
        "new/deeper/f": "0o640",
        "new/writer.lock": "0o600",
    }
    assert {status.st_gid for status in found.values()} == {os.getgid()}
