"""Where results may be written, and when they count."""

import errno
import json
import os
import shutil
import stat
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.results.by_date import DAY_MS, DatedParts
from tidegate.pipeline.results.output import MARKER, check_output, opened_results, saved_table
from tidegate.pipeline.results.written import as_written, written_schema

DATED = pa.schema([("ts_ms", pa.int64())])


def _opened(directory, *, overwrite=False):
    return opened_results(directory, command="usage", overwrite=overwrite)


def _write(directory, number, *names, overwrite=False):
    """Write complete results: tables of one number."""
    with _opened(directory, overwrite=overwrite) as results:
        for name in names:
            with results.replaced(name) as path:
                pq.write_table(_table(number), path)
        results.finish({"number": number})


def _table(number):
    return pa.table({"number": [number]})


def _names(directory):
    return sorted(path.name for path in directory.iterdir())


def _runs(directory):
    return [path.name for path in (directory / ".tidegate").iterdir() if path.name.startswith("run-")]


def test_a_new_directory_has_nothing_that_counts(tmp_path):
    """Until the run is complete; what was not finished leaves nothing."""
    out = tmp_path / "deep" / "out"
    with _opened(out) as results, results.replaced("a") as path:
        pq.write_table(_table(1), path)
        assert _names(out) == [".tidegate"]
        with pytest.raises(ConfigError, match=r"has no complete table 'a'"):
            saved_table(out, "a")
    assert _names(out) == [".tidegate"]
    assert _runs(out) == []
    check_output(out, overwrite=False)


