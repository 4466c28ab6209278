"""Functions that executors run to pack chunks of rows and to replay a partition. Arrow batches in and out.

Everything here is reached through the installed package, never pickled: executors need it importable.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.core.broadcast import Broadcast
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
from tidegate.pipeline.read.chunks import Bundle, chunk_of_row, chunk_row
from tidegate.pipeline.read.packing import merged, pack, unpack
from tidegate.pipeline.read.rows import read_rows
from tidegate.pipeline.read.runs import check_rising
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.carried import Carried
from tidegate.pipeline.replay.closed_loop import ClosedLoopReplay
from tidegate.pipeline.replay.names import Names
from tidegate.pipeline.replay.plan import Definitions, Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.results import Counted, client_results, counted, peak_results
from tidegate.pipeline.replay.state.lookup import SharedWanted
from tidegate.pipeline.results.by_date import DatedParts
from tidegate.pipeline.schemas import (
    BLOCKS,
    LIMITS_BY_NODE,
    REPLAY_BY_CLIENT,
    REPLAY_LEAVING_STATE,
    REPLAY_WITH_DECISIONS,
    WORK,
)
from tidegate.pipeline.schemas import DECISIONS as DECISIONS_TABLE

__all__ = [
    "Grouped",
    "Members",
    "Partition",
    "ReplayTask",
    "chunk_rows",
    "do_work",
    "pack_chunks",
    "replay_peaks",
    "replay_tallies",
    "replay_tallies_and_decisions",
]

_BLOCK_NUMBERS = ("partition", "first_seq", "rows")
_BLOCKS_AT_ONCE = 16
_REASONS = pa.array([name or None for name in REASON_NAMES])
_RESULT_ROWS = 1 << 14  # rows of tallies in one batch

Batches = Iterator[pa.RecordBatch]


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

    @property
    def tasks(self) -> int:
        """Return how many tasks replay all partitions."""
        return int(self.task.max(initial=0)) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The clients of one partition, and what happened to their node.

    carried: what the plans left of the node in the hours before, by plan.
    """

    node_id: int
    users: pa.Array
    client_ids: pa.Array
    timeline: Timeline
    carried: Mapping[str, Carried] = field(default_factory=dict)


Fixed = Sequence[Definitions | None]
"""Definitions that never change, of each plan; None: they do."""

Grouped = Sequence[Broadcast[Mapping[int, Members]]]
"""Members by partition, those of as many tasks in each: a task looks into one."""


