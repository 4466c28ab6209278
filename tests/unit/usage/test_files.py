"""Names of Parquet files, which of them count, and what may be deleted."""

from pathlib import Path

import pytest

from tidegate.errors import ConfigError
from tidegate.usage.files import (
    IMPORT_MANIFEST,
    ParquetFile,
    has_imported,
    hour_directories,
    hour_directory,
    is_imported,
    list_files,
    node_files,
    parquet_path,
    remove_hour,
    remove_temporary_files,
    split_superseded,
    temporary_path,
)

HOUR_MS = 3_600_000


def parquet_file(first, last, *, node_id=1, compacted=False, directory=Path("hour")):
    path = parquet_path(directory, node_id=node_id, first_seq=first, last_seq=last, compacted=compacted)
    return ParquetFile.parse(path)


@pytest.mark.parametrize("compacted", [False, True])
def test_names_parse_back(compacted):
    """A name says all there is to know of a file."""
    file = parquet_file(5, 2**62, node_id=12, compacted=compacted)
    assert (file.node_id, file.first_seq, file.last_seq, file.compacted) == (12, 5, 2**62, compacted)


@pytest.mark.parametrize(
    "name", ["part-0.parquet", ".node-1-" + "0" * 20 + "-" + "0" * 20 + ".parquet.tmp", "node-1-5-9.parquet"]
)
def test_other_names_are_not_ours(name):
    """What does not follow the rule says nothing."""
    assert ParquetFile.parse(Path(name)) is None


def test_compacted_file_supersedes_what_it_covers():
    """Files in the range of a compacted one are left out, files outside and of other nodes stay."""
    inside = [parquet_file(10, 19), parquet_file(20, 29), parquet_file(10, 24, compacted=True)]
    outside = [parquet_file(30, 39), parquet_file(10, 19, node_id=2), parquet_file(10, 29, compacted=True)]
    current, superseded = split_superseded(inside + outside)
    assert {file.path for file in current} == {file.path for file in outside}
    assert {file.path for file in superseded} == {file.path for file in inside}


def test_plain_file_supersedes_nothing():
    """Only a compacted file takes the place of others."""
    files = [parquet_file(10, 39), parquet_file(20, 29)]
    assert split_superseded(files) == (files, [])


def make(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.fixture
def usage(tmp_path):
    """A usage directory of two hours, one of them compacted, one being written."""
    early = hour_directory(tmp_path / "parquet", 0)
    late = hour_directory(tmp_path / "parquet", HOUR_MS)
    make(parquet_path(early, node_id=1, first_seq=1, last_seq=4))
    make(parquet_path(early, node_id=1, first_seq=5, last_seq=9))
    make(parquet_path(early, node_id=1, first_seq=1, last_seq=9, compacted=True))
    make(parquet_path(late, node_id=1, first_seq=10, last_seq=12))
    make(temporary_path(parquet_path(late, node_id=1, first_seq=13, last_seq=15)))
    make(temporary_path(parquet_path(late, node_id=2, first_seq=13, last_seq=15)))
    make(tmp_path / "spool" / "node-1" / "00000000000000000016.open")
    return tmp_path


def test_list_files(usage):
    """Each row once, complete files only; the usage directory, its parquet, a day or an hour can be given."""
    early, late = (path for _, path in hour_directories(usage / "parquet"))
    files = [
        parquet_path(early, node_id=1, first_seq=1, last_seq=9, compacted=True),
        parquet_path(late, node_id=1, first_seq=10, last_seq=12),
    ]
    assert list_files(usage) == list_files(usage / "parquet") == list_files(early.parent) == files
    assert list_files(late) == list_files(files[1]) == files[1:]


def test_list_files_takes_other_parquet_files(tmp_path):
    """Files that somebody else wrote are taken as they are, except what Spark would leave out too."""
    for name in ("part-0.parquet", "_hidden.parquet", ".part-1.parquet", "_SUCCESS", "part-2.parquet.crc"):
        make(tmp_path / name)
    assert list_files(tmp_path) == [tmp_path / "part-0.parquet"]


def test_list_files_of_nothing(tmp_path):
    """An empty directory has no files; none at all is an error that names it."""
    assert list_files(tmp_path) == []
    with pytest.raises(
        ConfigError, match=r"no usage record at '.*nowhere', expected a directory or a Parquet file"
    ):
        list_files(tmp_path / "nowhere")


def test_hours_in_order(usage):
    """Hours are named by their first millisecond; other directories are none."""
    make(usage / "parquet" / "date=2020-01-01" / "hour=99" / "x")
    assert [hour_ms for hour_ms, _ in hour_directories(usage / "parquet")] == [0, HOUR_MS]


@pytest.mark.parametrize("ts_ms", [0, HOUR_MS - 1, 253_402_300_799_999])
def test_hour_directory_names_parse_back(tmp_path, ts_ms):
    """The directory of any time that a row can have is found again."""
    hour_directory(tmp_path, ts_ms).mkdir(parents=True)
    assert [hour_ms for hour_ms, _ in hour_directories(tmp_path)] == [ts_ms // HOUR_MS * HOUR_MS]


def test_a_record_is_imported_wherever_its_manifest_is(tmp_path):
    """Above the part that is read, or below, in one of several records; not in a directory that is not read."""
    several, first = tmp_path / "several", tmp_path / "several" / "a"
    directory = hour_directory(first / "parquet", 0)
    file = make(parquet_path(directory, node_id=1, first_seq=1, last_seq=4))
    assert not has_imported(several)
    make(first / "not-read" / IMPORT_MANIFEST)
    assert not has_imported(first)
    make(several / "b" / IMPORT_MANIFEST)
    assert has_imported(several)
    assert not is_imported(several)
    assert not has_imported(file)
    make(first / IMPORT_MANIFEST)
    assert all(map(is_imported, (first, first / "parquet", directory, file)))


def test_node_files(usage):
    """Only the files of the node asked for."""
    early, late = (path for _, path in hour_directories(usage / "parquet"))
    assert len(node_files(early, 1)) == 3
    assert node_files(late, 2) == []


def test_remove_hour_leaves_other_files(usage):
    """Only files of the record go, and the directories with them when nothing else is in them."""
    early, late = (path for _, path in hour_directories(usage / "parquet"))
    note = make(late / "notes.txt")
    remove_hour(early)
    remove_hour(late)
    assert not early.exists()
    assert list(late.iterdir()) == [note]
    note.unlink()
    remove_hour(late)
    assert list((usage / "parquet").iterdir()) == []


def test_remove_temporary_files(usage):
    """What a killed writer of the node left goes; another node's writer may be at work."""
    remove_temporary_files(usage / "parquet", 1)
    assert [path.name[:7] for path in usage.rglob("*.tmp")] == [".node-2"]
