"""Interface of the two back ends that run jobs, this process and Spark: `map`, `tables` and replays."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tidegate.pipeline.read.chunks import bundled
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.survey import Survey, survey_chunk
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.carried import Carried
from tidegate.pipeline.replay.limits import Replays, Sensor
from tidegate.pipeline.replay.partition import NumberedBundle, Searched
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.task import Layout, lay_out
from tidegate.pipeline.results.output import Results

__all__ = [
    "BackEnd",
    "Found",
    "KeptTables",
    "Merge",
    "PlacedRows",
    "Rows",
    "Take",
    "Target",
    "each_table",
    "survey_for",
]

_REPEATS = 8
"""Expected number of replays of rows that are replayed more than once."""


class Sized(Protocol):
    """An item that a function is applied to: a chunk, a bundle, the rows of a node."""

    @property
    def size_bytes(self) -> int:
        """Return its uncompressed size."""

    @property
    def rows(self) -> int:
        """Return how many rows it has."""


Item = TypeVar("Item", bound=Sized)
T = TypeVar("T")
Found: TypeAlias = "pa.Table | Iterable[pa.Table]"
Merge = Callable[[pa.Table], Found]
Take = Callable[[pa.Table], pa.Table]
"""Reduces a table to a few rows with the same columns. It is called again on the combined results."""


class KeptTables:
    """Tables of one run, kept in memory by name. wanted: the names of the tables to keep; others are discarded."""

    def __init__(self, wanted: Iterable[str] = ()) -> None:
        self.wanted = frozenset(wanted)
        self._tables: dict[str, tuple[pa.Schema, list[pa.Table]]] = {}

    @contextmanager
    def writer(self, name: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
        """Begin a table, and yield the function that adds rows to it."""
        _, parts = self._tables.setdefault(name, (schema, []))
        yield parts.append if name in self.wanted else lambda some: None

    def put(self, table: pa.Table, name: str) -> None:
        """Keep a table."""
        with self.writer(name, table.schema) as write:
            write(table)

    def write(self, table: DataFrame, name: str) -> None:
        """Keep a table that Spark has made."""
        if name in self.wanted:
            self.put(table.toArrow(), name)

    def finish(self, made_of: Mapping[str, Any], *, without: Sequence[str] = ()) -> None:
        """Ignore the arguments, which `Results` writes to a manifest."""

    def table(self, name: str) -> pa.Table:
        """Return a table of a completed run."""
        schema, parts = self._tables[name]
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])


Target: TypeAlias = Results | KeptTables
"""The destination of the tables of a run: files or memory."""


class Rows(Protocol):
    """A table that is computed when it is used."""

    def together(self, keys: Sequence[str], merge: Merge, table: StructType) -> "Rows":
        """Apply `merge` to rows with the same keys; return its rows, columns of `table`, in the order of the keys."""

    def kept(self) -> AbstractContextManager["Rows"]:
        """Return the rows for use in a `with` block, in which they are computed only once."""

    def collect(self) -> pa.Table:
        """Return all rows."""

    def write(self, results: Target, name: str) -> None:
        """Write the rows as a table of the results."""

    def written(self, results: Target, name: str, *takes: Take) -> tuple[int, list[pa.Table]]:
        """Write the rows; return their number, and the result of each of `takes` for them."""


class PlacedRows(Replays, Protocol):
    """The rows of a record, divided into the partitions of a replay. Use it in a `with` block."""

    layout: Layout

    @property
    def shares(self) -> int:
        """Return how many shares of the clients there are."""
        return self.layout.shares

    def searched(self, plan: Plan, numbers: Mapping[Sensor, int], share: int | None = None) -> Searched:
        """Return the numbers of the sensors of clients, see `Layout.searched`."""
        return self.layout.searched(plan, numbers, share)

    def narrowed(self, plans: Sequence[Plan]) -> Self:
        """Return the same rows for a replay of only these plans, which must be among those of the layout."""
        self.layout = replace(self.layout, task=replace(self.layout.task, plans=tuple(plans)))
        return self

    def __enter__(self) -> Self:
        """Keep the rows."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the rows."""

    def replay(self, results: Target, *, with_decisions: bool) -> tuple[pa.Table, list[dict[str, Any]]]:
        """Replay the plans of the layout, and write the tables.

        Return rows of `REPLAY_BY_ENTITY`, and of `REPLAY_STATE` if the plans leave state.
        """


