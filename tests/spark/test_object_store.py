"""The record in an object store, and results: what the jobs find there is what they find in a directory."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode
from tests.spark.object_store import KEY, SECRET, ObjectStore, object_store

from tidegate.config.locations import Location, location
from tidegate.errors import TidegateError
from tidegate.pipeline.errors import OutputError, UsageFilesError
from tidegate.pipeline.read.ingest import is_imported, open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.pipeline.results.output import MARKER, Results, check_output, opened_results, saved_table
from tidegate.usage.files import HOUR_MS

pytestmark = [
    # moto is built on what has changed since
    pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:moto"),
]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """An object store."""
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def usage(tmp_path_factory: pytest.TempPathFactory, store: ObjectStore) -> Path:
    """Write the record of some hours; the store has a copy, with what is superseded and unfinished."""
    directory = tmp_path_factory.mktemp("usage")
    rng = Random(3)
    node = RecordingNode()
    node.start(START_MS, records=random_records(rng, at_most=8))
    for hour in range(2):
        random_traffic(node, rng, events=20, now_ms=START_MS + hour * HOUR_MS)
    write_events(directory / "parquet", node.events)
    for file in sorted(directory.rglob("node-1-*.parquet"))[:1]:
        file.with_name(f".{file.name}.tmp").write_bytes(b"half")
        file.with_name(file.stem + "-compacted.parquet").write_bytes(file.read_bytes())
    store.put(directory, "usage")
    return directory


def test_jobs_in_this_process(usage: Path, store: ObjectStore) -> None:
    """By either name of the scheme; hours are chosen by the names of directories."""
    for from_ms in (None, START_MS // HOUR_MS * HOUR_MS + HOUR_MS):
        with (
            open_usage(usage, from_ms=from_ms) as here,
            open_usage(store.uri("usage"), from_ms=from_ms) as there,
        ):
            assert there.rows == here.rows
            assert [Path(str(path).partition("?")[0]).name for path in there.paths] == [
                path.name for path in here.paths
            ]
            assert jobs_here(there).usage(out=None, top=9) == jobs_here(here).usage(out=None, top=9)
            plans = [in_force_plan()]
            assert jobs_here(there).replay(plans, out=None) == jobs_here(here).replay(plans, out=None)
    with open_usage(store.uri("usage/parquet", scheme="s3a")) as there, open_usage(usage / "parquet") as here:
        assert there.rows == here.rows
    assert not is_imported(store.uri("usage"))
    store.filesystem.open_output_stream("bucket/usage/import.json").close()
    assert is_imported(store.uri("usage/parquet"))
    assert is_imported(store.uri(""))
    check_output(store.uri("usage/out"), overwrite=False, records=[store.uri("usage")])
    for record, out in (("usage", "usage/parquet/out"), ("usage/parquet", "usage/parquet")):
        with pytest.raises(OutputError, match="it is in the usage record"):
            check_output(store.uri(out), overwrite=True, records=[store.uri(record)])


def _error(where: Location) -> TidegateError:
    with pytest.raises(TidegateError) as caught, open_usage(where):
        pass
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    return caught.value


def test_what_is_missing_is_said(store: ObjectStore) -> None:
    """In a line, with the URI; where a library is missing, which."""
    assert "no usage record at 's3://bucket/nothing" in str(_error(store.uri("nothing")))
    store.filesystem.create_dir("bucket/empty")
    assert "no usage files in 's3://bucket/empty" in str(_error(store.uri("empty")))
    with store.filesystem.open_output_stream("bucket/broken/x.parquet") as file:
        file.write(b"no parquet at all")
    error = _error(store.uri("broken"))
    assert isinstance(error, UsageFilesError)
    assert "is not a usable Parquet file" in str(error)
    for name, table_format in (
        ("_delta_log/0.json", "Delta Lake"),
        ("metadata/a.metadata.json", "Apache Iceberg"),
    ):
        store.filesystem.open_output_stream(f"bucket/{table_format[0]}/{name}").close()
        assert f"is a table of {table_format}" in str(_error(store.uri(table_format[0])))
    for text in ("hdfs://127.0.0.1:9/usage", "ftp://127.0.0.1/usage"):
        error = _error(location(text))
        assert len(str(error).splitlines()) == 1
        assert "needs" in str(error.hint)


def test_an_object_that_vanishes_is_said(usage: Path, store: ObjectStore) -> None:
    """Also where it vanishes after it was listed."""
    store.put(usage, "vanishing")
    with open_usage(store.uri("vanishing")) as files:
        name = store.names("vanishing/parquet")[-1]
        store.filesystem.delete_file(f"bucket/vanishing/parquet/{name}")
        with pytest.raises(TidegateError, match="was removed while it was read"):
            jobs_here(files).replay([in_force_plan()], out=None)


def test_tables_are_complete_whichever_run_is_killed(usage: Path, store: ObjectStore) -> None:
    """A run that is killed leaves the results before it as they were; its files are no tables, and go after a week."""
    out = store.uri("results/deep")
    with open_usage(usage) as files:
        jobs_here(files).usage(out=out, top=1)
        first = saved_table(out, "usage_by_client")
        assert len(first) > 1
        opened = opened_results(out, command="usage", overwrite=False)  # and no more: it is killed
        killed = opened.__enter__()
        assert killed is not None
        killed.put(_numbers(7), "usage_by_client")
        assert saved_table(out, "usage_by_client") == first
        tables = [f"deep/{name}" for name in ("usage_by_client", "usage_by_minute/date=2023-11-14")]
        assert sorted(name for name in store.names("results") if name.endswith(".parquet")) == [
            f"{name}/part-0.parquet" for name in tables
        ]
        old = "deep/_runs/run-20251122T163012004711-5f1c09aa/a/part-00000.tmp"
        store.filesystem.open_output_stream(f"bucket/results/{old}").close()
        jobs_here(files).replay([in_force_plan()], out=out)
        assert saved_table(out, "usage_by_client") == first
        names = store.names("results")
        assert old not in names
        assert sum(name.startswith("deep/_runs/run-") and name.endswith(".json") for name in names) == 2
        data = store.filesystem.open_input_file(f"bucket/results/deep/{MARKER}").read().decode()
        assert json.loads(data)["record"]["rows"] == files.rows
        assert SECRET not in data
        assert KEY not in data
        opened.__exit__(None, None, None)


def test_a_run_that_is_killed_while_it_moves_its_files_is_finished(store: ObjectStore) -> None:
    """The next run moves the rest, and its own files after that."""
    out = store.uri("moving")
    for name in "ab":
        _write_numbers(out, 1, name)
    run = "_runs/run-20261122T163012004711-5f1c09aa"
    for name in ("a", "b"):
        with store.filesystem.open_output_stream(f"bucket/moving/{run}/{name}") as file:
            pq.write_table(_numbers(2), file)
    store.filesystem.copy_file(f"bucket/moving/{run}/a", "bucket/moving/a/part-0.parquet")
    moves = {f"{run}/{name}": f"{name}/part-0.parquet" for name in "ab"}
    with store.filesystem.open_output_stream(f"bucket/moving/{run}/moves.json") as file:
        file.write(json.dumps({"moves": moves, "removed": []}).encode())
    assert [saved_table(out, name)["a"].to_pylist() for name in "ab"] == [[2], [1]]
    _write_numbers(out, 3, "c")
    assert [saved_table(out, name)["a"].to_pylist() for name in "abc"] == [[2], [2], [3]]
    _write_numbers(out, 4, "a")
    assert [saved_table(out, name)["a"].to_pylist() for name in "abc"] == [[4], [2], [3]]


def test_what_is_not_ours_stays(store: ObjectStore) -> None:
    """Unless the user says so, and even then."""
    with store.filesystem.open_output_stream("bucket/theirs/thesis.txt") as file:
        file.write(b"precious")
    for path, reason in (
        ("theirs", r"is not empty .*found 'thesis.txt'"),
        ("theirs/thesis.txt", "is a file"),
    ):
        with (
            pytest.raises(OutputError, match=reason),
            opened_results(store.uri(path), command="usage", overwrite=False),
        ):
            pass
    with opened_results(store.uri("theirs"), command="usage", overwrite=True) as results:
        _write(results, 1)
    assert "thesis.txt" in store.names("theirs")


def _write(results: Results | None, number: int) -> None:
    assert results is not None
    results.put(_numbers(number), "a")
    results.finish({})


def _numbers(number: int) -> pa.Table:
    return pa.table({"a": [number]})


def _write_numbers(out: Location, number: int, name: str) -> None:
    with opened_results(out, command="usage", overwrite=False) as results:
        assert results is not None
        results.put(_numbers(number), name)
        results.finish({})


def _fail(out: Location) -> None:
    with opened_results(out, command="usage", overwrite=False) as results:
        assert results is not None
        results.put(_numbers(3), "a")
        raise OutputError("disk")


def test_of_two_runs_the_one_that_ends_last_counts(store: ObjectStore) -> None:
    """Both are complete; a run that failed removes what it has written."""
    out = store.uri("two")
    with opened_results(out, command="usage", overwrite=False) as first:
        with opened_results(out, command="usage", overwrite=False) as second:
            _write(second, 2)
        assert saved_table(out, "a")["a"].to_pylist() == [2]
        _write(first, 1)
    assert saved_table(out, "a")["a"].to_pylist() == [1]
    names = store.names("two")
    with pytest.raises(OutputError, match="disk"):
        _fail(out)
    assert saved_table(out, "a")["a"].to_pylist() == [1]
    assert store.names("two") == names
    assert len(names) == 4


def test_results_of_an_earlier_version_are_read_and_not_written(store: ObjectStore) -> None:
    """They are in a directory of their run, and the document names them."""
    run = "run-20261122T163012004711-5f1c09aa"
    document = {
        "format": 1,
        "complete": True,
        "run": run,
        "tables": {"a": [f"{run}/a.parquet/part-0.parquet"]},
    }
    with store.filesystem.open_output_stream(f"bucket/earlier/{MARKER}") as file:
        file.write(json.dumps(document).encode())
    with store.filesystem.open_output_stream(f"bucket/earlier/{run}/a.parquet/part-0.parquet") as file:
        pq.write_table(_numbers(5), file)
    out = store.uri("earlier")
    assert saved_table(out, "a")["a"].to_pylist() == [5]
    with pytest.raises(OutputError, match=r"has results of Tidegate 0\.2\.0"):
        _write_numbers(out, 1, "a")
