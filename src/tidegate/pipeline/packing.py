"""Rows packed for the shuffle: one block of bytes for many rows, column after column.

Spark moves and sorts blocks, not rows: a row that goes through the JVM alone costs more than everything that is
done with it here. Blocks of a partition are sorted by their first `seq`; where their ranges overlap (rows of one
hour may come a little before others of the next), they are merged while they are read.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.chunks import in_order
from tidegate.pipeline.layout import ROW_TYPES, Rows

__all__ = ["BLOCK_ROWS", "Block", "merged", "pack", "unpack"]

BLOCK_ROWS = 1 << 16
"""Most rows of a block: 4 MB."""

Numbers = npt.NDArray[Any]

_ALIGNED = 8  # bytes; every column begins where its numbers may lie


class Block(NamedTuple):
    """Rows of one partition, in order of `seq`."""

    partition: int
    first_seq: int
    rows: int
    data: bytes


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


def unpack(data: bytes | pa.Buffer, rows: int) -> Rows:
    """Return the rows of a block, without a copy."""
    columns: list[Numbers] = []
    at = 0
    for dtype in ROW_TYPES:
        columns.append(np.frombuffer(data, dtype, rows, at))
        at += _padded(rows * dtype.itemsize)
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


def _block(partition: int, rows: Rows, where: Numbers) -> Block:
    taken = Rows._make(column[where] for column in rows)
    columns: Iterable[tuple[Numbers, np.dtype[Any]]] = zip(taken, ROW_TYPES, strict=True)
    parts = [column.astype(dtype, copy=False).tobytes() for column, dtype in columns]
    data = b"".join(part.ljust(_padded(len(part)), b"\0") for part in parts)
    return Block(partition, int(taken.seq[0]), len(where), data)


def _padded(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