class BackEnd(ABC):
    """A back end: runs the jobs, in this process or on Spark."""

    @property
    @abstractmethod
    def cores(self) -> int:
        """Return how many cores replay at once."""

    def partitions_of(self, rows: int) -> int:
        """Return the number of partitions for a replay of this number of rows."""
        return self.cores

    @property
    @abstractmethod
    def threads(self) -> int:
        """Return how many threads may work on one item."""

    @abstractmethod
    def running(self, what: str) -> AbstractContextManager[None]:
        """Show the progress of a job in a `with` block, and raise its errors as `TidegateError`."""

    @abstractmethod
    def prepare(
        self,
        plans: Sequence[Plan],
        timelines: Iterable[Timeline] = (),
        *,
        with_usage: bool = False,
        rows: int,
    ) -> None:
        """Compile the kernels that the job needs, and show the progress. See `warm_up`.

        rows: the number of rows to sum up, or of decisions by all plans together.
        """

    def load_usage_kernel(self) -> Callable[[], object]:
        """Begin to load what `prepare` with usage needs, if this process needs it; return a function that waits."""
        return lambda: None

    @abstractmethod
    def map(self, function: Callable[[Item], T], items: Sequence[Item], what: str) -> Iterable[T]:
        """Call a function for each item; return the results in their order. It must belong to the installed package."""

    @abstractmethod
    def tables(
        self, function: Callable[[Item], Found], items: Sequence[Item], table: StructType, what: str
    ) -> Rows:
        """Return the rows, columns of `table`, that a function returns for all items. See `map` for the function."""

    @abstractmethod
    def placed(self, layout: Layout, bundles: Sequence[NumberedBundle], *, repeats: bool) -> PlacedRows:
        """Return the rows of bundles for a replay. repeats: they are replayed more than once."""

    def place(
        self,
        files: UsageFiles,
        plans: Sequence[Plan],
        *,
        carried: Mapping[tuple[str, int], Carried] | None = None,
        leaves_state: bool = False,
        repeats: bool = True,
        searches: bool = False,
        others: Sequence[Plan] = (),
    ) -> PlacedRows:
        """Survey the files, and return their rows for a replay. repeats: they are replayed more than once.

        carried, leaves_state, searches, others: see `Layout`, `ReplayTask` and `lay_out`.
        """
        bundles = bundled(files.replayed)
        layout = lay_out(
            bundles,
            self.surveys(files, [*plans, *others]),
            plans,
            cores=self.partitions_of(files.rows),
            carried=carried,
            leaves_state=leaves_state,
            counted_from_ms=files.counted_from_ms,
            searches=searches,
            others=others,
        )
        decisions = files.rows * (len(plans) * (_REPEATS if repeats else 1) + len(others))
        self.prepare([*plans, *others], layout.timelines.values(), rows=decisions)
        numbered = [
            NumberedBundle(bundle=bundle, numbers=numbers)
            for bundle, numbers in zip(bundles, layout.numbers, strict=True)
        ]
        return self.placed(layout, numbered, repeats=repeats)

    def surveys(self, files: UsageFiles, plans: Sequence[Plan]) -> list[Survey]:
        """Return what the first pass over the files finds in each bundle."""
        return list(self.map(survey_for(plans), bundled(files.replayed), "scanning"))


def survey_for(plans: Sequence[Plan]) -> "partial[Survey]":
    """Return `survey_chunk` with the options that a replay of the plans needs."""
    return partial(
        survey_chunk,
        with_connections=any(plan.is_closed for plan in plans),
        with_answers=any(plan.is_in_force for plan in plans),
    )


def each_table(found: Found) -> Iterable[pa.Table]:
    """Return the tables of a result that may be one table."""
    return [found] if isinstance(found, pa.Table) else found
