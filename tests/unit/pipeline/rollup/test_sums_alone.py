"""Sums alone: the same to the last bit as those that are made with rates, and without a compiled kernel."""

import subprocess
import sys
from contextlib import nullcontext
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.logs import START_MS, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.jobs.here import Here
from tidegate.pipeline.jobs.jobs import Jobs
from tidegate.pipeline.read import chunks
from tidegate.pipeline.read.columns import THROTTLES
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.rollup import parts, sums_alone
from tidegate.pipeline.rollup.cells import AMOUNTS, FLAGS
from tidegate.pipeline.schemas import CLIENT, USAGE_PEAKS
from tidegate.usage.arrow import arrow_schema

_ADDED = {"request", "network", "mutation"}
_MANY = 1 << 40


@pytest.fixture(autouse=True)
def in_parts(monkeypatch):
    """Read chunks a few rows at a time, and use threads for few rows, too."""
    monkeypatch.setattr(chunks, "_FEW_ROWS", 0)
    monkeypatch.setattr(chunks, "_BATCH_ROWS", 100)
    monkeypatch.setattr(parts, "_FEW_ROWS", 0)
    monkeypatch.setattr(sums_alone, "_ENDS_AT_ONCE", 16)


def _rows(seed=1, events=700):
    node = RecordingNode(1)
    node.start(START_MS)
    random_traffic(node, Random(seed), events=events, quotas_change=False)
    return node.events


def _odd(rows, seed):
    """Return rows with any amounts, throttle times, flags and topics that a row can have, whatever its kind."""
    rng = Random(seed)
    schema = arrow_schema()

    def amount(name):
        nothing = None if schema.field(name).nullable else 0
        return rng.choice((nothing, 0, 1, rng.randrange(1 << 20), rng.randrange(_MANY)))

    def changed(row):
        if row["kind"] not in _ADDED:
            return row
        return row | {
            **{name: amount(name) if name != "mutations" else rng.choice((None, 3)) for name in AMOUNTS},
            **{name: rng.choice((-1, 0, 0, 5, 700)) for name in THROTTLES},
            **{name: rng.random() < 0.3 for name in FLAGS},
            "ts_ms": row["ts_ms"] + rng.randrange(2000),
            "api_key": rng.choice((0, 1, 3)),
            "topic": rng.choice(("a", "b", None)),
            "other_topics": rng.choice((None, 0, 2)),
        }

    return [changed(row) for row in rows]


def _write(path, rows, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema()), path, **options)


def _usage(directory, *, with_peaks, out=None, by=CLIENT, threads=1):
    with open_usage(directory) as files:
        jobs = Jobs(files=files, back_end=Here(threads=threads))
        return jobs.usage(out=out, top=1000, by=by, with_peaks=with_peaks)


@pytest.mark.parametrize("by", [CLIENT, ("topic",)])
@pytest.mark.parametrize("threads", [1, 3])
def test_odd_rows_have_the_same_sums(tmp_path, by, threads):
    """In total and by minute: nulls, negative throttle times, amounts beyond 32 bits, clocks that step back."""
    rows = _odd(_rows(), 2)
    for place in range(3):
        _write(tmp_path / "usage" / f"{place}.parquet", rows[place * 250 : (place + 1) * 250])
    tables = {}
    for with_peaks in (True, False):
        out = tmp_path / str(with_peaks)
        _usage(tmp_path / "usage", with_peaks=with_peaks, out=out, by=by, threads=threads)
        tables[with_peaks] = {
            path.relative_to(out): pq.read_table(path) for path in sorted(out.glob("usage*"))
        }
    assert len(tables[True]) == 2
    assert tables[True].keys() == tables[False].keys()
    for name, table in tables[False].items():
        more = [each for each in table.column_names if each in USAGE_PEAKS or each[-4:-2] == "_p"]
        assert len(table) > 1
        assert table.drop_columns(more) == tables[True][name].drop_columns(more)


@pytest.mark.parametrize("large", [2**31, 2**53 + 1, 2**60 + 7])
def test_large_amounts_are_added_up_exactly(tmp_path, large):
    """Beyond what doubles hold exactly."""
    rows = [row | {"handler_ns": place % 5} for place, row in enumerate(_rows()) if row["kind"] == "request"]
    rows[-1]["handler_ns"] = rows[3]["handler_ns"] = large
    _write(tmp_path / "x.parquet", rows)
    found = _usage(tmp_path, with_peaks=False)
    assert sum(row["handler_ns"] for row in found.top) == sum(row["handler_ns"] for row in rows)


def test_a_sum_of_several_tables_has_no_room(tmp_path):
    """Each table of the chunk has room for its own sums, and all have the same groups."""
    row = next(row for row in _rows() if row["kind"] == "request")
    rows = [row | {"seq": place} for place in range(500)]
    for amount, is_refused in ((2**59, False), (2**61, True)):
        for each in rows[::100]:
            each["request_bytes"] = amount
        _write(tmp_path / "x.parquet", rows)
        with pytest.raises(UsageFilesError, match="64 bits") if is_refused else nullcontext():
            assert _usage(tmp_path, with_peaks=False).top[0]["request_bytes"] >= 5 * amount


@pytest.mark.parametrize(("wrong", "words"), [(-5, "got -5 in seq {seq} of node 1"), (2**62, "64 bits")])
def test_what_cannot_be_added_up_is_refused(tmp_path, wrong, words):
    """The error names the row, although `seq` is not read for the sums of undamaged rows."""
    rows = _rows()
    place = next(place for place in range(400, 500) if rows[place]["kind"] == "request")
    for row in rows[place : place + 2]:
        row["request_bytes"] = wrong
    _write(tmp_path / "x.parquet", rows)
    with pytest.raises(UsageFilesError, match=words.format(seq=rows[place]["seq"])):
        _usage(tmp_path, with_peaks=False)


def test_a_row_that_is_there_twice_is_refused(tmp_path):
    """Where the footer does not show that each `seq` is there, it is read."""
    rows = _rows()
    _write(tmp_path / "x.parquet", [*rows[:300], rows[299], *rows[300:]])
    with pytest.raises(UsageFilesError, match=f"^seq {rows[299]['seq']} .* twice$"):
        _usage(tmp_path, with_peaks=False)


def test_other_nodes_are_left_out(tmp_path):
    """Rows of two nodes in one file are added up for each node."""
    rows = _rows()
    others = [row | {"node_id": 2} for row in rows]
    _write(tmp_path / "one" / "x.parquet", rows)
    _write(
        tmp_path / "both" / "x.parquet", [each for pair in zip(rows, others, strict=True) for each in pair]
    )
    one, both = (_usage(tmp_path / name, with_peaks=False).top for name in ("one", "both"))
    assert [row["requests"] * 2 for row in one] == [row["requests"] for row in both]
    assert [row["fetch_bytes"] * 2 for row in one] == [row["fetch_bytes"] for row in both]


def test_no_kernel_is_loaded(tmp_path):
    """numba takes half a second and 60 MB."""
    _write(tmp_path / "x.parquet", _rows())
    code = f"""
import sys
from tidegate.pipeline import usage
assert len(usage({str(tmp_path)!r}, with_peaks=False)["usage_by_client"]) > 1
sys.exit("numba" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
