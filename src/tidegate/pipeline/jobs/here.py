"""The back end in this process, without Java: for what one machine reads in the time that Spark takes to start."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.pipeline.jobs.back_end import (
    BackEnd,
    Found,
    Item,
    KeptTables,
    Merge,
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
    Decided,
    NumberedBundle,
    packed,
    replay_peaks,
    replay_tallies,
)
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.task import Layout
from tidegate.pipeline.results.written import as_written, written_schema
from tidegate.pipeline.rollup.entities import (
    NODE_KEYS,
    PEAKS_TOGETHER,
    by_entity_table,
    entities_together,
)
from tidegate.pipeline.rollup.sums import compact, decoded, give_back, grouped, together
from tidegate.pipeline.schemas import (
    DECISIONS,
    LIMITS_BY_NODE,
    REPLAY_BY_CLIENT,
    REPLAY_BY_ENTITY,
    REPLAY_STATE,
)
from tidegate.pipeline.threads import available_cores
from tidegate.pipeline.warm_up import kernel_at_hand

__all__ = ["Here"]

_ROWS_AT_ONCE = 1 << 15  # of results


class Here(BackEnd):
    """This process."""

    cores = 1

    def __init__(self, on_progress: OnProgress = silent, *, threads: int | None = None) -> None:
        self._on_progress = on_progress
        self._threads = threads or available_cores()

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

    def map(self, function: Callable[[Item], T], items: Sequence[Item], what: str) -> Iterable[T]:
        """Return what a function returns for each item, when it is asked for."""
        return map(function, reported(items, what, self._on_progress))

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
        give_back()
        blocks = _packed(reported(bundles, "reading", self._on_progress), layout)
        give_back()
        return _PlacedHere(layout, blocks, repeats=repeats, on_progress=self._on_progress)


class _RowsHere:
    """Tables of this process: made when they are asked for, and some at a time."""

    def __init__(self, made: Callable[[], Iterable[pa.Table]], schema: pa.Schema) -> None:
        self._made, self._schema = made, schema

    def together(self, keys: Sequence[str], merge: Merge, table: StructType) -> "_RowsHere":
        """Return what `merge` makes of all rows: its order is that of the keys."""
        return _RowsHere(lambda: each_table(merge(self._compact())), to_arrow_schema(table))

    @contextmanager
    def kept(self) -> Iterator["_RowsHere"]:
        """Keep the rows in memory, `compact`."""
        rows = self._compact()
        give_back()
        yield _RowsHere(lambda: [rows], self._schema)

    def collect(self) -> pa.Table:
        """Return all rows."""
        return self._plain(self._compact())

    def write(self, results: Target, name: str) -> None:
        """Write the rows, some at a time."""
        self.written(results, name)

    def written(self, results: Target | None, name: str, *takes: Take) -> tuple[int, list[pa.Table]]:
        """Write, count and choose rows in one pass."""
        rows, taken = 0, [self._schema.empty_table() for _ in takes]
        with _writer(results, name, self._schema) as write:
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


class _PlacedHere:
    """Packed rows in memory. With `repeats`, they stay after a replay."""

    def __init__(
        self, layout: Layout, blocks: dict[int, list[Block]], *, repeats: bool, on_progress: OnProgress
    ) -> None:
        self.layout = layout
        self._blocks, self._repeats, self._on_progress = blocks, repeats, on_progress
        (members,) = layout.members(1)
        self._members = members.__getitem__

    def __enter__(self) -> "_PlacedHere":
        """Keep the rows."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the rows."""
        self._blocks.clear()

    def peaks(self, plan: Plan) -> pa.Table:
        """Return what was measured."""
        found = self._run(replay_peaks, [plan], LIMITS_BY_NODE, "measuring rates")
        return grouped(found, NODE_KEYS, PEAKS_TOGETHER).cast(to_arrow_schema(LIMITS_BY_NODE))

    def outcomes(self, plans: Sequence[Plan]) -> pa.Table:
        """Return what became of the plans."""
        what = f"replaying {len(plans)} plans"
        return by_entity_table(self._run(replay_tallies, plans, REPLAY_BY_CLIENT, what))

    def replay(
        self, results: Target | None, *, with_decisions: bool
    ) -> tuple[pa.Table, list[dict[str, Any]]]:
        """Replay, and write while replaying: clients are never held all at once."""
        parts: list[pa.Table] = []
        left: list[dict[str, Any]] = []
        task, clients = self.layout.task, to_arrow_schema(REPLAY_BY_CLIENT)
        with (
            _decisions(results if with_decisions else None) as decided,
            _writer(results, "replay_by_client", clients) as write,
        ):
            blocks = self._taken("replaying")
            for found in replay_tallies(blocks, task=task, members=self._members, decided=decided):
                if task.leaves_state:
                    is_state = pc.field("state").is_valid()
                    left += found.filter(is_state).select(REPLAY_STATE.names).to_pylist()
                    found = found.filter(~is_state).select(clients.names)
                if len(found):
                    parts.append(compact(by_entity_table(found)))
                    write(found)
                    give_back()
        by_entity = entities_together(parts)
        give_back()
        with _writer(results, "replay_by_entity", to_arrow_schema(REPLAY_BY_ENTITY)) as write:
            for batch in by_entity.to_batches(max_chunksize=_ROWS_AT_ONCE):
                write(pa.Table.from_batches([batch]))
        return by_entity, left

    def _run(
        self,
        function: Callable[..., Iterator[pa.Table]],
        plans: Sequence[Plan],
        table: StructType,
        what: str,
    ) -> pa.Table:
        task = replace(self.layout.task, plans=tuple(plans))
        empty = to_arrow_schema(table).empty_table()
        return pa.concat_tables([empty, *function(self._taken(what), task=task, members=self._members)])

    def _taken(self, what: str) -> Iterator[Block]:
        """Yield the blocks of one partition after another, and let go of them unless they are needed again."""
        blocks = dict(self._blocks) if self._repeats else self._blocks
        for number in reported(sorted(blocks), what, self._on_progress):
            yield from blocks.pop(number)


def _packed(bundles: Iterable[NumberedBundle], layout: Layout) -> dict[int, list[Block]]:
    """Return the rows of the bundles as blocks, by partition, in the order in which a replay wants them."""
    found: dict[int, list[Block]] = defaultdict(list)
    for bundle in bundles:
        for block in packed(bundle, layout.task):
            found[block.partition].append(block)
    for blocks in found.values():
        blocks.sort(key=lambda block: block.first_seq)
    return found


@contextmanager
def _decisions(results: Target | None) -> Iterator[Decided | None]:
    """Open the table of decisions, and yield the function that writes them; yield None if there are no results."""
    if results is None:
        yield None
        return
    if isinstance(results, KeptTables):
        with results.adding("decisions", to_arrow_schema(DECISIONS)) as add:
            yield lambda batch: add(pa.Table.from_batches([batch]))
        return
    with results.dated("decisions", to_arrow_schema(DECISIONS)) as writer:
        yield writer.write


@contextmanager
def _writer(results: Target | None, name: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Open a table, and yield the function that writes rows to it; without results, it discards them."""
    if results is None:
        yield lambda some: None
        return
    if isinstance(results, KeptTables):
        with results.adding(name, schema) as add:
            yield add
        return
    with results.replaced(name) as path, pq.ParquetWriter(path, written_schema(schema)) as writer:
        yield lambda some: writer.write_table(as_written(some.cast(schema)))
