"""Where results may be written."""

import json
import os
import stat

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline.by_date import DAY_MS
from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.output import MARKER, prepare_output, saved_table


def _prepare(directory, *, overwrite=False):
    return prepare_output(directory, command="usage", tables=["b", "a"], overwrite=overwrite)


def test_new_directory_is_made_and_marked(tmp_path):
    """The marker says which command wrote which tables."""
    _prepare(tmp_path / "deep" / "out")
    marker = json.loads((tmp_path / "deep" / "out" / MARKER).read_text())
    assert marker.pop("run").startswith("run-")
    assert marker == {
        "format": 1,
        "command": "usage",
        "complete": False,
        "tables": {"a": [], "b": []},
        "stale": [],
    }


def test_results_are_the_owners_alone(tmp_path):
    """Directories, tables and marker, whatever the process would give others; the marker names the files."""
    before = os.umask(0o022)
    try:
        results = _prepare(tmp_path / "deep" / "out")
        with results.replaced("a") as path:
            pq.write_table(pa.table({"number": [1]}), path)
        with results.dated("b", pa.schema([("ts_ms", pa.int64())])) as writer:
            writer.write(pa.RecordBatch.from_pydict({"ts_ms": [0, DAY_MS]}))
        results.finish({"version": "1"})
    finally:
        os.umask(before)
    modes = {path.is_dir(): set() for path in tmp_path.rglob("*")}
    for path in tmp_path.rglob("*"):
        modes[path.is_dir()].add(stat.S_IMODE(path.stat().st_mode))
    assert modes == {True: {0o700}, False: {0o600}}
    marker = json.loads((tmp_path / "deep" / "out" / MARKER).read_text())
    assert marker.pop("run").startswith("run-")
    assert marker == {
        "format": 1,
        "command": "usage",
        "complete": True,
        "tables": {
            "a": ["a.parquet/part-00000.parquet"],
            "b": [
                "b.parquet/date=1970-01-01/part-00000.parquet",
                "b.parquet/date=1970-01-02/part-00001.parquet",
            ],
        },
        "version": "1",
    }


def test_two_runs_at_once_are_not_mixed(tmp_path):
    """The one that began first ends with an error, and puts nothing in its place."""
    first, second = _prepare(tmp_path), _prepare(tmp_path)
    with pytest.raises(OutputError, match="another run has begun"), first.replaced("a") as path:
        pq.write_table(pa.table({"number": [1]}), path)
    with pytest.raises(OutputError, match="another run has begun"):
        first.finish({})
    assert list(tmp_path.glob("*.parquet")) == []
    second.finish({})


def test_a_marker_of_somebody_else_removes_nothing(tmp_path):
    """Names in it are no paths."""
    (tmp_path / "mine.parquet").mkdir()
    (tmp_path / "out").mkdir()
    strange = {"tables": {"../mine": []}, "stale": ["../mine", 5], "complete": False}
    (tmp_path / "out" / MARKER).write_text(json.dumps(strange))
    _prepare(tmp_path / "out").finish({})
    assert (tmp_path / "mine.parquet").is_dir()


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
    results.finish({})
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
    results.finish({})
    assert saved_table(tmp_path, "a") == second
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.parquet", MARKER]


def test_tables_of_another_command_go_when_this_one_is_complete(tmp_path):
    """Also if one in between was killed, and what it was at; tables that nobody of ours wrote stay."""
    results = _prepare(tmp_path)
    for name in ("a", "b"):
        with results.replaced(name) as path:
            pq.write_table(pa.table({"number": [1]}), path)
    (tmp_path / "mine.parquet").mkdir()
    results.finish({})
    killed = prepare_output(tmp_path, command="limits", tables=["c"], overwrite=False)
    half = killed.replaced("c")
    half.__enter__().write_text("half")  # and no more
    results = prepare_output(tmp_path, command="replay", tables=["b"], overwrite=False)
    results.finish({})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.parquet", "mine.parquet", MARKER]
