"""Where results may be written, and when a reader sees them."""

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
from tidegate.pipeline.results.output import MARKER, check_output, opened_results, saved_table
from tidegate.pipeline.results.writing import DAY_MS, written_schema

NUMBER = pa.schema([("number", pa.int64())])
DATED = pa.schema([("ts_ms", pa.int64()), ("number", pa.int64())])


def _opened(directory, *, overwrite=False, **ends):
    return opened_results(directory, command="usage", overwrite=overwrite, **ends)


def _write(directory, number, *names, days=(), overwrite=False, **ends):
    """Write complete results: tables of one number, and the table `d` over time with a row for each of `days`."""
    with _opened(directory, overwrite=overwrite, **ends) as results:
        for name in names:
            results.put(_table(number), name)
        if days:
            results.put(_dated(number, days), "d")
        results.finish({"number": number})


def _table(number):
    return pa.table({"number": [number]}, schema=NUMBER)


def _dated(number, days):
    return pa.table({"ts_ms": [day * DAY_MS for day in days], "number": [number] * len(days)}, schema=DATED)


def _names(directory):
    return sorted(path.name for path in directory.iterdir())


def _runs(directory):
    return sorted(path.name for path in (directory / "_runs").iterdir() if path.name != "lock")


def _numbers(table):
    return pq.read_table(table)["number"].to_pylist()


def test_a_new_directory_has_no_tables_until_the_run_is_complete(tmp_path):
    """A run that is not finished leaves nothing."""
    out = tmp_path / "deep" / "out"
    with _opened(out) as results:
        results.put(_table(1), "a")
        assert _names(out) == ["_runs"]
        with pytest.raises(ConfigError, match=r"has no complete table 'a'"):
            saved_table(out, "a")
    assert _names(out) == ["_runs"]
    assert _runs(out) == []
    check_output(out, overwrite=False)


def test_results_are_the_owners_alone(tmp_path):
    """Whatever the umask, and whatever mode their directory has; the document of the run names the files."""
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o755)
    before = os.umask(0o022)
    try:
        _write(out, 1, "a", days=(0, 1))
    finally:
        os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    modes = {True: set(), False: set()}
    for path in out.rglob("*"):
        assert not path.is_symlink()
        modes[path.is_dir()].add(stat.S_IMODE(path.stat().st_mode))
    assert modes == {True: {0o700}, False: {0o600}}
    document = json.loads((out / MARKER).read_text())
    assert (out / "_runs" / f"{document['run']}.json").read_text() == (out / MARKER).read_text()
    assert _runs(out) == [f"{document.pop('run')}.json"]
    assert document == {
        "format": 2,
        "command": "usage",
        "complete": True,
        "tables": {
            "a": ["a/part-0.parquet"],
            "d": ["d/date=1970-01-01/part-0.parquet", "d/date=1970-01-02/part-0.parquet"],
        },
        "number": 1,
    }


def test_a_table_without_rows_has_its_columns(tmp_path):
    """A table over time, too, until it has rows."""
    with _opened(tmp_path) as results:
        results.put(NUMBER.empty_table(), "a")
        results.put(DATED.empty_table(), "d")
        results.finish({})
    assert saved_table(tmp_path, "a").schema == NUMBER
    assert saved_table(tmp_path, "d").schema == written_schema(DATED)
    assert len(saved_table(tmp_path, "d")) == 0
    _write(tmp_path, 1, days=(5,))
    assert _names(tmp_path / "d") == ["date=1970-01-06"]
    with _opened(tmp_path) as results:
        results.put(DATED.empty_table(), "d")
        results.finish({})
    assert _numbers(tmp_path / "d") == [1]


