"""What of a record is not there, and which chunks have rows of a node."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.chunks import bundled
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.read.missing import chunk_evidence, coverage_of


def _evidence(directory):
    with open_usage(directory) as files:
        return [chunk_evidence(chunk) for chunk in files.chunks]


def _node(node_id=1, *, lost=False):
    node = RecordingNode(node_id)
    node.start(START_MS)
    for second in range(6):
        node.produce("alice", "c1", 10, START_MS + 1000 * second)
        if second == 1 and lost:
            node.gap(START_MS + 1500)
    return node


@pytest.mark.parametrize(
    ("left_out", "lost", "expected"),
    [
        (slice(0, 0), False, []),
        (slice(0, 0), True, [("gap", 1)]),
        (slice(6, 8), False, [("missing rows", None)]),
        (slice(0, 5), False, [("cold start", None)]),
    ],
)
def test_reasons_are_those_of_a_replay(tmp_path, left_out, lost, expected):
    """Said by the node, or seen in the numbers of rows; nothing where all is there."""
    node = _node(lost=lost)
    del node.events[left_out]
    write_events(tmp_path, node.events, rows_per_file=3)
    found = coverage_of(_evidence(tmp_path)).missing
    assert [(place.reason, place.lost_events) for place in found] == expected
    assert all(place.node_id == 1 and place.ts_ms >= START_MS for place in found)


def test_rows_that_are_there_twice_are_refused(tmp_path):
    """A file was given twice."""
    node = _node()
    write_events(tmp_path / "a", node.events)
    write_events(tmp_path / "b", node.events)
    evidence = [*_evidence(tmp_path / "a"), *_evidence(tmp_path / "b")]
    with pytest.raises(UsageFilesError, match="occur twice"):
        coverage_of(evidence)


def test_chunks_are_found_by_node(tmp_path):
    """In order of their rows, with the first and the last."""
    nodes = _node(1), _node(2)
    for node in nodes:
        write_events(tmp_path, node.events, rows_per_file=4)
    found = coverage_of(reversed(_evidence(tmp_path))).nodes
    assert [len(found[node_id]) for node_id in (1, 2)] == [3, 3]
    for node_id, node in zip((1, 2), nodes, strict=True):
        seqs = [event["seq"] for event in node.events]
        assert [(each.first_seq, each.last_seq) for each in found[node_id]] == [
            (seqs[0], seqs[3]), (seqs[4], seqs[7]), (seqs[8], seqs[-1])
        ]  # fmt: skip
        rows = sum(pq.ParquetFile(each.chunk.path).metadata.num_rows for each in found[node_id])
        assert rows == len(seqs)


def test_bundles_show_what_their_chunks_do(tmp_path):
    """Small files are looked at together; starts, gaps, missing rows and chunks of nodes are as one by one."""
    for node_id in (1, 2, 3):
        node = _node(node_id, lost=node_id != 2)
        del node.events[5 : 5 + node_id]
        write_events(tmp_path, node.events, rows_per_file=2)
    with open_usage(tmp_path) as files:
        bundles = bundled(files.chunks)
        together = coverage_of(map(chunk_evidence, bundles))
        assert len(bundles) == 1
        assert together == coverage_of(map(chunk_evidence, files.chunks))
    assert len(together.missing) > 3


def test_the_bad_file_of_a_bundle_is_named(tmp_path):
    """It alone."""
    write_events(tmp_path, _node().events, rows_per_file=2)
    write_events(tmp_path / "bad", _node(2).events)
    (path,) = (tmp_path / "bad").rglob("*.parquet")
    table = pq.read_table(path)
    place = table.column_names.index("kind")
    pq.write_table(table.set_column(place, "kind", pa.array(["odd"] * len(table))), path)
    with open_usage(tmp_path) as files:
        (bundle,) = bundled(files.chunks)
        with pytest.raises(UsageFilesError, match="odd") as raised:
            chunk_evidence(bundle)
    assert repr(str(path)) in str(raised.value)
    assert "one of" not in str(raised.value)
