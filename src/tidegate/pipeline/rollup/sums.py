"""Sums by Arrow, and tables of many rows in little memory."""

import ctypes
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.pipeline.errors import check_sum

__all__ = [
    "aggregated",
    "check_sums",
    "compact",
    "compact_column",
    "decoded",
    "grouped",
    "key_numbers",
    "name_numbers",
    "no_key_twice",
    "pieces",
    "plain",
    "release_free_memory",
    "table_of",
    "together",
    "with_places",
]

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_ROWS_TOGETHER = 1 << 17
_WEIGHT_OF_ROW = 4
_WEIGHT_TOGETHER = _WEIGHT_OF_ROW * _ROWS_TOGETHER
_ROOM = 1 << 62  # for any sum
_LARGEST_NUMBER = 1 << 31  # numbers of keys are replaced by their ranks before they become larger

Numbers = npt.NDArray[np.signedinteger[Any]]
Flags = npt.NDArray[np.bool_]


def grouped(table: pa.Table, keys: Sequence[str], wanted: Mapping[str, str]) -> pa.Table:
    """Return the result of `aggregated`, in less time if all keys differ. Accepts `compact` tables, too."""
    table = decoded(table)
    if no_key_twice(table, keys):
        check_sums(table, wanted)
        columns = {name: table[name] for name in (*keys, *wanted)}
        summed = (name for name, function in wanted.items() if function == "sum")
        return pa.table(columns | {name: _as_a_sum(table[name]) for name in summed})
    return aggregated(table, keys, wanted)


def aggregated(table: pa.Table, keys: Sequence[str], wanted: Mapping[str, str]) -> pa.Table:
    """Return one row per `keys`. wanted: for each other column, by name, `sum`, `min` or `max`.

    NaN is the largest number there is, as for Spark. Raises `UsageFilesError` where a sum has no room in 64 bits.
    """
    check_sums(table, wanted)
    doubles = [
        name
        for name, function in wanted.items()
        if function == "max" and pa.types.is_float64(table[name].type)
    ]
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


def check_sums(table: pa.Table, wanted: Mapping[str, str]) -> None:
    """Raise `UsageFilesError` where a column that is added up has no room in 64 bits. wanted: see `grouped`."""
    for name, function in wanted.items():
        if function == "sum":
            check_sum(_float_sum(table[name]))


def no_key_twice(table: pa.Table, keys: Sequence[str]) -> bool:
    """Return whether no two rows have the same keys, so that nothing is to be added up."""
    return len(table.group_by(list(keys), use_threads=False).aggregate([])) == len(table)


def release_free_memory() -> None:
    """Release the free memory that Arrow and the C library keep for later use; takes milliseconds.

    Objects of many sizes leave holes that later ones do not fit into: without this call, a replay of 1,000,000 clients
    has twice as much memory resident as it uses.
    """
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)


def compact(table: pa.Table) -> pa.Table:
    """Return a table whose integers have as few bytes as they need, and whose columns contain each name once."""
    return pa.table({name: compact_column(table[name]) for name in table.column_names})


def with_places(table: pa.Table) -> pa.Table:
    """Return a table with each name of a column once, as in a `compact` table, and its numbers as they are."""
    for place, name in enumerate(table.column_names):
        if pa.types.is_string(table[name].type):
            table = table.set_column(place, name, compact_column(table[name]))
    return table


