"""The first pass over few files, in a thread while Spark starts: what is found, and where it is left to Spark."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.config.locations import Uri
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.jobs.on_spark import surveys_in_the_making
from tidegate.pipeline.read.chunks import bundled
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.read.survey import survey_chunk
from tidegate.pipeline.replay.plan import Plan, in_force_plan

_PLANS = [Plan(name="p", records=(), is_closed=True), in_force_plan()]


@pytest.fixture
def files(tmp_path):
    """Files of two nodes, a few rows each."""
    rng = Random(7)
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=8))
        random_traffic(node, rng, events=200, snapshots=True)
        write_events(tmp_path, node.events, rows_per_file=50)
    with open_usage(tmp_path) as found:
        yield found


def test_what_is_found_meanwhile_is_what_spark_would_find(files):
    """Of each bundle, in order, and all that the plans need."""
    options = {"with_connections": True, "with_answers": True}
    expected = [survey_chunk(bundle, **options) for bundle in bundled(files.chunks)]
    with surveys_in_the_making(files, _PLANS) as early:
        found = early.found.result()
    assert early.options == options
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys.equals(other.keys)
        assert (one.stated, one.runs) == (other.stated, other.runs)
        assert one.control.common.equals(other.control.common)
        for name in ("rows", "sweeps", "connections"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for name in ("place", "node_id", "seq", "ts_ms", "value"):
            np.testing.assert_array_equal(getattr(one.control, name), getattr(other.control, name))


def test_much_is_left_to_spark(files):
    """Many files, or many rows; what is elsewhere, and where nothing is replayed."""
    chunk = files.chunks[0]
    many = replace(files, chunks=[chunk] * 4_001)
    long = replace(files, chunks=[replace(chunk, rows=2_000_001)])
    elsewhere = replace(files, paths=[Uri("s3://bucket", "/file")])
    for given, plans in ((many, _PLANS), (long, _PLANS), (elsewhere, _PLANS), (files, [])):
        with surveys_in_the_making(given, plans) as early:
            assert early is None


def test_a_damaged_file_is_named_where_the_result_is_asked_for(files):
    """And not before: Spark may not start, which is to be told then."""
    files.paths[0].write_bytes(b"PAR1")
    with (
        surveys_in_the_making(files, _PLANS) as early,
        pytest.raises(UsageFilesError, match=files.paths[0].name),
    ):
        early.found.result()
