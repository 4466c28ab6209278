"""Columns of the usage record as arrays of numbers, computed with whole columns: names as places, nulls as 0.

Rows of several processes that serve one broker are read as rows of this broker (`tidegate gateway --processes`). Each
process has its own record, under its own node id. Their rows become rows of one node, in order of time: `seq` is made
of the time, so holes in it mean nothing. Events that all processes record, such as starts and quotas, are read from the
first process only. Snapshots are left out, because each contains the part of one process. A row keeps its place among
the rows of its process in the same millisecond, of which there are at most 32,768.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.usage.process_nodes import process_of_node

__all__ = [
    "PROCESS_COLUMNS",
    "THROTTLES",
    "Numbers",
    "are_merged",
    "codes_of",
    "distinct",
    "first_seq_at",
    "is_there",
    "merged",
    "ms_of_seq",
    "name_places",
    "numbers_of",
    "numbers_of_names",
    "used_codes",
]

THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")
"""The throttle times of a row, by type of quota."""

_LARGEST_TABLE = 1 << 22  # codes that are looked up in an array
_ALL = slice(None)

Numbers = npt.NDArray[Any]
PROCESS_COLUMNS = ("kind", "node_id", "seq", "ts_ms")
"""Columns that `merged` needs."""

_COMMON = pa.array(["start", "quota", "callback", "expire", "snapshot"])
_OF_NONE = pa.array(["snapshot"])
_TIME_SHIFT = 21
_PLACES = (1 << 15) - 1
_PLACE_SHIFT = 6
_CONNECTION_SHIFT = 56


def numbers_of(table: pa.Table, column: str) -> Numbers:
    """Return a column of numbers or flags, 0 or False where it is null."""
    values: Numbers
    chunked = table[column]
    if pa.types.is_boolean(chunked.type):
        return _flags(chunked)
    if chunked.null_count == len(chunked):
        values = np.zeros(len(chunked), chunked.type.to_pandas_dtype())
        values.flags.writeable = False  # as in Arrow's arrays, for which kernels are compiled
        return values
    if chunked.null_count and pa.types.is_integer(chunked.type):
        values = _with_zeros(_one_array(chunked))
        values.flags.writeable = False
        return values
    if chunked.null_count:
        chunked = pc.fill_null(chunked, 0)
    values = chunked.to_numpy()
    return values


def _with_zeros(integers: pa.Array) -> Numbers:
    """Return integers, some of them null, with 0 for each null; takes a sixth of the time of `fill_null`."""
    validity, data = integers.buffers()
    values = np.frombuffer(data, integers.type.to_pandas_dtype(), integers.offset + len(integers))
    found: Numbers = values[integers.offset :] * _bits(validity, integers)
    return found


def _flags(chunked: pa.ChunkedArray) -> Numbers:
    """Return flags, False for null; takes a fifth of the time of `to_numpy`."""
    if chunked.null_count == len(chunked):
        return np.zeros(len(chunked), bool)
    flags = _one_array(chunked)
    validity, data = flags.buffers()
    found = _bits(data, flags)
    if flags.null_count:
        found &= _bits(validity, flags)
    return found.view(bool)


def _bits(buffer: pa.Buffer, of: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bit of each value of an array, 0 or 1. buffer: has the bits, also of values before the array."""
    first_byte, first_bit = divmod(of.offset, 8)
    packed = np.frombuffer(buffer, np.uint8)[first_byte:]
    return np.unpackbits(packed, count=first_bit + len(of), bitorder="little")[first_bit:]


def is_there(table: pa.Table, column: str) -> Numbers:
    """Return in which rows a column is not null."""
    values: Numbers = table[column].is_valid().to_numpy()
    return values


def name_places(table: pa.Table, column: str) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the place of each row's name, and the names; a missing name counts as "", which is at place 0."""
    if not len(table):
        return np.zeros(0, np.int64), pa.array([""])
    encoded = _encoded(table, column)
    names = encoded.dictionary.cast(pa.string())
    places = _indices(encoded).astype(np.int64)
    places += 1
    empty = pc.index(names, "").as_py()
    if empty >= 0:
        places[places == empty + 1] = 0
    return places, pa.concat_arrays([pa.array([""]), names])


