"""A live record as its rows arrive: `tidegate.pipeline.watch`."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tidegate.errors import ArgumentError, ConfigError
from tidegate.pipeline.arguments import Path_, Time, local_path, location_to_read, range_ms
from tidegate.pipeline.plan_arguments import Quotas, plans_of
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.results.writing import as_written
from tidegate.pipeline.rollup.sums import table_of
from tidegate.pipeline.schemas import REPLAY_BY_ENTITY, WATCHED_USAGE
from tidegate.pipeline.spark.session import RunningSpark
from tidegate.pipeline.warm_up import kernel_at_hand
from tidegate.pipeline.watch.arrivals import LATENESS_S, Arrivals, check_watched, last_from_ms, newest_hour_ms
from tidegate.pipeline.watch.checkpoint import Checkpoint, WatchState
from tidegate.pipeline.watch.node import Advance, NodeWatch, advances
from tidegate.pipeline.watch.totals import Totals
from tidegate.usage.process_nodes import broker_of_node

__all__ = ["OnUpdate", "WatchHere", "Watched", "watch", "watch_plans", "watched_plans"]

_MOST_WINDOW = timedelta(hours=1)
_DAY = timedelta(days=1)
_NONE = timedelta(0)
_SHORTEST = timedelta(milliseconds=1)
_ROWS_A_STEP = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The state of a watch after an update. The tables are made when they are read.

    totals: all sums, which the next update changes. advances: the rows of this update, by node.
    """

    plans: Sequence[Plan] = field(repr=False)
    totals: Totals = field(repr=False)
    advances: Sequence[Advance] = field(default=(), repr=False)

    @property
    def rows(self) -> int:
        """Return how many rows have been counted."""
        return self.totals.events

    @property
    def late_rows(self) -> int:
        """Return how many rows arrived too late to be replayed."""
        return self.totals.late_events

    @property
    def usage(self) -> pa.Table:
        """Return the usage of each client since the beginning; clients with most bytes come first."""
        return _table(self.totals.in_all().clients, WATCHED_USAGE)

    @property
    def usage_in_window(self) -> pa.Table:
        """Return the usage of each client in the last minutes."""
        return _table(self.totals.in_window().clients, WATCHED_USAGE)

    @property
    def by_entity(self) -> pa.Table:
        """Return the effect of each plan by entity since the beginning, columns `REPLAY_BY_ENTITY`."""
        return _table(self.totals.in_all().entities, REPLAY_BY_ENTITY)

    @property
    def by_entity_in_window(self) -> pa.Table:
        """Return the effect of each plan by entity in the last minutes."""
        return _table(self.totals.in_window().entities, REPLAY_BY_ENTITY)

    @property
    def unmatched(self) -> list[Unmatched]:
        """Return the entries of plans that match no client so far."""
        return self.totals.unmatched(self.plans)


class WatchHere:
    """A watch of a record, from a time on: None is the newest hour at the first look that finds any.

    The rows of its hour before `from_ms` are replayed for the state that they leave, and not counted. A watch continues
    where `checkpoint` ends, with the `from_ms` of its first run. lateness_s: seconds for which rows wait for earlier
    rows of their node. Raises `TidegateError`.
    """

    def __init__(
        self,
        directory: Path,
        plans: Sequence[Plan],
        *,
        window_ms: int,
        from_ms: int | None = None,
        checkpoint: Checkpoint | None = None,
        lateness_s: float = LATENESS_S,
    ) -> None:
        self._lateness_s = lateness_s
        self._directory = directory
        self._checkpoint = checkpoint
        state = None if checkpoint is None else checkpoint.read(directory=directory, plans=plans)
        if state is None:
            totals = Totals(window_ms=window_ms)
            state = WatchState(
                directory=str(directory.resolve()), plans=plans, totals=totals, from_ms=from_ms
            )
        state.totals.window_ms = window_ms
        self._state = state
        self._arrivals = self._look()

    @property
    def totals(self) -> Totals:
        """Return what was found."""
        return self._state.totals

    def step(self) -> list[Advance]:
        """Process the rows that have arrived, up to a maximum; return the advances, an empty list if there are none."""
        state = self._state
        if state.from_ms is None:
            state.from_ms = newest_hour_ms(self._directory)
            self._arrivals = self._look()
        has_late = state.totals.find_late(self._arrivals)
        ends = self._arrivals.latest(state.offsets, most_rows=_ROWS_A_STEP)
        done: list[Advance] = []
        for node_id, end_seq in sorted(ends.items()):
            after_seq = state.offsets.get(node_id, -1)
            pieces = self._arrivals.pieces(node_id, after_seq, end_seq) if end_seq > after_seq else []
            shown_id = broker_of_node(node_id)
            new_node = NodeWatch(node_id=shown_id, plans=state.plans, counted_from_ms=state.from_ms)
            node = state.nodes.setdefault(node_id, new_node)
            done += advances(node, pieces, after_seq=after_seq, end_seq=end_seq)
        if ends != state.offsets:
            state.offsets = ends
            state.totals.add_advances(done)
        elif not has_late:
            return done
        if self._checkpoint is not None:
            self._checkpoint.write(state)
        return done

    def _look(self) -> Arrivals:
        return Arrivals(self._directory, from_ms=self._state.from_ms, lateness_s=self._lateness_s)


OnUpdate: TypeAlias = Callable[[Watched], object]


