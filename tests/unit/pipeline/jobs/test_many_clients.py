"""What a client costs: memory of Python and numpy, by their own count."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.logs import START_MS

from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay import task
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.report.compared import compared
from tidegate.pipeline.rollup import parts
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.usage.arrow import arrow_schema

_EVERY_CLIENT = QuotaRecord(
    entity=(("client-id", None), ("user", None)), key="producer_byte_rate", value=1000.0
)
_PLAN = Plan(name="p", records=(_EVERY_CLIENT,))


def _replay(files):
    found = compared([_PLAN], jobs_here(files).replay([_PLAN], out=None).entities)
    return len(found.first(20, with_all=True))


def _usage(files):
    return len(jobs_here(files).usage(out=None, top=20).top)


def _recommend(files):
    found = jobs_here(files).recommend("client-id", Wanted(force=True))
    assert len(found.entities) > len(found.quotas.entries)
    return 20


def _write(directory, clients):
    """Write two requests of each client, in files of 2,000 rows."""
    directory.mkdir()
    seq = np.arange(2 * clients)
    columns = {
        "kind": pa.array(np.where(seq == 0, "start", "request")),
        "ts_ms": START_MS + seq,
        "seq": seq,
        "node_id": np.full(len(seq), 1, np.int32),
        "user": pa.repeat("app", len(seq)),
        "client_id": pa.array([f"client-{number % clients}" for number in seq]),
        "connection_id": seq % clients,
        "produce_bytes": np.full(len(seq), 2000),
        "handler_ns": np.full(len(seq), 1000),
    }
    schema = arrow_schema()
    defaults = {pa.bool_(): False, pa.string(): ""}
    absent = {
        field.name: pa.nulls(len(seq), field.type)
        if field.nullable
        else pa.repeat(pa.scalar(defaults.get(field.type, 0), field.type), len(seq))
        for field in schema
        if field.name not in columns
    }
    table = pa.table({**absent, **columns}).select(schema.names).cast(schema)
    for first in range(0, len(seq), 2000):
        pq.write_table(table.slice(first, 2000), directory / f"{first:08}.parquet")


@pytest.mark.parametrize(("job", "most_bytes"), [(_replay, 2000), (_usage, 1000), (_recommend, 2000)])
def test_a_client_more_is_no_object_more(tmp_path, monkeypatch, job, most_bytes):
    """A dict for each would be kilobytes, its sensors held to the end another."""
    monkeypatch.setattr(task, "CLIENTS_PER_PARTITION", 500)
    monkeypatch.setattr(task, "CLIENTS_PER_SHARE", 500)
    monkeypatch.setattr(parts, "GROUPS_AT_ONCE", 500)
    peaks = {}
    for clients in (2000, 6000):
        _write(tmp_path / str(clients), clients)
        with open_usage(tmp_path / str(clients)) as files:
            job(files)  # what is loaded and compiled once is no part of it
            tracemalloc.start()
            assert job(files) == 20
            peaks[clients] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert (peaks[6000] - peaks[2000]) / 4000 < most_bytes
