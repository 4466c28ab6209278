"""Pieces of a live record: the row groups of its files, which are read one or several at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.chunks import Chunk, check_format, read_chunk, statistics_of
from tidegate.pipeline.read.columns import first_seq_at, ms_of_seq
from tidegate.pipeline.read.filesystems import DAMAGE
from tidegate.pipeline.read.rows import ALL_COLUMNS
from tidegate.pipeline.rollup.cells import usage_columns
from tidegate.pipeline.watch.processes import all_processes, is_of_process
from tidegate.usage.files import ParquetFile
from tidegate.usage.segment import TS_MS_MAX

__all__ = ["Piece", "lost_events", "pieces_of", "read_pieces", "together"]

_ROWS_AT_ONCE = 200_000
_COLUMNS = tuple(dict.fromkeys((*ALL_COLUMNS, *usage_columns())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A row group of a file of one node: its rows are of these `seq`, but others may be among them elsewhere.

    first_ms, last_ms: its rows are between these times.
    """

    node_id: int
    path: str
    row_group: int
    first_seq: int
    last_seq: int
    rows: int
    first_ms: int = 0
    last_ms: int = 0

    def of_broker(self) -> "Piece":
        """Return a piece of a process as one of all processes of its broker."""
        first_seq, last_seq = first_seq_at(self.first_ms), first_seq_at(self.last_ms + 1) - 1
        return replace(self, node_id=all_processes(self.node_id), first_seq=first_seq, last_seq=last_seq)


def pieces_of(file: ParquetFile) -> list[Piece]:
    """Return the row groups of a file; none if the file was removed. Raises `UsageFilesError`."""
    found = []
    try:
        with pq.ParquetFile(file.path) as opened:
            check_format(str(file.path), opened)
            metadata = opened.metadata
            seq_at, ts_at = (opened.schema_arrow.get_field_index(name) for name in ("seq", "ts_ms"))
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                first, last = _ends(metadata, group, seq_at) or (file.first_seq, file.last_seq)
                first_ms, last_ms = _ends(metadata, group, ts_at) or (0, TS_MS_MAX)
                found.append(
                    Piece(
                        node_id=file.node_id,
                        path=str(file.path.absolute()),
                        row_group=number,
                        first_seq=first,
                        last_seq=last,
                        rows=group.num_rows,
                        first_ms=first_ms,
                        last_ms=last_ms,
                    )
                )
    except FileNotFoundError:  # compacted meanwhile: what has its rows is listed the next time
        return []
    except DAMAGE as error:
        raise UsageFilesError(
            f"{str(file.path)!r} is not a usable Parquet file",
            hint="move the file away, then run the command again",
        ) from error
    return found


def together(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces in runs that are read at once: those that overlap, and small ones with others.

    No row of a run comes after a row of the next.
    """
    run: list[Piece] = []
    rows, reach = 0, -1
    for piece in pieces:
        if rows >= _ROWS_AT_ONCE and piece.first_seq > reach:
            yield run
            run, rows = [], 0
        run.append(piece)
        rows += piece.rows
        reach = max(reach, piece.last_seq)
    if run:
        yield run


def read_pieces(pieces: Sequence[Piece], *, after_seq: int, end_seq: int) -> pa.Table:
    """Return the rows of one node after `after_seq` and up to `end_seq`, in no order. Raises `UsageFilesError`.

    The rows of all processes of a broker are returned as each process has recorded them.
    """
    if is_of_process(pieces[0].node_id):
        of_node = pc.field("ts_ms") >= ms_of_seq(after_seq + 1)
        is_wanted = pc.field("ts_ms") <= ms_of_seq(end_seq)
    else:
        is_wanted = (pc.field("seq") > after_seq) & (pc.field("seq") <= end_seq)
        of_node = pc.field("node_id") == pieces[0].node_id
    chunks = (Chunk(piece.path, piece.row_group) for piece in pieces)
    return pa.concat_tables([read_chunk(chunk, _COLUMNS).filter(is_wanted & of_node) for chunk in chunks])


def lost_events(piece: Piece) -> int:
    """Return how many events the `gap` rows of a row group say are missing."""
    rows = read_chunk(Chunk(piece.path, piece.row_group), ("node_id", "lost_events"))
    of_node = rows.filter(pc.field("node_id") == piece.node_id)
    return pc.sum(of_node["lost_events"]).as_py() or 0


def _ends(footer: pq.FileMetaData, group: pq.RowGroupMetaData, place: int) -> tuple[int, int] | None:
    """Return the least and the largest number of a column; None: the footer does not state them."""
    found = statistics_of(footer, group, place)
    return (found.min, found.max) if found and found.has_min_max else None
