"""A node of a live record: the replays of the plans on it, carried from one batch of rows to the next.

`NodeWatch.advance` takes the rows that have arrived and returns the decisions: Arrow in, Arrow out. Its whole state can
be stored (`checkpoint`) and continued elsewhere, in this process or by Spark.

The last rows of a batch may depend on the next ones: a `gap` ends at the next row, and a snapshot counts only if it has
an end. Such rows are held until the next batch, so that all decisions equal those of a replay of the whole record.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import DECISIONS, ROW_TYPES, Rows
from tidegate.pipeline.read.chunks import Arrived
from tidegate.pipeline.read.columns import ms_of_seq
from tidegate.pipeline.read.rows import read_rows
from tidegate.pipeline.read.runs import check_rising
from tidegate.pipeline.read.snapshots import with_snapshots
from tidegate.pipeline.read.survey import read_sensors, survey_chunk
from tidegate.pipeline.read.timeline import Run, Timeline, empty_timeline, timelines
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.plan_replay import PlanReplay
from tidegate.pipeline.replay.results import client_results, counted, limit_columns
from tidegate.pipeline.rollup.cells import usage_columns
from tidegate.pipeline.rollup.sums_alone import sums_by_step
from tidegate.pipeline.schemas import REPLAY_BY_CLIENT
from tidegate.pipeline.warm_up import smooth_mode_at_hand
from tidegate.pipeline.watch.pieces import Piece, read_pieces, together
from tidegate.pipeline.watch.processes import Taken, is_of_process, rows_of_broker
from tidegate.usage.texts import BEGINS

__all__ = ["Advance", "NodeWatch", "advances", "read_table", "table_bytes"]

MAX_CLIENTS = 500_000
"""Clients of one node: their names and sensors are held."""
MAX_MISSING = 1_000
"""Ranges of missing rows of one node for which late rows are looked for."""

_MINUTE_MS = 60_000
_HELD_ROWS = 1_000_000  # the largest snapshot and rows in between; if more are held, it is not waited for
_HELD_KINDS = pa.array(["start", "gap", "callback"])
_ENDS_SNAPSHOT = pa.array(["start", "gap", "callback"])
_BY_CLIENT = to_arrow_schema(REPLAY_BY_CLIENT)
_LATEST = [_BY_CLIENT.field(name).with_name(f"latest_{name}") for name in ("bound", "bound_of")]
_REPLAY_SCHEMA = pa.schema([*_BY_CLIENT, *_LATEST, pa.field("minute_ms", pa.int64())])
_NO_DECISIONS = np.zeros((0, DECISIONS), np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The result of processing some rows of a node.

    replay: columns `REPLAY_BY_CLIENT` and `minute_ms`, the decisions since the previous advance. usage: `USAGE_SUMS`
    by minute, node and client. events: number of rows taken that count. waiting: number of rows held. missing: ranges
    of `seq` among and before the rows taken that have no row: the `MAX_MISSING` newest. Of the processes of a broker
    there are instead the ranges `taken`, and all rows before `before_ms` were taken.
    """

    node_id: int
    replay: pa.Table
    usage: pa.Table
    events: int
    waiting: int
    last_seq: int
    last_ts_ms: int
    missing: Sequence[tuple[int, int]] = ()
    taken: Taken = field(default_factory=dict)
    before_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class NodeWatch:
    """The state of one node.

    counted_from_ms: earlier rows are replayed for the state that they leave, and not counted.
    """

    node_id: int
    plans: Sequence[Plan]
    names: list[tuple[str, str]] = field(default_factory=list)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    replays: list[PlanReplay] = field(default_factory=list)
    is_known: bool = False
    is_imported: bool = False
    last_seq: int = -1
    last_ts_ms: int = 0
    minute_ms: int = 0
    held: bytes | None = None
    counted_from_ms: int | None = None

    def advance(self, table: pa.Table) -> Advance:
        """Process rows of this node, in any order: each row once, and all later than those before.

        Raises `UsageFilesError` for a row that is not of the usage record, occurs twice or cannot be replayed.
        """
        table = table.sort_by("seq")
        if self.held is not None:
            table = pa.concat_tables([read_table(self.held), table])
        taken = self._settled(table)
        waiting = len(table) - taken
        self.held = table_bytes(table.slice(taken)) if waiting else None
        table = table.slice(0, taken)
        if taken == 0:
            return self._advance(_no_rows(), _usage(table), events=0, waiting=waiting)
        arrived = Arrived(table, f"node {self.node_id}")
        seq = table["seq"].to_numpy()
        check_rising(seq, after=self.last_seq, node_id=self.node_id)
        missing = () if self.is_imported else _missing(seq, after_seq=self.last_seq)
        parts = list(self._replayed(arrived))
        self.last_seq, self.last_ts_ms = table["seq"][-1].as_py(), table["ts_ms"][-1].as_py()
        replayed = pa.concat_tables(parts) if parts else _no_rows()
        counted = table
        if self.counted_from_ms is not None:
            counted = table.filter(pc.field("ts_ms") >= self.counted_from_ms)
        return self._advance(replayed, _usage(counted), events=len(counted), waiting=waiting, missing=missing)

    def _advance(
        self,
        replay: pa.Table,
        usage: pa.Table,
        *,
        events: int,
        waiting: int,
        missing: Sequence[tuple[int, int]] = (),
    ) -> Advance:
        return Advance(
            node_id=self.node_id,
            replay=replay,
            usage=usage,
            events=events,
            waiting=waiting,
            last_seq=self.last_seq,
            last_ts_ms=self.last_ts_ms,
            missing=missing,
        )

    def _settled(self, table: pa.Table) -> int:
        """Return how many rows can be processed now: later rows cannot change the decisions about these."""
        kinds = table["kind"].cast(pa.string())
        has_snapshots = any(plan.is_in_force for plan in self.plans)
        taken = _open_snapshot(table, kinds) if has_snapshots else len(table)
        is_open = pc.is_in(kinds, _HELD_KINDS).to_numpy()
        while taken and is_open[taken - 1]:
            taken -= 1
        return len(table) if len(table) - taken > _HELD_ROWS else taken

    def _replayed(self, arrived: Arrived) -> Iterator[pa.Table]:
        """Yield what was decided, minute by minute."""
        survey = survey_chunk(arrived, with_answers=any(plan.is_in_force for plan in self.plans))
        # The last row taken stands for all rows before it, so a hole behind it shows as a break.
        before = [Run(self.node_id, self.last_seq, self.last_seq, self.last_ts_ms, self.is_imported)]
        runs = [*(before if self.last_seq >= 0 else []), *survey.runs]
        timeline = timelines(survey.control, runs, survey.sweeps).get(self.node_id, empty_timeline())
        self.is_imported |= timeline.is_imported
        # `timelines` takes that row for the beginning of a record, a cold start. Its step is dropped here.
        steps = timeline.steps.after(self.last_seq)
        timeline = replace(timeline, steps=steps, is_imported=self.is_imported)
        if any(plan.is_in_force for plan in self.plans):

            def read(after_seq: int, before_seq: int) -> list[dict[str, Any]]:
                ends = {"after_seq": after_seq, "before_seq": before_seq}
                return read_sensors([(arrived, survey)], node_id=self.node_id, **ends)

            timeline = with_snapshots(timeline, read, is_known=self.is_known)
        keys = zip(survey.keys["user"].to_pylist(), survey.keys["client_id"].to_pylist(), strict=True)
        numbers = np.array([self._number(user, client_id) for user, client_id in keys], np.int64)
        smooth_mode_at_hand(self.plans, [timeline])
        self._go_on(timeline)
        for rows in read_rows(arrived, numbers, counted_from_ms=self.counted_from_ms):
            for part in self._minutes(rows):
                for replayed in self.replays:
                    replayed.replay(part, _NO_DECISIONS)
                yield self._tallies()
        for plan, replayed in zip(self.plans, self.replays, strict=True):
            is_known = replayed.finish_steps()
            self.is_known = is_known if plan.is_in_force else self.is_known

    def _number(self, user: str, client_id: str) -> int:
        number = self.numbers.setdefault((user, client_id), len(self.names))
        if number == len(self.names):
            if number >= MAX_CLIENTS:
                raise UsageFilesError(
                    f"node {self.node_id} has more than {MAX_CLIENTS} different clients (user and client id)",
                    hint="start at a later hour with --from",
                )
            self.names.append((user, client_id))
        return number

    def _go_on(self, timeline: Timeline) -> None:
        if self.replays:
            for replayed in self.replays:
                replayed.continue_with(timeline)
        else:
            self.replays = [PlanReplay(plan, names=self.names, timeline=timeline) for plan in self.plans]

    def _minutes(self, rows: Rows) -> Iterator[Rows]:
        """Yield the rows in runs of one minute each. Rows whose time steps back belong to the later minute."""
        minute_ms = np.maximum.accumulate(np.append(self.minute_ms, rows.ts_ms - rows.ts_ms % _MINUTE_MS))[1:]
        ends = [*np.flatnonzero(np.diff(minute_ms)) + 1, len(minute_ms)] if len(minute_ms) else []
        first = 0
        for end in ends:
            self.minute_ms = int(minute_ms[first])
            yield Rows._make(
                np.array(getattr(rows, name)[first:end], dtype)  # as the kernel is compiled for
                for name, dtype in zip(Rows._fields, ROW_TYPES, strict=True)
            )
            first = end

    def _tallies(self) -> pa.Table:
        of_plans = [_REPLAY_SCHEMA.empty_table()]
        minute_ms = pa.scalar(self.minute_ms, pa.int64())
        for plan, replayed in zip(self.plans, self.replays, strict=True):
            of_plan = counted(plan, self.node_id, self.names, replayed)
            rows, latest = client_results([of_plan]), replayed.latest_limits(of_plan.used.numbers)
            columns = {f"latest_{name}": column for name, column in limit_columns([latest]).items()}
            columns["minute_ms"] = pa.repeat(minute_ms, len(rows))
            for name in _REPLAY_SCHEMA.names[len(_BY_CLIENT) :]:
                rows = rows.append_column(_REPLAY_SCHEMA.field(name), columns[name])
            of_plans.append(rows)
        for replayed in self.replays:
            replayed.forget_tallies()
        return pa.concat_tables(of_plans)