def test_results_are_the_owners_alone(tmp_path):
    """Whatever the process would give others, and whatever mode their directory has; the marker names the files."""
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o755)
    (out / ".tidegate").mkdir()
    (out / ".tidegate").chmod(0o755)
    before = os.umask(0o022)
    try:
        with _opened(out) as results:
            with results.replaced("a") as path:
                pq.write_table(_table(1), path)
            with results.dated("b", DATED) as writer:
                writer.write(pa.RecordBatch.from_pydict({"ts_ms": [0, DAY_MS]}))
            results.finish({"version": "1"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    below = [path for path in (out / ".tidegate", *out.rglob("*")) if not path.is_symlink()]
    modes = {path.is_dir(): set() for path in below}
    for path in below:
        modes[path.is_dir()].add(stat.S_IMODE(path.stat().st_mode))
    assert modes == {True: {0o700}, False: {0o600}}
    assert all(path.is_symlink() for path in out.iterdir() if path.name != ".tidegate")
    marker = json.loads((out / MARKER).read_text())
    assert marker.pop("run") in _runs(out)
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


def test_a_table_without_rows_is_there(tmp_path):
    """With its columns, also where it has files by date."""
    with _opened(tmp_path) as results:
        with results.dated("b", DATED):
            pass
        results.keep_files(results.parts("c", DATED), [])
        results.finish({})
    assert saved_table(tmp_path, "b").schema == saved_table(tmp_path, "c").schema == written_schema(DATED)


def test_of_what_tasks_wrote_only_what_is_kept_counts(tmp_path):
    """A task may have been tried again: what the first attempt left is gone, also for who reads by path."""
    with _opened(tmp_path) as results:
        parts = results.parts("b", DATED)
        assert isinstance(parts, DatedParts)
        for file in ("date=1970-01-01/part-0-0.parquet", "date=1970-01-01/part-0-1.parquet"):
            path = tmp_path.joinpath(parts.directory, file)
            path.parent.mkdir(exist_ok=True)
            pq.write_table(as_written(pa.table({"ts_ms": [1]}, schema=DATED)), path)
        results.keep_files(parts, ["date=1970-01-01/part-0-1.parquet"])
        results.finish({})
    assert pq.read_table(tmp_path / "b.parquet").num_rows == 1
    assert saved_table(tmp_path, "b")["ts"].cast(pa.int64()).to_pylist() == [1000]


def test_only_one_run_writes_at_a_time(tmp_path):
    """The second is refused at once, and the first goes on."""
    with _opened(tmp_path) as results:
        with pytest.raises(OutputError, match="another run is writing to"), _opened(tmp_path):
            pass
        with results.replaced("a") as path:
            pq.write_table(_table(1), path)
        results.finish({})
    _write(tmp_path, 2, "a")
    assert saved_table(tmp_path, "a") == _table(2)


def test_a_marker_of_somebody_else_removes_nothing(tmp_path):
    """Names in it are no paths; links in the place of ours are not followed."""
    (tmp_path / "mine.parquet").mkdir()
    (tmp_path / "out").mkdir()
    strange = {"tables": {"../mine": [], "a": 5}, "complete": True}
    (tmp_path / "out" / MARKER).write_text(json.dumps(strange))
    for name in ("../mine", "a"):
        with pytest.raises(ConfigError, match="has no complete table"):
            saved_table(tmp_path / "out", name)
    _write(tmp_path / "out", 1, "a")
    assert (tmp_path / "mine.parquet").is_dir()
    (tmp_path / "mine.parquet" / "run-20261122T163012004711-5f1c09aa").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".tidegate").symlink_to(tmp_path / "mine.parquet")
    with pytest.raises(OutputError, match="is a link, expected a directory"):
        _write(tmp_path / "other", 1, "a")
    run = tmp_path / "out" / ".tidegate" / "run-20261122T163012004711-00000000"
    run.symlink_to(tmp_path / "mine.parquet")
    _write(tmp_path / "out", 2, "a")
    assert not run.is_symlink()
    assert _names(tmp_path / "mine.parquet") == ["run-20261122T163012004711-5f1c09aa"]


@pytest.mark.parametrize("nested", ["[" * 100_000, '"x"', "", "\x00"])
def test_a_broken_marker_is_no_results(tmp_path, nested):
    """Nor an error of another kind."""
    (tmp_path / MARKER).write_text(nested)
    with pytest.raises(ConfigError, match="has no complete table 'a'"):
        saved_table(tmp_path, "a")
    _write(tmp_path, 1, "a")
    assert saved_table(tmp_path, "a") == _table(1)


def test_links_in_a_circle_are_no_results(tmp_path):
    """They lead nowhere."""
    (tmp_path / MARKER).symlink_to(MARKER)
    with pytest.raises(ConfigError, match="has no complete table 'a'"):
        saved_table(tmp_path, "a")
    _write(tmp_path, 1, "a")
    assert saved_table(tmp_path, "a") == _table(1)


def test_foreign_directory_is_refused(tmp_path):
    """What is not ours stays, unless the user says so; nothing is deleted even then."""
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(OutputError, match=r"is not empty .* \(found 'thesis.txt'\)") as caught:
        _write(tmp_path, 1, "a")
    assert "--overwrite" in caught.value.hint
    _write(tmp_path, 1, "a", overwrite=True)
    _write(tmp_path, 2, "a")
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_file_in_the_way_is_one_clear_error(tmp_path):
    """A path that is a file cannot be a directory."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"^'.*file' is a file, expected a directory$"):
        _write(tmp_path / "file", 1, "a")


def _whole(directory):
    """Return what counts, by its marker and by paths, which is of one run."""
    marker = json.loads((directory / MARKER).read_text())
    by_path = {
        path.stem: pq.read_table(path)["number"].to_pylist()
        for path in directory.glob("*.parquet")
        if path.exists()
    }
    assert by_path == {name: [marker["number"]] for name in marker["tables"]}
    assert all(saved_table(directory, name) == _table(marker["number"]) for name in marker["tables"])
    return marker["number"], *sorted(marker["tables"])


def _killed_at_every_line(directory, then):
    """Do `then`, and return copies of the directory as it was before each line of the code that writes results."""
    found = {}

    def trace(frame, event, _):
        if not frame.f_code.co_filename.endswith(
            ("pipeline/results/output.py", "shutil.py", "usage/directory.py")
        ):
            return None
        if event == "line" and not copying:
            copying.append(True)
            state = tuple(sorted((str(path), path.lstat().st_mtime_ns) for path in directory.rglob("*")))
            if state not in found:
                found[state] = directory.with_name(f"killed-{len(found)}")
                shutil.copytree(directory, found[state], symlinks=True)
            copying.clear()
        return trace

    copying = []
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        then()
    finally:
        sys.settrace(before)
    return list(found.values())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("x" * 300, "File name too long"),
        ("x" * 40_000, "File name too long"),
        ("\udce9", "its name is not UTF-8"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_name_that_nothing_can_have_is_one_clear_error(tmp_path, name, reason, overwrite):
    """Before anything is read, and of a length that can be shown."""
    with pytest.raises(OutputError, match=rf"^cannot write to '.*: {reason}$") as caught:
        _write(tmp_path / name, 1, "a", overwrite=overwrite)
    assert len(str(caught.value)) < 5000


def test_all_tables_take_the_place_of_those_before_at_once(tmp_path):
    """Killed before any line: what is there is whole, before or after; and the next run leaves nothing else."""
    out = tmp_path / "out"
    _write(out, 1, "a", "b")
    assert _whole(out) == (1, "a", "b")
    killed = _killed_at_every_line(out, lambda: _write(out, 2, "b", "c"))
    assert _whole(out) == (2, "b", "c")
    found = [_whole(each) for each in killed]
    assert found == sorted(found)
    assert {*found} == {(1, "a", "b"), (2, "b", "c")}
    for each in killed:
        _write(each, 3, "d")
        assert _whole(each) == (3, "d")
        assert _names(each) == [".tidegate", "d.parquet", MARKER]
        assert len(_runs(each)) == 1


def test_what_is_killed_first_leaves_a_directory_that_is_ours(tmp_path):
    """Nothing counts in it, or all does; it is written again without --overwrite."""
    out = tmp_path / "out"
    out.mkdir()
    for each in _killed_at_every_line(out, lambda: _write(out, 1, "a")):
        assert not (each / MARKER).exists() or _whole(each) == (1, "a")
        _write(each, 2, "b")
        assert _whole(each) == (2, "b")


def _fail(directory, error):
    with _opened(directory) as results, results.replaced("a") as path:
        path.write_text("half")
        raise error


def test_what_fails_leaves_what_was_there(tmp_path):
    """And takes away what it had written."""
    _write(tmp_path, 1, "a")
    for error, raised in (
        (RuntimeError("anything"), pytest.raises(RuntimeError, match="anything")),
        (
            OSError(errno.ENOSPC, "whatever was done"),
            pytest.raises(OutputError, match=r"^cannot write to '.*': No space left on device$"),
        ),
    ):
        with raised:
            _fail(tmp_path, error)
    assert _whole(tmp_path) == (1, "a")
    assert len(_runs(tmp_path)) == 1


def test_tables_that_nobody_of_ours_wrote_stay(tmp_path):
    """And those of ours go with the run that made them."""
    _write(tmp_path, 1, "a", "b")
    (tmp_path / "mine.parquet").mkdir()
    (tmp_path / "dangling.parquet").symlink_to("nowhere")
    _write(tmp_path, 2, "b")
    assert _names(tmp_path) == [".tidegate", "b.parquet", "dangling.parquet", "mine.parquet", MARKER]


@pytest.mark.parametrize("with_links", [False, True])
def test_a_copy_is_results_too(tmp_path, with_links):
    """With links or with what they lead to; and it may be written again."""
    _write(tmp_path / "out", 1, "a", "b")
    shutil.copytree(tmp_path / "out", tmp_path / "copy", symlinks=with_links)
    assert saved_table(tmp_path / "copy", "b") == _table(1)
    _write(tmp_path / "copy", 2, "a")
    assert saved_table(tmp_path / "copy", "a") == pq.read_table(tmp_path / "copy" / "a.parquet") == _table(2)
    assert _names(tmp_path / "copy") == [".tidegate", "a.parquet", MARKER]
    assert saved_table(tmp_path / "out", "a") == _table(1)


def test_a_table_of_somebody_else_is_replaced_where_that_was_asked_for(tmp_path):
    """A file or a directory by the name of one of ours."""
    (tmp_path / "a.parquet").mkdir()
    (tmp_path / "a.parquet" / "x").write_text("x")
    pq.write_table(_table(7), tmp_path / "b.parquet")
    _write(tmp_path, 1, "a", "b", overwrite=True)
    assert pq.read_table(tmp_path / "a.parquet") == pq.read_table(tmp_path / "b.parquet") == _table(1)