def test_files_of_repeated_tasks_are_not_part_of_the_table(tmp_path):
    """A task may have been tried again; the files of a date become one file."""
    with _opened(tmp_path) as results:
        parts = results.parts("d", DATED)
        files = []
        for number in range(4):
            with parts.writer() as writer:
                writer.write(_dated(number, (0, 1)))
            for file in writer.files:
                staged = tmp_path / "_runs" / parts.directory / file
                kept = file.replace("part-", f"part-{number}-")
                staged.rename(staged.with_name(kept.rpartition("/")[2]))
                files.append(kept)
        results.keep_files(parts, [file for file in reversed(files) if "part-1-" not in file])
        results.finish({})
    assert _numbers(tmp_path / "d") == [0, 2, 3] * 2
    assert [path.name for path in tmp_path.glob("d/*/*")] == ["part-0.parquet"] * 2


def test_only_one_run_writes_at_a_time(tmp_path):
    """The second is refused at once, and the first goes on."""
    with _opened(tmp_path) as results:
        with pytest.raises(OutputError, match="another run is writing to"), _opened(tmp_path):
            pass
        results.put(_table(1), "a")
        results.finish({})
    _write(tmp_path, 2, "a")
    assert saved_table(tmp_path, "a") == _table(2)


def test_a_run_replaces_the_dates_that_it_has_rows_of(tmp_path):
    """Each file says which run made it; other tables and dates stay."""
    _write(tmp_path, 1, "a", "b", days=(0, 1, 2))
    kept = tmp_path / "d" / "date=1970-01-01" / "part-0.parquet"
    before = kept.stat()
    _write(tmp_path, 2, "b", days=(1, 3))
    assert _numbers(tmp_path / "d") == [1, 2, 1, 2]
    assert (_numbers(tmp_path / "a"), _numbers(tmp_path / "b")) == ([1], [2])
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(_runs(tmp_path)) == 2
    runs = {
        json.loads(pq.read_schema(path).metadata[b"tidegate"])["run"]
        for path in tmp_path.glob("d/*/*.parquet")
    }
    assert {f"{run}.json" for run in runs} == {*_runs(tmp_path)}


def test_a_date_is_not_replaced_with_fewer_hours(tmp_path):
    """A run over some hours of a date that was read as a whole is refused, unless the user says so."""
    day = 20_000
    begin, end = day * DAY_MS, (day + 1) * DAY_MS
    _write(tmp_path, 1, days=(day,))
    _write(tmp_path, 2, days=(day,), from_ms=begin, to_ms=end + 5)
    for ends in ({"from_ms": begin + 1}, {"to_ms": end - 1}):
        with pytest.raises(OutputError, match="contains more hours than this run has read") as caught:
            _write(tmp_path, 3, days=(day,), **ends)
        assert "--from 2024-10-04 --to 2024-10-05" in caught.value.hint
    assert _numbers(tmp_path / "d") == [2]
    _write(tmp_path, 4, days=(day,), from_ms=begin + 9, overwrite=True)
    _write(tmp_path, 5, days=(day,), from_ms=begin + 7)
    assert _numbers(tmp_path / "d") == [5]


def test_dates_with_other_columns_are_not_mixed(tmp_path):
    """A table over time has one set of columns; the user may replace it."""
    _write(tmp_path, 1, days=(0, 1))
    for overwrite in (False, True):
        with _opened(tmp_path, overwrite=overwrite) as results:
            results.put(_dated(2, (1,)).append_column("more", pa.array([3])), "d")
            if not overwrite:
                with pytest.raises(OutputError, match="has other columns than this run writes"):
                    results.finish({})
                assert _numbers(tmp_path / "d") == [1, 1]
            else:
                results.finish({})
    assert pq.read_table(tmp_path / "d").drop(["ts", "date"]).to_pylist() == [{"number": 2, "more": 3}]


