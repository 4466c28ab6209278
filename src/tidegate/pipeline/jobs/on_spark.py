"""The back end on Spark: chunks are spread over tasks, and their rows moved to the partitions that need them."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from threading import Event
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.config.locations import Uri
from tidegate.pipeline.errors import spark_errors_as_ours
from tidegate.pipeline.jobs.back_end import (
    BackEnd,
    Found,
    Item,
    KeptTables,
    Merge,
    PlacedRows,
    Sized,
    T,
    Take,
    Target,
    survey_for,
)
from tidegate.pipeline.jobs.executor import (
    Grouped,
    ReplayFunction,
    block_rows,
    merged_rows,
    replayed_rows,
    results_of_work,
    tables_of_work,
    tallies_and_decisions,
)
from tidegate.pipeline.progress import OnProgress, silent
from tidegate.pipeline.read.chunks import bundled
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.survey import Survey
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.partition import (
    NumberedBundle,
    Searched,
    replay_decisions,
    replay_peaks,
    replay_tallies,
)
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.replay.rungs import replay_rungs
from tidegate.pipeline.replay.task import Layout
from tidegate.pipeline.rollup.entities import ENTITY_KEYS, NODE_KEYS, PEAKS_TOGETHER, by_entity_table
from tidegate.pipeline.rollup.sums import grouped
from tidegate.pipeline.schemas import (
    BLOCKS,
    DECISIONS,
    LIMITS_BY_NODE,
    REPLAY_BY_CLIENT,
    REPLAY_BY_ENTITY,
    REPLAY_LEAVING_STATE,
    REPLAY_STATE,
    REPLAY_WITH_DECISIONS,
    RUNGS,
    WORK,
)
from tidegate.pipeline.spark.session import RunningSpark
from tidegate.pipeline.spark.sessions import cores_of, is_connect, progress_in, shared
from tidegate.pipeline.warm_up import smooth_mode_at_hand

__all__ = ["EarlySurveys", "OnSpark", "PlacedOnSpark", "surveys_in_the_making"]

_SLICES_PER_CORE = 4  # tasks of the passes over the files, at least
_SLICE_BYTES = 1 << 28  # uncompressed, at most
_EARLY_CHUNKS = 4_000  # most chunks to survey here while Spark starts, a ms each: some five seconds
_EARLY_ROWS = 2_000_000
_MEMBER_GROUPS = 16  # broadcasts of the data of partitions, each for an equal number of tasks
_ADDED_UP_HERE_BYTES = 1 << 26  # most tallies that Arrow adds up here: Spark would take longer to plan it
_TALLY_BYTES = 300  # size of the tally of a client, per plan and quota type, without the names


class EarlySurveys(NamedTuple):
    """The first pass over files, in this process: its options, and the future with the survey of each bundle."""

    options: Mapping[str, bool]
    found: "Future[list[Survey]]"


@contextmanager
def surveys_in_the_making(files: UsageFiles, plans: Sequence[Plan]) -> Iterator[EarlySurveys | None]:
    """Start a thread that surveys the files for a replay of the plans while Spark starts.

    Yield None, and start no thread, without plans, for too many files or rows, and for files at URIs.
    """
    is_little = len(files.replayed) <= _EARLY_CHUNKS and files.rows <= _EARLY_ROWS
    if not plans or not is_little or any(isinstance(path, Uri) for path in files.paths):
        yield None
        return
    survey_bundle, is_over = survey_for(plans), Event()

    def survey() -> list[Survey]:
        found = []
        for bundle in bundled(files.replayed):
            if is_over.is_set():
                raise CancelledError
            found.append(survey_bundle(bundle))
        return found

    with ThreadPoolExecutor(1) as pool:
        try:
            yield EarlySurveys(survey_bundle.keywords, pool.submit(survey))
        finally:
            is_over.set()


class OnSpark(BackEnd):
    """The back end on a running Spark. early: surveys of the files that were made while Spark started."""

    def __init__(
        self, spark: RunningSpark, early: EarlySurveys | None = None, on_progress: OnProgress = silent
    ) -> None:
        self._session = spark.session
        self._cores: int | None = None  # only for Spark Connect, where a job counts the cores
        self._log, self._early, self._on_progress = spark.log, early, on_progress

    threads = 1  # each core has a Python process of its own

    @property
    def cores(self) -> int:
        """Return the cores of all executors."""
        if not is_connect(self._session):
            return cores_of(self._session)
        if self._cores is None:
            self._cores = cores_of(self._session)
        return self._cores

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Show the progress of a job, and raise Spark's errors as `TidegateError`."""
        with spark_errors_as_ours(spark_log=self._log), progress_in(self._session, what, self._on_progress):
            yield

    def prepare(
        self,
        plans: Sequence[Plan],
        timelines: Iterable[Timeline] = (),
        *,
        with_usage: bool = False,
        rows: int,
    ) -> None:
        """Compile kernels that were not compiled while Spark started; remote executors compile their own."""
        if not is_connect(self._session) and (self._session.sparkContext.master or "").startswith("local"):
            smooth_mode_at_hand(plans, timelines, self._on_progress)

    def map(self, function: Callable[[Item], T], items: Sequence[Item], what: str) -> list[T]:
        """Call a function for each item, and return the results.

        This does not use an RDD, because its Python workers are different from those of tables: both would have to load
        all modules.
        """
        if not items:
            return []
        done = self.work(items).mapInArrow(partial(results_of_work, function=function), WORK).toArrow()
        found = zip(done["place"].to_pylist(), done["work"], strict=True)
        return [pickle.loads(result.as_buffer()) for _, result in sorted(found, key=lambda pair: pair[0])]

    def tables(
        self, function: Callable[[Item], Found], items: Sequence[Item], table: StructType, what: str
    ) -> "_RowsOnSpark":
        """Return the rows that a function returns for all items."""
        make = partial(tables_of_work, function=function, schema=to_arrow_schema(table))
        return _RowsOnSpark(self.work(items).mapInArrow(make, table), self.slices_of(items))

    def surveys(self, files: UsageFiles, plans: Sequence[Plan]) -> list[Survey]:
        """Return the surveys of the files: those that were made `early`, or the results of a pass over the files."""
        if self._early is not None and self._early.options == survey_for(plans).keywords:
            return self._early.found.result()
        return super().surveys(files, plans)

    def placed(self, layout: Layout, bundles: Sequence[NumberedBundle], *, repeats: bool) -> "PlacedOnSpark":
        """Return the rows in their partitions. Spark runs this pass over the files when the rows are used."""
        task, tasks = shared(self._session, layout.task), layout.task.tasks
        rows = self.work(bundles).mapInArrow(partial(block_rows, task=task), BLOCKS)
        blocks = rows.repartitionById(tasks, rows["task"]).sortWithinPartitions("partition", "first_seq")
        groups = layout.members(min(tasks, _MEMBER_GROUPS))
        return PlacedOnSpark(
            layout,
            blocks.persist(StorageLevel.DISK_ONLY) if repeats else blocks,
            [shared(self._session, group) for group in groups],
        )

    def work(self, items: Sequence[Sized]) -> DataFrame:
        """Return the pickled items, columns `WORK`. Partitions have consecutive items, and about the same size."""
        slices = self.slices_of(items)
        ends = list(accumulate(max(1, item.size_bytes) for item in items))
        work = pa.table(
            {
                "place": pa.array(range(len(items)), pa.int32()),
                "work": pa.array([pickle.dumps(item) for item in items], pa.binary()),
                "slice": pa.array([(end - 1) * slices // ends[-1] for end in ends], pa.int32()),
            }
        )
        frame = self._session.createDataFrame(work)
        return frame.repartitionById(slices, frame["slice"]).select(WORK.names)

    def slices_of(self, items: Sequence[Sized]) -> int:
        """Return the number of tasks that read the items, from their size and the number of registered cores."""
        wanted = -(-sum(item.size_bytes for item in items) // _SLICE_BYTES)
        return max(1, min(len(items), max(wanted, _SLICES_PER_CORE * self.cores)))


class _RowsOnSpark:
    """Rows as a data frame. keys: the columns by which rows are sorted when they are written or collected.

    parts: the number of partitions for merging rows. The session's own number suits queries, not Python tasks.
    """

    def __init__(self, frame: DataFrame, parts: int, keys: Sequence[str] = ()) -> None:
        self.frame, self._parts, self._keys = frame, parts, keys

    def together(self, keys: Sequence[str], merge: Merge, table: StructType) -> "_RowsOnSpark":
        """Apply `merge` to all rows with the same keys."""
        came, schema = to_arrow_schema(self.frame.schema), to_arrow_schema(table)
        make = partial(merged_rows, merge=merge, came=came, schema=schema)
        placed = self.frame.repartition(self._parts, *keys)
        return _RowsOnSpark(placed.mapInArrow(make, table), self._parts, keys)

    @contextmanager
    def kept(self) -> Iterator["_RowsOnSpark"]:
        """Keep the rows on the executors."""
        self.frame.cache()
        try:
            yield self
        finally:
            self.frame.unpersist()

    def collect(self) -> pa.Table:
        """Return all rows."""
        return self._in_order().toArrow()

    def write(self, results: Target, name: str) -> None:
        """Write the rows with Spark."""
        results.write(self._in_order(), name)

    def written(self, results: Target, name: str, *takes: Take) -> tuple[int, list[pa.Table]]:
        """Write and count the rows; apply `takes` to each partition, then to the combined results."""
        schema = to_arrow_schema(self.frame.schema)
        with self.kept():
            self.write(results, name)
            taken = []
            for take in takes:
                make = partial(merged_rows, merge=take, came=schema, schema=schema)
                taken.append(take(self.frame.mapInArrow(make, self.frame.schema).toArrow()))
            return self.frame.count(), taken

    def _in_order(self) -> DataFrame:
        return self.frame.orderBy(*self._keys) if self._keys else self.frame


class PlacedOnSpark(PlacedRows):
    """Blocks of rows in the partitions of their tasks, columns `BLOCKS`."""

    def __init__(self, layout: Layout, blocks: DataFrame, members: Grouped) -> None:
        self.layout, self.blocks, self.members = layout, blocks, members

    def __exit__(self, *error: object) -> None:
        """Release the rows that Spark keeps."""
        self.blocks.unpersist()

    def peaks(self, plan: Plan, share: int | None = None) -> pa.Table:
        """Return what was measured."""
        merge = partial(grouped, keys=NODE_KEYS, wanted=PEAKS_TOGETHER)
        found = self._replayed(replay_peaks, LIMITS_BY_NODE, share, plans=(plan,))
        rows = _RowsOnSpark(found, self.layout.task.tasks).together(NODE_KEYS, merge, LIMITS_BY_NODE)
        return rows.frame.toArrow().cast(to_arrow_schema(LIMITS_BY_NODE))  # sessions may have large strings

    def outcomes(self, plans: Sequence[Plan], share: int | None = None) -> pa.Table:
        """Return the outcomes of the plans."""
        found = self._replayed(replay_tallies, REPLAY_BY_CLIENT, share, plans=tuple(plans))
        return self._by_entity(found).toArrow()

    def rungs(self, plans: Sequence[Plan], searched: Searched, share: int | None = None) -> pa.Table:
        """Return the outcomes of the plans of a search."""
        return self._replayed(replay_rungs, RUNGS, share, plans=tuple(plans), searched=searched).toArrow()

    def frames(self) -> dict[str, DataFrame]:
        """Return the tables of a replay, each of which replays the rows when it is used."""
        by_client = self._replayed(replay_tallies, REPLAY_BY_CLIENT)
        return {
            "replay_by_entity": self._by_entity(by_client),
            "replay_by_client": by_client,
            "decisions": self._replayed(replay_decisions, DECISIONS),
        }

    def replay(self, results: Target, *, with_decisions: bool) -> tuple[pa.Table, list[dict[str, Any]]]:
        """Replay on the executors, which write decisions themselves."""
        task, left = self.layout.task, list[dict[str, Any]]()
        function, parts = replay_tallies, None
        table = REPLAY_LEAVING_STATE if task.leaves_state else REPLAY_BY_CLIENT
        if with_decisions and not isinstance(results, KeptTables):
            parts = results.parts("decisions", DECISIONS)
            function, table = partial(tallies_and_decisions, parts=parts), REPLAY_WITH_DECISIONS
        found = self._replayed(function, table)
        by_client = found
        for name in table.names[len(REPLAY_BY_CLIENT.names) :]:
            by_client = by_client.where(f"{name} is null")
        by_client = by_client.select(REPLAY_BY_CLIENT.names)
        if isinstance(results, KeptTables) and not results.wanted:
            return self._entities(by_client), left
        with _RowsOnSpark(found, self.layout.task.tasks).kept():
            results.write(by_client, "replay_by_client")
            results.write(self._by_entity(by_client), "replay_by_entity")
            if parts is not None and not isinstance(results, KeptTables):
                written = found.where("file is not null").select("file").toArrow()
                results.keep_files(parts, written["file"].to_pylist())
            if task.leaves_state:
                left = found.where("state is not null").select(REPLAY_STATE.names).toArrow().to_pylist()
            return self._entities(by_client), left

    def _entities(self, by_client: DataFrame) -> pa.Table:
        """Return the rows of `REPLAY_BY_ENTITY`."""
        users, client_ids = self.layout.users, self.layout.client_ids
        bytes_of_each = 2 * (users.nbytes + client_ids.nbytes) + _TALLY_BYTES * len(users)
        if bytes_of_each * len(QUOTA_TYPES) * len(self.layout.task.plans) <= _ADDED_UP_HERE_BYTES:
            return by_entity_table(by_client.toArrow())
        return self._by_entity(by_client).toArrow()

    def _by_entity(self, by_client: DataFrame) -> DataFrame:
        rows = _RowsOnSpark(by_client, self.layout.task.tasks)
        return rows.together(ENTITY_KEYS, by_entity_table, REPLAY_BY_ENTITY).frame

    def _replayed(
        self, function: ReplayFunction, table: StructType, share: int | None = None, **of: Any
    ) -> DataFrame:
        """Return the result of a function of `replay.partition` for the rows, or for those of a share."""
        task = shared(self.blocks.sparkSession, replace(self.layout.task, **of))
        make = partial(replayed_rows, function=function, task=task, members=self.members)
        blocks = self.blocks
        if share is not None and self.shares > 1:
            numbers = map(str, self.layout.partitions_of(share).tolist())
            blocks = blocks.where(f"partition in ({', '.join(numbers)})")
        return blocks.mapInArrow(make, table)
