"""From clients to quota entities: the effect of a plan on all clients that share a quota, on all nodes."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.read.columns import codes_of
from tidegate.pipeline.rollup.sums import (
    check_sums,
    compact,
    decoded,
    grouped,
    key_numbers,
    name_numbers,
    no_key_twice,
    pieces,
    together,
)
from tidegate.pipeline.schemas import LIMITS_BY_NODE, REPLAY_BY_ENTITY

__all__ = ["ENTITY_KEYS", "NODE_KEYS", "PEAKS_TOGETHER", "TOGETHER", "by_entity_table", "entities_together"]

ENTITY_KEYS = ("plan", "quota_type", "entity_user", "entity_client_id", "entity_tags")
_OF_EXTREMES = {
    "longest_throttle_ms": "max",
    "recorded_longest_throttle_ms": "max",
    "first_throttled_ts_ms": "min",
    "longest_wait_ms": "max",
    "last_ts_ms": "max",
    **{f"{name}_{end}": "max" for name in ("longest_throttle_ms", "last_ts_ms") for end in ("low", "high")},
    "recorded_last_ts_ms": "max",
    "recorded_first_throttled_ts_ms": "min",
}
_LIMIT = ("bound", "bound_of", "bound_changed")
_ONLY = {"only_user": "user", "only_client_id": "client_id"}
"""Columns of an entity that are null unless all of its clients have the same value, and the column of the clients."""
TOGETHER = {
    name: _OF_EXTREMES.get(name, "sum")
    for name in REPLAY_BY_ENTITY.names
    if name not in {*ENTITY_KEYS, *_ONLY, *_LIMIT}
}
"""Function that combines a column of the clients of an entity: sum, min or max."""

_OF_PARTS = {
    **TOGETHER,
    **{
        f"{part} {only}": function for only in _ONLY for part, function in (("first", "min"), ("last", "max"))
    },
    **{f"several {only}": "max" for only in _ONLY},
    **{"bound": "max", "bound_of": "max", "bound_changed": "max", "first limit": "min", "last limit": "max"},
}

NODE_KEYS = ("quota_type", "entity_user", "entity_client_id", "node_id")
_OF_PEAKS = {"peak": "max", "largest_amount": "max"}
PEAKS_TOGETHER = {name: _OF_PEAKS.get(name, "sum") for name in LIMITS_BY_NODE.names if name not in NODE_KEYS}
"""The same of the columns of `LIMITS_BY_NODE`."""


def by_entity_table(parts: pa.Table) -> pa.Table:
    """Return one row per plan and entity out of rows per client, columns `REPLAY_BY_ENTITY`.

    Accepts rows of `REPLAY_BY_ENTITY` too, several for each entity.
    """
    if no_key_twice(parts, ENTITY_KEYS):
        return _one_by_one(parts)
    for only, name in _ONLY.items():
        of = parts[only if only in parts.column_names else name]
        columns = {"first": of, "last": of, "several": pc.is_null(of)}
        for part, column in columns.items():
            parts = parts.append_column(f"{part} {only}", column)
    texts = parts["bound"].cast(pa.string()), parts["bound_of"], " "
    limit = pc.binary_join_element_wise(*texts, null_handling="replace", null_replacement="none")
    parts = parts.append_column("first limit", limit).append_column("last limit", limit)
    found = grouped(parts, ENTITY_KEYS, _OF_PARTS)
    changed = pc.or_(found["bound_changed"], pc.not_equal(found["first limit"], found["last limit"]))
    found = found.set_column(found.column_names.index("bound_changed"), "bound_changed", changed)
    for name in ("bound", "bound_of"):
        found = found.set_column(found.column_names.index(name), name, pc.if_else(changed, None, found[name]))
    for only in _ONLY:
        first, last, several = (found[f"{part} {only}"] for part in ("first", "last", "several"))
        is_common = pc.and_not(pc.fill_null(pc.equal(first, last), False), several)
        found = found.append_column(only, pc.if_else(is_common, first, None))
    return found.select(REPLAY_BY_ENTITY.names).cast(to_arrow_schema(REPLAY_BY_ENTITY))


def _one_by_one(parts: pa.Table) -> pa.Table:
    """Return the result of `by_entity_table` for rows that all have different entities."""
    check_sums(parts, TOGETHER)
    columns = {name: parts[name] for name in parts.column_names}
    columns = {only: columns[name] for only, name in _ONLY.items() if name in columns} | columns
    for name in ("bound", "bound_of"):
        columns[name] = pc.if_else(parts["bound_changed"], None, parts[name])
    found = pa.table({name: columns[name] for name in REPLAY_BY_ENTITY.names})
    return found.cast(to_arrow_schema(REPLAY_BY_ENTITY))


def entities_together(parts: list[pa.Table]) -> pa.Table:
    """Return `compact` rows of `REPLAY_BY_ENTITY`, one per entity; `parts` may have several. See `sums.together`."""
    parts.append(compact(to_arrow_schema(REPLAY_BY_ENTITY).empty_table()))
    table = together(parts)
    number = key_numbers(1 + codes_of(table[name]) for name in ENTITY_KEYS)
    if int(number.max(initial=-1)) + 1 == len(number):
        return table
    again = np.bincount(number)[number] > 1
    several = table.filter(pa.array(again))
    in_order = key_numbers(name_numbers(several[name]) for name in ENTITY_KEYS)
    places = pieces(in_order, np.zeros(len(several), np.int64))
    found = [compact(by_entity_table(decoded(several.take(some)))) for some in places]
    return together([table.filter(pa.array(~again)), *found])
