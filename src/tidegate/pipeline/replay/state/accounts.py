"""Accounts with their tallies and limits, as growing arrays."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import (
    ACCOUNT_COLUMNS,
    CAP_BYTES,
    CAP_MS,
    IS_CLUSTER_WIDE,
    PEAKS,
    SENSOR,
    TALLIES,
    Int64s,
)
from tidegate.pipeline.replay.resolved import NOT_BY_NAMES, ResolvedColumns
from tidegate.pipeline.replay.state.tables import FEW, copied, with_room
from tidegate.quota.admin.entity import QuotaEntity, Tags
from tidegate.quota.measure.throttle import UNLIMITED

__all__ = ["AccountTable", "Found", "Limit", "Limits", "Used"]

_QUOTA_TYPE, _CLIENT, _TAGS, _LIMIT, _LATEST = range(5)  # columns of what is known of each account
_MANY = 1 << 12  # limits that may be kept without being of an account

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]


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


class Limits(NamedTuple):
    """The limits of some accounts: the place in `limits` of each."""

    places: Int64s
    limits: Sequence[Limit]


class Used(NamedTuple):
    """Accounts that were used, in the order of their numbers, a row of `tallies` each.

    tags: which names of its client an account is counted by, see `ResolvedColumns`; from `NOT_BY_NAMES` on, places in
    `other_tags`.
    """

    quota_types: Int64s
    clients: Int64s
    tags: Int64s
    other_tags: Sequence[Tags | str]
    limits: Limits
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


class AccountTable:
    """Accounts, as rows of arrays: each is a client under one quota type and some tags."""

    def __init__(self) -> None:
        self._count = 0
        self._of: Int64s = np.zeros((FEW, _LATEST + 1), np.int64)
        # Rows of accounts whose client has had other tags since, by quota type, client and tags.
        self._left: dict[tuple[int, int, int], int] = {}
        self._other_tags: dict[Tags | str, int] = {}
        self._limits: list[Limit] = []
        self._limit_places: dict[tuple[Any, ...], int] = {}
        self.accounts: Int64s = np.zeros((FEW, ACCOUNT_COLUMNS), np.int64)
        self.bounds = np.zeros(FEW)
        self.tallies: Int64s = np.zeros((FEW, TALLIES), np.int64)
        self.peaks = np.zeros((FEW, PEAKS))
        self.likely = 0  # accounts that there will be if each client is charged as those seen so far

    def rows_for(
        self,
        index: int,
        clients: Ints,
        found: ResolvedColumns,
        *,
        before: Ints,
        are_known: Sequence[bool],
    ) -> Int64s:
        """Return the rows of clients' accounts, made if they are not there, with the limits found from now on.

        clients: none twice. before: the row of each so far; another's, or 0, if it has none. are_known: whether a limit
        is, by the rows of `found`.
        """
        self._drop_limits()
        tags = self._tags(found)[found.row]
        limits = [
            Limit(row.bound, row.entity, is_known)
            for row, is_known in zip(found.rows, are_known, strict=True)
        ]
        limit = np.array([self._place(each) for each in limits], np.int64)[found.row]
        of = self._of[before]
        has_one = (before < self._count) & (of[:, _QUOTA_TYPE] == index) & (of[:, _CLIENT] == clients)
        rows = np.where(has_one, before, np.int64(-1))
        for place in np.flatnonzero(has_one & (of[:, _TAGS] != tags)).tolist():
            rows[place] = self._moved(int(rows[place]), int(tags[place]))
        is_new = rows < 0
        again, many = rows[~is_new], int(np.count_nonzero(is_new))
        if len(again):
            self._of[again, _LIMIT] = self._together(
                Limit.followed_by, self._of[again, _LIMIT], limit[~is_new]
            )
            self._of[again, _LATEST] = self._together(
                Limit.replaced_by, self._of[again, _LATEST], limit[~is_new]
            )
        rows[is_new] = new = np.arange(self._count, self._count + many)
        self._count += many
        self._of = with_room(self._of, self._count, self.likely)
        self._of[new, _QUOTA_TYPE] = index
        self._of[new, _CLIENT], self._of[new, _TAGS] = clients[is_new], tags[is_new]
        self._of[new, _LIMIT] = self._of[new, _LATEST] = limit[is_new]
        self.make_room(self._count)
        return rows

    def make_room(self, accounts: int) -> None:
        """Make rows for so many accounts."""
        self.accounts, self.bounds, self.tallies, self.peaks = (
            with_room(column, accounts, self.likely)
            for column in (self.accounts, self.bounds, self.tallies, self.peaks)
        )

    def client(self, number: int) -> int:
        """Return the client of an account."""
        return int(self._of[number, _CLIENT])

    def latest_limits(self, numbers: Int64s) -> Limits:
        """Return the limit that each of some accounts had when it was last looked up."""
        return Limits(self._of[numbers, _LATEST], self._limits)

    def lead(self, rows: Int64s | slice, found: "Found", *, cap_ms: int) -> None:
        """Link accounts to their sensors from now on."""
        self.accounts[rows, SENSOR] = found.sensors
        self.accounts[rows, CAP_MS] = cap_ms
        self.accounts[rows, CAP_BYTES] = found.caps_bytes
        self.accounts[rows, IS_CLUSTER_WIDE] = found.are_cluster_wide
        self.bounds[rows] = found.bounds

    def used(self) -> Used:
        """Return the accounts that have tallies."""
        numbers = np.flatnonzero(self.tallies[: self._count].any(axis=1))
        quota_types, clients, tags, limits, _ = self._of[numbers].T
        others = list(self._other_tags)
        return Used(
            quota_types, clients, tags, others, Limits(limits, self._limits), numbers, self.tallies[numbers]
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "AccountTable":
        """Return a table of its own; limits never change."""
        return copied(self)

    def _tags(self, found: ResolvedColumns) -> Int64s:
        """Return the tags of the rows that were found, see `Used`."""
        tags, others = found.names.copy(), self._other_tags
        for place in np.flatnonzero(tags == NOT_BY_NAMES).tolist():
            tags[place] += others.setdefault(found.rows[place].tags, len(others))
        return tags

    def _moved(self, row: int, tags: int) -> int:
        """Return the row that a client had with other tags than those of `row`, its latest; -1 if none."""
        index, client, before = self._of[row, : _TAGS + 1].tolist()
        self._left[index, client, before] = row
        return self._left.get((index, client, tags), -1)

    def _together(self, together: Callable[[Limit, Limit], Limit], before: Int64s, after: Int64s) -> Int64s:
        """Return the places of the limits that two limits of each account make."""
        pairs, place = np.unique(before * len(self._limits) + after, return_inverse=True)
        of_pairs = [divmod(pair, len(self._limits)) for pair in pairs.tolist()]
        found = [self._place(together(self._limits[one], self._limits[other])) for one, other in of_pairs]
        places: Int64s = np.array(found, np.int64)[place.reshape(-1)]
        return places

    def _place(self, limit: Limit) -> int:
        """Return the place of a limit, which is added if it is not there."""
        place = self._limit_places.setdefault(_key(limit), len(self._limits))
        if place == len(self._limits):
            self._limits.append(limit)
        return place

    def _drop_limits(self) -> None:
        """Remove the limits that no account has, if they are many."""
        if len(self._limits) > _MANY + 2 * self._count:
            of = self._of[: self._count, _LIMIT:]
            used, places = np.unique(of, return_inverse=True)
            of[:] = places.reshape(of.shape)
            self._limits = [self._limits[place] for place in used.tolist()]
            self._limit_places = {_key(limit): place for place, limit in enumerate(self._limits)}


def _key(limit: Limit) -> tuple[Any, ...]:
    """Return what is equal for equal limits; NaN equals itself."""
    return repr(limit.bound), *limit[1:]