def test_files_of_others_in_a_table_are_an_error(tmp_path):
    """A reader would take them for rows of the table. --overwrite removes them."""
    foreign = ["d/x.parquet", "d/date=1970-01-01/more.parquet", "a/sub/y.parquet", "a/part-1.parquet"]
    _write(tmp_path, 1, "a", days=(0,))
    for name in foreign:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(_table(7), tmp_path / name)
        with pytest.raises(OutputError, match=f"has a file that is not of this table .found '{name}'"):
            _write(tmp_path, 2, "a", days=(0,))
        _write(tmp_path, 3, "a", days=(0,), overwrite=True)
        assert not (tmp_path / name).exists()
    assert _numbers(tmp_path / "a") == _numbers(tmp_path / "d") == [3]


def test_a_table_that_leads_elsewhere_is_an_error(tmp_path):
    """Links are not followed, whoever made them; --overwrite removes the link alone."""
    other = tmp_path / "other"
    other.mkdir()
    pq.write_table(_table(7), other / "part-0.parquet")
    out = tmp_path / "out"
    _write(out, 1, "b")
    (out / "a").symlink_to(other)
    with pytest.raises(OutputError, match=r"has a file that is not of this table \(found 'a'\)"):
        _write(out, 2, "a")
    _write(out, 3, "a", overwrite=True)
    assert (_numbers(out / "a"), _numbers(other)) == ([3], [7])
    shutil.rmtree(out / "_runs")
    (out / "_runs").symlink_to(other)
    with pytest.raises(OutputError, match="is a link, expected a directory"):
        _write(out, 4, "a")


@pytest.mark.parametrize("name", ["../x", "/tmp/x", ""])
def test_an_unfinished_run_of_somebody_else_changes_no_other_file(tmp_path, name):
    """Names that lead out of the directory are not followed."""
    run = tmp_path / "out" / "_runs" / "run-20261122T163012004711-5f1c09aa"
    run.mkdir(parents=True)
    (run / "a").touch()
    for moves in ({"moves": {"_runs/a": name}}, {"removed": [name]}, {"moves": {name: "a/part-0.parquet"}}):
        (run / "moves.json").write_text(json.dumps(moves))
        with pytest.raises(OutputError, match="has a run with the file name"):
            _write(tmp_path / "out", 1, "a")


@pytest.mark.parametrize("text", ["[" * 100_000, '"x"', "", "\x00"])
def test_a_broken_document_is_no_results(tmp_path, text):
    """Nor an error of another kind."""
    (tmp_path / MARKER).write_text(text)
    with pytest.raises(ConfigError, match="has no complete table 'a'"):
        saved_table(tmp_path, "a")
    _write(tmp_path, 1, "a")
    assert saved_table(tmp_path, "a") == _table(1)


def test_foreign_directory_is_refused(tmp_path):
    """Files of others stay, unless the user says so; nothing is deleted even then."""
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


def _old(directory):
    """Write results as Tidegate 0.2.0 did: tables and document are links through `.tidegate/latest`."""
    run = directory / ".tidegate" / "run-20261122T163012004711-5f1c09aa"
    (run / "a.parquet").mkdir(parents=True)
    pq.write_table(_table(9), run / "a.parquet" / "part-00000.parquet")
    document = {"format": 1, "complete": True, "tables": {"a": ["a.parquet/part-00000.parquet"]}}
    (run / MARKER).write_text(json.dumps(document))
    (directory / ".tidegate" / "latest").symlink_to(run.name)
    for name in ("a.parquet", MARKER):
        (directory / name).symlink_to(f".tidegate/latest/{name}")


@pytest.mark.parametrize("overwrite", [False, True])
def test_results_of_an_earlier_version_are_read_and_not_written(tmp_path, overwrite):
    """By name, with a hint; a copy without links, too."""
    _old(tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / ".tidegate")
    for directory in (tmp_path / "out", tmp_path / "copy"):
        before = sorted(directory.rglob("*"))
        with pytest.raises(OutputError, match=r"has results of Tidegate 0\.2\.0 or earlier") as caught:
            _write(directory, 1, "a", overwrite=overwrite)
        assert "another directory" in caught.value.hint
        assert sorted(directory.rglob("*")) == before
        assert saved_table(directory, "a") == _table(9)


