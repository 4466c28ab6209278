"""Rows of each node in a chunk, and their order, by their `seq`."""

from itertools import pairwise
from typing import Any

import numpy as np

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.chunks import RUN_COLUMNS, Arrived, OpenChunk, read_chunk
from tidegate.pipeline.read.columns import Numbers, are_merged, numbers_of
from tidegate.pipeline.read.timeline import Run
from tidegate.usage.columns import SEQ_PER_US

__all__ = ["check_rising", "list_runs", "runs_by_chunk"]

_IMPORTED_WITHIN_MS = (
    1000  # `seq` of an imported row is this close to its time, that of `tidegate serve` never
)


def list_runs(chunk: OpenChunk | Arrived) -> list[Run]:
    """Return which rows are there."""
    return [run for runs in runs_by_chunk(chunk) for run in runs]


def runs_by_chunk(chunk: OpenChunk | Arrived) -> list[list[Run]]:
    """Return which rows are there in each chunk of it; from the statistics if they tell, else from the rows."""
    if isinstance(chunk, Arrived):
        columns_of_rows = [numbers_of(read_chunk(chunk, RUN_COLUMNS), name) for name in RUN_COLUMNS]
        ends = chunk.ends or (len(chunk.table),)
        parts = (slice(first, end) for first, end in pairwise((0, *ends)))
        return [_runs_of_rows(*(column[part] for column in columns_of_rows)) for part in parts]
    found = [each for name in RUN_COLUMNS if (each := chunk.statistics(name)) is not None]
    if (
        not chunk.chunk.is_cut
        and not chunk.chunk.is_of_process
        and len(found) == len(RUN_COLUMNS)
        and all(each.has_min_max for each in found)
    ):
        node_id, seq, ts_ms = ((each.min, each.max) for each in found)
        is_imported = all(_is_imported(*ends) for ends in zip(seq, ts_ms, strict=True))
        has_no_hole = seq[1] - seq[0] + 1 == chunk.group.num_rows
        if node_id[0] == node_id[1] and (is_imported or has_no_hole):
            return [[Run(node_id[0], seq[0], seq[1], ts_ms[0], is_imported)]]
    return [_runs_of_rows(*(numbers_of(read_chunk(chunk, RUN_COLUMNS), name) for name in RUN_COLUMNS))]


def check_rising(seq: Numbers, *, after: int, node_id: int) -> None:
    """Raise `UsageFilesError` where a row of a node is not after the one before, or the first not after `after`."""
    steps = np.diff(seq, prepend=after)
    if not (steps > 0).all():
        twice = int(seq[int(np.argmax(steps <= 0))])
        raise UsageFilesError(
            f"seq {twice} of node {node_id} occurs twice",
            hint="remove the second copy of a file, or give each node its own id",
        )


def _runs_of_rows(node_id: Numbers, seq: Numbers, ts_ms: Numbers) -> list[Run]:
    found = []
    for node in np.unique(node_id).tolist():
        of_node = np.flatnonzero(node_id == node)
        order = of_node[np.argsort(seq[of_node], kind="stable")]
        first = np.flatnonzero(np.diff(seq[order], prepend=seq[order[0]] - 2) != 1)
        is_imported = bool(_is_imported(seq[order], ts_ms[order]).all())
        is_merged = are_merged(seq[order], ts_ms[order])
        if is_imported or is_merged:
            first = first[:1]
        last = np.append(first[1:], len(order)) - 1
        ends = zip(
            seq[order[first]].tolist(), seq[order[last]].tolist(), ts_ms[order[first]].tolist(), strict=True
        )
        found += [Run(node, *run, is_imported, is_merged) for run in ends]
    return found


def _is_imported(seq: Any, ts_ms: Any) -> Any:
    """Return whether `seq` is made of the time, as an import does it (docs/import.md)."""
    return abs(seq // (SEQ_PER_US * 1000) - ts_ms) <= _IMPORTED_WITHIN_MS
