"""`tidegate.pipeline.watch` in this process: its tables, its end, and what it refuses."""

from datetime import timedelta
from random import Random

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate import pipeline
from tidegate.errors import TidegateError

_SUMS = ("requests", "produce_bytes", "fetch_bytes")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A record of one node."""
    directory = tmp_path_factory.mktemp("record")
    rng = Random(5)
    node = RecordingNode(1)
    node.start(START_MS, records=random_records(rng, at_most=8))
    random_traffic(node, rng, events=300)
    write_events(directory, node.events, rows_per_file=100)
    return directory


def test_a_watch_has_the_sums_of_the_jobs(record):
    """Usage and replay of all rows are those of `usage` and `replay`, in the columns of `SCHEMAS`."""
    seen = []
    watched = pipeline.watch(
        record, once=True, start="1970-01-02", on_update=lambda found: seen.append(found.rows)
    )
    found = pipeline.usage(record)
    used = found.in_all
    assert watched.rows == seen[-1] == found.rows > 0
    for name in _SUMS:
        assert sum(watched.usage[name].to_pylist()) == sum(used[name].to_pylist())
    assert watched.usage.schema == watched.usage_in_window.schema == pipeline.SCHEMAS["watched_usage"]
    replayed = pipeline.replay(record, in_force=True).by_entity
    assert watched.by_entity.schema == replayed.schema == watched.by_entity_in_window.schema
    for name in ("requests", "throttled_requests", "throttle_ms"):
        assert sum(watched.by_entity[name].to_pylist()) == sum(replayed[name].to_pylist())
    assert (watched.late_rows, watched.unmatched) == (0, [])


def test_a_function_ends_a_watch(record):
    """A watch without an end goes on until its function returns True."""
    watched = pipeline.watch(record, on_update=lambda found: found.rows > 0, lateness=timedelta(0))
    assert watched.rows > 0


def test_a_record_that_is_empty_is_told_once(tmp_path):
    """The function is called while there are no rows, and can end the watch."""
    (tmp_path / "usage").mkdir()
    watched = pipeline.watch(tmp_path / "usage", on_update=lambda found: not found.rows)
    assert watched.rows == watched.usage.num_rows == watched.by_entity.num_rows == 0


def test_a_watch_is_continued(record, tmp_path):
    """A checkpoint has the rows of the run before."""
    options = {"once": True, "start": "1970-01-02", "checkpoint": tmp_path / "watched"}
    first = pipeline.watch(record, lateness=timedelta(0), **options)
    calls = []
    again = pipeline.watch(record, lateness=timedelta(0), on_update=calls.append, **options)
    assert again.rows == first.rows > 0
    assert calls == []


def test_a_directory_that_is_no_record_is_not_waited_in(record, tmp_path):
    """One that is empty, or that a broker has begun, can become a record; a checkpoint is not in the record itself."""
    for left_out in (".rsync", "lost+found"):
        (tmp_path / "usage" / left_out).mkdir(parents=True)
    assert pipeline.watch(tmp_path / "usage", once=True).rows == 0
    (tmp_path / "usage" / "notes.txt").touch()
    for path, message in (
        (tmp_path / "usage", r"usage' has files, but no usage record$"),
        (tmp_path / "usage" / "notes.txt", r"notes\.txt' is a file, expected a usage directory$"),
    ):
        with pytest.raises(TidegateError, match=message) as caught:
            pipeline.watch(path, once=True)
        assert caught.value.hint == "give the usage directory of `tidegate serve` or `tidegate gateway`"
    for begun in ("spool", "node-1/spool"):
        (tmp_path / "usage" / begun).mkdir(parents=True)
        assert pipeline.watch(tmp_path / "usage", once=True).rows == 0
        (tmp_path / "usage" / begun).rmdir()
    with pytest.raises(TidegateError, match=r"^the checkpoint '.*' is the record itself$"):
        pipeline.watch(record, once=True, checkpoint=record / ".")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs on_update"),
        ({"on_update": 3}, "on_update must be a function"),
        ({"once": True, "window": timedelta(hours=2)}, "window must be a timedelta"),
        ({"once": True, "window": 5}, "window must be a timedelta"),
        ({"once": True, "every": timedelta(0)}, "every must be a timedelta"),
        ({"once": True, "lateness": timedelta(seconds=-1)}, "lateness must be a timedelta"),
        ({"once": True, "lateness": 60}, "lateness must be a timedelta"),
        ({"once": True, "start": "2026-11-22", "last": "1h"}, "last cannot be used with start"),
        ({"once": True, "checkpoint": "s3://bucket/checkpoint"}, "checkpoint must be a path on this machine"),
        ({"once": True, "spark": "local[2]"}, "spark must be a SparkSession"),
        ({"once": True, "path": "s3://bucket/usage"}, "path must be a path on this machine"),
        ({"once": True, "path": "/nowhere/usage"}, "nowhere"),
        ({"once": True, "path": "x" * 300}, "as path: File name too long"),
        ({"once": True, "path": "x\0"}, "path must be valid Unicode without a null"),
    ],
)
def test_what_cannot_be_watched_is_named(record, options, message):
    """Every wrong argument is one error that names it."""
    with pytest.raises(TidegateError, match=message):
        pipeline.watch(**{"path": record, **options})
