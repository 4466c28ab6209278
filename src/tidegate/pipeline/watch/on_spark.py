"""A watch as structured streaming: the state of each node in Spark's state store, the totals on the driver.

What is done with the rows is `NodeWatch.advance`, as in one process. Spark runs a batch that was not committed again,
from the state before it; the totals know the last batch that they have, and do not add it twice.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tidegate.errors import ConfigError
from tidegate.pipeline.errors import spark_errors_as_ours
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.spark.session import RunningSpark
from tidegate.pipeline.watch.arrivals import LATENESS_S, Arrivals
from tidegate.pipeline.watch.checkpoint import Checkpoint, WatchState, dumped, loaded
from tidegate.pipeline.watch.node import Advance, NodeWatch, advances, read_table, table_bytes
from tidegate.pipeline.watch.pieces import Piece
from tidegate.pipeline.watch.source import SOURCE_NAME, UsageSource
from tidegate.pipeline.watch.totals import Totals
from tidegate.usage.process_nodes import broker_of_node

__all__ = ["watch_on_spark"]

_QUERY = "query"  # Spark's own checkpoint, in ours
_WAIT_S = 1
_PIECE = ("node_id", "path", "row_group", "first_seq", "last_seq", "rows")

Show = Callable[[Totals, Sequence[Advance]], bool]


def watch_on_spark(
    spark: RunningSpark,
    directory: Path,
    plans: Sequence[Plan],
    *,
    window_ms: int,
    from_ms: int | None,
    checkpoint: Checkpoint,
    every_s: float,
    is_once: bool,
    show: Show,
    lateness_s: float = LATENESS_S,
) -> Totals:
    """Watch until Ctrl-C, until all existing rows are processed, or until `show` returns True after a batch.

    from_ms: as for `WatchHere`. lateness_s: seconds for which rows wait for earlier rows of their node. Raises
    `TidegateError`.
    """
    if not directory.is_dir():
        raise ConfigError(
            f"no usage record at {str(directory)!r}, expected a directory",
            hint="give the usage directory of `tidegate serve` or `tidegate gateway`",
        )
    state = checkpoint.read(directory=directory, plans=plans)
    if state is None:
        totals = Totals(window_ms=window_ms)
        state = WatchState(directory=str(directory.resolve()), plans=plans, totals=totals, from_ms=from_ms)
        checkpoint.write(state)
    state.totals.window_ms = window_ms
    session = spark.session
    session.dataSource.register(UsageSource)
    reader = session.readStream.format(SOURCE_NAME).option("lateness_s", str(lateness_s))
    from_ms = state.from_ms
    arrivals = Arrivals(directory, from_ms=from_ms)
    if from_ms is not None:
        reader = reader.option("from_ms", str(from_ms))
    advanced = (
        reader.load(str(directory.absolute()))
        .groupBy("node_id")
        .applyInPandasWithState(
            partial(_advanced, plans=plans, from_ms=from_ms),
            outputStructType="node_id int, advance binary",
            stateStructType="state binary",
            outputMode="update",
            timeoutConf=GroupStateTimeout.NoTimeout,
        )
    )
    is_over = Event()
    with spark_errors_as_ours(spark_log=spark.log):
        query = (
            advanced.writeStream.outputMode("update")
            .option("checkpointLocation", str(checkpoint.directory.absolute() / _QUERY))
            .trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
            .foreachBatch(
                partial(
                    _add_batch,
                    state=state,
                    arrivals=arrivals,
                    checkpoint=checkpoint,
                    show=show,
                    is_over=is_over,
                )
            )
            .start()
        )
        try:
            if is_once:
                query.processAllAvailable()
            else:
                while not is_over.is_set() and not query.awaitTermination(_WAIT_S):
                    pass
        finally:
            query.stop()
    state.totals.find_late(arrivals)
    checkpoint.write(state)
    return state.totals


def _advanced(
    key: tuple[int],
    frames: Iterator[pd.DataFrame],
    state: GroupState,
    *,
    plans: Sequence[Plan],
    from_ms: int | None,
) -> Iterator[pd.DataFrame]:
    """Yield the advances of one node over the rows that have arrived, and store its state."""
    (node_id,) = (int(part) for part in key)
    new_node = NodeWatch(node_id=broker_of_node(node_id), plans=plans, counted_from_ms=from_ms)
    node = loaded(state.get[0]) if state.exists else new_node
    rows = [row for frame in frames for row in frame.to_dict("records")]
    pieces = [Piece(**{name: row[name] for name in _PIECE}) for row in rows]
    pieces.sort(key=lambda piece: (piece.first_seq, piece.last_seq))
    ends = {"after_seq": int(rows[0]["after_seq"]), "end_seq": int(rows[0]["end_seq"])}
    done = [_bytes(advance) for advance in advances(node, pieces, **ends)]
    state.update((dumped(node),))
    yield pd.DataFrame({"node_id": [node_id] * len(done), "advance": done})


def _add_batch(
    batch: DataFrame,
    batch_id: int,
    *,
    state: WatchState,
    arrivals: Arrivals,
    checkpoint: Checkpoint,
    show: Show,
    is_over: Event,
) -> None:
    """Add what came of a batch, unless it was added before the driver ended; run it in any case, for the states."""
    rows = batch.collect()
    if batch_id <= state.last_batch:
        return
    done = [_advance(bytes(row["advance"])) for row in rows]
    done.sort(key=lambda advance: (advance.node_id, advance.last_seq))
    state.totals.find_late(arrivals)
    state.totals.add_advances(done)
    state.last_batch = batch_id
    checkpoint.write(state)
    if show(state.totals, done):
        is_over.set()


def _bytes(advance: Advance) -> bytes:
    tables = {"replay": table_bytes(advance.replay), "usage": table_bytes(advance.usage)}
    facts: dict[str, Any] = {name: getattr(advance, name) for name in _FACTS}
    return dumped(facts | tables)


def _advance(data: bytes) -> Advance:
    found = loaded(data)
    tables = {name: read_table(found[name]) for name in ("replay", "usage")}
    return Advance(**{**found, **tables})


_FACTS = ("node_id", "events", "waiting", "last_seq", "last_ts_ms", "missing", "taken", "before_ms")
