"""Usage on several cores: equal tables to the last bit, in parts of chunks, in any order of rows."""

from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.logs import START_MS, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.jobs import jobs
from tidegate.pipeline.jobs.here import Here
from tidegate.pipeline.jobs.jobs import Jobs
from tidegate.pipeline.read import chunks
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.rollup import merging, parts
from tidegate.pipeline.rollup.merging import BYTES_AND_REQUESTS
from tidegate.pipeline.schemas import CLIENT, USAGE_PEAKS
from tidegate.usage.arrow import arrow_schema

_EVENTS = 1500
_FILES = 3


@pytest.fixture(scope="module")
def rows():
    """Return rows of a node that starts twice."""
    node = RecordingNode(1)
    node.start(START_MS)
    now_ms = random_traffic(node, Random(3), events=_EVENTS, quotas_change=False)
    node.start(now_ms)
    random_traffic(node, Random(4), events=_EVENTS, quotas_change=False, now_ms=now_ms)
    return node.events


@pytest.fixture
def in_parts(monkeypatch):
    """Read chunks a few rows at a time, and use threads for few rows, too."""
    monkeypatch.setattr(chunks, "_FEW_ROWS", 0)
    monkeypatch.setattr(chunks, "_BATCH_ROWS", 100)
    monkeypatch.setattr(parts, "_FEW_ROWS", 0)


def _write(directory, rows):
    size = -(-len(rows) // _FILES)
    for place in range(_FILES):
        table = pa.Table.from_pylist(rows[place * size : (place + 1) * size], schema=arrow_schema())
        (directory / str(place)).mkdir(parents=True)
        pq.write_table(table, directory / str(place) / f"rows-{place}.parquet")


def _tables(directory, out, *, threads, with_peaks=True):
    with open_usage(directory) as files:
        jobs = Jobs(files=files, back_end=Here(threads=threads))
        jobs.usage(out=out, top=1, with_peaks=with_peaks)
    return {path.relative_to(out): pq.read_table(path) for path in sorted(out.glob("usage*"))}


@pytest.mark.parametrize("groups_at_once", [parts.GROUPS_AT_ONCE, 3])
def test_several_threads_find_what_one_finds(rows, tmp_path, monkeypatch, groups_at_once):
    """Also where groups wait for a second reading, and sensors begin anew in the middle."""
    _write(tmp_path / "usage", rows)
    expected = _tables(tmp_path / "usage", tmp_path / "whole", threads=1)
    assert sum(len(table) for table in expected.values()) > 100
    monkeypatch.setattr(chunks, "_FEW_ROWS", 0)
    monkeypatch.setattr(chunks, "_BATCH_ROWS", 100)
    monkeypatch.setattr(parts, "_FEW_ROWS", 0)
    monkeypatch.setattr(parts, "GROUPS_AT_ONCE", groups_at_once)
    for threads in (1, 2, 5):
        assert _tables(tmp_path / "usage", tmp_path / f"{threads}", threads=threads) == expected


@pytest.mark.parametrize("by", [CLIENT, ("client_id",), ("topic",)])
def test_the_first_of_many_groups_are_measured_alone(rows, tmp_path, monkeypatch, by):
    """The rows are read once to add up, and once for the groups that are shown; results are equal."""
    _write(tmp_path, rows)
    passes = []
    usage_parts, group_sums = parts.usage_parts, jobs.group_sums

    def noted(of_node, *, only, **options):
        passes.append(only and len(only))
        yield from usage_parts(of_node, only=only, **options)

    def noted_sums(of_node, *, wanted, **options):
        passes.append(wanted)
        yield from group_sums(of_node, wanted=wanted, **options)

    def found():
        passes.clear()
        with open_usage(tmp_path) as files:
            return Jobs(files=files, back_end=Here(threads=1)).usage(out=None, top=3, by=by)

    monkeypatch.setattr(parts, "usage_parts", noted)
    monkeypatch.setattr(jobs, "group_sums", noted_sums)
    expected = found()
    assert {*passes} == {None}
    monkeypatch.setattr(parts, "GROUPS_AT_ONCE", 3)
    for rows_held in (merging._ROWS_HELD, 10):
        monkeypatch.setattr(merging, "_ROWS_HELD", rows_held)
        assert found() == expected
        assert {*passes} == ({None} if by == ("topic",) else {BYTES_AND_REQUESTS, 3})
    assert len(expected.top) == 3 or by == ("topic",)


def test_rows_in_any_order_are_put_in_order(rows, tmp_path, in_parts):
    """A chunk that is read in parts and turns out to be in disorder is read again as a whole."""
    size = -(-len(rows) // _FILES)
    mixed = [
        row
        for first in range(0, len(rows), size)
        for row in Random(first).sample(rows[first : first + size], len(rows[first : first + size]))
    ]
    _write(tmp_path / "usage", rows)
    _write(tmp_path / "mixed", mixed)
    for with_peaks in (True, False):
        wanted = {"threads": 2, "with_peaks": with_peaks}
        expected = _tables(tmp_path / "usage", tmp_path / f"usage-{with_peaks}", **wanted)
        assert _tables(tmp_path / "mixed", tmp_path / f"mixed-{with_peaks}", **wanted) == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_alone_are_the_same_sums(rows, tmp_path, in_parts, threads):
    """Peaks and percentiles are null; all else is as with them."""
    _write(tmp_path / "usage", rows)
    everything = _tables(tmp_path / "usage", tmp_path / "all", threads=threads)
    sums = _tables(tmp_path / "usage", tmp_path / "sums", threads=threads, with_peaks=False)
    assert everything.keys() == sums.keys()
    for name, table in sums.items():
        more = [each for each in table.column_names if each in USAGE_PEAKS or each[-4:-2] == "_p"]
        assert len(more) == 12
        assert all(table[each].null_count == len(table) for each in more)
        assert table.drop_columns(more) == everything[name].drop_columns(more)
