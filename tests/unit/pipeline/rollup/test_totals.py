"""Totals: the same usage as from parts that are merged, whichever groups have totals."""

from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.logs import START_MS, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.jobs.here import Here
from tidegate.pipeline.jobs.jobs import Jobs
from tidegate.pipeline.read import chunks
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.rollup import parts
from tidegate.pipeline.rollup.kernel import LAST_TS_MS, REQUESTS
from tidegate.pipeline.rollup.totals import GROUPS_WITH_TOTALS, Totals, no_sums
from tidegate.usage.arrow import arrow_schema


def _usage(directory, *, threads):
    with open_usage(directory) as files:
        return Jobs(files=files, back_end=Here(threads=threads)).usage(out=None, top=1000).top


@pytest.mark.parametrize("threads", [1, 2])
def test_totals_are_what_parts_are_merged_to(tmp_path, monkeypatch, threads):
    """Sums, peaks and percentiles, where no, some and all groups have totals."""
    node = RecordingNode(1)
    node.start(START_MS)
    random_traffic(node, Random(3), events=1500, quotas_change=False)
    pq.write_table(pa.Table.from_pylist(node.events, schema=arrow_schema()), tmp_path / "rows.parquet")
    monkeypatch.setattr(chunks, "_FEW_ROWS", 0)
    monkeypatch.setattr(chunks, "_BATCH_ROWS", 30)
    monkeypatch.setattr(parts, "_FEW_ROWS", 0)
    made = []
    merged = parts.Parts.add_part
    monkeypatch.setattr(parts.Parts, "add_part", lambda *args: (made.append(1), merged(*args))[1])
    found, counts = [], []
    for groups in (0, 3, GROUPS_WITH_TOTALS):
        monkeypatch.setattr(parts, "GROUPS_WITH_TOTALS", groups)
        made.clear()
        found.append(_usage(tmp_path, threads=threads))
        counts.append(len(made))
    assert len(found[0]) > 3
    assert found[0] == found[1] == found[2]
    assert counts[0] > counts[2] == 1


def test_sums_without_room_are_refused():
    """As where parts are merged: a sum of integers would wrap without an error."""
    totals, group = Totals(), np.array([7])
    sums = no_sums(1)
    sums[0, REQUESTS], sums[0, LAST_TS_MS] = 2**62, 1
    totals.add_sums(group, sums)
    with pytest.raises(UsageFilesError):
        totals.add_sums(group, sums)
    assert totals.taken()[0].tolist() == [7]
