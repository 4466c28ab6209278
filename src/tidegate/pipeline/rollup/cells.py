"""Groups of rows, and cells: a group in one table, or in one step of time of it, for which is added up."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipeline.errors import DAMAGED_HINT, UsageFilesError, check_sum
from tidegate.pipeline.read.chunks import Chunk, read_chunk
from tidegate.pipeline.read.columns import THROTTLES, name_places, numbers_of_names, used_codes
from tidegate.pipeline.rollup import kernel
from tidegate.pipeline.rollup.groups import source_columns
from tidegate.pipeline.schemas import CLIENT
from tidegate.quota.measure.throttle import MAX_INT64

__all__ = [
    "ALL_TIME_MS",
    "AMOUNTS",
    "FLAGS",
    "LATEST_MS",
    "SMALL",
    "are_more_groups",
    "cells_of",
    "check_amount",
    "check_number",
    "chunk_groups",
    "groups_of",
    "kinds_of",
    "usage_columns",
]

ALL_TIME_MS = 0
"""`minute_ms` of a part that is of all minutes together."""
AMOUNTS = (
    "request_bytes",
    "response_bytes",
    "produce_bytes",
    "fetch_bytes",
    "handler_ns",
    "network_ns",
    "mutations",
)
FLAGS = ("rejected", "observed_only", "exempt")
LATEST_MS = 2**53
SMALL = 1 << 32
"""Largest amount that needs no check: the sum of as many as a table can have rows has room."""

_KINDS = {
    "request": kernel.REQUEST, "network": kernel.NETWORK, "mutation": kernel.MUTATION,
    "start": kernel.RESTART, "callback": kernel.RESTART,
}  # fmt: skip
_COLUMNS = ("kind", "node_id", "seq", "ts_ms", *AMOUNTS, *THROTTLES, *FLAGS)

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def usage_columns(by: Sequence[str] = CLIENT) -> list[str]:
    """Return the columns of the usage record that usage by the columns `by` is made of."""
    return [*_COLUMNS, *source_columns(by)]


def kinds_of(table: pa.Table) -> npt.NDArray[np.int8]:
    """Return what each row is, as `kernel` counts it: those below `kernel.RESTART` are added up."""
    return numbers_of_names(table, "kind", lambda name: _KINDS.get(name, kernel.OTHER), np.int8)


def groups_of(table: pa.Table, by: Sequence[str], counts: Flags) -> tuple[pa.Table, Int64s]:
    """Return the groups that occur, columns `by`, and the place of each row among them. counts: rows that count."""
    code = np.zeros(len(table), np.int64)
    sizes: list[int] = []
    dictionaries: list[pa.Array] = []
    for name in by:
        places, names = name_places(table, name)
        if sizes:
            code *= len(names)
            code += places
        else:
            code = places
        sizes.append(len(names))
        dictionaries.append(names)
    used, place = used_codes(code, int(np.prod(sizes)), counts)
    columns = []
    for size, names in zip(reversed(sizes), reversed(dictionaries), strict=True):
        used, of_name = np.divmod(used, size)
        columns.append(names.take(pa.array(of_name)))
    return pa.table(columns[::-1], names=list(by)), place


def chunk_groups(chunk: Chunk, by: Sequence[str]) -> pa.Table:
    """Return the values of `by`, columns of the usage record, that occur in a chunk. Raises `UsageFilesError`."""
    table = read_chunk(chunk, by)
    return groups_of(table, by, np.ones(len(table), bool))[0]


def are_more_groups(found: Iterable[pa.Table], than: int) -> bool:
    """Return whether `chunk_groups` found more groups in all chunks together. Ends with a chunk that has more alone."""
    tables: list[pa.Table] = []
    for table in found:
        if len(table) > than:
            return True
        tables.append(table)
    together = pa.concat_tables(tables)
    return len(together.group_by(together.column_names, use_threads=False).aggregate([])) > than


def cells_of(group: Int64s, step: Int64s, counts: Flags) -> tuple[Int64s, Int64s, Int64s]:
    """Return the cell of each row, and of each cell its group and step."""
    first = int(step[counts].min())
    step = np.where(counts, step - first, 0)
    steps, place = used_codes(step, int(step.max()) + 1, counts)
    groups = int(group.max()) + 1
    used, cell = used_codes(place * groups + group, len(steps) * groups, counts)
    of_step, of_group = np.divmod(used, groups)
    return cell, of_group, steps[of_step] + first


def check_number(table: pa.Table, name: str, values: Int64s, largest: int, counts: Flags) -> None:
    """Raise where a number makes no sense, in a row that counts."""
    if values.min() >= 0 and values.max() <= largest:
        return
    impossible = counts & ((values < 0) | (values > largest))
    if impossible.any():
        at = int(np.argmax(impossible))
        seq = table["seq"][at] if "seq" in table.column_names else "unknown"
        row = f"seq {seq} of node {table['node_id'][at]}"
        raise UsageFilesError(
            f"{name} must be from 0 to {largest}, got {values[at]} in {row}", hint=DAMAGED_HINT
        )


def check_amount(table: pa.Table, name: str, values: Int64s, counts: Flags) -> None:
    """Raise where an amount makes no sense, or all together have no room in 64 bits."""
    check_number(table, name, values, MAX_INT64, counts)
    check_sum(values.sum(where=counts, dtype=np.float64))
