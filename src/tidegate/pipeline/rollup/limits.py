"""Limits of many entities as columns: one share of the clients is searched after another (decision 0141)."""

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.replay.limits import Replays, Tolerance, find_limits
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.rollup.sums import compact, give_back, key_numbers, name_numbers, together
from tidegate.pipeline.schemas import LIMITS_BY_ENTITY, LIMITS_BY_NODE

__all__ = ["limits_of_shares"]

_TYPES = [quota_type.value for quota_type in QUOTA_TYPES]


def limits_of_shares(rows: Replays, levels: Plan, tolerance: Tolerance) -> tuple[pa.Table, pa.Table]:
    """Return what `find_limits` finds as `compact` tables, sorted by type of quota, entity and node.

    Raises `TooManyEntitiesError` where one share has too many.
    """
    entities, nodes = [], []
    for share in range(rows.shares):
        found, of_nodes = find_limits(rows, levels, tolerance, share=share)
        entities.append(compact(pa.Table.from_pylist(found, to_arrow_schema(LIMITS_BY_ENTITY))))
        nodes.append(compact(pa.Table.from_pylist(of_nodes, to_arrow_schema(LIMITS_BY_NODE))))
        del found, of_nodes
        give_back()
    return _in_order(entities), _in_order(nodes)


def _in_order(tables: list[pa.Table]) -> pa.Table:
    if len(tables) == 1:
        return tables[0]
    table = together(tables)
    types = table["quota_type"].combine_chunks()
    places = np.array([_TYPES.index(name) for name in types.dictionary.to_pylist()], np.int64)
    names = (name_numbers(table[name]) for name in ("entity_user", "entity_client_id"))
    keys = [places[types.indices.to_numpy()], *names]
    if "node_id" in table.column_names:
        keys.append(table["node_id"].to_numpy())
    return table.take(pa.array(np.argsort(key_numbers(keys), kind="stable")))
