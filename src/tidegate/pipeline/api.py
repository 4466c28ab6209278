"""The functions of `tidegate.pipeline`: each reads usage records and returns tables (`outcomes`).

All take paths, a usage directory (a path or URI), several of them, or a record of `open_record`; and the keyword
parameters of `Opening`. All raise `TidegateError`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Unpack

import pyarrow as pa
from pyspark.sql.types import StructType

from tidegate import __version__
from tidegate.config.locations import Location
from tidegate.config.quotas_file import QuotasFile
from tidegate.errors import ArgumentError
from tidegate.pipeline.arguments import Path_, check_whole, local_path, location_of, location_to_read
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.jobs.back_end import KeptTables
from tidegate.pipeline.jobs.frames import obedience_frames, replay_frames, usage_frames
from tidegate.pipeline.jobs.jobs import saved_states, usage_by_minute_table_name, usage_table_name
from tidegate.pipeline.outcomes import Limits, Obedience, Recommended, Replay, Table, TablesWhenAsked, Usage
from tidegate.pipeline.page.findings import run_jobs
from tidegate.pipeline.page.html import check_page, report_html, write_page
from tidegate.pipeline.page.sections import report_facts, report_sections
from tidegate.pipeline.plan_arguments import Quotas, check_loop, check_replay, levels_given, plans_of
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.record import Opening, Paths, Record, opened, places_of
from tidegate.pipeline.replay.levels import check_level
from tidegate.pipeline.replay.limits import Tolerance
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.pipeline.results.output import check_output
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.results.writing import as_written
from tidegate.pipeline.rollup.sums import plain, table_of
from tidegate.pipeline.schemas import (
    BACKLOGS,
    CLIENT,
    LIMITS_BY_ENTITY,
    LIMITS_BY_NODE,
    OBEDIENCE_BY_SOFTWARE,
    REPLAY_BY_ENTITY,
    usage_schema,
)

__all__ = ["GROUPS", "NotRecordedError", "limits", "obedience", "recommend", "replay", "report", "usage"]

GROUPS = (*CLIENT, "listener", "client_software", "api", "topic")
"""Columns that usage can be grouped by."""

_MOST = 2**31 - 1


class NotRecordedError(UsageFilesError):
    """Raise when a record cannot contain the requested information."""


def usage(
    paths: Paths,
    *,
    by: str | Sequence[str] = CLIENT,
    by_minute: bool = False,
    with_peaks: bool = True,
    top: int | None = None,
    out: Path_ | None = None,
    overwrite: bool = False,
    **opening: Unpack[Opening],
) -> Usage:
    """Return the usage of each client: requests, bytes, thread time, throttle time, peaks and percentiles.

    by: the columns of `GROUPS` to group by. by_minute: also return the table by minute. with_peaks: False: only add
    up, in half the processor time: peaks and percentiles are null. top: return only so many
    groups, those with most bytes, in this order. out: write all groups, in all and by minute, to this directory, and
    return the groups alone. With a session and neither `top` nor `out`, nodes are found at once and rows are
    read when the data frames are used.
    """
    columns = _groups(by)
    if top is not None:
        check_whole(top, "top", 1)
    name, directory = usage_table_name(columns), _out(paths, out, overwrite)
    minutes = usage_by_minute_table_name(columns)
    hints = {minutes: _hint(minutes, "by_minute", directory)}
    is_lazy = out is None and top is None
    with opened(paths, usage, is_lazy=is_lazy, **opening) as record:
        jobs = record.jobs
        if record.session is not None and is_lazy:
            frames, missing = usage_frames(jobs, columns, by_minute=by_minute, with_peaks=with_peaks)
            return Usage(tables=frames, rows=record.rows, missing=missing, hints=hints)
        wanted = [name] * (top is None) + [minutes] * (by_minute and out is None)
        kept = KeptTables(wanted)
        shown = _MOST if top is None and directory is not None else (top or 1)
        found = jobs.usage(
            out=directory or kept, overwrite=overwrite, top=shown, by=columns, with_peaks=with_peaks
        )
        tables = {key: kept.table(key) for key in wanted if directory is None}
        if name not in tables:
            tables = {
                name: table_of(found.top, usage_schema(columns)),
                **tables,
            }
        return Usage(
            tables=_tables(record, tables),
            rows=record.rows,
            missing=found.missing,
            hints=hints,
            groups=found.groups,
            topics=found.topics,
            summary=found,
        )


def obedience(
    paths: Paths,
    *,
    out: Path_ | None = None,
    overwrite: bool = False,
    **opening: Unpack[Opening],
) -> Obedience:
    """Return how often clients sent requests before their throttle time was over, by library and by client.

    out: write both tables to this directory, and return the one by library alone. Raises `NotRecordedError` for a
    record that was imported from a request log, which does not contain it.
    """
    directory = _out(paths, out, overwrite)
    with opened(paths, obedience, is_lazy=out is None, **opening) as record:
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
        tables = {"obedience_by_software": table_of(found.libraries, OBEDIENCE_BY_SOFTWARE)}
        if directory is None:
            tables["obedience_by_client"] = kept.table("obedience_by_client")
        hints = {"obedience_by_client": _hint("obedience_by_client", "", directory)}
        return Obedience(tables=_tables(record, tables), rows=record.rows, missing=found.missing, hints=hints)


def replay(
    paths: Paths,
    *,
    quotas: Quotas | None = None,
    in_force: bool = False,
    loop: str = "closed",
    by_client: bool = False,
    decisions: bool = False,
    continue_from: Path_ | None = None,
    out: Path_ | None = None,
    overwrite: bool = False,
    **opening: Unpack[Opening],
) -> Replay:
    """Return the effect of other quotas on recorded requests, and of the quotas that were in force.

    quotas: the plans. loop: `closed` forecasts, with throttled clients sending later; `open` keeps recorded times.
    in_force: also replay the quotas in force, to compare the decisions with the recorded ones. by_client, decisions:
    also return these tables; `decisions` needs the open loop. continue_from: the directory with the state that a replay
    of the hours before has written with `out`. out: write all tables to this directory, and return the one by entity
    alone. With a session and without `out`, files are surveyed at once and rows replayed when the data frames are used.
    """
    check_loop(loop)
    plans = plans_of(quotas, is_closed=loop == "closed")
    check_replay(plans, loop, in_force=in_force, decisions=decisions, continue_from=continue_from)
    plans += [in_force_plan()] if in_force else []
    directory = _out(paths, out, overwrite)
    with_before = continue_from is None
    with opened(paths, replay, with_before=with_before, is_lazy=out is None, **opening) as record:
        before = None if continue_from is None else location_to_read(continue_from, "continue_from")
        carried = None if before is None else saved_states(before, plans)
        names = ["replay_by_client"] * bool(by_client) + ["decisions"] * bool(decisions)
        hints = {
            "replay_by_client": _hint("replay_by_client", "by_client", directory),
            "decisions": _hint("decisions", "decisions", directory if decisions else None),
        }
        if record.session is not None and directory is None:
            frames, missing = replay_frames(record.jobs, plans, names, carried=carried)
            return Replay(tables=frames, rows=record.rows, missing=missing, plans=plans, hints=hints)
        kept = KeptTables(names)
        target = directory or (kept if names else None)
        found = record.jobs.replay(
            plans, out=target, overwrite=overwrite, with_decisions=decisions, carried=carried
        )
        made = {"replay_by_entity": lambda: _shown(record, plain(found.entities.table, REPLAY_BY_ENTITY))}
        made |= {name: partial(_shown, record, kept.table(name)) for name in names if target is kept}
        return Replay(
            tables=TablesWhenAsked(made),
            rows=record.rows,
            missing=found.missing,
            hints=hints,
            plans=plans,
            unmatched=found.unmatched,
            summary=found,
        )


def limits(
    paths: Paths,
    *,
    by: str | None = None,
    quotas: Path_ | QuotasFile | None = None,
    tolerance: Tolerance | None = None,
    out: Path_ | None = None,
    overwrite: bool = False,
    **opening: Unpack[Opening],
) -> Limits:
    """Return the smallest limits that would have throttled nothing, and the smallest that delay what is tolerated.

    by: the level of the entities, `user`, `client-id` or, by default, `both`; quotas: instead of it, the entities and
    windows of these quotas. tolerance: by default 1 % of the bytes, by at most 1 s. The search runs at once, on Spark
    too.
    """
    levels = levels_given(by, quotas)
    directory = _out(paths, out, overwrite)
    if tolerance is not None and not isinstance(tolerance, Tolerance):
        raise ArgumentError(f"tolerance must be a Tolerance, got {tolerance!r}")
    with opened(paths, limits, is_lazy=False, **opening) as record:
        found = record.jobs.limits(levels, tolerance or Tolerance(), out=directory, overwrite=overwrite)
        tables = {
            "limits_by_entity": plain(found.entities.table, LIMITS_BY_ENTITY),
            "limits_by_node": plain(found.nodes.table, LIMITS_BY_NODE),
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
    only_throttled: bool = False,
    **opening: Unpack[Opening],
) -> Recommended:
    """Return quotas to set, with a reason for each and a forecast of the recorded traffic under them.

    by: the level of the quotas; None: as the record suggests. headroom: the factor on the limit that an entity needs.
    budgets: the largest load of one broker, by Kafka's quota key. protect: pairs such as ("user", "checkout") that must
    not be throttled. force: propose quotas even from too little data. with_default: also propose a default.
    only_throttled: the table `forecast` has only the entities that the quotas throttle; without any it takes less time.
    The search runs at once, on Spark too.
    """
    check_level(by)
    wanted = Wanted(
        headroom=headroom,
        budgets={} if budgets is None else budgets,
        protect=protect,
        force=force,
        with_default=with_default,
    )
    with opened(paths, recommend, is_lazy=False, **opening) as record:
        found = record.jobs.recommend(by, wanted, only_throttled=only_throttled)
        tables = {
            "limits_by_entity": (found.entities, LIMITS_BY_ENTITY),
            "limits_by_node": (found.nodes, LIMITS_BY_NODE),
            "forecast": (found.outcomes, REPLAY_BY_ENTITY),
            "backlogs": (found.backlogs, BACKLOGS),
        }
        made = {name: partial(_plain, record, rows, table) for name, (rows, table) in tables.items()}
        return Recommended(
            tables=TablesWhenAsked(made),
            rows=record.rows,
            missing=found.evidence.missing,
            found=found,
            wanted=wanted,
        )


def report(
    paths: Paths,
    *,
    quotas: Quotas | None = None,
    loop: str = "closed",
    with_limits: bool = False,
    with_recommendation: bool = True,
    out: Path_ | None = None,
    overwrite: bool = False,
    **opening: Unpack[Opening],
) -> str:
    """Return an HTML page about the record: usage, throttles, the effect of quotas, and quotas to set.

    quotas, loop: as in `replay`. with_limits: also find the smallest limits that throttle no request.
    with_recommendation: propose quotas, which takes a third of the time. out: also write the page to this file, which
    only its owner may read, because it contains user names and client ids.
    """
    check_loop(loop)
    plans = plans_of(quotas, is_closed=loop == "closed")
    page = None if out is None else local_path(out, "out")
    if page is not None:
        check_page(page, overwrite=overwrite)
    with opened(paths, report, is_lazy=False, **opening) as record:
        found = run_jobs(
            record.jobs,
            plans,
            rows=record.rows,
            is_imported=record.is_imported,
            with_limits=with_limits,
            with_recommendation=with_recommendation,
        )
    html = report_html(
        title="Kafka quotas: usage report",
        facts=report_facts(found),
        sections=report_sections(found),
        made_by=f"tidegate {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
    if page is not None:
        write_page(page, html, overwrite=overwrite)
    return html


def _groups(by: str | Sequence[str]) -> tuple[str, ...]:
    columns = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Iterable) else ()
    if not columns or any(name not in GROUPS for name in columns) or len({*columns}) < len(columns):
        raise ArgumentError(f"by must be one or more of {', '.join(GROUPS)}, got {by!r}")
    return columns


def _out(paths: Paths, out: Path_ | None, overwrite: bool) -> Location | None:
    """Return where tables are written; check it before the job begins. Raises `OutputError`."""
    if out is None:
        return None
    directory = location_of(out, "out")
    check_output(directory, overwrite=overwrite, records=places_of(paths))
    return directory


def _hint(name: str, parameter: str, directory: Location | None) -> str:
    """Return where a table is that a result does not have, or what returns it. directory: where it was written."""
    return f"give {parameter}=True" if directory is None else f"read it from {str(directory / name)!r}"


def _tables(record: Record, tables: Mapping[str, pa.Table]) -> dict[str, Table]:
    return {name: _shown(record, table) for name, table in tables.items()}


def _plain(record: Record, rows: TableRows, table: StructType) -> Table:
    return _shown(record, plain(rows.table, table))


def _shown(record: Record, table: pa.Table) -> Table:
    """Return a table of a job as it is written: as a data frame, where the record has a session."""
    written = as_written(table)
    return written if record.session is None else record.session.createDataFrame(written)
