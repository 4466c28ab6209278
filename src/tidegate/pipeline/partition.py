"""One partition of a replay, as an executor runs it: Arrow batches in, tallies or decisions out.

Everything here is reached through the installed package, never pickled: executors need it importable.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.core.broadcast import Broadcast
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.books import Books
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import (
    BYTE_MS,
    DECISIONS,
    IS_CAPPED,
    IS_COUNTED,
    IS_REJECTED,
    KIND_BITS,
    NETWORK_ROW,
    REQUEST_MS,
    Int32s,
    Rows,
)
from tidegate.pipeline.plan import Plan
from tidegate.pipeline.results import client_results
from tidegate.pipeline.schemas import DECISIONS as DECISIONS_TABLE
from tidegate.pipeline.schemas import REPLAY_BY_CLIENT
from tidegate.pipeline.timeline import Timeline

__all__ = ["Names", "Partition", "ReplayTask", "replay_decisions", "replay_tallies"]

_MAX_BYTES = 2**31 - 1  # the protocol's length fields are 32 bits
_MAX_NS = 2**53  # a hundred days; doubles hold it exactly
_MAX_MS = 2**53
_LIMITS = {"ts_ms": _MAX_MS, "amount": _MAX_BYTES, "handler_ns": _MAX_NS, "network_ns": _MAX_NS}
_RESULT_ROWS = 1 << 14  # rows of tallies in one batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """What every partition needs: the plans, the clients by number, and what happened to their nodes.

    first_client: the first number of each partition, and one more for the end. node_id: of each partition.
    """

    plans: Sequence[Plan]
    users: pa.Array
    client_ids: pa.Array
    first_client: npt.NDArray[np.int64]
    node_id: npt.NDArray[np.int64]
    timelines: Mapping[int, Timeline]


class Names:
    """The clients of one partition, by number from 0."""

    def __init__(self, users: pa.Array, client_ids: pa.Array) -> None:
        self._users = users
        self._client_ids = client_ids

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self._users)

    def __getitem__(self, client: int) -> tuple[str, str]:
        """Return user and client id."""
        return self._users[client].as_py(), self._client_ids[client].as_py()


class Partition:
    """The clients, node and books of the partition that `client` belongs to."""

    def __init__(self, task: ReplayTask, client: int) -> None:
        index = int(np.searchsorted(task.first_client, client, side="right")) - 1
        self.first = int(task.first_client[index])
        clients = int(task.first_client[index + 1]) - self.first
        self.node_id = int(task.node_id[index])
        self.names = Names(task.users.slice(self.first, clients), task.client_ids.slice(self.first, clients))
        timeline = task.timelines[self.node_id]
        self.books = [(plan, Books(plan, names=self.names, timeline=timeline)) for plan in task.plans]
        self._last_seq = -1

    def replay(self, batch: pa.RecordBatch) -> None:
        """Replay the batch against every plan."""
        rows = self._rows(batch)
        no_decisions = np.zeros((0, DECISIONS), np.int32)
        for _, books in self.books:
            books.replay(rows, no_decisions)

    def decide(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Replay the batch and yield a table of decisions per plan."""
        rows = self._rows(batch)
        for plan, books in self.books:
            decisions = np.zeros((batch.num_rows, DECISIONS), np.int32)
            books.replay(rows, decisions)
            yield _decision_batch(plan, self.node_id, rows, decisions)

    def _rows(self, batch: pa.RecordBatch) -> Rows:
        """Return the batch as arrays, its clients counted from 0. Raises `UsageFilesError` for impossible rows."""
        columns = [column.to_numpy(zero_copy_only=True) for column in batch.columns]
        rows = Rows(*columns)
        self._check(rows)
        client = rows.client - np.int32(self.first)
        assert 0 <= client.min() <= client.max() < len(self.names), (
            "a partition has the clients of one node only"
        )
        return rows._replace(client=client)

    def _check(self, rows: Rows) -> None:
        steps = np.diff(rows.seq, prepend=self._last_seq)
        if not (steps > 0).all():
            seq = int(rows.seq[int(np.argmax(steps <= 0))])
            raise UsageFilesError(
                f"seq {seq} of node {self.node_id} occurs twice: a file was given twice, or two nodes have one id"
            )
        self._last_seq = int(rows.seq[-1])
        for name, largest in _LIMITS.items():
            column = getattr(rows, name)
            if column.min() < 0 or column.max() > largest:
                at = int(np.argmax((column < 0) | (column > largest)))
                raise UsageFilesError(
                    f"{name} must be from 0 to {largest}, "
                    f"got {int(column[at])} in seq {int(rows.seq[at])} of node {self.node_id}"
                )


def replay_tallies(
    batches: Iterator[pa.RecordBatch], *, task: Broadcast[ReplayTask]
) -> Iterator[pa.RecordBatch]:
    """Replay a partition and yield its tallies at the end, columns `REPLAY_BY_CLIENT`."""
    partition: Partition | None = None
    for batch in batches:
        if batch.num_rows:
            partition = partition or Partition(task.value, _first_client(batch))
            partition.replay(batch)
    if partition is not None:
        yield from _tally_batches(partition)


def replay_decisions(
    batches: Iterator[pa.RecordBatch], *, task: Broadcast[ReplayTask]
) -> Iterator[pa.RecordBatch]:
    """Replay a partition and yield what was decided, row by row, columns `DECISIONS`."""
    partition: Partition | None = None
    for batch in batches:
        if batch.num_rows:
            partition = partition or Partition(task.value, _first_client(batch))
            yield from partition.decide(batch)


def _first_client(batch: pa.RecordBatch) -> int:
    client: int = batch.column("client")[0].as_py()
    return client


def _tally_batches(partition: Partition) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(REPLAY_BY_CLIENT)
    for plan, books in partition.books:
        waiting: list[dict[str, Any]] = []
        for row in client_results(plan, partition.node_id, partition.names, books):
            waiting.append(row)
            if len(waiting) == _RESULT_ROWS:
                yield pa.RecordBatch.from_pylist(waiting, schema=schema)
                waiting = []
        if waiting:
            yield pa.RecordBatch.from_pylist(waiting, schema=schema)


def _decision_batch(plan: Plan, node_id: int, rows: Rows, decisions: Int32s) -> pa.RecordBatch:
    """Return the decisions of one batch; rows of network time have none."""
    decided = (rows.what & KIND_BITS) != NETWORK_ROW
    rows_decided = int(decided.sum())
    made = decisions[decided]
    columns = [
        pa.repeat(pa.scalar(plan.name), rows_decided),
        pa.repeat(pa.scalar(node_id, pa.int32()), rows_decided),
        pa.array(rows.seq[decided]),
        pa.array(made[:, BYTE_MS]),
        pa.array(made[:, REQUEST_MS]),
        *(pa.array(made[:, column] != 0) for column in (IS_REJECTED, IS_CAPPED, IS_COUNTED)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=to_arrow_schema(DECISIONS_TABLE))
