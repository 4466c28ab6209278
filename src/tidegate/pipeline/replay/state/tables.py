"""Growing arrays that the kernel works on: the sensors of one family, and the accounts with their tallies."""

import copy
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import (
    ACCOUNT_COLUMNS,
    CAP_BYTES,
    CAP_MS,
    EXACT,
    IS_CLUSTER_WIDE,
    LAST_MS,
    PEAKS,
    READY,
    REASON,
    SENSOR,
    SWEPT,
    TALLIES,
    USE_COLUMNS,
)
from tidegate.pipeline.replay.kernel.certainty import make_stated, make_unknown
from tidegate.quota.admin.entity import QuotaEntity, Tags
from tidegate.quota.measure.rate_kernel import FLOAT_SLOTS
from tidegate.quota.measure.throttle import UNLIMITED

__all__ = ["Account", "AccountTable", "Found", "Limit", "SensorTable", "Used", "with_room"]

_FEW = 64  # rows that an array begins with

Doubles = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

_Table = TypeVar("_Table", "SensorTable", "AccountTable")


class Account(NamedTuple):
    """A client under one quota type (an index of `QUOTA_TYPES`) and some tags, those of a quota callback as JSON."""

    quota_type: int
    client: int
    tags: Tags | str


class Limit(NamedTuple):
    """The limit of an account over the time of its use: a bound, and the entity whose quota that is.

    is_known: the quotas in force were known then; else it is a guess. has_changed: there were several limits, and this
    is the last one.
    """

    bound: float
    entity: QuotaEntity | None
    is_known: bool
    has_changed: bool = False

    def followed_by(self, limit: "Limit") -> "Limit":
        """Return the limit over both times: of this one, and of the one after it.

        A known limit replaces a guess: while a snapshot is read, only a part of the quotas is known. Of two guesses,
        as in an imported record, the later one is better, and another than the first is a change. Before the first
        statement of a quota a guess says nothing.
        """
        if self.is_known is not limit.is_known:
            return self if self.is_known else limit
        if not self.is_known and self.is_unlimited:
            return limit
        is_same = self.entity == limit.entity and repr(self.bound) == repr(limit.bound)  # NaN equals itself
        return self if is_same else limit._replace(has_changed=True)

    def replaced_by(self, limit: "Limit") -> "Limit":
        """Return the limit that counts from the later time on; a guess does not replace a known one."""
        return self if self.is_known and not limit.is_known else limit

    @property
    def is_unlimited(self) -> bool:
        """Return whether the limit is `UNLIMITED` and has not changed."""
        return self.bound == UNLIMITED and not self.has_changed


class Used(NamedTuple):
    """Accounts that were used, in the order of their numbers, a row of `tallies` each."""

    accounts: list[Account]
    limits: list[Limit]
    numbers: Int64s
    tallies: Int64s


class Found(NamedTuple):
    """Sensors, bounds and largest fetches of accounts that were looked up.

    are_cluster_wide: whether the bound was one over all brokers when the rows were recorded.
    """

    sensors: Int64s
    bounds: Doubles
    caps_bytes: Int64s
    are_cluster_wide: npt.NDArray[np.bool_]


class SensorTable:
    """Sensors by key, as rows of arrays: `floats` and `ints` wide, as the engine's flat state asks."""

    def __init__(self, *, floats: int, ints: int) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._bounds = np.zeros(_FEW)
        self.floats = np.zeros((_FEW, floats))
        self.ints: Int64s = np.zeros((_FEW, ints), np.int64)
        self.use: Int64s = np.zeros((_FEW, USE_COLUMNS), np.int64)
        self._reason, self._since_ms = EXACT, 0
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
                with_room(column, sensors) for column in (self.floats, self.ints, self.use, self._bounds)
            )
            self._begin(self.use[before:])

    def __deepcopy__(self, memo: dict[int, Any]) -> "SensorTable":
        """Return a table of its own; keys never change."""
        return _copied(self)

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

    def make_known(self) -> None:
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


class AccountTable:
    """Accounts by (quota type, client, tags), as rows of arrays."""

    def __init__(self) -> None:
        self._numbers: dict[Account, int] = {}
        self._limits: list[Limit] = []
        self._latest: list[Limit] = []
        self.accounts: Int64s = np.zeros((_FEW, ACCOUNT_COLUMNS), np.int64)
        self.bounds = np.zeros(_FEW)
        self.tallies: Int64s = np.zeros((_FEW, TALLIES), np.int64)
        self.peaks = np.zeros((_FEW, PEAKS))

    def rows_for(self, accounts: Sequence[Account], limits: Sequence[Limit]) -> Int64s:
        """Return the rows of accounts, none given twice, made if they are not there, with these limits from now on."""
        numbers = self._numbers
        before = len(numbers)
        rows = [numbers.setdefault(account, len(numbers)) for account in accounts]
        if len(numbers) == before + len(rows):
            self._limits += limits
            self._latest += limits
        else:
            for row, limit in zip(rows, limits, strict=True):
                if row == len(self._limits):
                    self._limits.append(limit)
                    self._latest.append(limit)
                else:
                    self._limits[row] = self._limits[row].followed_by(limit)
                    self._latest[row] = self._latest[row].replaced_by(limit)
        self.make_room(len(numbers))
        return np.array(rows, np.int64)

    def make_room(self, accounts: int) -> None:
        """Make rows for so many accounts."""
        self.accounts, self.bounds, self.tallies, self.peaks = (
            with_room(column, accounts) for column in (self.accounts, self.bounds, self.tallies, self.peaks)
        )

    def latest_limits(self, numbers: Int64s) -> list[Limit]:
        """Return the limit that each of some accounts had when it was last looked up."""
        return [self._latest[number] for number in numbers.tolist()]

    def lead(self, rows: Int64s | slice, found: "Found", *, cap_ms: int) -> None:
        """Link accounts to their sensors from now on."""
        self.accounts[rows, SENSOR] = found.sensors
        self.accounts[rows, CAP_MS] = cap_ms
        self.accounts[rows, CAP_BYTES] = found.caps_bytes
        self.accounts[rows, IS_CLUSTER_WIDE] = found.are_cluster_wide
        self.bounds[rows] = found.bounds

    def used(self) -> Used:
        """Return the accounts that have tallies."""
        accounts = list(self._numbers)
        numbers = np.flatnonzero(self.tallies[: len(accounts)].any(axis=1))
        places = numbers.tolist()
        found = [accounts[number] for number in places], [self._limits[number] for number in places]
        return Used(*found, numbers, self.tallies[numbers])

    def __deepcopy__(self, memo: dict[int, Any]) -> "AccountTable":
        """Return a table of its own; accounts and limits never change."""
        return _copied(self)

    def __iter__(self) -> Iterator[tuple[Account, Limit, Int64s]]:
        """Yield every account with what limited it and its tallies."""
        for account, number in self._numbers.items():
            yield account, self._limits[number], self.tallies[number]


def _copied(table: _Table) -> _Table:
    """Return a copy that shares nothing that changes: faster than to look into each of many keys."""
    other = copy.copy(table)
    for name, value in vars(table).items():
        if isinstance(value, np.ndarray | dict | list):
            setattr(other, name, value.copy())
    return other


def with_room(column: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """Return a column for at least so many rows, those that are new 0."""
    if rows <= len(column):
        return column
    found = np.zeros((max(rows, 2 * len(column)), *column.shape[1:]), column.dtype)
    found[: len(column)] = column
    return found
