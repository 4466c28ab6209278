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
from tidegate.errors import ConfigError, TidegateError
from tidegate.pipeline.errors import OutputError, UsageFilesError
from tidegate.pipeline.jobs.where import jobs_here
from tidegate.pipeline.read.ingest import is_imported, open_usage
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.pipeline.results.output import MARKER, Results, opened_results, saved_table
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


def test_results_are_those_that_the_marker_names(usage: Path, store: ObjectStore) -> None:
    """A run that is killed leaves the results before it as they were; what it wrote is gone after the next."""
    out = store.uri("results/deep")
    with open_usage(usage) as files:
        jobs_here(files).usage(out=out, top=1)
        first = saved_table(out, "usage_by_client")
        assert len(first) > 1
        marker = f"deep/{MARKER}"
        assert [name for name in store.names("results") if name == marker] == [marker]
        opened = opened_results(out, command="usage", overwrite=False)  # and no more: it is killed
        killed = opened.__enter__()
        assert killed is not None
        with killed.replaced("usage_by_client") as file:
            pq.write_table(first.slice(0, 1), file)
        half = killed.replaced("usage_by_minute")
        half.__enter__().write(b"half")
        assert saved_table(out, "usage_by_client") == first
        before = store.names("results")
        jobs_here(files).usage(out=out, top=1)
        assert saved_table(out, "usage_by_client") == first
        names = store.names("results")
        assert len(names) == 3
        assert not {*names} & {*before} - {marker}
        data = store.filesystem.open_input_file(f"bucket/results/{marker}").read().decode()
        assert json.loads(data)["record"]["rows"] == files.rows
        assert SECRET not in data
        assert KEY not in data
        jobs_here(files).replay([in_force_plan()], out=out)
        with pytest.raises(ConfigError, match="has no complete table 'usage_by_client'"):
            saved_table(out, "usage_by_client")


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
    with results.replaced("a") as file:
        pq.write_table(pa.table({"a": [number]}), file)
    results.finish({})


def _fail(out: Location) -> None:
    with opened_results(out, command="usage", overwrite=False) as results:
        assert results is not None
        with results.replaced("a") as file:
            pq.write_table(pa.table({"a": [3]}), file)
        raise OutputError("disk")


def test_of_two_runs_the_one_that_began_last_counts(store: ObjectStore) -> None:
    """Whichever ends first; what a run that failed has written is gone."""
    out = store.uri("two")
    for is_first_earlier in (False, True):
        with opened_results(out, command="usage", overwrite=False) as first:
            with opened_results(out, command="usage", overwrite=False) as second:
                if is_first_earlier:
                    _write(first, 1)
                    assert saved_table(out, "a")["a"].to_pylist() == [1]
                _write(second, 2)
            if not is_first_earlier:
                with pytest.raises(OutputError, match="a run that began later has written to"):
                    _write(first, 1)
        assert saved_table(out, "a")["a"].to_pylist() == [2]
        assert len(store.names("two")) == 2
    with pytest.raises(OutputError, match="disk"):
        _fail(out)
    assert saved_table(out, "a")["a"].to_pylist() == [2]
    assert len(store.names("two")) == 2


def test_a_clock_that_was_ahead_stops_nobody(store: ObjectStore) -> None:
    """Results of a run of next year are replaced, and go."""
    out = store.uri("ahead")
    run = "run-29991122T163012004711-5f1c09aa"
    for name, data in ((MARKER, json.dumps({"run": run})), (f"{run}/a", "")):
        with store.filesystem.open_output_stream(f"bucket/ahead/{name}") as file:
            file.write(data.encode())
    with opened_results(out, command="usage", overwrite=False) as results:
        _write(results, 1)
    assert saved_table(out, "a")["a"].to_pylist() == [1]
    assert len(store.names("ahead")) == 2
