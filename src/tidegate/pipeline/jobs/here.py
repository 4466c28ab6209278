"""The back end in this process, without Java: for records that are read in the time that Spark needs to start."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.pipeline.jobs.back_end import (
    BackEnd,
    Found,
    Item,
    Merge,
    PlacedRows,
    T,
    Take,
    Target,
    each_table,
)
from tidegate.pipeline.progress import OnProgress, reported, silent
from tidegate.pipeline.read.packing import Block
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.kernel.compiled import own_form
from tidegate.pipeline.replay.partition import (
    NumberedBundle,
    ReplayTask,
    Searched,
    packed,
    replay_peaks,
    replay_tallies,
)
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.rungs import replay_rungs
from tidegate.pipeline.replay.task import Layout
from tidegate.pipeline.rollup.entities import (
    NODE_KEYS,
    PEAKS_TOGETHER,
    by_entity_table,
    entities_together,
)
from tidegate.pipeline.rollup.sums import compact, decoded, grouped, release_free_memory, together
from tidegate.pipeline.schemas import (
    DECISIONS,
    LIMITS_BY_NODE,
    REPLAY_BY_CLIENT,
    REPLAY_BY_ENTITY,
    REPLAY_STATE,
    RUNGS,
)
from tidegate.pipeline.threads import available_cores, mapped
from tidegate.pipeline.warm_up import kernel_at_hand, load_usage_kernel

__all__ = ["Here"]

_ROWS_AT_ONCE = 1 << 15  # rows of results in one table
_ROWS_TOGETHER = 1 << 16  # rows of clients that are combined to entities at once
_TABLES_AT_ONCE = 2  # tables between two releases of memory; the next tables use a part of it again
_PARTITIONS = 8
_FEW_ROWS = 1 << 17  # to process them takes less time than to start threads
_MOST_THREADS = 4  # each holds a chunk in memory
_ROWS_OF_CLIENT = 16
"""Rows per client below which a replay works mostly on Python objects, so that threads would wait for each other."""


class Here(BackEnd):
    """The back end that runs jobs in this process."""

    cores = 1

    def __init__(self, on_progress: OnProgress = silent, *, threads: int | None = None) -> None:
        self._on_progress = on_progress
        self._threads = threads or available_cores()

    def partitions_of(self, rows: int) -> int:
        """Return the number of partitions. It does not depend on the cores, so that results do not depend on them."""
        return _PARTITIONS if rows > _FEW_ROWS else 1

    @property
    def threads(self) -> int:
        """Return how many cores this process may use."""
        return self._threads

    def running(self, what: str) -> AbstractContextManager[None]:
        """Return a context that shows nothing: `map` shows the progress of each pass."""
        return own_form()

    def prepare(
        self,
        plans: Sequence[Plan],
        timelines: Iterable[Timeline] = (),
        *,
        with_usage: bool = False,
        rows: int,
    ) -> None:
        """Compile all kernels that are needed, or run them as Python for few rows."""
        kernel_at_hand(
            plans, timelines=timelines, with_usage=with_usage, rows=rows, on_progress=self._on_progress
        )

    def load_usage_kernel(self) -> Callable[[], object]:
        """Begin to load the kernel of usage in a thread; return a function that waits for it."""
        return load_usage_kernel()

    def map(self, function: Callable[[Item], T], items: Sequence[Item], what: str) -> Iterable[T]:
        """Call a function for each item, when its result is used; a few results are computed in advance."""
        threads = 1 if sum(item.rows for item in items) <= _FEW_ROWS else min(self._threads, _MOST_THREADS)
        return mapped(function, reported(items, what, self._on_progress), threads=threads)

    def tables(
        self, function: Callable[[Item], Found], items: Sequence[Item], table: StructType, what: str
    ) -> "_RowsHere":
        """Return the rows that a function makes of all items."""

        def made() -> Iterator[pa.Table]:
            for found in self.map(function, items, what):
                yield from each_table(found)

        return _RowsHere(made, to_arrow_schema(table))

    def placed(self, layout: Layout, bundles: Sequence[NumberedBundle], *, repeats: bool) -> "_PlacedHere":
        """Return the rows, packed."""
        release_free_memory()
        blocks: dict[int, list[Block]] = defaultdict(list)
        for some in self.map(lambda bundle: [*packed(bundle, layout.task)], bundles, "reading"):
            for block in some:
                blocks[block.partition].append(block)
        for of_partition in blocks.values():
            of_partition.sort(key=lambda block: block.first_seq)
        release_free_memory()
        return _PlacedHere(
            layout, blocks, repeats=repeats, on_progress=self._on_progress, threads=self._threads
        )


class _RowsHere:
    """Tables of this process, which are computed when they are used, a part at a time."""

    def __init__(self, made: Callable[[], Iterable[pa.Table]], schema: pa.Schema) -> None:
        self._made, self._schema = made, schema

    def together(self, keys: Sequence[str], merge: Merge, table: StructType) -> "_RowsHere":
        """Apply `merge` to all rows; its result is in the order of the keys."""
        return _RowsHere(lambda: each_table(merge(self._compact())), to_arrow_schema(table))

    @contextmanager
    def kept(self) -> Iterator["_RowsHere"]:
        """Keep the rows in memory, `compact`."""
        rows = self._compact()
        release_free_memory()
        yield _RowsHere(lambda: [rows], self._schema)

    def collect(self) -> pa.Table:
        """Return all rows."""
        return self._plain(self._compact())

    def write(self, results: Target, name: str) -> None:
        """Write the rows, some at a time."""
        self.written(results, name)

    def written(self, results: Target, name: str, *takes: Take) -> tuple[int, list[pa.Table]]:
        """Write, count and choose rows in one pass."""
        rows, taken = 0, [self._schema.empty_table() for _ in takes]
        with results.writer(name, self._schema) as write:
            for some in map(self._plain, self._made()):
                taken = [
                    take(pa.concat_tables([before, some])) for take, before in zip(takes, taken, strict=True)
                ]
                rows += len(some)
                write(some)
        return rows, taken

    def _compact(self) -> pa.Table:
        tables = [compact(table) for table in self._made()] or [compact(self._schema.empty_table())]
        return tables[0] if len(tables) == 1 else together(tables)

    def _plain(self, table: pa.Table) -> pa.Table:
        return decoded(table).select(self._schema.names).cast(self._schema)


class _PlacedHere(PlacedRows):
    """Packed rows in memory. With `repeats`, they stay after a replay."""

    def __init__(
        self,
        layout: Layout,
        blocks: dict[int, list[Block]],
        *,
        repeats: bool,
        on_progress: OnProgress,
        threads: int,
    ) -> None:
        self.layout = layout
        rows = sum(block.rows for of_partition in blocks.values() for block in of_partition)
        self._peak_threads = threads if rows > _FEW_ROWS else 1
        self._threads = self._peak_threads if rows > _ROWS_OF_CLIENT * len(layout.users) else 1
        self._blocks, self._repeats, self._on_progress = blocks, repeats, on_progress
        (members,) = layout.members(1)
        self._members = members.__getitem__

    def __exit__(self, *error: object) -> None:
        """Release the rows."""
        self._blocks.clear()

    def peaks(self, plan: Plan, share: int | None = None) -> pa.Table:
        """Return what was measured, as a `compact` table."""
        task, schema = replace(self.layout.task, plans=(plan,)), to_arrow_schema(LIMITS_BY_NODE)
        found = self._replayed(replay_peaks, task, "measuring rates", threads=self._peak_threads, share=share)
        # All clients that a node has of an entity are in one partition.
        parts = [compact(grouped(each, NODE_KEYS, PEAKS_TOGETHER).cast(schema)) for each in found]
        return together([compact(schema.empty_table()), *parts])

    def outcomes(self, plans: Sequence[Plan], share: int | None = None) -> pa.Table:
        """Return the outcomes of the plans, as a `compact` table."""
        task = replace(self.layout.task, plans=tuple(plans))
        what = f"replaying {len(plans)} plans"
        found = self._replayed(replay_tallies, task, what, threads=self._threads, share=share)
        return entities_together([compact(by_entity_table(each)) for each in found])

    def rungs(self, plans: Sequence[Plan], searched: Searched, share: int | None = None) -> pa.Table:
        """Return the outcomes of the plans of a search."""
        task = replace(self.layout.task, plans=tuple(plans), searched=searched)
        what = f"replaying {len(plans)} plans"
        found = self._replayed(replay_rungs, task, what, threads=self._threads, share=share)
        return pa.concat_tables([to_arrow_schema(RUNGS).empty_table(), *found])

    def replay(self, results: Target, *, with_decisions: bool) -> tuple[pa.Table, list[dict[str, Any]]]:
        """Replay, and write results during the replay, so that those of all clients are never in memory together."""
        parts: list[pa.Table] = []
        left: list[dict[str, Any]] = []
        task, clients = self.layout.task, to_arrow_schema(REPLAY_BY_CLIENT)
        decisions = (
            results.writer("decisions", to_arrow_schema(DECISIONS)) if with_decisions else nullcontext()
        )
        with decisions as decided, results.writer("replay_by_client", clients) as write:
            # The decisions of one partition after another are written as they are made, by this thread alone.
            threads = 1 if with_decisions else self._threads
            ahead = 0 if with_decisions or self._peak_threads == 1 else 1
            replayed = self._replayed(
                replay_tallies, task, "replaying", threads=threads, ahead=ahead, decided=decided
            )
            for number, found in enumerate(_larger(replayed), 1):
                if task.leaves_state:
                    is_state = pc.field("state").is_valid()
                    left += found.filter(is_state).select(REPLAY_STATE.names).to_pylist()
                    found = found.filter(~is_state).select(clients.names)
                if len(found):
                    parts.append(compact(by_entity_table(found)))
                    write(found)
                if number % _TABLES_AT_ONCE == 0:
                    release_free_memory()
        by_entity = entities_together(parts)
        release_free_memory()
        with results.writer("replay_by_entity", to_arrow_schema(REPLAY_BY_ENTITY)) as write:
            for batch in by_entity.to_batches(max_chunksize=_ROWS_AT_ONCE):
                write(pa.Table.from_batches([batch]))
        return by_entity, left

    def _replayed(
        self,
        function: Callable[..., Iterator[pa.Table]],
        task: ReplayTask,
        what: str,
        *,
        threads: int,
        ahead: int = 0,
        share: int | None = None,
        **options: Any,
    ) -> Iterator[pa.Table]:
        """Yield the tables of a function of `replay.partition` for all partitions, or those of a share, in their order.

        Small partitions are passed together, because to make a table for each would take longer than the replay.
        """
        blocks = dict(self._blocks) if self._repeats else self._blocks
        numbers = [number for number in sorted(blocks) if share is None or self.layout.share[number] == share]
        groups = _groups({number: sum(block.rows for block in blocks[number]) for number in numbers})
        options |= {"task": task, "members": self._members}

        def made(of_group: list[Block]) -> list[pa.Table]:
            return list(function(iter(of_group), **options))

        given = (
            [*chain.from_iterable(map(blocks.pop, group))]
            for group in reported(groups, what, self._on_progress)
        )
        for found in mapped(made, given, threads=threads, ahead=ahead):
            yield from found


def _larger(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows in larger tables, because each call of Arrow waits for Python's lock, which the replay holds."""
    some: list[pa.Table] = []
    for table in tables:
        some.append(table)
        if sum(map(len, some)) >= _ROWS_TOGETHER:
            yield pa.concat_tables(some)
            some.clear()
    if some:
        yield pa.concat_tables(some)


def _groups(rows: Mapping[int, int]) -> list[list[int]]:
    """Return the partitions, each with its rows, in groups that are replayed together."""
    groups: list[list[int]] = []
    room = 0
    for number, count in rows.items():
        if room <= 0:
            groups.append([])
            room = _FEW_ROWS
        groups[-1].append(number)
        room -= max(1, count)
    return groups
