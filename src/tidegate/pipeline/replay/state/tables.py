"""Growing arrays that the kernel works on: the sensors of one family."""

import copy
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import (
    EXACT,
    LAST_MS,
    READY,
    REASON,
    SWEPT,
    USE_COLUMNS,
)
from tidegate.pipeline.replay.kernel.certainty import make_stated, make_unknown
from tidegate.quota.measure.rate_kernel import FLOAT_SLOTS

__all__ = ["FEW", "SensorTable", "copied", "with_room"]

FEW = 64
"""Rows that an array begins with."""
_PART_OF_LIKELY = 8

Doubles = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

_Table = TypeVar("_Table")


class SensorTable:
    """Sensors by key, as rows of arrays: `floats` and `ints` wide, as the engine's flat state asks."""

    def __init__(self, *, floats: int, ints: int) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._bounds = np.zeros(FEW)
        self.floats = np.zeros((FEW, floats))
        self.ints: Int64s = np.zeros((FEW, ints), np.int64)
        self.use: Int64s = np.zeros((FEW, USE_COLUMNS), np.int64)
        self._reason, self._since_ms = EXACT, 0
        self.likely = 0  # sensors that there will be if each client has one
        self.forget()

    def rows_for(self, keys: Iterable[Hashable], bounds: Doubles) -> Int64s:
        """Return the rows of sensors, made if they are not there, with these bounds from now on."""
        numbers = self._numbers
        rows = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
        self.make_room(len(numbers))
        self.use[rows[self._bounds[rows] != bounds], READY] = -1
        self._bounds[rows] = bounds
        return rows

    def make_room(self, sensors: int) -> None:
        """Make rows for so many sensors."""
        before = len(self.use)
        if sensors > before:
            self.floats, self.ints, self.use, self._bounds = (
                with_room(column, sensors, self.likely)
                for column in (self.floats, self.ints, self.use, self._bounds)
            )
            self._begin(self.use[before:])

    def __deepcopy__(self, memo: dict[int, Any]) -> "SensorTable":
        """Return a table of its own; keys never change."""
        return copied(self)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield every key with its row."""
        return iter(self._numbers.items())

    @property
    def reason(self) -> int:
        """Return why a sensor that is made here is not known; `EXACT`: it is."""
        return self._reason

    @property
    def since_ms(self) -> int:
        """Return up to when anything may have been recorded in it then."""
        return self._since_ms

    @property
    def samples(self) -> int:
        """Return how many samples a rate has room for."""
        return self.floats.shape[1] - FLOAT_SLOTS

    def find_row(self, key: Hashable) -> int | None:
        """Return the row of the sensor `key`; None: there is none."""
        return self._numbers.get(key)

    def restored(self, number: int, *, last_ms: int, sweep: int) -> tuple[Any, Int64s]:
        """Make a sensor a new one and return its rows, for its state; it is known from here on.

        last_ms: when it was last used. sweep: how many there have been before its state was so.
        """
        self.floats[number] = 0.0
        self.ints[number] = 0
        self.use[number] = 0
        self.use[number, READY], self.use[number, LAST_MS], self.use[number, SWEPT] = -1, last_ms, sweep
        return self.floats[number], self.ints[number]

    def forget(self) -> None:
        """Make every sensor a new one."""
        self.floats.fill(0.0)
        self.ints.fill(0)
        self._begin(self.use)

    def reset_to_new(self) -> None:
        """Make every sensor a new one, of which everything is known from here on."""
        self._reason = EXACT
        self.forget()

    def make_unknown(self, reason: int, since_ms: int) -> None:
        """Mark all sensors as not known, including sensors that are made later.

        Up to `since_ms` anything may have been recorded.
        """
        self._reason, self._since_ms = reason, since_ms
        make_unknown(self.use, reason, since_ms)

    def make_stated(self) -> None:
        """Mark as known the sensors that came while others were stated."""
        self._reason = EXACT
        make_stated(self.use)

    def resize(self, *, floats: int, ints: int) -> None:
        """Make every sensor a new one, of another width."""
        self.floats = np.zeros((len(self.use), floats))
        self.ints = np.zeros((len(self.use), ints), np.int64)
        self.forget()

    def _begin(self, use: Int64s) -> None:
        use[:, READY] = -1
        use[:, REASON] = EXACT
        if self._reason != EXACT:
            make_unknown(use, self._reason, self._since_ms)


def copied(table: _Table) -> _Table:
    """Return a copy that shares nothing that changes: faster than to look into each of many keys."""
    other = copy.copy(table)
    for name, value in vars(table).items():
        if isinstance(value, np.ndarray | dict | list):
            setattr(other, name, value.copy())
    return other


def with_room(column: npt.NDArray[Any], rows: int, likely: int = 0) -> npt.NDArray[Any]:
    """Return a column for at least so many rows, those that are new 0.

    likely: rows that there may be in the end. The column gets as many once an eighth of them is needed. To double it
    step by step would take longer, and leave up to half of it unused.
    """
    if rows <= len(column):
        return column
    more = likely if rows <= likely <= _PART_OF_LIKELY * rows else 2 * len(column)
    found = np.zeros((max(rows, more), *column.shape[1:]), column.dtype)
    found[: len(column)] = column
    return found
