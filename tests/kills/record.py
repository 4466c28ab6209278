"""What the usage record must be after any number of kills: each answered request once, numbers without a hole."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.kills.ledger import ViolationError

from tidegate.usage.readers import complete_files

__all__ = ["check_record", "check_tidy"]

_COLUMNS = ["node_id", "seq", "kind", "client_id"]


def check_record(directory: Path, counted: Mapping[str, tuple[int, int]], starts: int) -> int:
    """Read all of the record, the spool included, and return how many rows it has. Raises `ViolationError`.

    counted: answered and sent requests of clients with a connection each. starts: how often a node may have started.
    """
    with complete_files(directory) as files:
        if not files:
            raise ViolationError("the usage record is empty")
        table = pa.concat_tables([pq.ParquetFile(path).read(_COLUMNS) for path in files])
    kinds = set(pc.unique(table["kind"]).to_pylist())
    if "gap" in kinds:
        raise ViolationError("the usage record has a gap")
    for node in pc.unique(table["node_id"]).to_pylist():
        rows = table.filter(pc.equal(table["node_id"], node)).sort_by("seq")
        _check_numbers(node, rows["seq"].to_numpy(), rows["kind"], starts)
    requests = table.filter(pc.equal(table["kind"], "request"))["client_id"].to_pylist()
    found = Counter(requests)
    for client, (answered, sent) in counted.items():
        if not answered <= found[client] <= sent:
            raise ViolationError(
                f"the usage record has {found[client]} requests of {client}, "
                f"which was answered {answered} and sent {sent}"
            )
    return table.num_rows


def _check_numbers(node: int, seqs: np.ndarray, kinds: pa.ChunkedArray, starts: int) -> None:
    steps = np.diff(seqs)
    if (steps == 0).any():
        twice = seqs[1:][steps == 0]
        raise ViolationError(
            f"node {node} has {len(twice)} rows twice in its usage record, the first is {twice[0]}"
        )
    begins = pc.equal(kinds, "start").to_numpy()
    holes = seqs[1:][(steps != 1) & ~begins[1:]]
    if len(holes):
        raise ViolationError(f"node {node} lacks rows in its usage record before {holes[:5].tolist()}")
    if not begins[0] or begins.sum() > starts:
        raise ViolationError(
            f"node {node} has {begins.sum()} starts in its usage record, expected {starts} at most"
        )


def check_tidy(directory: Path) -> None:
    """Look for what must not stay when the broker and its writers have ended. Raises `ViolationError`."""
    left = [
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.suffix in (".tmp", ".bad", ".closed", ".open", ".names")
    ]
    if left:
        raise ViolationError(f"{len(left)} files are left in the usage directory: {', '.join(left[:5])}")
