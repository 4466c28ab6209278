"""Usage files on Spark: chunks spread over tasks, and their rows brought where a replay wants them."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from threading import Event
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.config.locations import Uri
from tidegate.pipeline.read.chunks import Bundle, Chunk, bundled, chunk_row
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.missing import Coverage, chunk_evidence, coverage_of
from tidegate.pipeline.read.survey import Survey, survey_chunk
from tidegate.pipeline.replay.carried import Carried
from tidegate.pipeline.replay.partition import Grouped, ReplayTask, chunk_rows, do_work, pack_chunks
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.task import Layout, lay_out
from tidegate.pipeline.schemas import BLOCKS, CHUNKS, NUMBERED_BUNDLES, WORK
from tidegate.pipeline.spark.session import RunningSpark
from tidegate.pipeline.warm_up import smooth_mode_at_hand

__all__ = [
    "SLICES_PER_CORE",
    "EarlySurveys",
    "Placed",
    "coverage_on_spark",
    "done_on_spark",
    "grouped",
    "replay_blocks",
    "slices_of",
    "spread_chunks",
    "surveys_in_the_making",
]

SLICES_PER_CORE = 4
"""Tasks of the passes over the files, at least."""

_SLICE_BYTES = 1 << 28  # uncompressed, at most
_EARLY_CHUNKS = 4_000  # what is surveyed here, a ms each, while Spark starts: some five seconds
_EARLY_ROWS = 2_000_000
_MEMBER_GROUPS = 16  # broadcasts of what partitions need: each is for as many of the tasks


_C = TypeVar("_C", Chunk, Bundle)
_T = TypeVar("_T")


class Placed(NamedTuple):
    """The rows of files as blocks, where they belong and in order, and what a replay of them needs."""

    blocks: DataFrame
    layout: Layout
    task: Broadcast[ReplayTask]
    members: Grouped

    def on_executors(self, function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
        """Return a function of `replay.partition` with what it needs there; in: the blocks."""
        return partial(function, task=self.task, members=self.members, **more)


class EarlySurveys(NamedTuple):
    """The first pass over files, of this process: what is looked for, and what is or will be found in each bundle."""

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
    survey_bundle, is_over = _survey_for(plans), Event()

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


def replay_blocks(
    spark: RunningSpark,
    files: UsageFiles,
    plans: Sequence[Plan],
    *,
    carried: Mapping[tuple[str, int], Carried] | None = None,
    leaves_state: bool = False,
    early: EarlySurveys | None = None,
) -> Placed:
    """Return the rows of the files where they belong.

    The first pass over the files finds out who there is, unless that was done `early`; the second, which is still to be
    run, reads the rows.
    """
    session, context = spark.session, spark.session.sparkContext
    survey, bundles = _survey_for(plans), bundled(files.replayed)
    if early is not None and early.options == survey.keywords:
        surveys = early.found.result()
    else:
        surveys = done_on_spark(session, survey, bundles)
    cores = context.defaultParallelism
    layout = lay_out(
        bundles,
        surveys,
        plans,
        cores=cores,
        carried=carried,
        leaves_state=leaves_state,
        counted_from_ms=files.counted_from_ms,
    )
    if (context.master or "").startswith("local"):  # executors elsewhere compile for themselves
        smooth_mode_at_hand(plans, layout.timelines.values())
    task = context.broadcast(layout.task)
    tasks = layout.task.tasks
    members: Grouped = [context.broadcast(group) for group in layout.members(min(tasks, _MEMBER_GROUPS))]
    rows = [[chunk_rows(bundle) for bundle in bundles], layout.numbers]
    blocks = _spread(session, bundles, rows, NUMBERED_BUNDLES).mapInArrow(
        partial(pack_chunks, task=task), BLOCKS
    )
    placed = blocks.repartitionById(tasks, F.col("task")).sortWithinPartitions("partition", "first_seq")
    return Placed(placed, layout, task, members)


def _survey_for(plans: Sequence[Plan]) -> "partial[Survey]":
    """Return `survey_chunk` with what it is to look for, for a replay of the plans."""
    return partial(
        survey_chunk,
        with_connections=any(plan.is_closed for plan in plans),
        with_answers=any(plan.is_in_force for plan in plans),
    )


def spread_chunks(session: SparkSession, chunks: Sequence[Chunk]) -> DataFrame:
    """Return the table `CHUNKS` in as many partitions, each a run of chunks, of about equally many bytes."""
    rows = [chunk_row(chunk) for chunk in chunks]
    columns = [[row[name] for row in rows] for name in CHUNKS.names]
    return _spread(session, chunks, columns, CHUNKS)


def done_on_spark(session: SparkSession, function: Callable[[_C], _T], chunks: Sequence[_C]) -> list[_T]:
    """Return what a function of the installed package returns for each of the chunks or bundles, in their order.

    Not by way of an RDD, whose Python workers are others than those of tables: both would load all that they need.
    """
    if not chunks:
        return []
    columns = [range(len(chunks)), [pickle.dumps(chunk) for chunk in chunks]]
    work = _spread(session, chunks, columns, WORK)
    done = work.mapInArrow(partial(do_work, function=function), WORK).toArrow()
    found = zip(done["place"].to_pylist(), done["work"], strict=True)
    return [pickle.loads(result.as_buffer()) for _, result in sorted(found, key=lambda pair: pair[0])]


def _spread(
    session: SparkSession,
    chunks: Sequence[Chunk] | Sequence[Bundle],
    columns: Sequence[Any],
    table: StructType,
) -> DataFrame:
    """Return columns about chunks as a table, likewise."""
    schema, slices = to_arrow_schema(table), slices_of(session, chunks)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    ends = list(accumulate(max(1, chunk.size_bytes) for chunk in chunks))
    slice_of = pa.array([(end - 1) * slices // ends[-1] for end in ends], pa.int32())
    work = pa.table(arrays, schema=schema).append_column("slice", slice_of)
    return session.createDataFrame(work).repartitionById(slices, F.col("slice")).select(table.names)


def slices_of(session: SparkSession, chunks: Sequence[Chunk] | Sequence[Bundle]) -> int:
    """Return in how many tasks the chunks are read: by their bytes, and by the executors that have registered."""
    wanted = -(-sum(chunk.size_bytes for chunk in chunks) // _SLICE_BYTES)
    return max(1, min(len(chunks), max(wanted, SLICES_PER_CORE * session.sparkContext.defaultParallelism)))


def coverage_on_spark(session: SparkSession, files: UsageFiles) -> Coverage:
    """Return which rows are there. Raises `UsageFilesError`, as Spark passes it on."""
    return coverage_of(done_on_spark(session, chunk_evidence, bundled(files.chunks)))


def grouped(table: DataFrame, keys: Sequence[str], wanted: Mapping[str, str]) -> DataFrame:
    """Return what `sums.grouped` returns."""
    functions = {"sum": F.sum, "max": F.max}
    return table.groupBy(*keys).agg(
        *(functions[function](name).alias(name) for name, function in wanted.items())
    )
