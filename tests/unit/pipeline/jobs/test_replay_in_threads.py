"""Replays on several cores in this process: equal tables, whatever the number of threads."""

from random import Random

import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.jobs import here
from tidegate.pipeline.jobs.here import Here
from tidegate.pipeline.jobs.jobs import Jobs
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.replay.limits import Tolerance, levels_of
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.quota import QuotaRecord


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Return the record of two nodes; few rows are many here."""
    monkeypatch.setattr(here, "_FEW_ROWS", 100)
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(Random(node_id), at_most=8))
        random_traffic(node, Random(node_id), events=800)
        write_events(tmp_path / "usage" / str(node_id), node.events)
    return tmp_path / "usage"


def _plans():
    by_client = QuotaRecord(
        entity=(("user", None), ("client-id", None)), key="producer_byte_rate", value=500.0
    )
    return [
        Plan(name="open", records=(by_client,)),
        Plan(name="closed", records=(by_client,), is_closed=True),
        in_force_plan(),
    ]


def _replayed(directory, out, threads):
    with open_usage(directory) as files:
        jobs = Jobs(files=files, back_end=Here(threads=threads))
        found = jobs.replay(_plans(), out=out)
        limits = jobs.limits(levels_of("client-id"), Tolerance(), out=None)
    tables = {path.relative_to(out): pq.read_table(path) for path in sorted(out.glob("[!_]*/**/*.parquet"))}
    return tables, list(found.entities), list(limits.entities), list(limits.nodes)


def test_several_threads_replay_as_one_does(directory, tmp_path):
    """Rows, their order, states and limits: the layout does not depend on the cores."""
    expected = _replayed(directory, tmp_path / "one", 1)
    assert sum(len(table) for table in expected[0].values()) > 50
    for threads in (2, 5):
        found = _replayed(directory, tmp_path / str(threads), threads)
        assert repr(found[1:]) == repr(expected[1:])
        assert found[0].keys() == expected[0].keys()
        for name, table in found[0].items():
            assert repr(table.to_pylist()) == repr(expected[0][name].to_pylist()), name  # NaN is not equal


def test_clients_are_in_several_partitions(directory):
    """Else there would be nothing to do at once."""
    with open_usage(directory) as files:
        back_end = Here(threads=2)
        with back_end.running(""), back_end.place(files, _plans()[:1]) as rows:
            assert len(rows.layout.node_id) > 2


def test_an_error_of_a_thread_is_that_of_the_job(directory, monkeypatch):
    """It is raised, not lost with the thread."""

    def fail(*args, **options):
        raise ZeroDivisionError("in a thread")

    monkeypatch.setattr(here, "replay_tallies", fail)
    with open_usage(directory) as files, pytest.raises(ZeroDivisionError, match="in a thread"):
        Jobs(files=files, back_end=Here(threads=2)).replay(_plans(), out=None)
