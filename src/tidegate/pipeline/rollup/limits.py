"""Limits of many entities as columns: one share of the clients is searched after another (decision 0141)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.config.windows import Windows
from tidegate.pipeline.read.columns import codes_of
from tidegate.pipeline.replay.levels import FETCH_ANSWER_BYTES
from tidegate.pipeline.replay.limits import (
    MAX_LADDERS,
    Replays,
    Sensors,
    Tolerance,
    all_at_once,
    check_entities,
    search_limits,
)
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.rollup.sums import (
    compact,
    decoded,
    key_numbers,
    name_numbers,
    release_free_memory,
    together,
)
from tidegate.pipeline.schemas import LIMITS_BY_ENTITY
from tidegate.quota.admin.sanitizer import sanitize
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.measure.throttle import MAX_INT32

__all__ = ["find_limits", "limits_of_shares", "limits_without_tolerance", "smallest_limits"]

_TYPES = [quota_type.value for quota_type in QUOTA_TYPES]
_FETCH, _MUTATION = QuotaType.FETCH, QuotaType.CONTROLLER_MUTATION
_ENTITY = ("quota_type", "entity_user", "entity_client_id")
_SUMMED = (
    "requests",
    "amount",
    "recorded_throttled_requests",
    "recorded_throttle_ms",
    "recorded_rejected_mutations",
)
Doubles = npt.NDArray[np.float64]


def limits_of_shares(rows: Replays, levels: Plan, tolerance: Tolerance) -> tuple[pa.Table, pa.Table]:
    """Return what `find_limits` finds as `compact` tables, sorted by type of quota, entity and node.

    Raises `TooManyEntitiesError` where one share has too many.
    """
    entities, nodes = [], []
    for share in range(rows.shares):
        found, of_nodes = find_limits(rows, levels, tolerance, share=share)
        entities.append(found)
        nodes.append(of_nodes)
        release_free_memory()
    return _in_order(entities), _in_order(nodes)


def find_limits(
    replays: Replays, levels: Plan, tolerance: Tolerance | None, *, share: int | None = None
) -> tuple[pa.Table, pa.Table]:
    """Return the limits, columns `LIMITS_BY_ENTITY`, and their evidence, `LIMITS_BY_NODE`: `compact` and sorted.

    tolerance: None leaves out the tolerable limits, which take most of the time. share: of the clients; None: all.
    Raises `TooManyEntitiesError`.
    """
    nodes = _sorted([compact(replays.peaks(levels, share))])
    nodes = compact(decoded(nodes))  # encodes names in the order of the rows, whatever order they came in
    entities = _entities(nodes, levels)
    check_entities(len(entities))
    limits = search_limits(replays, levels, _sensors(entities), tolerance, share=share)
    return _with_limits(entities, *limits), nodes


def limits_without_tolerance(rows: Replays, levels: Plan) -> tuple[pa.Table, pa.Table]:
    """Return the result of `limits_of_shares`, with 0 in place of tolerable limits.

    Limits of rates need no search and are computed with whole columns. If there are many limits of mutations, they are
    searched share by share.
    """
    mutations = replace(
        levels, records=tuple(record for record in levels.records or () if record.key == _MUTATION.key)
    )
    nodes = _sorted([compact(rows.peaks(levels))])
    release_free_memory()
    count = pc.sum(pc.equal(nodes["quota_type"], _MUTATION.value)).as_py() or 0
    shares = [None] if count <= MAX_LADDERS else range(rows.shares)
    searched = [find_limits(rows, mutations, None, share=share)[0] for share in shares if count]
    entities = _entities(nodes, levels)
    if searched:
        limits = entities["never_throttled"].to_numpy().copy()
        limits[_are_of(entities, _MUTATION)] = _sorted(searched)["never_throttled"].to_numpy()
        entities = _with_limits(entities, limits, np.zeros(len(limits)))
    release_free_memory()
    return entities, nodes


def _sensors(entities: pa.Table) -> Sensors:
    """Return the sensors of rows of `LIMITS_BY_ENTITY`, in their order."""
    quota_types = np.select([_are_of(entities, kind) for kind in QUOTA_TYPES], [*range(len(QUOTA_TYPES))])
    written: dict[str | None, str] = {None: ""}
    users = entities["entity_user"].to_pylist()
    written |= {user: sanitize(user) for user in set(users) - {None}}
    client_ids = [client_id or "" for client_id in entities["entity_client_id"].to_pylist()]
    tags = [*zip([written[user] for user in users], client_ids, strict=True)]
    return Sensors(quota_types.astype(np.int64), tags, entities["never_throttled"].to_numpy())


def _with_limits(entities: pa.Table, never_throttled: Doubles, tolerable: Doubles) -> pa.Table:
    place = entities.column_names.index("never_throttled")
    entities = entities.set_column(place, "never_throttled", pa.array(never_throttled))
    return entities.set_column(place + 1, "tolerable", pa.array(tolerable))


def _are_of(table: pa.Table | Mapping[str, pa.ChunkedArray], quota_type: QuotaType) -> npt.NDArray[np.bool_]:
    """Return which rows are of a type of quota."""
    found: npt.NDArray[np.bool_] = pc.equal(table["quota_type"], quota_type.value).to_numpy()
    return found


def _entities(nodes: pa.Table, levels: Plan) -> pa.Table:
    """Return rows of `LIMITS_BY_ENTITY` out of sorted rows of `LIMITS_BY_NODE`, with limits that never throttle.

    For rates this is the smallest such limit; for mutations, one that admits all of them at once. `tolerable` is 0.
    """
    if not len(nodes):
        return compact(to_arrow_schema(LIMITS_BY_ENTITY).empty_table())
    codes = [codes_of(nodes[name]) for name in _ENTITY]
    first = np.flatnonzero(np.any([np.diff(code, prepend=-2) != 0 for code in codes], axis=0))
    columns = {name: nodes[name].take(pa.array(first)) for name in _ENTITY}
    for name in _SUMMED:
        columns[name] = pa.array(np.add.reduceat(nodes[name].to_numpy().astype(np.int64), first))
    peak, largest = (
        np.maximum.reduceat(nodes[name].to_numpy(), first) for name in ("peak", "largest_amount")
    )
    is_fetch, is_mutation = (_are_of(columns, kind) for kind in (_FETCH, _MUTATION))
    limits = peak.copy()
    limits[is_fetch] = smallest_limits(peak[is_fetch], largest[is_fetch], levels.windows)
    amounts = np.maximum.reduceat(nodes["amount"].to_numpy().astype(np.int64), first)
    limits[is_mutation] = all_at_once(amounts[is_mutation], levels.windows)
    found = pa.table({**columns, "never_throttled": limits, "tolerable": np.zeros(len(first))})
    return compact(found.select(to_arrow_schema(LIMITS_BY_ENTITY).names))


def smallest_limits(peak: Doubles, largest: Doubles, windows: Windows) -> Doubles:
    """Return the result of `smallest_limit` for each entity of Fetch: the peak, raised until it cuts no fetch."""
    seconds = windows.rate.max_value(1.0)
    if seconds <= 0:
        return peak
    largest = largest - FETCH_ANSWER_BYTES
    limits = np.maximum(peak, largest / seconds)
    max_value = cast("Callable[[Doubles], Doubles]", windows.rate.max_value)  # it multiplies
    while (are_cut := np.trunc(np.minimum(max_value(limits), MAX_INT32)) < largest).any():
        limits[are_cut] = np.nextafter(limits[are_cut], math.inf)  # the next larger double
    return limits


def _in_order(tables: list[pa.Table]) -> pa.Table:
    """Return all rows, sorted; a single table is sorted already."""
    return tables[0] if len(tables) == 1 else _sorted(tables)


def _sorted(tables: list[pa.Table]) -> pa.Table:
    """Return all rows of `compact` tables, at least one, by type of quota, entity and node."""
    table = together(tables)
    types = table["quota_type"].combine_chunks()
    places = np.array([_TYPES.index(name) for name in types.dictionary.to_pylist()], np.int64)
    users = table["entity_user"].combine_chunks()
    tags = pa.array([name and sanitize(name) for name in users.dictionary.to_pylist()], pa.string())
    keys = [
        places[types.indices.to_numpy()],
        name_numbers(pa.chunked_array([pa.DictionaryArray.from_arrays(users.indices, tags)])),
        name_numbers(table["entity_client_id"]),
    ]
    if "node_id" in table.column_names:
        keys.append(table["node_id"].to_numpy())
    return table.take(pa.array(np.argsort(key_numbers(keys), kind="stable")))
