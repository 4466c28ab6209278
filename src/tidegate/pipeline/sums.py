"""Sums by Arrow, without Spark: those of `replay.outcome`; and who used what in each second."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.errors import check_sum
from tidegate.pipeline.replay.outcome import ENTITY_KEYS, ONLY, TOGETHER
from tidegate.pipeline.schemas import CLIENT, REPLAY_BY_ENTITY, USAGE_SUMS

__all__ = ["by_entity_table", "grouped", "usage_by_second", "usage_columns"]

_MS_PER_SECOND = 1000
_COUNTED_KINDS = ("request", "network", "mutation")
_THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")
_OF_REQUESTS = ("request_bytes", "response_bytes", "produce_bytes", "handler_ns")
_TIMES = {"first_ts_ms": "min", "last_ts_ms": "max"}

_COLUMNS = (
    "kind", "ts_ms", "node_id", *_OF_REQUESTS, "fetch_bytes", "network_ns", "mutations", "rejected",
    "observed_only", *_THROTTLES,
)  # fmt: skip

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def usage_columns(by: Sequence[str] = CLIENT) -> list[str]:
    """Return the columns of the usage record that sums by the columns `by` are made of."""
    return [*_COLUMNS, *by]


def usage_by_second(tables: Iterable[pa.Table], by: Sequence[str] = CLIENT) -> pa.Table:
    """Return sums per second, node and `by` out of tables of `usage_columns`, of which one is held at a time.

    Raises `UsageFilesError` where a sum has no room in 64 bits.
    """
    wanted = {**dict.fromkeys(USAGE_SUMS, "sum"), **_TIMES}
    keys = ("second_ms", "node_id", *by)
    parts = [grouped(_amounts(table, by), keys, wanted) for table in tables]
    return grouped(pa.concat_tables(parts) if parts else _amounts(None, by), keys, wanted)


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


def _amounts(table: pa.Table | None, by: Sequence[str]) -> pa.Table:
    """Return what each row adds to every sum, rows that count only."""
    if table is None:
        columns = {**dict.fromkeys((*USAGE_SUMS, *_TIMES, "second_ms", "node_id"), pa.int64())}
        fields = [*columns.items(), *((name, pa.string()) for name in by)]
        return pa.schema(fields).empty_table()
    kind = table["kind"]
    table = table.filter(pc.is_in(kind, pa.array(_COUNTED_KINDS)))
    is_request, is_mutation = (_flags(pc.equal(table["kind"], name)) for name in ("request", "mutation"))
    is_observed, is_rejected = _flags(table["observed_only"]), _flags(table["rejected"])
    throttles = {name: _numbers(table, name) for name in _THROTTLES}
    is_done = is_request & ~is_observed
    taken_back = is_done & (np.maximum(throttles["fetch_throttle_ms"], throttles["request_throttle_ms"]) > 0)
    ts_ms, mutations = _numbers(table, "ts_ms"), _numbers(table, "mutations")
    columns = {
        "second_ms": ts_ms - ts_ms % _MS_PER_SECOND,
        "node_id": table["node_id"],
        **{name: pc.fill_null(_text(table, name), "") for name in by},
        "first_ts_ms": ts_ms,
        "last_ts_ms": ts_ms,
        "requests": is_request.astype(np.int64),
        "throttled_requests": (is_done & (np.maximum.reduce(list(throttles.values())) > 0)).astype(np.int64),
        **{name: _numbers(table, name) * is_request for name in _OF_REQUESTS},
        "fetch_bytes": _numbers(table, "fetch_bytes") * (is_request & ~taken_back),
        "network_ns": _numbers(table, "network_ns") * ~is_mutation,
        "mutations": mutations * (is_mutation & ~is_rejected),
        "rejected_mutations": mutations * (is_mutation & is_rejected),
        **{name: np.maximum(values, 0) * is_done for name, values in throttles.items()},
    }
    return pa.table(columns)


def _text(table: pa.Table, name: str) -> pa.ChunkedArray:
    return table[name].cast(pa.string())


def _flags(column: pa.ChunkedArray) -> Flags:
    values: Flags = pc.fill_null(column, False).to_numpy()
    return values


def _numbers(table: pa.Table, name: str) -> Numbers:
    values: Numbers = pc.fill_null(table[name], 0).to_numpy().astype(np.int64, copy=False)
    return values
