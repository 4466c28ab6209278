"""Replay of partitions against the plans of a search for limits. Blocks in, Arrow tables out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.layout import Int64s
from tidegate.pipeline.read.packing import Block
from tidegate.pipeline.replay.partition import Members, Partition, ReplayTask, batches_of, fixed_definitions
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.results import TALLY_COLUMNS
from tidegate.pipeline.replay.state.searched import SearchedSensors
from tidegate.pipeline.schemas import RUNGS

__all__ = ["replay_rungs"]

_ROWS_AGAIN = 1 << 17  # most rows of a partition that are replayed plan by plan, not all plans batch by batch
_KEYS = 2  # columns of `RUNGS` before those of amounts


def replay_rungs(
    blocks: Iterable[Block], *, task: ReplayTask, members: Callable[[int], Members]
) -> Iterator[pa.Table]:
    """Replay partitions and yield the outcomes of the plans of a search, columns `RUNGS`."""
    definitions = fixed_definitions(task.plans)
    for number, of_partition in groupby(blocks, key=lambda block: block.partition):
        searched = SearchedSensors(task.searched[number])
        if not len(searched.searched):
            continue
        some = list(of_partition)
        is_small = sum(block.rows for block in some) <= _ROWS_AGAIN
        batches = list(batches_of(some)) if is_small else batches_of(some)
        # Plan by plan, the arrays of a plan stay in the processor's cache. Many rows are read only once for all plans.
        sums: list[Int64s] = []
        step = 1 if is_small else len(task.plans)
        for place in range(0, len(task.plans), step):
            here = slice(place, place + step)
            partition = Partition(task.plans[here], members(number), definitions[here], searched)
            for rows in batches:
                partition.replay(rows)
            partition.finish()
            sums += [_sums(searched, replay) for _, replay in partition.replays]
        yield _results(searched, task.plans, sums)


def _sums(searched: SearchedSensors, replay: PlanReplay) -> Int64s:
    """Return the outcome of each searched sensor under a plan, by the amount columns of `RUNGS`."""
    tallies = replay.tallies
    return np.array(
        [
            (np.maximum if name == "longest_throttle_ms" else np.add).reduceat(
                tallies[searched.accounts, TALLY_COLUMNS[name]], searched.first
            )
            for name in RUNGS.names[_KEYS:]
        ]
    )


def _results(searched: SearchedSensors, plans: Sequence[Plan], sums: Sequence[Int64s]) -> pa.Table:
    """Return a row per plan and sensor that it limits, columns `RUNGS`. sums: `_sums` of each plan."""
    is_limited = ~np.isnan([plan.rung[searched.searched] for plan in plans if plan.rung is not None])
    place, sensor = np.nonzero(is_limited)
    amounts = np.stack(sums, axis=1)[:, is_limited]
    columns = place.astype(np.int32), searched.searched[sensor], *amounts
    return pa.Table.from_arrays([*map(pa.array, columns)], schema=to_arrow_schema(RUNGS))