def _seen(directory):
    """Return the numbers of each table, of each date: every one is of one run."""
    found = {}
    for path in sorted(directory.rglob("*.parquet")):
        (found[str(path.relative_to(directory))],) = set(pq.ParquetFile(path).read()["number"].to_pylist())
    return found


def _killed_at_every_line(directory, then):
    """Do `then`, and return copies of the directory as it was before each line of the code that writes results."""
    found = {}

    def trace(frame, event, _):
        if not frame.f_code.co_filename.endswith(
            (
                "pipeline/results/output.py",
                "pipeline/results/store.py",
                "pipeline/results/writing.py",
                "shutil.py",
                "usage/directory.py",
            )
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


def test_a_killed_run_changes_no_table_or_all_of_them(tmp_path):
    """Killed before any line: each table and date is old or new, and after the next run all are of one run."""
    out = tmp_path / "out"
    _write(out, 1, "a", "b", days=(0, 1))
    old = _seen(out)
    killed = _killed_at_every_line(out, lambda: _write(out, 2, "b", "c", days=(1, 2)))
    new = {
        "a/part-0.parquet": 1, "b/part-0.parquet": 2, "c/part-0.parquet": 2,
        "d/date=1970-01-01/part-0.parquet": 1, "d/date=1970-01-02/part-0.parquet": 2,
        "d/date=1970-01-03/part-0.parquet": 2,
    }  # fmt: skip
    assert _seen(out) == new
    found = [_seen(each) for each in killed]
    assert found[0] == old
    assert found[-1] == new
    ends = []
    for each, seen in zip(killed, found, strict=True):
        for name, number in seen.items():
            assert number in {old.get(name), new[name]}
        _write(each, 3, "e")
        ends.append({**_seen(each)})
        assert ends[-1].pop("e/part-0.parquet") == 3
        assert all(name.endswith(".json") for name in _runs(each))
    assert [end for end in ends if end == old] + [end for end in ends if end == new] == ends
    # It was killed in the middle of its moves, too.
    assert sum(seen not in (old, new) for seen in found) >= 3


def test_a_first_run_that_is_killed_leaves_a_directory_that_is_ours(tmp_path):
    """It is written again without --overwrite."""
    out = tmp_path / "out"
    out.mkdir()
    for each in _killed_at_every_line(out, lambda: _write(out, 1, "a")):
        assert _seen(each) in ({}, {"a/part-0.parquet": 1})
        _write(each, 2, "b")
        assert _seen(each) in ({"b/part-0.parquet": 2}, {"a/part-0.parquet": 1, "b/part-0.parquet": 2})


def _fail(directory, error):
    with _opened(directory) as results, results.writer("a", NUMBER) as write:
        write(_table(2))
        raise error


def test_a_run_that_fails_leaves_the_tables_as_they_were(tmp_path):
    """It removes what it has written."""
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
    assert _numbers(tmp_path / "a") == [1]
    assert len(_runs(tmp_path)) == 1


def test_a_table_that_does_not_go_with_the_run_is_removed(tmp_path):
    """Only the tables that it names."""
    _write(tmp_path, 1, "a", "b")
    with _opened(tmp_path) as results:
        results.put(_table(2), "c")
        results.finish({}, without=("b", "never"))
    assert _seen(tmp_path) == {"a/part-0.parquet": 1, "c/part-0.parquet": 2}
    assert not (tmp_path / "b").exists()


def test_a_copy_is_results_too(tmp_path):
    """It may be written again."""
    _write(tmp_path / "out", 1, "a", "b")
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    assert saved_table(tmp_path / "copy", "b") == _table(1)
    _write(tmp_path / "copy", 2, "a")
    assert (_numbers(tmp_path / "copy" / "a"), _numbers(tmp_path / "out" / "a")) == ([2], [1])