def numbers_of_names(
    table: pa.Table, column: str, number_of: Callable[[str], int], dtype: npt.DTypeLike
) -> Numbers:
    """Return the number of each row's name; a missing name counts as ""."""
    if not len(table):
        return np.zeros(0, dtype)
    encoded = _encoded(table, column)
    names = encoded.dictionary.cast(pa.string()).to_pylist()
    numbers = np.array([number_of(name) for name in (*names, "")], dtype)  # the last is at place -1
    occur = numbers if encoded.null_count else numbers[:-1]
    if (occur == occur[0]).all():
        return np.full(len(table), occur[0])
    found: Numbers = numbers.take(_indices(encoded))
    return found


def used_codes(code: Numbers, codes: int, among: Numbers | slice = _ALL) -> tuple[Numbers, Numbers]:
    """Return which codes (from 0, less than `codes`) occur, rising, and each row's place among them.

    among: the rows that count; of others the place means nothing.
    """
    if codes > _LARGEST_TABLE:
        used, of_counted = np.unique(code[among], return_inverse=True)
        place = np.zeros(len(code), np.int64)
        place[among] = of_counted
        return used, place
    if not isinstance(among, slice) and among.all():
        among = _ALL  # needs no copy
    occurs = np.zeros(codes, bool)
    occurs[code[among]] = True
    used = np.flatnonzero(occurs)
    place_of = np.zeros(codes, np.int64)
    place_of[used] = np.arange(len(used))
    return used, place_of.take(code)


def distinct(numbers: Numbers) -> Numbers:
    """Return which numbers occur, rising. `np.unique` hashes them, which takes far longer where most differ."""
    in_order = np.sort(numbers)
    is_first = np.ones(len(in_order), bool)
    is_first[1:] = in_order[1:] != in_order[:-1]
    found: Numbers = in_order[is_first]
    return found


def codes_of(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return a number for each value, equal for equal values; -1 for null."""
    encoded = column.combine_chunks().dictionary_encode()
    codes: npt.NDArray[np.int64] = (
        pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return codes


def _encoded(table: pa.Table, column: str) -> pa.DictionaryArray:
    """Return a column of names, of one row at least, dictionary-encoded."""
    encoded = _one_array(table[column])
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    return encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _indices(encoded: pa.DictionaryArray) -> Numbers:
    """Return the place of each row's name in the dictionary, -1 where it is null."""
    indices = encoded.indices
    found: Numbers = (pc.fill_null(indices, -1) if indices.null_count else indices).to_numpy()
    return found


def merged(table: pa.Table) -> pa.Table:
    """Return rows of one process as rows of its broker. The table has `PROCESS_COLUMNS`; other columns stay."""
    if not len(table):
        return table
    found = process_of_node(table["node_id"][0].as_py())
    assert found is not None, "the file is that of a process"
    broker_id, process = found
    kinds = table["kind"].cast(pa.string())
    table = table.filter(pc.invert(pc.is_in(kinds, _OF_NONE if process == 1 else _COMMON)))
    seq, ts_ms = numbers_of(table, "seq"), numbers_of(table, "ts_ms")
    place = (seq & _PLACES) << _PLACE_SHIFT
    changed = {
        "node_id": np.full(len(table), broker_id),
        "seq": (ts_ms << _TIME_SHIFT) | place | process,
    }
    if "connection_id" in table.column_names:
        changed["connection_id"] = numbers_of(table, "connection_id") + (process << _CONNECTION_SHIFT)
    for name, numbers in changed.items():
        at = table.column_names.index(name)
        table = table.set_column(at, table.field(at), pa.array(numbers, table.field(at).type))
    return table


def first_seq_at(ts_ms: int) -> int:
    """Return the least `seq` that a row of `merged` can have at a time."""
    return ts_ms << _TIME_SHIFT


def ms_of_seq(seq: int) -> int:
    """Return the time of a row of `merged`.

    >>> ms_of_seq(first_seq_at(5)), ms_of_seq(first_seq_at(5) - 1)
    (5, 4)
    """
    return seq >> _TIME_SHIFT


def are_merged(seq: Numbers, ts_ms: Numbers) -> bool:
    """Return whether `merged` made the rows. A node that counts its rows has smaller numbers."""
    return bool((seq >> _TIME_SHIFT == ts_ms).all())