def watch(
    path: Path_,
    *,
    on_update: OnUpdate | None = None,
    quotas: Quotas | None = None,
    in_force: bool = False,
    window: timedelta = timedelta(minutes=5),
    start: Time | None = None,
    last: timedelta | str | None = None,
    once: bool = False,
    every: timedelta = timedelta(seconds=1),
    lateness: timedelta | None = None,
    checkpoint: Path_ | None = None,
    spark: SparkSession | None = None,
) -> Watched:
    """Follow a record as a broker writes it, and return its state at the end.

    on_update: a function that is called with the state after each update, and once while there are no rows yet; the
    watch ends when it returns True. once: end when all rows that exist are processed. quotas: plans, in open loop;
    in_force: also follow the quotas in force, the default without quotas. window: the last minutes, up to an hour.
    start, last: as in `usage`; by default the newest hour. every: time between checks for new rows. lateness: time to
    wait for missing rows of a node. checkpoint: a directory with the progress, to resume from. spark: a classic
    session; then the watch is structured streaming.

    Raises `TidegateError`.
    """
    if once is False and on_update is None:
        raise ConfigError("a watch without an end needs on_update", hint="give on_update, or once=True")
    if on_update is not None and not callable(on_update):
        raise ArgumentError(f"on_update must be a function, got {on_update!r}")
    from_ms, _, last_ms = range_ms(start, None, last)
    default_s = 0.0 if once and checkpoint is None else LATENESS_S
    running = None if spark is None else _classic(spark)
    return watch_plans(
        local_path(location_to_read(path, "path"), "path"),
        watched_plans(plans_of(quotas, is_closed=False), in_force=in_force),
        on_update=on_update or _ignore,
        window_ms=_ms(window, "window", _MOST_WINDOW),
        from_ms=from_ms,
        last_ms=last_ms,
        is_once=once,
        every_s=_ms(every, "every", _DAY) / 1000,
        lateness_s=default_s if lateness is None else _ms(lateness, "lateness", _DAY, least=_NONE) / 1000,
        checkpoint=None if checkpoint is None else local_path(checkpoint, "checkpoint"),
        spark=running,
    )


def watched_plans(plans: Sequence[Plan], *, in_force: bool) -> list[Plan]:
    """Return the plans to follow: the quotas in force too, where they are wanted or there is no other plan."""
    return [*plans, *([in_force_plan()] if in_force or not plans else [])]


def watch_plans(
    directory: Path,
    plans: Sequence[Plan],
    *,
    on_update: OnUpdate,
    window_ms: int,
    from_ms: int | None,
    last_ms: int | None,
    is_once: bool,
    every_s: float,
    lateness_s: float,
    checkpoint: Path | None,
    spark: RunningSpark | None,
) -> Watched:
    """Follow a record under plans, in this process or on Spark, until `on_update` ends it; see `watch`."""
    check_watched(directory)
    if checkpoint is not None and os.path.realpath(checkpoint) == os.path.realpath(directory):
        raise ConfigError(
            f"the checkpoint {str(checkpoint)!r} is the record itself", hint="give it another directory"
        )
    if last_ms is not None:
        from_ms = last_from_ms(directory, last_ms)
    with ExitStack() as stack:
        if checkpoint is None and spark is not None:
            checkpoint = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-watch-")))
        kept = None if checkpoint is None else stack.enter_context(Checkpoint(checkpoint))

        def show(totals: Totals, advances: Sequence[Advance]) -> bool:
            return on_update(Watched(plans=plans, totals=totals, advances=advances)) is True

        if spark is not None:
            from tidegate.pipeline.watch.on_spark import watch_on_spark

            assert kept is not None, "it was made above"
            totals = watch_on_spark(
                spark,
                directory,
                plans,
                window_ms=window_ms,
                from_ms=from_ms,
                checkpoint=kept,
                every_s=every_s,
                is_once=is_once,
                show=show,
                lateness_s=lateness_s,
            )
        else:
            followed = WatchHere(
                directory,
                plans,
                window_ms=window_ms,
                from_ms=from_ms,
                checkpoint=kept,
                lateness_s=lateness_s,
            )
            kernel_at_hand(plans)
            totals = _follow(followed, show, is_once=is_once, every_s=every_s)
        return Watched(plans=plans, totals=totals)


def _follow(
    followed: WatchHere,
    show: Callable[[Totals, Sequence[Advance]], bool],
    *,
    is_once: bool,
    every_s: float,
) -> Totals:
    """Run the steps of a watch in this process until its end."""
    has_waited = False
    while True:
        done = followed.step()
        if done:
            is_over = show(followed.totals, done)
        elif is_once:
            return followed.totals
        else:
            is_over = not has_waited and not followed.totals.events and show(followed.totals, ())
            has_waited = True
            if not is_over:
                time.sleep(every_s)
        if is_over:
            return followed.totals


def _table(rows: Sequence[dict[str, Any]], table: StructType) -> pa.Table:
    return as_written(table_of(rows, table))


def _classic(session: SparkSession) -> RunningSpark:
    """Return a session for structured streaming. Raises `TidegateError`."""
    from tidegate.pipeline.spark.sessions import check_session, is_connect

    check_session(session)
    if is_connect(session):
        raise ConfigError(
            "a watch needs a classic Spark session, got one of Spark Connect",
            hint="leave spark out: one process follows a broker",
        )
    return RunningSpark(session=session, log=None)


def _ms(length: timedelta, name: str, most: timedelta, *, least: timedelta = _SHORTEST) -> int:
    if not isinstance(length, timedelta) or not least <= length <= most:
        raise ArgumentError(f"{name} must be a timedelta from {least} to {most}, got {length!r}")
    return length // timedelta(milliseconds=1)


def _ignore(watched: Watched) -> None:
    """Ignore an update."""
