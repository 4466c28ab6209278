"""Records of every format version are read: segments and Parquet files that each version has written itself.

`tests/vectors/usage-record` has a folder a version, and the program that wrote it.
"""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.replaying.files import find_files
from tests.unit.usage.reading import read_batches

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.ingest import list_chunks, open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.usage.arrow import ParquetError, arrow_schema, merge_files
from tidegate.usage.columns import ADDED_COLUMNS, COLUMNS, FORMAT_KEY, FORMAT_VERSION, empty_value
from tidegate.usage.convert import convert_all
from tidegate.usage.events import read_segment
from tidegate.usage.files import list_files
from tidegate.usage.segment import BAD_SUFFIX, CLOSED_SUFFIX, SpoolError, load_segment, segment_paths
from tidegate.usage.segment_table import segment_table

RECORDS = Path(__file__).parents[2] / "vectors" / "usage-record"
FOLDERS = sorted(path.name for path in RECORDS.iterdir() if (path / "events.json").exists())


def version_of(folder):
    """Return the format version of a folder's Parquet file."""
    return int(folder.partition("-")[0])


def events_of(folder):
    """Return the events that the version's own reader found, with the columns that were added since."""
    added = {column.name: empty_value(column) for column in COLUMNS if column.name in ADDED_COLUMNS}
    return [added | event for event in json.loads((RECORDS / folder / "events.json").read_text())]


def events_of_segment(folder):
    """Return what a reader of this version finds in the segment: version 1 had 0 for null network time."""
    events = events_of(folder)
    for event in events:
        if event["kind"] not in ("request", "network"):
            event["network_ns"] = None
    return events


@pytest.fixture(params=FOLDERS)
def folder(request):
    """A folder of `tests/vectors/usage-record`."""
    return request.param


def test_segments_of_every_version_are_read(folder):
    """Row by row and column by column, the plain reader and the one that makes Parquet."""
    (path,) = segment_paths(RECORDS / folder / "spool", CLOSED_SUFFIX)
    assert list(read_segment(path)) == events_of_segment(folder)
    assert segment_table(load_segment(path)).to_pylist() == events_of_segment(folder)


def test_parquet_files_of_every_version_are_read(folder):
    """A column that the version lacks has the value of rows that do not fill it."""
    (path,) = list_files(RECORDS / folder / "parquet")
    rows = [row for batch in read_batches(path) for row in batch.to_pylist()]
    assert rows == events_of(folder)
    assert {name for name, since in ADDED_COLUMNS.items() if since > version_of(folder)} == {
        *arrow_schema().names
    } - {*pq.read_schema(path).names}


def test_a_record_of_many_versions_is_one_record(tmp_path):
    """Files of all versions in one directory are compacted, summed up and replayed together."""
    files = []
    for number, folder in enumerate(FOLDERS):
        (path,) = list_files(RECORDS / folder / "parquet")
        files.append(tmp_path / "mixed" / f"{number}.parquet")
        files[-1].parent.mkdir(exist_ok=True)
        shutil.copy(path, files[-1])
    list(merge_files(files, tmp_path / "merged.parquet"))
    merged = [row for batch in read_batches(tmp_path / "merged.parquet") for row in batch.to_pylist()]
    assert merged == [event for folder in FOLDERS for event in events_of(folder)]
    assert (
        pq.read_metadata(tmp_path / "merged.parquet").metadata[FORMAT_KEY.encode()]
        == str(FORMAT_VERSION).encode()
    )


def test_every_version_is_summed_up_and_replayed(folder):
    """`usage` and `replay` answer from a record of any version, its unconverted segments included."""
    with open_usage(RECORDS / folder / "parquet") as files:
        used = {row["client_id"]: row for row in jobs_here(files).usage(out=None, top=10).top}
        entities = jobs_here(files).replay([in_force_plan()], out=None).entities
        by_topic = jobs_here(files).usage(out=None, top=10, by=("topic",))
    assert used["loader"]["produce_bytes"] == sum(range(4000, 4012))
    assert used["reader"]["fetch_bytes"] == sum(range(5000, 5006))
    assert entities
    topics = {row["topic"]: row["requests"] for row in by_topic.top}
    if version_of(folder) < ADDED_COLUMNS["topic"]:
        assert topics == {"(unknown)": 18, "(other requests)": 1}
        assert by_topic.topics.unknown_requests == 18
    else:
        names = {"orders-0": 4 + 5, "orders-1": 4, "orders-2": 4}
        assert topics == names | {"(no records)": 1, "(other requests)": 1}
        assert (by_topic.topics.multi_topic_requests, by_topic.topics.unknown_requests) == (4, 0)


def test_segments_that_an_upgrade_finds_are_converted(tmp_path, folder):
    """The writer turns a segment of any version into Parquet of this one, and loses nothing."""
    shutil.copytree(RECORDS / folder / "spool", tmp_path / "spool")
    assert convert_all(tmp_path / "spool", tmp_path / "parquet", node_id=1) == 1
    (path,) = list_files(tmp_path / "parquet")
    assert [row for batch in read_batches(path) for row in batch.to_pylist()] == events_of_segment(folder)
    assert pq.read_metadata(path).metadata[FORMAT_KEY.encode()] == str(FORMAT_VERSION).encode()
    assert not segment_paths(tmp_path / "spool", BAD_SUFFIX)


def test_the_newest_folder_is_of_this_version():
    """A change of columns needs a new version and a folder for it."""
    newest = max(FOLDERS, key=lambda name: (version_of(name), "-" not in name))
    (path,) = list_files(RECORDS / newest / "parquet")
    assert (version_of(newest), pq.read_schema(path).names) == (FORMAT_VERSION, arrow_schema().names)


def test_a_newer_parquet_file_is_refused_by_name(tmp_path):
    """The error names the file and both versions: in the jobs, the reader and the compaction."""
    (path,) = list_files(RECORDS / "7" / "parquet")
    newer = tmp_path / path.name
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.replace_schema_metadata({FORMAT_KEY: "8"}), newer)
    expected = (
        r"node-1-.*\.parquet'?: usage format 8, written by a newer version of Tidegate; this one reads 1 to 7"
    )
    with pytest.raises(UsageFilesError, match=expected) as caught:
        list_chunks(find_files(tmp_path))
    assert caught.value.hint is not None
    with pytest.raises(ParquetError, match=expected):
        list(read_batches(newer))


def test_a_newer_segment_is_refused_by_name_and_kept(tmp_path, caplog):
    """Its bytes stay as `.bad`, and the log says that a newer version has written it."""
    shutil.copytree(RECORDS / "7" / "spool", tmp_path / "spool")
    (path,) = segment_paths(tmp_path / "spool", CLOSED_SUFFIX)
    data = path.read_bytes().replace(b"TGUSAGE4", b"TGUSAGE5")
    path.write_bytes(data)
    with pytest.raises(SpoolError, match="a newer version of Tidegate wrote this file"):
        load_segment(path)
    convert_all(tmp_path / "spool", tmp_path / "parquet", node_id=1)
    assert [kept.read_bytes() for kept in segment_paths(tmp_path / "spool", BAD_SUFFIX)] == [data]
    assert "a newer version of Tidegate" in caplog.text