def compact_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of a `compact` table."""
    if pa.types.is_integer(column.type):
        return column.cast(_narrowest(column))
    if pa.types.is_list(column.type):
        return column.cast(pa.list_(_narrowest(pc.list_flatten(column))))
    if not pa.types.is_string(column.type):
        return column
    # As one chunk: `unify_dictionaries` reads the whole dictionary for each chunk, although all have the same one.
    encoded = column.combine_chunks().dictionary_encode()
    return encoded if isinstance(encoded, pa.ChunkedArray) else pa.chunked_array([encoded])


def decoded(table: pa.Table) -> pa.Table:
    """Return a `compact` table with names as they are."""
    for place, name in enumerate(table.column_names):
        if pa.types.is_dictionary(table[name].type):
            table = table.set_column(place, name, table[name].cast(pa.string()))
    return table


def plain(table: pa.Table, columns: StructType) -> pa.Table:
    """Return a `compact` table with the columns and types of the written table, which take more memory."""
    schema = to_arrow_schema(columns)
    return decoded(table).select(schema.names).cast(schema)


def table_of(rows: Iterable[Mapping[str, Any]], columns: StructType) -> pa.Table:
    """Return rows as a table with these columns."""
    return pa.Table.from_pylist(list(rows), to_arrow_schema(columns))


def pieces(number: Numbers, weight: Numbers) -> Iterator[pa.Array]:
    """Yield the places of rows in order of their numbers, some at a time; those with equal numbers together.

    weight: the weight of each row's lists, in addition to the weight of the row.
    """
    order = np.argsort(number, kind="stable")
    in_order = number[order]
    weights = np.cumsum(weight[order] + _WEIGHT_OF_ROW, dtype=np.int64)
    first = 0
    while first < len(order):
        before = weights[first - 1] if first else 0
        last = max(int(np.searchsorted(weights, before + _WEIGHT_TOGETHER)) - 1, first)
        end = int(np.searchsorted(in_order, in_order[last], side="right"))
        yield pa.array(order[first:end])
        first = end


def key_numbers(columns: Iterable[Numbers]) -> Numbers:
    """Return a number for each row, from 0: equal if all columns are equal, and in the order of the columns.

    columns: at least one, without numbers below 0. Each column is freed before the next one is read.
    """
    several = iter(columns)
    number = next(several).astype(np.int64)
    for column in several:
        number *= int(column.max(initial=0)) + 1
        number += column
        del column
        if number.max(initial=0) >= _LARGEST_NUMBER:
            number = _ranks(number).astype(np.int64)
    return _ranks(number)


def _ranks(number: Numbers) -> Numbers:
    """Return the place of each number among those that occur; takes less memory than `np.unique`."""
    order = np.argsort(number)
    in_order = number[order]
    differs = np.zeros(len(number), bool)
    differs[1:] = in_order[1:] != in_order[:-1]
    del in_order
    rank = np.empty(len(number), np.int32)
    rank[order] = np.cumsum(differs, dtype=np.int32)
    return rank


def name_numbers(column: pa.ChunkedArray) -> Numbers:
    """Return a number for each name, equal for equal names and in their order; 0: null."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    place = np.zeros(1 + len(encoded.dictionary), np.int32)
    place[1 + pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(1, len(place))
    numbers: Numbers = place[1 + pc.fill_null(encoded.indices, -1).to_numpy()]
    return numbers


def together(tables: list[pa.Table]) -> pa.Table:
    """Return all rows of `compact` tables, at least one. The list is emptied, and one column at a time is copied."""
    names = tables[0].column_names
    columns = {name: [table.select([name]) for table in tables] for name in names}
    tables.clear()
    made = []
    for name in names:
        column = pa.concat_tables(columns.pop(name), promote_options="permissive").unify_dictionaries()
        made.append(column.combine_chunks()[name])
        rows = len(column)
        del column
        if rows > _ROWS_TOGETHER:
            release_free_memory()
    return pa.table(made, names=names)


def _narrowest(column: pa.ChunkedArray) -> pa.DataType:
    least, most = (scalar.as_py() or 0 for scalar in pc.min_max(column).values())
    bits = 1 + max((value if value >= 0 else -value - 1).bit_length() for value in (least, most))
    return next(each for each in _INTEGERS if bits <= each.bit_width)


def _as_a_sum(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of the type that its sums have."""
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) else column


def _float_sum(column: pa.ChunkedArray) -> float:
    """Return the sum of absolute values; 0 where integers are so small that it surely has room."""
    if pa.types.is_integer(column.type):
        least, most = (scalar.as_py() or 0 for scalar in pc.min_max(column).values())
        if max(-least, most) * len(column) < _ROOM:
            return 0.0
    absolute = pc.sum(pc.abs(column.cast(pa.float64(), safe=False))).as_py()
    return absolute or 0.0