def advances(watch: NodeWatch, pieces: Sequence[Piece], *, after_seq: int, end_seq: int) -> Iterator[Advance]:
    """Yield the advances of a node over `pieces`, after `after_seq` up to `end_seq`; only some rows are in memory."""
    for run in together(pieces):
        table = read_pieces(run, after_seq=after_seq, end_seq=end_seq)
        if not is_of_process(run[0].node_id):
            yield watch.advance(table)
            continue
        table, taken = rows_of_broker(table)
        # `seq` is made of the time, so holes in it are no missing rows.
        yield replace(watch.advance(table), missing=(), taken=taken, before_ms=ms_of_seq(end_seq) + 1)


def _open_snapshot(table: pa.Table, kinds: pa.ChunkedArray) -> int:
    """Return the place of a snapshot that has begun and not ended, or the number of rows if there is none."""
    is_snapshot = pc.equal(kinds, "snapshot").to_numpy()
    if not is_snapshot.any():
        return len(table)
    is_end = pc.is_in(kinds, _ENDS_SNAPSHOT).to_numpy()
    place = len(table)
    for at in np.flatnonzero(is_snapshot | is_end).tolist():
        if is_end[at]:
            place = len(table)
        elif table["quota_user"][at].as_py() is None:
            place = at if table["snapshot"][at].as_py() == BEGINS else len(table)
    return place


def _missing(seq: np.ndarray[Any, Any], *, after_seq: int) -> list[tuple[int, int]]:
    """Return the ranges (first, last) between `after_seq` and the last of `seq` that `seq` does not contain.

    >>> _missing(np.array([3, 4, 8]), after_seq=1)
    [(2, 2), (5, 7)]
    """
    before = np.append(after_seq, seq[:-1])
    (places,) = np.nonzero(seq - before > 1)
    newest = places[-MAX_MISSING:]
    return list(zip((before[newest] + 1).tolist(), (seq[newest] - 1).tolist(), strict=True))


def _usage(table: pa.Table) -> pa.Table:
    """Return what was used, by minute, node and client."""
    found = sums_by_step(table.select(usage_columns()), step_ms=_MINUTE_MS)
    return found.rename_columns(["minute_ms", *found.column_names[1:]])


def _no_rows() -> pa.Table:
    return _REPLAY_SCHEMA.empty_table()


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as Arrow's own bytes."""
    sink = io.BytesIO()
    plain = table.unify_dictionaries().combine_chunks()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    return sink.getvalue()


def read_table(data: bytes) -> pa.Table:
    """Return the table of `table_bytes`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
