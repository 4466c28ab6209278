"""Rows of the processes of one broker in a live record, as rows of one node in the order of time.

Each process of `tidegate gateway --processes` has its own files and its own `seq`, and jobs read their rows as those of
the broker (`tidegate.pipeline.read.columns`). A watch takes these rows up to a time before which the rows of every
process have arrived. The spool of a process tells this time: it is that of its first row that is not yet in Parquet. An
idle process has no such row, so the others do not wait for it. A copy of a record has no spool; there, the time is that
of the last row of each process.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.read.columns import merged, numbers_of
from tidegate.usage.process_nodes import ALL_PROCESSES, broker_of_node, node_of_process, process_of_node
from tidegate.usage.segment import CLOSED_SUFFIX, OPEN_SUFFIX, SpoolError, opened_ms, segment_paths

__all__ = [
    "EVERY_SEQ",
    "Taken",
    "all_processes",
    "is_of_process",
    "rows_of_broker",
    "waiting_since_ms",
    "without",
]

EVERY_SEQ = (0, 2**63 - 1)
"""The range of all `seq`."""
_MOST_RANGES = 1_000

Taken = Mapping[int, Sequence[tuple[int, int]]]
"""By process, in rising order, the ranges of its `seq` (first, last) of which all rows were taken."""


def all_processes(node_id: int) -> int:
    """Return the node id that stands for all processes of the broker of a process, and of a broker its own."""
    return node_of_process(broker_of_node(node_id), ALL_PROCESSES) if is_of_process(node_id) else node_id


def is_of_process(node_id: int) -> bool:
    """Return whether a node id is that of a process, or of all processes of a broker."""
    return process_of_node(node_id) is not None


def waiting_since_ms(usage: Path) -> dict[int, int | None]:
    """Return the time of the first row in the spool of each process; None: its spool is empty.

    usage: the usage directory. Processes without a spool there are not in the result.
    """
    spools = usage.glob("spool/node-*")
    nodes = {int(number): path for path in spools if (number := path.name[len("node-") :]).isdecimal()}
    return {node_id: _first_ms(path) for node_id, path in nodes.items() if is_of_process(node_id)}


def _first_ms(spool: Path) -> int | None:
    times = []
    for suffix in (OPEN_SUFFIX, CLOSED_SUFFIX):  # in this order: a segment may be closed between the two
        for path in segment_paths(spool, suffix):
            with suppress(FileNotFoundError):  # closed or converted meanwhile
                try:
                    times.append(opened_ms(path))
                except SpoolError:
                    times.append(0)
    return min(times, default=None)


def rows_of_broker(table: pa.Table) -> tuple[pa.Table, Taken]:
    """Return rows of several processes as rows of their broker, and which rows of each process they are."""
    parts: list[pa.Table] = []
    taken: dict[int, list[tuple[int, int]]] = {}
    for node_id in pc.unique(table["node_id"]).to_pylist():
        of_process = table.filter(pc.field("node_id") == node_id)
        taken[node_id] = list(_ranges(of_process))
        parts.append(merged(of_process))
    return (pa.concat_tables(parts) if parts else table), taken


def without(ranges: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what is left of some ranges without others.

    >>> without([EVERY_SEQ], [(3, 7), (9, 9)])
    [(0, 2), (8, 8), (10, 9223372036854775807)]
    """
    left = list(ranges)
    for first, last in taken:
        left = [part for known in left for part in _cut(known, first, last)]
    return left


def _cut(known: tuple[int, int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield what is left of a range without the numbers from `first` to `last`."""
    if known[0] < first:
        yield known[0], min(known[1], first - 1)
    if last < known[1]:
        yield max(known[0], last + 1), known[1]


def _ranges(table: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the `seq` of a process; one range where there would be very many."""
    seq = np.sort(numbers_of(table, "seq"))
    ends = [*(seq[1:] - seq[:-1] > 1).nonzero()[0].tolist(), len(seq) - 1]
    if len(ends) > _MOST_RANGES:
        ends = ends[-1:]
    first = 0
    for end in ends:
        yield int(seq[first]), int(seq[end])
        first = end + 1
