"""The functions of `tidegate.pipeline`: each reads usage records and returns tables (`outcomes`).

All take these parameters:

* paths: a usage directory (a path or URI), several of them, or a record of `open_record`;
* spark: a session, classic or of Spark Connect; then tables are its data frames, and its settings stay as they are.
  Without it, the job runs in this process and tables are Arrow tables;
* start, end: rows from the first on and before the second, as a `datetime` with a time zone or a text such as
  2026-11-22T14:00, in UTC. last: instead of both, the last part of the record, as a `timedelta` or a text such as 15m;
* progress: a function that is called with a `Progress`.

All raise `TidegateError`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.config.locations import Location
from tidegate.config.quotas_file import QuotasFile, load_quotas_file
from tidegate.errors import ArgumentError, ConfigError
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.jobs.back_end import KeptTables
from tidegate.pipeline.jobs.frames import obedience_frames, replay_frames, usage_frames
from tidegate.pipeline.jobs.jobs import saved_states, usage_by_minute_table_name, usage_table_name
from tidegate.pipeline.outcomes import Limits, Obedience, Recommended, Replay, Table, TablesWhenAsked, Usage
from tidegate.pipeline.progress import OnProgress
from tidegate.pipeline.proposals.recommend import Wanted
from tidegate.pipeline.record import Path_, Paths, Record, Time, location_of, opened
from tidegate.pipeline.replay.levels import ENTITIES_BY
from tidegate.pipeline.replay.limits import Tolerance, levels_of, levels_of_quotas
from tidegate.pipeline.replay.plan import IN_FORCE, Plan, in_force_plan, load_plans, plan_of
from tidegate.pipeline.results.output import check_output
from tidegate.pipeline.results.written import as_written
from tidegate.pipeline.rollup.sums import decoded
from tidegate.pipeline.schemas import (
    BACKLOGS,
    CLIENT,
    LIMITS_BY_ENTITY,
    LIMITS_BY_NODE,
    OBEDIENCE_BY_SOFTWARE,
    REPLAY_BY_ENTITY,
    usage_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["GROUPS", "NotRecordedError", "Quotas", "limits", "obedience", "recommend", "replay", "usage"]

GROUPS = (*CLIENT, "listener", "client_software", "api", "topic")
"""Columns that usage can be grouped by."""

Quotas: TypeAlias = Path_ | QuotasFile | Sequence[Path_] | Mapping[str, Path_ | QuotasFile]
"""Plans: a `quotas.yaml`, several of them (a plan has the name of its file), or files or quotas by name."""

_MOST = 2**31 - 1


class NotRecordedError(UsageFilesError):
    """Raise when a record cannot contain what is asked for."""


def usage(
    paths: Paths,
    *,
    spark: "SparkSession | None" = None,
    start: Time | None = None,
    end: Time | None = None,
    last: timedelta | str | None = None,
    by: str | Sequence[str] = CLIENT,
    by_minute: bool = False,
    with_peaks: bool = True,
    top: int | None = None,
    out: Path_ | None = None,
    overwrite: bool = False,
    progress: OnProgress | None = None,
) -> Usage:
    """Return the usage of each client: requests, bytes, thread time, throttle time, peaks and percentiles.

    by: the columns of `GROUPS` to group by. by_minute: also return the table by minute. with_peaks: False: only add
    up, in half the time: peaks and percentiles are null. top: return only so many
    groups, those with most bytes, in this order. out: write all groups, in all and by minute, to this directory, and
    return the groups alone. With a session and neither `top` nor `out`, nodes are found at once and rows are
    read when the data frames are used.
    """
    columns = _groups(by)
    if top is not None and (not isinstance(top, int) or not 1 <= top <= _MOST):
        raise ArgumentError(f"top must be a whole number from 1 on, got {top!r}")
    name, directory = usage_table_name(columns), _out(out, overwrite)
    is_lazy = out is None and top is None
    with opened(
        paths, is_lazy=is_lazy, spark=spark, start=start, end=end, last=last, progress=progress
    ) as record:
        jobs = record.jobs
        if record.session is not None and is_lazy:
            frames, missing = usage_frames(jobs, columns, by_minute=by_minute, with_peaks=with_peaks)
            return Usage(tables=frames, rows=record.rows, missing=missing)
        wanted = [name] * (top is None) + [usage_by_minute_table_name(columns)] * (by_minute and out is None)
        kept = KeptTables(wanted)
        shown = _MOST if top is None and directory is not None else (top or 1)
        found = jobs.usage(
            out=directory or kept, overwrite=overwrite, top=shown, by=columns, with_peaks=with_peaks
        )
        tables = {key: kept.table(key) for key in wanted if directory is None}
        if name not in tables:
            tables = {
                name: pa.Table.from_pylist(list(found.top), to_arrow_schema(usage_schema(columns))),
                **tables,
            }
        return Usage(
            tables=_tables(record, tables),
            rows=record.rows,
            missing=found.missing,
            groups=found.groups,
            topics=found.topics,
            summary=found,
        )


def obedience(
    paths: Paths,
    *,
    spark: "SparkSession | None" = None,
    start: Time | None = None,
    end: Time | None = None,
    last: timedelta | str | None = None,
    out: Path_ | None = None,
    overwrite: bool = False,
    progress: OnProgress | None = None,
) -> Obedience:
    """Return how often clients sent requests before their throttle time was over, by library and by client.

    out: write both tables to this directory, and return the one by library alone. Raises `NotRecordedError` for a
    record that was imported from a request log, which does not contain it.
    """
    directory = _out(out, overwrite)
    with opened(
        paths, is_lazy=out is None, spark=spark, start=start, end=end, last=last, progress=progress
    ) as record:
        if record.is_imported:
            raise NotRecordedError(
                "the record was imported from a request log of Apache Kafka, which does not contain when a throttled "
                "client sent its next request",
                hint="give a record of `tidegate serve`",
            )
        if record.session is not None and directory is None:
            frames, missing = obedience_frames(record.jobs)
            return Obedience(tables=frames, rows=record.rows, missing=missing)
        kept = KeptTables(["obedience_by_client"])
        found = record.jobs.obedience(out=directory or kept, overwrite=overwrite)
        tables = {"obedience_by_software": _table(found.libraries, OBEDIENCE_BY_SOFTWARE)}
        if directory is None:
            tables["obedience_by_client"] = kept.table("obedience_by_client")
        return Obedience(tables=_tables(record, tables), rows=record.rows, missing=found.missing)


def replay(
    paths: Paths,
    *,
    quotas: Quotas | None = None,
    in_force: bool = False,
    loop: str = "closed",
    spark: "SparkSession | None" = None,
    start: Time | None = None,
    end: Time | None = None,
    last: timedelta | str | None = None,
    by_client: bool = False,
    decisions: bool = False,
    continue_from: Path_ | None = None,
    out: Path_ | None = None,
    overwrite: bool = False,
    progress: OnProgress | None = None,
) -> Replay:
    """Return the effect of other quotas on recorded requests, and of the quotas that were in force.

    quotas: the plans. loop: `closed` forecasts, with throttled clients sending later; `open` keeps recorded times.
    in_force: also replay the quotas in force, to compare the decisions with the recorded ones. by_client, decisions:
    also return these tables; `decisions` needs the open loop. continue_from: the directory with the state that a replay
    of the hours before has written with `out`. out: write all tables to this directory, and return the one by entity
    alone. With a session and without `out`, files are surveyed at once and rows replayed when the data frames are used.
    """
    if loop not in ("open", "closed"):
        raise ArgumentError(f"loop must be open or closed, got {loop!r}")
    plans = _plans(quotas, is_closed=loop == "closed")
    _check_replay(plans, loop, in_force=in_force, decisions=decisions, continue_from=continue_from)
    plans += [in_force_plan()] if in_force else []
    directory = _out(out, overwrite)
    with opened(
        paths,
        with_before=continue_from is None,
        is_lazy=out is None,
        spark=spark,
        start=start,
        end=end,
        last=last,
        progress=progress,
    ) as record:
        before = None if continue_from is None else location_of(continue_from, "continue_from")
        carried = None if before is None else saved_states(before, plans)
        names = ["replay_by_client"] * by_client + ["decisions"] * decisions
        if record.session is not None and directory is None:
            frames, missing = replay_frames(record.jobs, plans, names, carried=carried)
            return Replay(tables=frames, rows=record.rows, missing=missing, plans=plans)
        kept = KeptTables(names)
        target = directory or (kept if names else None)
        found = record.jobs.replay(
            plans, out=target, overwrite=overwrite, with_decisions=decisions, carried=carried
        )
        made = {"replay_by_entity": lambda: _entities(record, found.entities.table)}
        made |= {name: partial(_shown, record, kept.table(name)) for name in names if target is kept}
        return Replay(
            tables=TablesWhenAsked(made),
            rows=record.rows,
            missing=found.missing,
            plans=plans,
            unmatched=found.unmatched,
            summary=found,
        )


def limits(
    paths: Paths,
    *,
    by: str = "both",
    quotas: Path_ | QuotasFile | None = None,
    tolerance: Tolerance | None = None,
    spark: "SparkSession | None" = None,
    start: Time | None = None,
    end: Time | None = None,
    last: timedelta | str | None = None,
    out: Path_ | None = None,
    overwrite: bool = False,
    progress: OnProgress | None = None,
) -> Limits:
    """Return the smallest limits that would have throttled nothing, and the smallest that delay what is tolerated.

    by: the level of the entities, `both`, `user` or `client-id`; quotas: instead of it, the entities and windows of
    these quotas. tolerance: by default 1 % of the bytes, by at most 1 s. The search runs at once, on Spark too.
    """
    levels = _levels(by, quotas)
    directory = _out(out, overwrite)
    if tolerance is not None and not isinstance(tolerance, Tolerance):
        raise ArgumentError(f"tolerance must be a Tolerance, got {tolerance!r}")
    with opened(
        paths, is_lazy=False, spark=spark, start=start, end=end, last=last, progress=progress
    ) as record:
        found = record.jobs.limits(levels, tolerance or Tolerance(), out=directory, overwrite=overwrite)
        tables = {
            "limits_by_entity": _table(found.entities, LIMITS_BY_ENTITY),
            "limits_by_node": _table(found.nodes, LIMITS_BY_NODE),
        }
        return Limits(
            tables=_tables(record, tables),
            rows=record.rows,
            missing=found.missing,
            callback=found.callback,
            is_imported=record.is_imported,
        )


def recommend(
    paths: Paths,
    *,
    by: str | None = None,
    headroom: float = 1.5,
    budgets: Mapping[str, float] | None = None,
    protect: Sequence[tuple[str, str]] = (),
    force: bool = False,
    with_default: bool = True,
    spark: "SparkSession | None" = None,
    start: Time | None = None,
    end: Time | None = None,
    last: timedelta | str | None = None,
    progress: OnProgress | None = None,
) -> Recommended:
    """Return quotas to set, with a reason for each and a forecast of the recorded traffic under them.

    by: the level of the quotas; None: as the record suggests. headroom: the factor on the limit that an entity needs.
    budgets: the largest load of one broker, by Kafka's quota key. protect: pairs such as ("user", "checkout") that must
    not be throttled. force: propose quotas even from too little data. with_default: also propose a default.
    The search runs at once, on Spark too.
    """
    _check_level(by)
    if isinstance(headroom, bool) or not isinstance(headroom, int | float) or not 1 <= headroom <= 1000:
        raise ArgumentError(f"headroom must be a number from 1 to 1000, got {headroom!r}")
    wanted = Wanted(
        headroom=headroom,
        budgets=dict(budgets or {}),
        protect=list(protect),
        force=force,
        with_default=with_default,
    )
    with opened(
        paths, is_lazy=False, spark=spark, start=start, end=end, last=last, progress=progress
    ) as record:
        found = record.jobs.recommend(by, wanted)
        tables = {
            "limits_by_entity": _table(found.entities, LIMITS_BY_ENTITY),
            "limits_by_node": _table(found.nodes, LIMITS_BY_NODE),
            "forecast": _table(found.outcomes, REPLAY_BY_ENTITY),
            "backlogs": _table(found.backlogs, BACKLOGS),
        }
        return Recommended(
            tables=_tables(record, tables),
            rows=record.rows,
            missing=found.evidence.missing,
            found=found,
            wanted=wanted,
        )


def _groups(by: str | Sequence[str]) -> tuple[str, ...]:
    columns = (by,) if isinstance(by, str) else tuple(by)
    if not columns or len({*columns}) < len(columns) or any(name not in GROUPS for name in columns):
        raise ArgumentError(f"by must be one or more of {', '.join(GROUPS)}, got {by!r}")
    return columns


def _out(out: Path_ | None, overwrite: bool) -> Location | None:
    """Return where tables are written; check it before the job begins. Raises `OutputError`."""
    if out is None:
        return None
    directory = location_of(out, "out")
    check_output(directory, overwrite=overwrite)
    return directory


def _check_replay(
    plans: Sequence[Plan], loop: str, *, in_force: bool, decisions: bool, continue_from: Path_ | None
) -> None:
    if not plans and not in_force:
        raise ConfigError("no quotas to replay", hint="give quotas, or in_force=True")
    if decisions and plans and loop == "closed":
        raise ConfigError(
            "decisions need loop='open': in closed loop, requests do not keep their recorded times",
            hint="give loop='open', or decisions=False",
        )
    if continue_from is not None and (loop == "closed" or not plans):
        raise ConfigError(
            "continue_from needs quotas and loop='open'",
            hint="the record contains the state of the quotas in force, and forecasts leave none",
        )


def _plans(quotas: Quotas | None, *, is_closed: bool) -> list[Plan]:
    if quotas is None:
        return []
    if isinstance(quotas, QuotasFile):
        quotas = {"quotas": quotas}
    if isinstance(quotas, Mapping):
        if IN_FORCE in quotas:
            raise ConfigError(f"no plan can have the name {IN_FORCE!r}", hint="give it another name")
        return [plan_of(str(name), _quotas(file), is_closed=is_closed) for name, file in quotas.items()]
    given: Iterable[Any] = quotas if isinstance(quotas, list | tuple) else [quotas]
    return load_plans([_file(path) for path in given], is_closed=is_closed)


def _levels(by: str, quotas: Path_ | QuotasFile | None) -> Plan:
    if quotas is None:
        _check_level(by)
        return levels_of(by)
    if isinstance(quotas, QuotasFile):
        return levels_of_quotas(quotas, "quotas")
    path = _file(quotas)
    return levels_of_quotas(load_quotas_file(path), str(path))


def _check_level(by: str | None) -> None:
    if by is not None and by not in ENTITIES_BY:
        raise ArgumentError(f"by must be {', '.join(ENTITIES_BY)}, got {by!r}")


def _quotas(file: Path_ | QuotasFile) -> QuotasFile:
    return file if isinstance(file, QuotasFile) else load_quotas_file(_file(file))


def _file(path: Path_) -> Path:
    found = location_of(path, "quotas")
    if not isinstance(found, Path):
        raise ArgumentError(f"quotas must be a path on this machine, got {path!r}")
    return found


def _table(rows: Iterable[Mapping[str, Any]], table: StructType) -> pa.Table:
    return pa.Table.from_pylist(list(rows), to_arrow_schema(table))


def _tables(record: Record, tables: Mapping[str, pa.Table]) -> dict[str, Table]:
    return {name: _shown(record, table) for name, table in tables.items()}


def _entities(record: Record, compact: pa.Table) -> Table:
    """Return the rows by entity with the types of the written table, which take more memory."""
    schema = to_arrow_schema(REPLAY_BY_ENTITY)
    return _shown(record, decoded(compact).select(schema.names).cast(schema))


def _shown(record: Record, table: pa.Table) -> Table:
    """Return a table of a job as it is written: as a data frame, where the record has a session."""
    written = as_written(table)
    return written if record.session is None else record.session.createDataFrame(written)
