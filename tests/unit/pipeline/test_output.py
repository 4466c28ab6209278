"""Where results may be written."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.output import MARKER, prepare_output, saved_table


def _prepare(directory, *, overwrite=False):
    return prepare_output(directory, command="usage", tables=["b", "a"], overwrite=overwrite)


def test_new_directory_is_made_and_marked(tmp_path):
    """The marker says which command wrote which tables."""
    _prepare(tmp_path / "deep" / "out")
    marker = json.loads((tmp_path / "deep" / "out" / MARKER).read_text())
    assert marker == {"command": "usage", "tables": ["a", "b"], "stale": [], "complete": False}


def test_our_own_directory_is_written_again(tmp_path):
    """Results may replace results."""
    _prepare(tmp_path)
    (tmp_path / "a.parquet").mkdir()
    _prepare(tmp_path)


def test_foreign_directory_is_refused(tmp_path):
    """What is not ours stays, unless the user says so; nothing is deleted even then."""
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(OutputError, match=r"is not empty .* \(found 'thesis.txt'\)") as caught:
        _prepare(tmp_path)
    assert "--overwrite" in caught.value.hint
    _prepare(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_file_in_the_way_is_one_clear_error(tmp_path):
    """A path that is a file cannot be a directory."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"^cannot write to '.*file': File exists$"):
        _prepare(tmp_path / "file")


def test_a_table_takes_the_place_of_another_when_it_is_complete(tmp_path):
    """What is killed half-way leaves the table that was there, and a marker that does not say complete."""
    first, second = (pa.table({"number": [number]}) for number in (1, 2))
    results = _prepare(tmp_path)
    with results.replaced("a") as path:
        pq.write_table(first, path)
    with pytest.raises(ConfigError, match=r"has no complete table 'a'"):
        saved_table(tmp_path, "a")
    results.finish()
    assert saved_table(tmp_path, "a") == first
    results = _prepare(tmp_path)
    killed = results.replaced("a")
    path = killed.__enter__()  # and no more
    path.write_text("half")
    assert pq.read_table(tmp_path / "a.parquet") == first
    with pytest.raises(ConfigError, match=r"has no complete table 'a'"):
        saved_table(tmp_path, "a")
    with results.replaced("a") as path:
        pq.write_table(second, path)
    results.finish()
    assert saved_table(tmp_path, "a") == second
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.parquet", MARKER]


def test_tables_of_another_command_go_when_this_one_is_complete(tmp_path):
    """Also if one in between was killed; tables that nobody of ours wrote stay."""
    results = _prepare(tmp_path)
    for name in ("a", "b", "mine"):
        (tmp_path / f"{name}.parquet").mkdir()
    results.finish()
    for tables in (["c"], ["b"]):
        results = prepare_output(tmp_path, command="replay", tables=tables, overwrite=False)
    results.finish()
    assert sorted(path.name for path in tmp_path.glob("*.parquet")) == ["b.parquet", "mine.parquet"]
