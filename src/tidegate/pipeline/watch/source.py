"""A streaming source for Spark. It yields the row groups with new rows; its offset is the last `seq` of each node.

It yields the places of rows, not the rows: the function that keeps a node's state reads these, a few row groups at a
time and in order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from tidegate.pipeline.watch.arrivals import LATENESS_S, Arrivals, newest_hour_ms

__all__ = ["SOURCE_NAME", "UsageSource"]

SOURCE_NAME = "tidegate-usage"

_SCHEMA = (
    "node_id int, path string, row_group int, first_seq long, last_seq long, rows long, "
    "after_seq long, end_seq long"
)
_ROWS_A_BATCH = 2_000_000

Offset = dict[str, Any]
"""`nodes`: the last `seq` by node; `from_ms`: a time in the first hour that is read, None while there are no rows."""


@dataclass
class _OfNode(InputPartition):
    """Rows of one node after `after_seq` and up to `end_seq`."""

    node_id: int
    after_seq: int
    end_seq: int
    from_ms: int | None

    def __init__(self, *, node_id: int, after_seq: int, end_seq: int, from_ms: int | None) -> None:
        super().__init__(node_id)
        self.node_id, self.after_seq, self.end_seq, self.from_ms = node_id, after_seq, end_seq, from_ms


class UsageSource(DataSource):
    """`spark.readStream.format("tidegate-usage").option("from_ms", ...).load(directory)`.

    Options: `from_ms`, a time in the first hour; `lateness_s`, seconds for which rows wait for earlier rows of their
    node.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SOURCE_NAME

    def schema(self) -> str:
        """Return the columns: a row group, and the range of its rows that arrived since the previous batch."""
        return _SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader from which Spark gets offsets and rows."""
        return _Reader(self.options)


class _Reader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._directory = Path(options["path"])
        self._from_ms = int(options["from_ms"]) if options.get("from_ms") else None
        self._lateness_s = float(options.get("lateness_s", LATENESS_S))

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {"nodes": {}, "from_ms": self._from_ms}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(_ROWS_A_BATCH)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        from_ms = newest_hour_ms(self._directory) if start["from_ms"] is None else start["from_ms"]
        before = _nodes(start)
        most_rows = None if isinstance(limit, ReadAllAvailable) else _ROWS_A_BATCH
        arrivals = Arrivals(self._directory, from_ms=from_ms, lateness_s=self._lateness_s)
        found = arrivals.latest(before, most_rows=most_rows)
        if found == before:
            return start
        return {"nodes": {str(node_id): seq for node_id, seq in sorted(found.items())}, "from_ms": from_ms}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        before = _nodes(start)
        return [
            _OfNode(node_id=node_id, after_seq=before.get(node_id, -1), end_seq=seq, from_ms=end["from_ms"])
            for node_id, seq in _nodes(end).items()
            if seq > before.get(node_id, -1)
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, _OfNode), "we made it"
        arrivals = Arrivals(self._directory, from_ms=partition.from_ms)
        ends = partition.after_seq, partition.end_seq
        for piece in arrivals.pieces(partition.node_id, *ends):
            of_file = piece.first_seq, piece.last_seq, piece.rows
            yield (piece.node_id, piece.path, piece.row_group, *of_file, *ends)


def _nodes(offset: Offset) -> dict[int, int]:
    return {int(node_id): seq for node_id, seq in offset["nodes"].items()}
