"""The usage of some quota entities over time, and the limits that were in force meanwhile.

Arrow in, Arrow out, chunk by chunk: this process and Spark's executors call the same functions. Memory grows with the
number of requested entities and with time, not with rows or clients.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.in_slices import batched
from tidegate.pipeline.read.chunks import Chunk, opened_chunk, read_chunk
from tidegate.pipeline.read.columns import THROTTLES
from tidegate.pipeline.read.control_events import CONTROL_COLUMNS, CONTROL_KINDS, TAGS_COLUMNS, ControlEvents
from tidegate.pipeline.read.survey import control_of
from tidegate.pipeline.read.timeline import Timeline
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions
from tidegate.pipeline.rollup.cells import usage_columns
from tidegate.pipeline.rollup.sums import grouped
from tidegate.pipeline.rollup.sums_alone import sums_by_step
from tidegate.pipeline.schemas import CLIENT
from tidegate.quota.admin.entity import Tags
from tidegate.quota.admin.sanitizer import sanitize

__all__ = [
    "Buckets",
    "Entity",
    "EntityUse",
    "History",
    "WantedEntities",
    "chunk_entity_seconds",
    "definitions_over_time",
    "entity_buckets",
    "first_and_last",
    "history_of",
    "limits_over_time",
    "quota_events",
    "step_ms",
]

_SECOND_MS = 1000
_STEPS_MS = [
    seconds * _SECOND_MS
    for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
]
_COLUMNS_AT_ONCE = 6
_MAX_DEFINITIONS = 50  # the largest number of definitions with different entities

_SECOND_KEYS = ("second_ms", "node_id", "entity")
_SECOND_SUMS = {"amount": "sum", "throttle_ms": "sum"}
"""Aggregates of a second of an entity on a node."""

_BUCKET_SUMS = {"amount": "sum", "peak_amount": "max", "throttle_ms": "sum"}
"""Aggregates over the seconds of one step of time."""

_TYPE_INDEX = {quota_type.value: index for index, quota_type in enumerate(QUOTA_TYPES)}
_AMOUNTS = ("produce_bytes", "fetch_bytes", "ns", "mutations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """The clients that share a quota, by raw names; None: the level is not used."""

    quota_type: str
    user: str | None
    client_id: str | None

    @property
    def type_index(self) -> int:
        """Place of the quota type in `QUOTA_TYPES`."""
        return _TYPE_INDEX[self.quota_type]

    @property
    def tags(self) -> Tags:
        """The tags that usage is counted under."""
        return sanitize(self.user) if self.user else "", self.client_id or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedEntities:
    """The entities for the history, and the definitions, one after another, by which clients belong to them."""

    entities: Sequence[Entity]
    definitions: Sequence[Definitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Rows of bucket_ms, node_id, entity (its place among those wanted) and `_BUCKET_SUMS`; steps of time in ms."""

    step_ms: int
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityUse:
    """The usage of an entity on the node where it used most, in steps of time; steps without usage are left out.

    amounts: bytes, ns or permits, by the step's first ms; peaks: the same for the busiest second of the step;
    limits: (ts_ms, bound per second) of each change; throttle_ms: throttle time set in each step, on all nodes.
    """

    entity: Entity
    node_id: int | None
    amounts: Mapping[int, int]
    peaks: Mapping[int, int]
    throttle_ms: Mapping[int, int]
    limits: Sequence[tuple[int, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The uses of some entities; `first_ms` is the first step, `end_ms` the end of the last."""

    step_ms: int
    first_ms: int
    end_ms: int
    uses: Sequence[EntityUse]


def step_ms(first_ms: int, last_ms: int, *, most: int) -> int:
    """Return the shortest step of time that cuts a span into `most` at the most.

    >>> step_ms(0, 150_000, most=200), step_ms(0, 7 * 86_400_000, most=200), step_ms(0, 10**12, most=200)
    (1000, 3600000, 5097600000)
    """
    least = (last_ms - first_ms) / (most - 1) if most > 1 else last_ms - first_ms + 1
    for step in _STEPS_MS:
        if step >= least:
            return step
    day = _STEPS_MS[-1]
    return -int(-least // day) * day


def quota_events(chunk: Chunk) -> ControlEvents:
    """Return starts, changed quotas, gaps and callbacks of a chunk, and one `tags` row."""
    with opened_chunk(chunk, (*CONTROL_COLUMNS, *TAGS_COLUMNS)) as opened:
        kinds = read_chunk(opened, ("kind",))["kind"]
        wanted = pc.is_in(kinds, pa.array(CONTROL_KINDS)).to_numpy(zero_copy_only=False).copy()
        tags = np.flatnonzero(pc.equal(kinds, "tags").fill_null(False).to_numpy())[:1]
        wanted[tags] = True
        return control_of(opened, wanted, with_tags=len(tags) > 0)


def definitions_over_time(found: Mapping[int, Timeline]) -> list[Definitions]:
    """Return the distinct definitions, by the entities that have a quota; without any, an empty one."""
    kept: list[Definitions] = []
    seen = set()
    for timeline in found.values():
        for _, definitions in _timed_states(timeline):
            entities = tuple(map(definitions.entities, range(len(QUOTA_TYPES))))
            if entities not in seen and len(kept) < _MAX_DEFINITIONS:
                seen.add(entities)
                kept.append(copy.deepcopy(definitions))
    return kept or [Definitions()]


def limits_over_time(timeline: Timeline, entities: Sequence[Entity]) -> list[list[tuple[int, float | None]]]:
    """Return for each entity the changes of its bound on this node: (ts_ms, bound)."""
    limits: list[list[tuple[int, float | None]]] = [[] for _ in entities]
    for ts_ms, definitions in _timed_states(timeline):
        for entity, changes in zip(entities, limits, strict=True):
            bound = definitions.bound(entity.type_index, entity.tags)
            if not changes or changes[-1][1] != bound:
                changes.append((ts_ms, bound))
    return limits


def entity_seconds(table: pa.Table, wanted: WantedEntities) -> pa.Table:
    """Return what each entity used in each second on each node, out of a table of `usage_columns`.

    Columns: second_ms, node_id, entity (its place in `wanted`), amount, throttle_ms.
    """
    seconds = sums_by_step(table.filter(_may_belong(table, wanted.entities)), step_ms=_SECOND_MS)
    member = _membership(seconds, wanted)
    joined = seconds.join(member, keys=["user", "client_id"], join_type="inner")
    places = joined["entity"].to_numpy()
    kinds = np.array([entity.type_index for entity in wanted.entities], np.int64)[places]
    ns = pc.add(joined["handler_ns"], joined["network_ns"])
    joined = joined.append_column("ns", ns)
    found = pa.table(
        {
            "second_ms": joined["step_ms"],
            "node_id": joined["node_id"],
            "entity": places,
            "amount": _chosen(joined, _AMOUNTS, kinds),
            "throttle_ms": _chosen(joined, THROTTLES, kinds),
        }
    )
    return grouped(found, _SECOND_KEYS, _SECOND_SUMS)


def history_of(buckets: Buckets, entities: Sequence[Entity], found: Mapping[int, Timeline]) -> History:
    """Return the history of the entities, with the limits of each node's timeline."""
    step, rows = buckets.step_ms, buckets.rows
    places = range(len(entities))
    of_entity = [[row for row in rows if row["entity"] == place] for place in places]
    limits = {node_id: limits_over_time(timeline, entities) for node_id, timeline in found.items()}
    starts_ms = [row["bucket_ms"] for row in rows]
    return History(
        step_ms=step,
        first_ms=min(starts_ms, default=0),
        end_ms=max(starts_ms, default=0) + step,
        uses=[_use(entities[place], of_entity[place], limits, place) for place in places],
    )


def _use(
    entity: Entity, rows: Sequence[Mapping[str, Any]], limits: Mapping[int, Any], place: int
) -> EntityUse:
    used: Counter[int] = Counter()
    throttle_ms: Counter[int] = Counter()
    for row in rows:
        used[row["node_id"]] += row["amount"]
        throttle_ms[row["bucket_ms"]] += row["throttle_ms"]
    node_id = min(used, key=lambda node: (-used[node], node)) if used else None
    on_node = [row for row in rows if row["node_id"] == node_id]
    return EntityUse(
        entity=entity,
        node_id=node_id,
        amounts={row["bucket_ms"]: row["amount"] for row in on_node},
        peaks={row["bucket_ms"]: row["peak_amount"] for row in on_node},
        throttle_ms=throttle_ms,
        limits=limits[node_id][place] if node_id is not None and node_id in limits else [],
    )


def chunk_entity_seconds(chunk: Chunk, wanted: WantedEntities) -> pa.Table:
    """Return the `entity_seconds` of a chunk. Raises `UsageFilesError`."""
    columns = usage_columns()
    with opened_chunk(chunk, columns) as opened:
        belongs = _may_belong(read_chunk(opened, CLIENT), wanted.entities)
        # A few columns at a time: of many clients, few rows belong.
        parts = [read_chunk(opened, some).filter(belongs) for some in batched(columns, _COLUMNS_AT_ONCE)]
    return entity_seconds(
        pa.table({name: part[name] for part in parts for name in part.column_names}), wanted
    )


def first_and_last(seconds: pa.Table) -> pa.Table:
    """Return the rows of `entity_seconds` of the first and of the last second."""
    if not len(seconds):
        return seconds
    ends = [np.argmin(seconds["second_ms"]), np.argmax(seconds["second_ms"])]
    return seconds.take(pa.array(ends))


def entity_buckets(seconds: pa.Table, *, step: int) -> pa.Table:
    """Return what entities used in steps of time, in ms, columns `ENTITY_BUCKETS`, out of rows of `entity_seconds`."""
    table = grouped(seconds, _SECOND_KEYS, _SECOND_SUMS)
    second_ms = table["second_ms"].to_numpy().astype(np.int64)
    table = table.append_column("bucket_ms", pa.array(second_ms - second_ms % step))
    table = table.append_column("peak_amount", table["amount"])
    return grouped(table, ("bucket_ms", *_SECOND_KEYS[1:]), _BUCKET_SUMS)


def _timed_states(timeline: Timeline) -> Iterator[tuple[int, Definitions]]:
    """Yield the definitions after each run of changes at one time; the same object each time."""
    definitions = Definitions()
    steps = timeline.steps
    for at, step in enumerate(steps):
        if step.states_all:
            definitions.clear()
        if step.record is not None:
            definitions.apply(step.record)
        is_last = at + 1 == len(steps) or steps.ts_ms[at + 1] != step.ts_ms
        if is_last and (step.states_all or step.record is not None):
            yield step.ts_ms, definitions


def _may_belong(table: pa.Table, entities: Sequence[Entity]) -> pa.ChunkedArray:
    """Return which rows have the user or client id of an entity."""
    users = {entity.user for entity in entities if entity.user is not None}
    client_ids = {entity.client_id or "" for entity in entities if entity.user is None}
    return pc.or_(_is_one_of(table["user"], users), _is_one_of(table["client_id"], client_ids))


def _is_one_of(column: pa.ChunkedArray, names: set[str]) -> pa.ChunkedArray:
    found = pc.is_in(column, pa.array(sorted(names), pa.string()))
    return pc.or_(found, pc.is_null(column)) if "" in names else found


def _membership(seconds: pa.Table, wanted: WantedEntities) -> pa.Table:
    """Return which clients belong to which entities: columns user, client_id, entity.

    A client that belonged to several entities of a type, one after another, counts for the first of `wanted`.
    """
    places: dict[tuple[int, Tags], list[int]] = {}
    for place, entity in enumerate(wanted.entities):
        places.setdefault((entity.type_index, entity.tags), []).append(place)
    pairs = seconds.select(["user", "client_id"]).group_by(["user", "client_id"]).aggregate([]).to_pylist()
    rows = set()
    for pair in pairs:
        user, client_id = pair["user"], pair["client_id"]
        for index in range(len(QUOTA_TYPES)):
            tags = {definitions.tags(index, user, client_id) for definitions in wanted.definitions}
            found = [place for key in tags for place in places.get((index, key), ())]
            if found:
                rows.add((user, client_id, min(found)))
    columns = list(zip(*sorted(rows), strict=True)) or [(), (), ()]
    types = (pa.string(), pa.string(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=["user", "client_id", "entity"])


def _chosen(table: pa.Table, names: Sequence[str], kinds: Any) -> Any:
    """Return of each row the column that its quota type counts."""
    columns = np.stack([table[name].to_numpy() for name in names])
    return columns[kinds, np.arange(len(kinds))]