class Partition:
    """The clients, node and replays of one partition."""

    def __init__(self, plans: Sequence[Plan], members: Members, definitions: Fixed | None = None) -> None:
        """definitions: see `fixed_definitions`."""
        self.node_id, timeline = members.node_id, members.timeline
        self.names = Names(members.users, members.client_ids)
        wanted = SharedWanted(len(self.names))
        self.replays = [
            (
                plan,
                replay_of(
                    plan,
                    names=self.names,
                    timeline=timeline,
                    carried=members.carried.get(plan.name),
                    definitions=fixed,
                    wanted=wanted,
                ),
            )
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
        """Decide what still waits."""
        for _, replay in self.replays:
            replay.finish()

    def decide(self, rows: Rows) -> Batches:
        """Replay the rows against every plan and yield a table of decisions for each; forecasts have none."""
        self._check(rows)
        for plan, replay in self.replays:
            decisions = np.zeros((0 if plan.is_closed else len(rows.seq), DECISIONS), np.int32)
            replay.replay(rows, decisions)
            if not plan.is_closed:
                yield self._decision_batch(plan, rows, decisions)

    def _decision_batch(self, plan: Plan, rows: Rows, decisions: Int32s) -> pa.RecordBatch:
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
        return pa.RecordBatch.from_arrays(columns, schema=to_arrow_schema(DECISIONS_TABLE))

    def _check(self, rows: Rows) -> None:
        check_rising(rows.seq, after=self._last_seq, node_id=self.node_id)
        self._last_seq = int(rows.seq[-1])


def do_work(batches: Batches, *, function: Callable[[Any], Any]) -> Batches:
    """Call `function` on each pickled item of work from this driver and yield the pickled results, columns `WORK`."""
    schema = to_arrow_schema(WORK)
    for batch in batches:
        for place, work in zip(*batch.columns, strict=True):
            done = pa.array([pickle.dumps(function(pickle.loads(work.as_buffer())))])
            yield pa.record_batch([pa.array([place.as_py()], pa.int32()), done], schema=schema)


def pack_chunks(batches: Batches, *, task: Broadcast[ReplayTask]) -> Batches:
    """Yield the rows of each bundle, columns `BLOCKS`; in: `NUMBERED_BUNDLES`."""
    schema = to_arrow_schema(BLOCKS)
    for bundle, numbers in _bundles(batches):
        is_closed = any(plan.is_closed for plan in task.value.plans)
        batches_of_rows = read_rows(
            bundle, numbers, with_software=is_closed, counted_from_ms=task.value.counted_from_ms
        )
        blocks = chain.from_iterable(pack(rows, task.value.first_client) for rows in batches_of_rows)
        while some := list(islice(blocks, _BLOCKS_AT_ONCE)):
            rows = [{**block._asdict(), "task": int(task.value.task[block.partition])} for block in some]
            yield _batch(rows, schema)


def replay_tallies(
    batches: Batches,
    *,
    task: Broadcast[ReplayTask],
    members: Grouped,
    decided: Callable[[pa.RecordBatch], None] | None = None,
) -> Batches:
    """Replay partitions, one after another, and yield their tallies, columns `REPLAY_BY_CLIENT`.

    decided: takes what was decided, row by row, columns `DECISIONS`.
    If the task leaves state, the columns are `REPLAY_LEAVING_STATE`.
    """
    schema = to_arrow_schema(REPLAY_LEAVING_STATE if task.value.leaves_state else REPLAY_BY_CLIENT)
    waiting: list[Counted] = []
    rows = 0
    for partition in _replayed(batches, task.value, members, decided):
        found = [
            counted(plan, partition.node_id, partition.names, replay) for plan, replay in partition.replays
        ]
        waiting += found
        rows += sum(len(part.users) for part in found)
        if rows >= _RESULT_ROWS:
            yield from _results(waiting, schema)
            waiting, rows = [], 0
        if task.value.leaves_state:
            yield from _states(partition)
    if waiting:
        yield from _results(waiting, schema)


def replay_peaks(batches: Batches, *, task: Broadcast[ReplayTask], members: Grouped) -> Batches:
    """Replay partitions and yield the largest rates of a plan that measures, columns `LIMITS_BY_NODE`."""
    results = (
        peak_results(partition.node_id, replay)
        for partition in _replayed(batches, task.value, members)
        for _, replay in partition.replays
    )
    yield from _in_batches(chain.from_iterable(results), LIMITS_BY_NODE)


def replay_tallies_and_decisions(
    batches: Batches, *, task: Broadcast[ReplayTask], members: Grouped, parts: DatedParts
) -> Batches:
    """Yield what `replay_tallies` yields, and write the decisions; then yield the names of the files.

    Columns: `REPLAY_WITH_DECISIONS`.
    """
    schema = to_arrow_schema(REPLAY_WITH_DECISIONS)
    with parts.writer() as writer:
        for batch in replay_tallies(batches, task=task, members=members, decided=writer.write):
            yield from _with_nulls(pa.Table.from_batches([batch]), schema).to_batches()
    yield from _in_batches(({"file": name} for name in writer.files), REPLAY_WITH_DECISIONS)


def replay_of(
    plan: Plan,
    *,
    names: Names,
    timeline: Timeline,
    carried: Carried | None,
    definitions: Definitions | None = None,
    wanted: SharedWanted | None = None,
) -> PlanReplay:
    """Return what replays a plan."""
    if plan.is_closed:
        return ClosedLoopReplay(plan, names=names, timeline=timeline, definitions=definitions, wanted=wanted)
    return PlanReplay(
        plan, names=names, timeline=timeline, carried=carried, definitions=definitions, wanted=wanted
    )


def fixed_definitions(plans: Sequence[Plan]) -> Fixed:
    """Return the definitions of each plan, None where they change: all partitions have the same."""
    return [None if plan.is_in_force else Definitions.of(plan) for plan in plans]


def chunk_rows(bundle: Bundle) -> list[dict[str, Any]]:
    """Return the chunks of a bundle as `NUMBERED_BUNDLES` has them."""
    return [chunk_row(chunk) for chunk in bundle.chunks]


def _bundles(batches: Batches) -> Iterator[tuple[Bundle, npt.NDArray[np.int64]]]:
    """Yield the bundles, each with the numbers of its clients."""
    for batch in batches:
        for chunks, numbers in zip(*batch.columns, strict=True):
            found = tuple(map(chunk_of_row, chunks.as_py()))
            yield Bundle(found), numbers.values.to_numpy()


def _replayed(
    batches: Batches,
    task: ReplayTask,
    members: Grouped,
    decided: Callable[[pa.RecordBatch], None] | None = None,
) -> Iterator[Partition]:
    """Yield each partition when all its rows have been replayed."""
    definitions = fixed_definitions(task.plans)
    for number, batches_of_rows in _by_partition(batches):
        partition = Partition(task.plans, _members(number, task, members), definitions)
        for rows in batches_of_rows:
            if decided is None:
                partition.replay(rows)
                continue
            for batch in partition.decide(rows):
                decided(batch)
        partition.finish()
        yield partition


def _members(number: int, task: ReplayTask, members: Grouped) -> Members:
    # The same division as in `Layout.members`.
    return members[int(task.task[number]) * len(members) // task.tasks].value[number]


def _by_partition(batches: Batches) -> Iterator[tuple[int, Iterator[Rows]]]:
    """Yield the number of each partition and its rows, in order of `seq`, out of blocks in order of both."""
    for number, blocks in groupby(_blocks(batches), key=lambda block: block[0]):
        yield number, merged((first_seq, rows) for _, first_seq, rows in blocks)


def _blocks(batches: Batches) -> Iterator[tuple[int, int, Rows]]:
    """Yield partition, first `seq` and rows of each block."""
    for batch in batches:
        for at in range(batch.num_rows):
            partition, first_seq, rows = (batch.column(name)[at].as_py() for name in _BLOCK_NUMBERS)
            yield partition, first_seq, unpack(batch.column("data")[at].as_buffer(), rows)


def _results(parts: Sequence[Counted], schema: pa.Schema) -> Batches:
    """Yield the results of small partitions together: a table for each would take longer than to replay it."""
    yield from _with_nulls(client_results(parts), schema).to_batches(max_chunksize=_RESULT_ROWS)


def _states(partition: Partition) -> Batches:
    for plan, replay in partition.replays:
        if plan.leaves_state:
            yield from _in_batches(replay.left(partition.node_id), REPLAY_LEAVING_STATE)


def _with_nulls(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of `schema` that it does not have, at its end."""
    for name in schema.names[len(found.schema) :]:
        found = found.append_column(schema.field(name), pa.nulls(len(found), schema.field(name).type))
    return found


def _in_batches(rows: Iterator[Mapping[str, Any]], table: StructType) -> Batches:
    schema = to_arrow_schema(table)
    while some := list(islice(rows, _RESULT_ROWS)):
        yield _batch(some, schema)


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)
