"""Rows packed for the shuffle: one block of bytes for many rows, column after column.

A column is stored as distances from its least number, in as few bytes as they need; none where all are equal.
Spark moves and sorts blocks, not rows: a row that goes through the JVM alone costs more than everything that is
done with it here. Blocks of a partition are sorted by their first `seq`; where their ranges overlap (rows of one
hour may come a little before others of the next), they are merged while they are read.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.layout import ROW_TYPES, Rows
from tidegate.pipeline.read.rows import in_order

__all__ = ["BLOCK_ROWS", "GATHERED_ROWS", "Block", "gathered", "merged", "pack", "pack_all", "unpack"]

BLOCK_ROWS = 1 << 16
"""Most rows of a block: 4 MB at worst, a third of that as a rule."""
GATHERED_ROWS = 1 << 14
"""Rows that are replayed together. With many clients a block has few rows, and each batch has a fixed cost."""
_ROWS_AT_ONCE = 1 << 18
_ROWS_OF_BLOCK = 1 << 11  # so many make the time that a block itself takes small

Numbers = npt.NDArray[Any]

_HEADER = np.dtype([("base", "<i8"), ("width", "<i8")])
_STORED: dict[int, np.dtype[Any]] = {width: np.dtype(f"<u{width or 1}") for width in (0, 1, 2, 4, 8)}


class Block(NamedTuple):
    """Rows of one partition, in order of `seq`."""

    partition: int
    first_seq: int
    rows: int
    data: bytes | pa.Buffer


def pack(rows: Rows, first_client: Numbers) -> Iterator[Block]:
    """Yield the rows as blocks, those of each partition apart; clients count from 0 within their partition.

    first_client: the first number of each partition, and one more for the end.
    """
    partition = np.searchsorted(first_client, rows.client, side="right") - 1
    rows = rows._replace(client=(rows.client - first_client[partition]).astype(np.int32))
    for number in np.unique(partition).tolist():
        where = np.flatnonzero(partition == number)
        for first in range(0, len(where), BLOCK_ROWS):
            yield _block(number, rows, where[first : first + BLOCK_ROWS])


def pack_all(batches: Iterable[Rows], first_client: Numbers) -> Iterator[Block]:
    """Yield the rows of batches as `pack` does, of several batches together where there are many partitions."""
    rows = min(_ROWS_OF_BLOCK * (len(first_client) - 1), _ROWS_AT_ONCE)
    for some in gathered(batches, rows):
        yield from pack(some, first_client)


def unpack(data: bytes | pa.Buffer, rows: int) -> Rows:
    """Return the rows of a block."""
    header = np.frombuffer(data, _HEADER, len(ROW_TYPES))
    columns: list[Numbers] = []
    at = header.nbytes
    for dtype, (base, width) in zip(ROW_TYPES, header.tolist(), strict=True):
        stored = np.frombuffer(data, _STORED[width], rows if width else 0, at)
        columns.append(_restored(stored, base, rows, dtype))
        at += stored.nbytes
    return Rows._make(columns)


def merged(blocks: Iterable[tuple[int, Rows]]) -> Iterator[Rows]:
    """Yield batches of rows in order of `seq`, out of (first `seq`, rows) in order of that."""
    waiting: Rows | None = None
    for first_seq, rows in blocks:
        if waiting is None or waiting.seq[-1] < first_seq:
            if waiting is not None:
                yield waiting
            waiting = rows
            continue
        # Blocks come in order of their first `seq`: no later block has rows before this one's first.
        settled = int(np.searchsorted(waiting.seq, first_seq))
        if settled:
            yield Rows._make(column[:settled] for column in waiting)
        rest: list[Numbers] = [column[settled:] for column in waiting]
        waiting = in_order(
            Rows._make(
                np.concatenate([left, right]) for left, right in zip(rest, list[Numbers](rows), strict=True)
            )
        )
    if waiting is not None:
        yield waiting


def gathered(batches: Iterable[Rows], rows: int = GATHERED_ROWS) -> Iterator[Rows]:
    """Yield the rows of batches in order, at least `rows` at a time, unless a batch begins before another one ends."""
    some: list[Rows] = []
    count = 0
    for batch in batches:
        if not len(batch.seq):
            continue
        if some and batch.seq[0] <= some[-1].seq[-1]:
            yield _together(some)
            some, count = [], 0
        some.append(batch)
        count += len(batch.seq)
        if count >= rows:
            yield _together(some)
            some, count = [], 0
    if some:
        yield _together(some)


def _together(batches: list[Rows]) -> Rows:
    """Return the rows of batches, at least one, as one batch."""
    if len(batches) == 1:
        return batches[0]
    return Rows._make(np.concatenate(columns) for columns in zip(*batches, strict=True))


def _block(partition: int, rows: Rows, where: Numbers) -> Block:
    columns: list[Numbers] = [column[where] for column in rows]
    header = np.array([_base_and_width(column) for column in columns], _HEADER)
    parts = [
        _stored(column, base, width) for column, (base, width) in zip(columns, header.tolist(), strict=True)
    ]
    return Block(partition, int(columns[0][0]), len(where), b"".join([header.tobytes(), *parts]))


def _base_and_width(column: Numbers) -> tuple[int, int]:
    """Return the least number of a column, and how many bytes the distances from it need."""
    base, largest = int(column.min()), int(column.max())
    return base, next(width for width, dtype in _STORED.items() if largest - base <= _largest(width, dtype))


def _largest(width: int, dtype: np.dtype[Any]) -> int:
    return int(np.iinfo(dtype).max) if width else 0


def _stored(column: Numbers, base: int, width: int) -> bytes:
    if width == 0:
        return b""
    distances: Numbers = column.astype(np.int64) - base  # wraps where it must: so does putting it back
    return distances.astype(_STORED[width]).tobytes()


def _restored(stored: Numbers, base: int, rows: int, dtype: np.dtype[Any]) -> Numbers:
    if len(stored) == 0:
        return np.full(rows, base, dtype)
    return (stored.astype(np.int64) + base).astype(dtype, copy=False)
