"""Kinds of the rows of a chunk: those of the kernel, and the events of a node besides requests."""

import numpy as np
import pyarrow as pa

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import MUTATION_ROW, NETWORK_ROW, REQUEST_ROW
from tidegate.pipeline.read.columns import Numbers, numbers_of_names
from tidegate.pipeline.read.steps import CONTROL_KINDS
from tidegate.pipeline.read.timeline import SWEEP_KIND
from tidegate.usage.columns import KINDS

__all__ = ["CONTROL", "SNAPSHOT", "SWEEP", "TAGS", "check_kinds", "row_kinds"]

CONTROL, _PASSED_BY, TAGS, SNAPSHOT, _UNKNOWN, SWEEP = -1, -2, -3, -4, -5, -6
_KIND_CODES = {
    **dict.fromkeys(KINDS, _PASSED_BY),
    "request": REQUEST_ROW,
    "network": NETWORK_ROW,
    "mutation": MUTATION_ROW,
    "forwarded": REQUEST_ROW,
    **dict.fromkeys(CONTROL_KINDS, CONTROL),
    "tags": TAGS,
    "snapshot": SNAPSHOT,
    SWEEP_KIND: SWEEP,
}


def row_kinds(table: pa.Table) -> Numbers:
    """Return the kind of each row as the kernel counts them, below 0 where it is none of the kernel's."""
    return numbers_of_names(table, "kind", lambda name: _KIND_CODES.get(name, _UNKNOWN), np.int8)


def check_kinds(table: pa.Table, path: str) -> None:
    """Raise `UsageFilesError` where a row of `path` is of a kind that is none of the usage record."""
    unknown = np.flatnonzero(numbers_of_names(table, "kind", lambda name: name not in _KIND_CODES, np.bool_))
    if len(unknown):
        kind = table["kind"][int(unknown[0])].as_py()
        raise UsageFilesError(
            f"unknown kind {kind!r} in {len(unknown)} rows of {path!r}",
            hint="a later version of Tidegate or another program wrote the file",
        )
