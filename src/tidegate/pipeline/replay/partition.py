"""Conversion of chunks to blocks, and the replay of partitions from blocks. Returns Arrow tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.pipeline.layout import (
    BEFORE_RANGE,
    BYTE_MS,
    BYTE_REASON,
    DECISIONS,
    IS_CAPPED,
    IS_REJECTED,
    KIND_BITS,
    NETWORK_ROW,
    REASON_NAMES,
    REQUEST_MS,
    REQUEST_REASON,
    Int32s,
    Rows,
)
from tidegate.pipeline.read.chunks import Bundle
from tidegate.pipeline.read.packing import Block, gathered, merged, pack_all, unpack
from tidegate.pipeline.read.rows import read_rows
from tidegate.pipeline.read.runs import check_rising
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.carried import Carried
from tidegate.pipeline.replay.closed_loop import ClosedLoopReplay
from tidegate.pipeline.replay.names import Names
from tidegate.pipeline.replay.plan import Definitions, Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.results import (
    Counted,
    Measured,
    client_results,
    counted,
    measured,
    peak_results,
)
from tidegate.pipeline.replay.state.lookup import SharedWanted
from tidegate.pipeline.replay.state.searched import SearchedSensors
from tidegate.pipeline.schemas import DECISIONS as DECISIONS_TABLE
from tidegate.pipeline.schemas import REPLAY_BY_CLIENT, REPLAY_LEAVING_STATE

__all__ = [
    "Decided",
    "Members",
    "NumberedBundle",
    "Partition",
    "ReplayTask",
    "Searched",
    "batches_of",
    "fixed_definitions",
    "packed",
    "replay_decisions",
    "replay_peaks",
    "replay_tallies",
    "with_nulls",
]

_REASONS = pa.array([name or None for name in REASON_NAMES])
_RESULT_ROWS = 1 << 14  # rows of tallies in one table

Decided = Callable[[pa.Table], None]
"""Takes the decisions of one batch of rows."""


Searched = Mapping[int, Int32s]
"""The sensors of a search by partition: numbers by quota type and client, see `SearchedSensors`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedBundle:
    """Chunks that are read together, and the numbers of their clients."""

    bundle: Bundle
    numbers: npt.NDArray[np.int64]

    @property
    def size_bytes(self) -> int:
        """Return the uncompressed size of the chunks."""
        return self.bundle.size_bytes

    @property
    def rows(self) -> int:
        """Return how many rows they have."""
        return self.bundle.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """Data that every task needs: the plans, and the partition of each client.

    first_client: the first number of each partition, and one more for the end. task: for each partition the Spark task
    that replays it; a task may replay several. leaves_state: the state that the plans leave of their nodes is wanted.
    counted_from_ms: earlier rows are replayed for the state that they leave, and not counted; None: all rows count.
    """

    plans: Sequence[Plan]
    first_client: npt.NDArray[np.int64]
    task: npt.NDArray[np.int64]
    leaves_state: bool = False
    counted_from_ms: int | None = None
    searched: Searched = field(default_factory=dict)

    @property
    def tasks(self) -> int:
        """Return how many tasks replay all partitions."""
        return int(self.task.max(initial=0)) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The clients of one partition, and the timeline of their node.

    carried: the state of the node after the hours before, by plan.
    """

    node_id: int
    users: pa.Array
    client_ids: pa.Array
    timeline: Timeline
    carried: Mapping[str, Carried] = field(default_factory=dict)


Fixed = Sequence[Definitions | None]
"""The definitions of each plan, if they never change; otherwise None."""


class Partition:
    """The clients, node and replays of one partition."""

    def __init__(
        self,
        plans: Sequence[Plan],
        members: Members,
        definitions: Fixed | None = None,
        searched: SearchedSensors | None = None,
    ) -> None:
        """definitions: see `fixed_definitions`. searched: the sensors of plans with a rung."""
        self.node_id = members.node_id
        self.names = Names(members.users, members.client_ids)
        wanted = SharedWanted(len(self.names))
        self.replays = [
            (plan, self._replay_of(plan, members, fixed, wanted, searched))
            for plan, fixed in zip(plans, definitions or fixed_definitions(plans), strict=True)
        ]
        self._last_seq = -1

    def replay(self, rows: Rows) -> None:
        """Replay the rows against every plan."""
        self._check(rows)
        no_decisions = np.zeros((0, DECISIONS), np.int32)
        for _, replay in self.replays:
            replay.replay(rows, no_decisions)

    def finish(self) -> None:
        """Decide all waiting rows."""
        for _, replay in self.replays:
            replay.finish()

    def decide(self, rows: Rows) -> Iterator[pa.Table]:
        """Replay the rows against every plan and yield a table of decisions for each; forecasts have none."""
        self._check(rows)
        for plan, replay in self.replays:
            decisions = np.zeros((0 if plan.is_closed else len(rows.seq), DECISIONS), np.int32)
            replay.replay(rows, decisions)
            if not plan.is_closed:
                yield self._decided(plan, rows, decisions)

    def _replay_of(
        self,
        plan: Plan,
        members: Members,
        definitions: Definitions | None,
        wanted: SharedWanted,
        searched: SearchedSensors | None,
    ) -> PlanReplay:
        """Return the replay of a plan."""
        options: dict[str, Any] = {"names": self.names, "timeline": members.timeline}
        options |= {"definitions": definitions, "wanted": wanted}
        if plan.is_closed:
            return ClosedLoopReplay(plan, **options)
        return PlanReplay(plan, carried=members.carried.get(plan.name), searched=searched, **options)

    def _decided(self, plan: Plan, rows: Rows, decisions: Int32s) -> pa.Table:
        """Return the decisions of one batch; rows of network time, and those before the range, have none."""
        decided = ((rows.flags & KIND_BITS) != NETWORK_ROW) & ((rows.flags & BEFORE_RANGE) == 0)
        rows_decided = int(decided.sum())
        made = decisions[decided]
        columns = [
            pa.repeat(pa.scalar(plan.name), rows_decided),
            pa.repeat(pa.scalar(self.node_id, pa.int32()), rows_decided),
            pa.array(rows.seq[decided]),
            pa.array(rows.ts_ms[decided]),
            *self.names.select(rows.client[decided]),
            pa.array(made[:, BYTE_MS]),
            pa.array(made[:, REQUEST_MS]),
            *(pa.array(made[:, column] != 0) for column in (IS_REJECTED, IS_CAPPED)),
            *(_REASONS.take(pa.array(made[:, column])) for column in (BYTE_REASON, REQUEST_REASON)),
        ]
        return pa.Table.from_arrays(columns, schema=to_arrow_schema(DECISIONS_TABLE))

    def _check(self, rows: Rows) -> None:
        check_rising(rows.seq, after=self._last_seq, node_id=self.node_id)
        self._last_seq = int(rows.seq[-1])


def packed(work: NumberedBundle, task: ReplayTask) -> Iterator[Block]:
    """Yield the rows of a bundle as blocks. Raises `UsageFilesError`."""
    is_closed = any(plan.is_closed for plan in task.plans)
    batches = read_rows(
        work.bundle, work.numbers, with_software=is_closed, counted_from_ms=task.counted_from_ms
    )
    yield from pack_all(batches, task.first_client)


def replay_tallies(
    blocks: Iterable[Block],
    *,
    task: ReplayTask,
    members: Callable[[int], Members],
    decided: Decided | None = None,
) -> Iterator[pa.Table]:
    """Replay partitions, one after another, and yield their tallies, columns `REPLAY_BY_CLIENT`.

    blocks: consecutive for each partition, in order of their first `seq`. members: returns the members of a partition.
    decided: gets the decision of each row, columns `DECISIONS`.
    If the task leaves state, the columns are `REPLAY_LEAVING_STATE`.
    """
    schema = to_arrow_schema(REPLAY_LEAVING_STATE if task.leaves_state else REPLAY_BY_CLIENT)
    waiting: list[Counted] = []
    rows = 0
    for partition in _replayed(blocks, task, members, decided):
        found = [
            counted(plan, partition.node_id, partition.names, replay) for plan, replay in partition.replays
        ]
        waiting += found
        rows += sum(len(part.users) for part in found)
        # Combine the results of small partitions: to make a table for each would take longer than to replay it.
        if rows >= _RESULT_ROWS:
            yield from _results(waiting, schema)
            waiting, rows = [], 0
        if task.leaves_state:
            yield from _states(partition)
    if waiting:
        yield from _results(waiting, schema)


def replay_decisions(
    blocks: Iterable[Block], *, task: ReplayTask, members: Callable[[int], Members]
) -> Iterator[pa.Table]:
    """Replay partitions and yield the decision of each row, columns `DECISIONS`."""
    definitions = fixed_definitions(task.plans)
    for number, of_partition in groupby(blocks, key=lambda block: block.partition):
        partition = Partition(task.plans, members(number), definitions)
        for rows in batches_of(of_partition):
            yield from partition.decide(rows)


def replay_peaks(
    blocks: Iterable[Block], *, task: ReplayTask, members: Callable[[int], Members]
) -> Iterator[pa.Table]:
    """Replay partitions and yield the largest rates of a plan that measures, columns `LIMITS_BY_NODE`."""
    waiting: list[Measured] = []
    for partition in _replayed(blocks, task, members):
        waiting += [measured(partition.node_id, partition.names, replay) for _, replay in partition.replays]
        if sum(len(part.tallies) for part in waiting) >= _RESULT_ROWS:
            yield peak_results(waiting)
            waiting = []
    if waiting:
        yield peak_results(waiting)


def fixed_definitions(plans: Sequence[Plan]) -> Fixed:
    """Return the definitions of each plan, the same for all partitions; None for a plan whose definitions change."""
    return [None if plan.is_in_force else Definitions.of(plan) for plan in plans]


def with_nulls(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of `schema` that it does not have, at its end."""
    for name in schema.names[len(found.schema) :]:
        found = found.append_column(schema.field(name), pa.nulls(len(found), schema.field(name).type))
    return found


