"""Functions that Spark's executors run, which call the functions of the jobs. Arrow batches in and out.

These functions are imported from the installed package, never pickled, so executors must be able to import it.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.jobs.back_end import Found, Merge, each_table
from tidegate.pipeline.read.packing import Block
from tidegate.pipeline.replay.partition import Members, ReplayTask, packed, replay_tallies, with_nulls
from tidegate.pipeline.results.writing import TableParts
from tidegate.pipeline.rollup.sums import decoded
from tidegate.pipeline.schemas import BLOCKS, REPLAY_WITH_DECISIONS, WORK
from tidegate.pipeline.spark.sessions import Shared

__all__ = [
    "Grouped",
    "ReplayFunction",
    "block_rows",
    "merged_rows",
    "replayed_rows",
    "results_of_work",
    "tables_of_work",
]

_BLOCK_NUMBERS = ("partition", "first_seq", "rows")
_BLOCKS_AT_ONCE = 16

Batches = Iterator[pa.RecordBatch]
ReplayFunction = Callable[..., Iterator[pa.Table]]
Grouped = Sequence[Shared[Mapping[int, Members]]]
"""Members by partition, in groups of tasks. A task reads only the group that it belongs to."""


def results_of_work(batches: Batches, *, function: Callable[[Any], Any]) -> Batches:
    """Call `function` on each pickled item of work from this driver and yield the pickled results, columns `WORK`."""
    schema = to_arrow_schema(WORK)
    for place, work in _work(batches):
        done = pa.array([pickle.dumps(function(work))])
        yield pa.record_batch([pa.array([place], pa.int32()), done], schema=schema)


def tables_of_work(batches: Batches, *, function: Callable[[Any], Found], schema: pa.Schema) -> Batches:
    """Yield the rows that `function` makes of each pickled item of work."""
    for _, work in _work(batches):
        yield from _batches(function(work), schema)


def merged_rows(batches: Batches, *, merge: Merge, came: pa.Schema, schema: pa.Schema) -> Batches:
    """Yield the rows that `merge` makes of a partition, which has all rows of its keys."""
    tables = [pa.Table.from_batches([batch]).cast(came) for batch in batches]
    yield from _batches(merge(pa.concat_tables(tables) if tables else came.empty_table()), schema)


def block_rows(batches: Batches, *, task: Shared[ReplayTask]) -> Batches:
    """Yield the rows of each `NumberedBundle`, columns `BLOCKS`."""
    schema = to_arrow_schema(BLOCKS)
    for _, work in _work(batches):
        blocks = packed(work, task.value)
        while some := list(islice(blocks, _BLOCKS_AT_ONCE)):
            rows = [{**block._asdict(), "task": int(task.value.task[block.partition])} for block in some]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def replayed_rows(
    batches: Batches,
    *,
    function: ReplayFunction,
    task: Shared[ReplayTask],
    members: Grouped,
) -> Batches:
    """Yield what a function of `replay.partition` makes of blocks, columns `BLOCKS`."""

    def members_of(number: int) -> Members:
        # The same division as in `Layout.members`.
        group = int(task.value.task[number]) * len(members) // task.value.tasks
        return members[group].value[number]

    for found in function(_blocks(batches), task=task.value, members=members_of):
        yield from found.to_batches()


def tallies_and_decisions(
    blocks: Iterator[Block], *, parts: TableParts, **options: Any
) -> Iterator[pa.Table]:
    """Yield what `replay_tallies` yields, and write the decisions; then yield the names of the files.

    Columns: `REPLAY_WITH_DECISIONS`.
    """
    schema = to_arrow_schema(REPLAY_WITH_DECISIONS)
    with parts.writer() as writer:
        for found in replay_tallies(blocks, decided=writer.write, **options):
            yield with_nulls(found, schema)
    yield pa.Table.from_pylist([{"file": name} for name in writer.files], schema=schema)


def _work(batches: Batches) -> Iterator[tuple[int, Any]]:
    """Yield the items of work and their places."""
    for batch in batches:
        for place, work in zip(*batch.columns, strict=True):
            yield place.as_py(), pickle.loads(work.as_buffer())


def _batches(found: Found, schema: pa.Schema) -> Batches:
    for table in each_table(found):
        yield from decoded(table).select(schema.names).cast(schema).to_batches()


def _blocks(batches: Batches) -> Iterator[Block]:
    for batch in batches:
        for at in range(batch.num_rows):
            partition, first_seq, rows = (batch.column(name)[at].as_py() for name in _BLOCK_NUMBERS)
            yield Block(partition, first_seq, rows, batch.column("data")[at].as_buffer())
