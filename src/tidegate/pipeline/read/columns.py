"""Columns of the usage record as arrays of numbers, computed with whole columns: names as places, nulls as 0."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Numbers", "is_there", "name_places", "numbers_of", "used_codes"]

_LARGEST_TABLE = 1 << 22  # codes that are looked up in an array

Numbers = npt.NDArray[Any]


def name_places(table: pa.Table, column: str) -> tuple[Numbers, pa.Array]:
    """Return each row's place in the names, and the names; place 0 is for a missing one."""
    chunked = table[column]
    if chunked.num_chunks == 0:
        return np.zeros(0, np.int64), pa.array([""])
    encoded = chunked.chunk(0)
    places = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    return places, pa.concat_arrays([pa.array([""]), encoded.dictionary.cast(pa.string())])


def used_codes(code: Numbers, codes: int) -> tuple[Numbers, Numbers]:
    """Return which codes occur, rising, and each row's place among them."""
    if codes > _LARGEST_TABLE:
        used, place = np.unique(code, return_inverse=True)
        return used, place
    occurs = np.zeros(codes, bool)
    occurs[code] = True
    used = np.flatnonzero(occurs)
    place_of = np.zeros(codes, np.int64)
    place_of[used] = np.arange(len(used))
    return used, place_of[code]


def numbers_of(table: pa.Table, column: str) -> Numbers:
    """Return a column of numbers, 0 where it is null."""
    chunked = table[column]
    if chunked.null_count:
        chunked = pc.fill_null(chunked, False if chunked.type == pa.bool_() else 0)
    values: Numbers = chunked.to_numpy()
    return values


def is_there(table: pa.Table, column: str) -> Numbers:
    """Return in which rows a column is not null."""
    values: Numbers = table[column].is_valid().to_numpy()
    return values
