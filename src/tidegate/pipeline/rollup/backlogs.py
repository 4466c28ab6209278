"""The lag of consumers in bytes, by entity and node, from the lag that each Fetch shows.

Steps are ten seconds long. The lag of an entity in a step is the sum of the largest lag of each of its connections.
The bytes that arrived meanwhile are the bytes fetched plus the growth of the lag.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.read.chunks import Chunk, read_chunk
from tidegate.pipeline.read.columns import numbers_of
from tidegate.pipeline.rollup.sums import grouped

__all__ = ["ENTITY_KEYS", "STEP_MS", "backlogs_table", "chunk_backlogs"]

STEP_MS = 10_000

ENTITY_KEYS = ("node_id", "entity_user", "entity_client_id")
_STEP_KEYS = (*ENTITY_KEYS, "step_ms")
_BY_CONNECTION: Mapping[str, str] = {"lag_bytes": "max", "fetched_bytes": "sum"}
"""Aggregates over the fetches of a connection in a step."""
_BY_STEP: Mapping[str, str] = {"lag_bytes": "sum", "fetched_bytes": "sum"}
"""Aggregates over the connections of an entity in a step."""

_COLUMNS = (
    "kind", "node_id", "user", "client_id", "connection_id", "ts_ms", "fetch_bytes", "fetch_throttle_ms",
    "request_throttle_ms", "observed_only", "lag_bytes",
)  # fmt: skip
_MOST_BYTES = 2**44  # of one lag: a million of them can be added up


def chunk_backlogs(chunk: Chunk, by: str) -> pa.Table:
    """Return a row per entity of the level `by`, connection and step in a row group: `_STEP_KEYS`, `_BY_CONNECTION`.

    Raises `UsageFilesError`.
    """
    table = read_chunk(chunk, _COLUMNS)
    is_fetch = pc.and_(
        pc.equal(table["kind"].cast(pa.string()), "request"), pc.is_valid(table["fetch_bytes"])
    )
    table = table.filter(is_fetch)
    ts_ms = numbers_of(table, "ts_ms")
    throttle_ms = np.maximum(numbers_of(table, "fetch_throttle_ms"), numbers_of(table, "request_throttle_ms"))
    is_empty = (throttle_ms > 0) & ~numbers_of(table, "observed_only")
    unused = pa.nulls(len(table), pa.string())
    lag_bytes = pc.min_element_wise(table["lag_bytes"], _MOST_BYTES, skip_nulls=False)
    columns = {
        "node_id": table["node_id"],
        "entity_user": table["user"].cast(pa.string()) if by != "client-id" else unused,
        "entity_client_id": table["client_id"].cast(pa.string()) if by != "user" else unused,
        "step_ms": ts_ms - ts_ms % STEP_MS,
        "connection_id": table["connection_id"],
        "lag_bytes": lag_bytes.cast(pa.int64()),
        "fetched_bytes": np.where(is_empty, 0, np.clip(numbers_of(table, "fetch_bytes"), 0, 2**31)),
    }
    return grouped(pa.table(columns), (*_STEP_KEYS, "connection_id"), _BY_CONNECTION)


def backlogs_table(parts: pa.Table) -> pa.Table:
    """Return one row per entity and node from the rows of all chunks, columns `BACKLOGS`."""
    by_connection = grouped(parts, (*_STEP_KEYS, "connection_id"), _BY_CONNECTION)
    by_step = grouped(by_connection, _STEP_KEYS, _BY_STEP).sort_by("step_ms")
    asked = [("step_ms", "min"), ("step_ms", "max"), ("fetched_bytes", "sum")]
    asked += [("lag_bytes", what) for what in ("first", "last", "max")]
    found = by_step.group_by(list(ENTITY_KEYS), use_threads=False).aggregate(asked)
    names = ("first_ms", "last_ms", "fetched_bytes", "first_lag_bytes", "last_lag_bytes", "largest_lag_bytes")
    return found.select([*ENTITY_KEYS, *(f"{name}_{what}" for name, what in asked)]).rename_columns(
        [*ENTITY_KEYS, *names]
    )