def _replayed(
    blocks: Iterable[Block],
    task: ReplayTask,
    members: Callable[[int], Members],
    decided: Decided | None = None,
) -> Iterator[Partition]:
    """Yield each partition when all its rows have been replayed."""
    definitions = fixed_definitions(task.plans)
    for number, of_partition in groupby(blocks, key=lambda block: block.partition):
        partition = Partition(task.plans, members(number), definitions)
        for rows in batches_of(of_partition):
            if decided is None:
                partition.replay(rows)
                continue
            for found in partition.decide(rows):
                decided(found)
        partition.finish()
        yield partition


def batches_of(blocks: Iterable[Block]) -> Iterator[Rows]:
    """Yield the rows of a partition, merged by `seq`."""
    return gathered(merged((block.first_seq, unpack(block.data, block.rows)) for block in blocks))


def _results(parts: Sequence[Counted], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the results of small partitions, `_RESULT_ROWS` at a time."""
    found = with_nulls(client_results(parts), schema)
    for first in range(0, len(found), _RESULT_ROWS):
        yield found.slice(first, _RESULT_ROWS)


def _states(partition: Partition) -> Iterator[pa.Table]:
    for plan, replay in partition.replays:
        if plan.leaves_state:
            yield from _in_tables(replay.left(partition.node_id), REPLAY_LEAVING_STATE)


def _in_tables(rows: Iterator[Mapping[str, Any]], table: StructType) -> Iterator[pa.Table]:
    schema = to_arrow_schema(table)
    while some := list(islice(rows, _RESULT_ROWS)):
        yield pa.Table.from_pylist(some, schema=schema)
