"""Rows of an Arrow table that become Python objects only when they are read: a million dicts take gigabytes."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TableRows"]

_ROWS_AT_ONCE = 1 << 12
_LOW_BITS = 32

Row = dict[str, Any]
Int64s = npt.NDArray[np.int64]


class TableRows(Sequence[Row]):
    """The rows of a table as dicts by column, some at a time."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.table)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...

    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        """Return a row, or some."""
        places = range(len(self))[place]
        if isinstance(places, range):
            found: list[Row] = self.table.take(pa.array(places, pa.int64())).to_pylist()
            return found
        row: Row = self.table.slice(places, 1).to_pylist()[0]
        return row

    def __eq__(self, other: object) -> bool:
        """Return whether `other` has the same rows, in the same order."""
        return isinstance(other, TableRows) and bool(self.table.equals(other.table))

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Row]:
        """Yield every row."""
        for batch in self.table.to_batches(max_chunksize=_ROWS_AT_ONCE):
            yield from batch.to_pylist()

    def where(self, **values: str) -> "TableRows":
        """Return the rows with these values in these columns."""
        table = self.table
        for name, value in values.items():
            is_here = pc.equal(table[name], value)
            table = table if pc.all(is_here, skip_nulls=False).as_py() else table.filter(is_here)
        return TableRows(table)

    def distinct(self, name: str) -> list[Any]:
        """Return the values of a column, each once."""
        found: list[Any] = pc.unique(self.table[name]).to_pylist()
        return found

    def sums(self) -> dict[str, int]:
        """Return the sum of each column of integers, however large; nulls are 0."""
        table = self.table
        return {
            name: _sum(self.numbers(name))
            for name in table.column_names
            if pa.types.is_integer(table[name].type)
        }

    def numbers(self, name: str) -> Int64s:
        """Return a column of integers; nulls are 0."""
        found: Int64s = pc.fill_null(self.table[name], 0).to_numpy().astype(np.int64)
        return found

    def only(self, wanted: npt.NDArray[np.bool_]) -> "TableRows":
        """Return the rows at the places where `wanted` is true."""
        if wanted.all():
            return self
        return TableRows(self.table.filter(pa.array(wanted)))

    def first(self, keys: Sequence[npt.ArrayLike | pa.ChunkedArray], *, top: int) -> list[Row]:
        """Return the `top` rows with the smallest keys, in their order; rows with equal keys stay in theirs.

        keys: columns of numbers or names without nulls, the most important first.
        """
        if not len(self):
            return []
        columns = [*keys, np.arange(len(self))]
        table = pa.table({str(place): column for place, column in enumerate(columns)})
        order = [(name, "ascending") for name in table.column_names]
        places = pc.select_k_unstable(table, min(top, len(self)), sort_keys=order)
        found: list[Row] = self.table.take(places).to_pylist()
        return found

    def that_may_be_first(self, keys: Sequence[npt.NDArray[Any]], *, top: int) -> "TableRows":
        """Return the rows that may be among the `top` rows with the smallest keys, whatever keys follow.

        keys: columns of numbers, the most important first.
        """
        places, surely = np.arange(len(self)), [np.zeros(0, np.int64)]
        for key in keys:
            if len(places) <= top:
                break
            values = key[places]
            last = np.partition(values, top - 1)[top - 1]
            surely.append(places[values < last])
            top -= len(surely[-1])
            places = places[values == last]
        found = np.sort(np.concatenate([*surely, places]))
        return TableRows(self.table.take(pa.array(found)))

    def largest(self, name: str, *, top: int) -> list[Row]:
        """Return the `top` rows with the largest positive values of a column, largest first."""
        rows = TableRows(self.table.filter(pc.field(name) > 0))
        return rows.first([-rows.numbers(name)], top=top)

    def of_entities(self, entities: Collection[Sequence[str | None]], columns: Sequence[str]) -> "TableRows":
        """Return the rows whose values of `columns`, names or null, are among `entities`."""
        return self.only(self.are_of(entities, columns))

    def are_of(
        self, entities: Collection[Sequence[str | None]], columns: Sequence[str]
    ) -> npt.NDArray[np.bool_]:
        """Return for each row whether its values of `columns`, names or null, are among `entities`."""
        found = np.ones(len(self), bool)
        for place, column in enumerate(columns):  # first those that have each name, then those that have all
            names = pa.array({entity[place] for entity in entities}, pa.string())
            found &= pc.is_in(self.table[column].cast(pa.string()), value_set=names).to_numpy()
        wanted = {tuple(entity) for entity in entities}
        places = np.flatnonzero(found)
        table = self.table.select(list(columns)).take(pa.array(places))
        pairs = zip(*(table[column].to_pylist() for column in columns), strict=True)
        found[places] = [entity in wanted for entity in pairs]
        return found


def _sum(values: Int64s) -> int:
    return (int((values >> _LOW_BITS).sum()) << _LOW_BITS) + int((values & ((1 << _LOW_BITS) - 1)).sum())
