"""Events as Parquet files of the usage record."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.usage.arrow import arrow_schema, split_by_hour, write_parquet
from tidegate.usage.files import hour_directory, parquet_path

__all__ = ["write_events"]


def write_events(directory: Path, events: Sequence[dict[str, Any]], *, rows_per_file: int = 1000) -> None:
    """Write the events of one node under `directory`, as the writer lays them out."""
    for first in range(0, len(events), rows_per_file):
        part = events[first : first + rows_per_file]
        for hour_ms, table in split_by_hour(pa.Table.from_pylist(list(part), schema=arrow_schema())):
            seqs = table["seq"].to_pylist()
            path = parquet_path(
                hour_directory(directory, hour_ms),
                node_id=part[0]["node_id"],
                first_seq=min(seqs),
                last_seq=max(seqs),
            )
            write_parquet(path, table.cast(_encoded(table.schema)))


def _encoded(schema: pa.Schema) -> pa.Schema:
    names = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([field.with_type(names) if field.type == pa.string() else field for field in schema])
