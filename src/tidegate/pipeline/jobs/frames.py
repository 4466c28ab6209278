"""The jobs that return Spark data frames, by the names of the written tables. Spark computes them at their use."""

from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql import DataFrame

from tidegate.pipeline.jobs.jobs import Jobs, usage_by_minute_table_name, usage_table_name
from tidegate.pipeline.jobs.on_spark import OnSpark, PlacedOnSpark
from tidegate.pipeline.read.missing import Missing, NodeRows
from tidegate.pipeline.replay.carried import Carried
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.results.writing import frame_as_written
from tidegate.pipeline.rollup.merging import merge_parts, minute_keys
from tidegate.pipeline.rollup.obedience import (
    CLIENT_KEYS,
    SOFTWARE_KEYS,
    chunk_obedience,
    obedience_by_client_table,
    obedience_by_software_table,
)
from tidegate.pipeline.rollup.parts import usage_parts
from tidegate.pipeline.schemas import (
    OBEDIENCE_BY_CLIENT,
    OBEDIENCE_BY_SOFTWARE,
    usage_by_minute_schema,
    usage_parts_schema,
    usage_schema,
)

__all__ = ["obedience_frames", "replay_frames", "usage_frames"]

Frames = tuple[dict[str, DataFrame], Sequence[Missing]]


def usage_frames(jobs: Jobs, by: Sequence[str], *, by_minute: bool, with_peaks: bool) -> Frames:
    """Return usage by the columns `by`, and the rows that the record lacks. This call already scans for the nodes."""
    spark = _spark_of(jobs)
    with spark.running("scanning"):
        coverage = jobs.coverage()
    nodes = [NodeRows(node_id=node_id, chunks=chunks) for node_id, chunks in coverage.nodes.items()]
    wanted = {usage_table_name(by): (tuple(by), usage_schema(by), False)}
    if by_minute:
        wanted[usage_by_minute_table_name(by)] = (tuple(minute_keys(by)), usage_by_minute_schema(by), True)
    frames = {}
    for name, (keys, table, with_minutes) in wanted.items():
        make = partial(usage_parts, by=by, with_minutes=with_minutes, with_peaks=with_peaks)
        parts = spark.tables(make, nodes, usage_parts_schema(by), "aggregating")
        frames[name] = parts.together(keys, partial(merge_parts, keys=keys, table=table), table).frame
    return _written(frames), coverage.missing


def obedience_frames(jobs: Jobs) -> Frames:
    """Return early requests by client library and by client, and the rows that the record lacks."""
    spark = _spark_of(jobs)
    with spark.running("scanning"):
        missing = jobs.coverage().missing
    by_client = spark.tables(chunk_obedience, jobs.files.chunks, OBEDIENCE_BY_CLIENT, "aggregating").together(
        CLIENT_KEYS, obedience_by_client_table, OBEDIENCE_BY_CLIENT
    )
    by_software = by_client.together(SOFTWARE_KEYS, obedience_by_software_table, OBEDIENCE_BY_SOFTWARE)
    frames = {"obedience_by_software": by_software.frame, "obedience_by_client": by_client.frame}
    return _written(frames), missing


def replay_frames(
    jobs: Jobs,
    plans: Sequence[Plan],
    names: Sequence[str],
    *,
    carried: Mapping[tuple[str, int], Carried] | None,
) -> Frames:
    """Return a replay by entity, and the tables of `names`. This call already surveys the files."""
    spark = _spark_of(jobs)
    with spark.running("scanning"):
        placed = spark.place(jobs.files, plans, carried=carried, repeats=False)
    assert isinstance(placed, PlacedOnSpark)
    found = placed.frames()
    return _written({name: found[name] for name in ("replay_by_entity", *names)}), placed.layout.missing


def _written(frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    return {name: frame_as_written(frame) for name, frame in frames.items()}


def _spark_of(jobs: Jobs) -> OnSpark:
    assert isinstance(jobs.back_end, OnSpark), "a record with a session has its jobs there"
    return jobs.back_end
