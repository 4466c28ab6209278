"""Which rows of a live record have arrived: an offset is the `seq` of each node up to which all of them are there.

A row is named by its node and its `seq`, not by its file: a compacted file has the rows of others, and none that
is behind the offset. Files say their range in their names, and what of it they have in their statistics.

A writer puts the rows of a segment that spans two hours into two files of the same range, one after the other. So the
newest range of a node counts only when all of its rows are there, or a later one is, for segments are written in order.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.errors import ConfigError
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.chunks import Chunk, read_chunk
from tidegate.pipeline.read.rows import ALL_COLUMNS
from tidegate.pipeline.rollup.parts import usage_columns
from tidegate.usage.files import ParquetFile, hour_directories, in_hours, list_files
from tidegate.usage.readers import is_imported

__all__ = ["Arrivals", "Offsets", "Piece", "newest_hour_ms", "read_pieces", "together"]

Offsets = Mapping[int, int]
"""The last `seq` of each node."""

_ROWS_AT_ONCE = 200_000
_SETTLED_S = 60.0  # a range that is not whole after so long has lost rows
_COLUMNS = tuple(dict.fromkeys((*ALL_COLUMNS, *usage_columns())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A row group of a file of one node: its rows are of these `seq`, but others may be among them elsewhere."""

    node_id: int
    path: str
    row_group: int
    first_seq: int
    last_seq: int
    rows: int


class Arrivals:
    """The files of a record, from an hour on; what was seen of a file is kept while it is there."""

    def __init__(self, directory: Path, *, from_ms: int | None) -> None:
        self._directory = directory
        self._from_ms = from_ms
        self._pieces: dict[Path, list[Piece]] = {}
        self._is_imported = is_imported(directory)

    def latest(self, after: Offsets, *, most_rows: int | None = None) -> dict[int, int]:
        """Return the offsets up to which all rows are there, at most about so many rows after `after`.

        Raises `UsageFilesError` where a file cannot be read, or there is no directory.
        """
        found = {node_id: self._frontier(files) for node_id, files in self._files(after).items()}
        ends = {node_id: end for node_id, end in found.items() if end > after.get(node_id, -1)}
        if most_rows is not None:
            share = max(1, most_rows // max(1, len(ends)))
            for node_id, end in ends.items():
                ends[node_id] = self._end_of_share(node_id, after.get(node_id, -1), end, share)
        return {**after, **ends}

    def pieces(self, node_id: int, after_seq: int, end_seq: int) -> list[Piece]:
        """Return what has rows of a node after `after_seq` and up to `end_seq`, in order. Raises likewise."""
        files = self._files({node_id: after_seq}).get(node_id, [])
        pieces = [piece for file in files for piece in self._of_file(file)]
        wanted = [piece for piece in pieces if piece.last_seq > after_seq and piece.first_seq <= end_seq]
        return sorted(wanted, key=lambda piece: (piece.first_seq, piece.last_seq))

    def _files(self, after: Offsets) -> dict[int, list[ParquetFile]]:
        """Return the files of each node that may have rows after `after`."""
        try:
            paths = list_files(self._directory)
        except ConfigError as error:
            hint = "give the usage directory of `tidegate serve`"
            raise UsageFilesError(str(error), hint=hint) from error
        by_node: dict[int, list[ParquetFile]] = {}
        named = [file for file in map(ParquetFile.parse, paths) if file is not None]
        wanted = {*in_hours((file.path for file in named), from_ms=self._from_ms, to_ms=None)}
        for file in named:
            if file.path in wanted and file.last_seq > after.get(file.node_id, -1):
                by_node.setdefault(file.node_id, []).append(file)
        self._pieces = {path: pieces for path, pieces in self._pieces.items() if path in wanted}
        return by_node

    def _frontier(self, files: Sequence[ParquetFile]) -> int:
        last_seq = max(file.last_seq for file in files)
        newest = [file for file in files if file.last_seq == last_seq]
        first_seq = min(file.first_seq for file in newest)
        rows = sum(piece.rows for file in newest for piece in self._of_file(file))
        if self._is_imported or rows >= last_seq - first_seq + 1 or any(map(_is_settled, newest)):
            return last_seq
        return max((file.last_seq for file in files if file.last_seq < first_seq), default=-1)

    def _end_of_share(self, node_id: int, after_seq: int, end_seq: int, most_rows: int) -> int:
        rows = 0
        for piece in sorted(self.pieces(node_id, after_seq, end_seq), key=lambda piece: piece.last_seq):
            rows += piece.rows
            if rows >= most_rows:
                return min(piece.last_seq, end_seq)
        return end_seq

    def _of_file(self, file: ParquetFile) -> list[Piece]:
        found = self._pieces.get(file.path)
        if found is None:
            found = self._pieces[file.path] = _pieces_of(file)
        return found


def newest_hour_ms(directory: Path) -> int | None:
    """Return the first millisecond of the newest hour that has files; None: there is none."""
    root = directory / "parquet" if (directory / "parquet").is_dir() else directory
    hours = [hour_ms for hour_ms, path in hour_directories(root) if any(path.glob("node-*.parquet"))]
    return max(hours, default=None)


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
    """Return the rows of one node after `after_seq` and up to `end_seq`, in no order. Raises `UsageFilesError`."""
    is_wanted = (pc.field("seq") > after_seq) & (pc.field("seq") <= end_seq)
    of_node = pc.field("node_id") == pieces[0].node_id
    chunks = (Chunk(piece.path, piece.row_group) for piece in pieces)
    return pa.concat_tables([read_chunk(chunk, _COLUMNS).filter(is_wanted & of_node) for chunk in chunks])


def _is_settled(file: ParquetFile) -> bool:
    """Return whether no file of the same range can still come: it is compacted, or it has been there for long."""
    with suppress(FileNotFoundError):
        return file.compacted or time.time() - file.path.stat().st_mtime > _SETTLED_S
    return False


def _pieces_of(file: ParquetFile) -> list[Piece]:
    found = []
    try:
        with pq.ParquetFile(file.path) as opened:
            metadata = opened.metadata
            place = opened.schema_arrow.get_field_index("seq")
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                seq = group.column(place).statistics
                first, last = (
                    (seq.min, seq.max) if seq and seq.has_min_max else (file.first_seq, file.last_seq)
                )
                found.append(
                    Piece(
                        node_id=file.node_id,
                        path=str(file.path.absolute()),
                        row_group=number,
                        first_seq=first,
                        last_seq=last,
                        rows=group.num_rows,
                    )
                )
    except FileNotFoundError:  # compacted meanwhile: what has its rows is listed the next time
        return []
    except (pa.ArrowException, OSError) as error:
        raise UsageFilesError(
            f"{str(file.path)!r} is not a usable Parquet file", hint="move it away, and run again"
        ) from error
    return found
