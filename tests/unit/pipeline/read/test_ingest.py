"""Looking at usage files before Spark does: each bad one is named."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.files import find_files, write_events
from tests.replaying.node import RecordingNode

from tidegate.pipeline.errors import UsageFilesError, VanishedFileError
from tidegate.pipeline.read.ingest import list_chunks, open_usage
from tidegate.usage.arrow import arrow_schema
from tidegate.usage.columns import ADDED_COLUMNS


@pytest.fixture
def usage(tmp_path):
    """A directory with one good file of three events."""
    node = RecordingNode()
    for ts_ms in range(3):
        node.expire(ts_ms)
    write_events(tmp_path, node.events)
    return tmp_path


def test_rows_of_good_files_are_counted(usage):
    """The footers tell how many rows there are."""
    assert sum(chunk.rows for chunk in list_chunks(find_files(usage))) == 3


def test_missing_directory(tmp_path):
    """A directory that is not there is named."""
    with pytest.raises(UsageFilesError, match=r"no usage record at '.*nowhere'") as caught:
        find_files(tmp_path / "nowhere")
    assert "usage directory" in caught.value.hint


def test_empty_directory(tmp_path):
    """A directory without usage files is named, with what was expected."""
    with pytest.raises(UsageFilesError, match="no usage files in"):
        find_files(tmp_path)


def test_only_a_damaged_segment(tmp_path):
    """The error says that there is one, and where."""
    segment = tmp_path / "spool" / "node-1" / f"{1:020}.closed"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"no segment".ljust(1280))
    with pytest.raises(UsageFilesError, match=f"except damaged segments: {segment} at byte 0") as caught:
        find_files(tmp_path)
    assert "move the file away" in caught.value.hint


def test_the_data_directory_of_a_server_is_not_its_record(tmp_path, caplog):
    """Its usage directory is named; files are found below it, but not what lies in the spool: a warning says so."""
    (tmp_path / "usage" / "spool" / "node-1").mkdir(parents=True)
    with pytest.raises(UsageFilesError, match="no usage files in") as caught:
        find_files(tmp_path)
    assert caught.value.hint == f"give {str(tmp_path / 'usage')!r}"
    (tmp_path / "usage" / "parquet").mkdir()
    (tmp_path / "usage" / "parquet" / "x.parquet").touch()
    assert len(find_files(tmp_path)) == len(find_files(tmp_path / "usage")) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"skipped the rows in {tmp_path / 'usage' / 'spool'}: give {tmp_path / 'usage'} to read them"
    ]


def test_corrupt_file(usage):
    """A file that is no Parquet is named."""
    (usage / "date=1970-01-01" / "hour=00" / "zz.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(UsageFilesError, match=r"zz\.parquet' is not a usable Parquet file") as caught:
        list_chunks(find_files(usage))
    assert "move the file away" in caught.value.hint


def test_truncated_file(usage):
    """A file that lost its end is named."""
    file = find_files(usage)[0]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UsageFilesError, match="is not a usable Parquet file"):
        list_chunks(find_files(usage))


def test_file_from_before(usage):
    """A file without the columns that were added later counts."""
    (file,) = find_files(usage)
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns([*ADDED_COLUMNS]), file)
    assert sum(chunk.rows for chunk in list_chunks([file])) == 3


def test_missing_column(usage):
    """A Parquet file of something else is named with the first column that it lacks."""
    pq.write_table(pa.table({"kind": ["request"]}), usage / "other.parquet")
    with pytest.raises(UsageFilesError, match=r"other\.parquet' has no column 'ts_ms'") as caught:
        list_chunks(find_files(usage))
    assert caught.value.hint is not None


def test_column_of_another_type(usage):
    """A column of another type is named with both types."""
    fields = [field.with_type(pa.int32()) if field.name == "seq" else field for field in arrow_schema()]
    pq.write_table(pa.schema(fields).empty_table(), usage / "other.parquet")
    with pytest.raises(
        UsageFilesError, match=r"column 'seq' of '.*other\.parquet' is 'int32', expected 'int64'"
    ):
        list_chunks(find_files(usage))


def test_a_file_that_goes_after_it_was_listed(usage):
    """Is named, so that who listed it can list again."""
    files = find_files(usage)
    files[0].unlink()
    with pytest.raises(VanishedFileError, match="was removed while it was read"):
        list_chunks(files)


@pytest.mark.parametrize(
    ("name", "said"), [("_delta_log/0.json", "Delta Lake"), ("metadata/v1.metadata.json", "Apache Iceberg")]
)
def test_tables_of_other_formats_are_refused_by_name(usage, name, said):
    """Some of their Parquet files hold rows that were deleted or replaced."""
    (usage / name).parent.mkdir()
    (usage / name).touch()
    with (
        pytest.raises(UsageFilesError, match=f"is a table of {said}, expected a directory") as caught,
        open_usage(usage),
    ):
        pass
    assert "spark.write.parquet" in caught.value.hint
