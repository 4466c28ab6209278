"""Sums by Arrow, without Spark: those of `replay.outcome`."""

import math
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.errors import check_sum
from tidegate.pipeline.replay.outcome import ENTITY_KEYS, ONLY, TOGETHER
from tidegate.pipeline.schemas import REPLAY_BY_ENTITY

__all__ = ["by_entity_table", "grouped"]


def grouped(table: pa.Table, keys: Sequence[str], wanted: Mapping[str, str]) -> pa.Table:
    """Return one row per `keys`: columns by name, each the sum, min or max of what has its name.

    NaN is the largest number there is, as for Spark.
    """
    for name, function in wanted.items():
        if function == "sum":
            check_sum(_float_sum(table[name]))
    doubles = [name for name, function in wanted.items() if function == "max" and _is_double(table, name)]
    for name in doubles:
        table = table.append_column(f"nan {name}", pc.is_nan(table[name]))
    asked = [*wanted.items(), *((f"nan {name}", "max") for name in doubles)]
    found = table.group_by(list(keys), use_threads=False).aggregate(asked)
    for name in doubles:
        place = found.column_names.index(f"{name}_max")
        values = pc.if_else(pc.fill_null(found[f"nan {name}_max"], False), math.nan, found[f"{name}_max"])
        found = found.set_column(place, f"{name}_max", values)
    names = [f"{name}_{function}" for name, function in wanted.items()]
    return found.select([*keys, *names]).rename_columns([*keys, *wanted])


def by_entity_table(by_client: pa.Table) -> pa.Table:
    """Do what `outcome.by_entity` does."""
    wanted = dict(TOGETHER)
    for only, name in ONLY.items():
        by_client = by_client.append_column(only, by_client[name]).append_column(
            f"last {name}", by_client[name]
        )
        wanted |= {only: "min", f"last {name}": "max"}
    texts = by_client["bound"].cast(pa.string()), by_client["bound_of"], " "
    limit = pc.binary_join_element_wise(*texts, null_handling="replace", null_replacement="none")
    by_client = by_client.append_column("limit", limit).append_column("last limit", limit)
    wanted |= {"bound": "max", "bound_of": "max", "bound_changed": "max", "limit": "min", "last limit": "max"}
    found = grouped(by_client, ENTITY_KEYS, wanted)
    changed = pc.or_(found["bound_changed"], pc.not_equal(found["limit"], found["last limit"]))
    found = found.set_column(found.column_names.index("bound_changed"), "bound_changed", changed)
    for name in ("bound", "bound_of"):
        found = found.set_column(found.column_names.index(name), name, pc.if_else(changed, None, found[name]))
    for only, name in ONLY.items():
        common = pc.if_else(pc.equal(found[only], found[f"last {name}"]), found[only], None)
        found = found.set_column(found.column_names.index(only), only, common)
    return found.select(REPLAY_BY_ENTITY.names).cast(to_arrow_schema(REPLAY_BY_ENTITY))


def _is_double(table: pa.Table, name: str) -> bool:
    is_double: bool = pa.types.is_float64(table[name].type)
    return is_double


def _float_sum(column: pa.ChunkedArray) -> float:
    absolute = pc.sum(pc.abs(column.cast(pa.float64(), safe=False))).as_py()
    return absolute or 0.0
