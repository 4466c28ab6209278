"""Events as Parquet files of the usage record."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate.config.locations import Location
from tidegate.pipeline.read.ingest import find_all_files
from tidegate.usage.arrow import event_tables, write_table

__all__ = ["find_files", "write_events"]


def write_events(directory: Path, events: Sequence[dict[str, Any]], *, rows_per_file: int = 1000) -> None:
    """Write the events of one node under `directory`, as the writer lays them out."""
    for table in event_tables(events, rows=rows_per_file):
        write_table(table, directory, node_id=events[0]["node_id"])


def find_files(directory: Path) -> list[Location]:
    """Return the usage files of a record whose spool is empty."""
    with find_all_files(directory) as files:
        return files
