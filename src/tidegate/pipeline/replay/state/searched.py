"""Accounts and sensors of a search for limits: all are made before the first row, by numbers in place of names.

The plans of a search differ in the bounds of its sensors alone. So where each client is counted is looked up once for
all of them, on the driver. A client whose sensor is not searched for is unlimited. It is counted in a sensor that it
shares with others of that kind, as what is charged there decides nothing.
"""

from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

from tidegate.pipeline.layout import FETCH, KIND_BITS, MUTATION, MUTATION_ROW, Int32s, Int64s, Rows
from tidegate.pipeline.replay.levels import FETCH_ANSWER_BYTES
from tidegate.pipeline.replay.names import ClientNames
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions, Plan
from tidegate.pipeline.replay.state.accounts import Found
from tidegate.pipeline.replay.state.lookup import Lookup
from tidegate.pipeline.replay.state.sensors import Sensors
from tidegate.quota.measure.throttle import MAX_INT32, MAX_INT64, UNLIMITED

__all__ = ["SearchLookup", "SearchedSensors"]

Doubles = npt.NDArray[np.float64]


class SearchedSensors:
    """The sensors of the clients of a partition. An account is a quota type and a client, in this order.

    numbers: of all that are searched for, by quota type and client; -1: unlimited. searched: those of the partition,
    rising. accounts: of each of them, those from its place in `first` on.
    """

    def __init__(self, numbers: Int32s) -> None:
        self.numbers: Int32s = numbers.reshape(-1)
        rates, rate = np.unique(numbers[:MUTATION], return_inverse=True)
        buckets, bucket = np.unique(numbers[MUTATION:], return_inverse=True)
        self.rates, self.buckets = len(rates), len(buckets)
        self.sensors: Int64s = np.concatenate([rate.reshape(-1), bucket.reshape(-1)])
        limited = np.flatnonzero(self.numbers >= 0)
        self.accounts: Int64s = limited[np.argsort(self.numbers[limited], kind="stable")]
        self.searched, self.first = np.unique(self.numbers[self.accounts], return_index=True)

    def bounds(self, rung: Doubles) -> Doubles:
        """Return the bound of each account under a plan with this rung."""
        found = np.append(rung, np.nan)[self.numbers]
        found[np.isnan(found)] = UNLIMITED
        return found


class SearchLookup(Lookup):
    """The accounts of all clients. None is ever looked up again, as no definition of the plan changes."""

    def __init__(
        self,
        plan: Plan,
        *,
        names: ClientNames,
        sensors: Sensors,
        definitions: Definitions | None,
        searched: SearchedSensors,
        reason: int,
    ) -> None:
        super().__init__(
            plan, names=names, sensors=sensors, definitions=definitions, wanted=None, reason=reason
        )
        assert plan.rung is not None, "only a search has such sensors"
        sensors.rates.make_room(searched.rates)
        sensors.buckets.make_room(searched.buckets)
        accounts, bounds = len(searched.sensors), searched.bounds(plan.rung)
        self.accounts.make_room(accounts)
        self.account_of = np.arange(accounts, dtype=np.int32).reshape(len(QUOTA_TYPES), len(names))
        for index in range(len(QUOTA_TYPES)):
            rows = slice(index * len(names), (index + 1) * len(names))
            caps_bytes = np.full(len(names), MAX_INT64)
            if index == FETCH:
                caps_bytes = _caps_bytes(bounds[rows], sensors)
            found = Found(searched.sensors[rows], bounds[rows], caps_bytes, np.zeros(len(names), bool))
            self.accounts.lead(rows, found, cap_ms=self.cap_ms(index))

    def open_accounts(self, rows: Rows, first: int, end: int) -> int:
        """Return how many rows ask for permits."""
        return int(np.count_nonzero((rows.flags[first:end] & KIND_BITS) == MUTATION_ROW))


def _caps_bytes(bounds: Doubles, sensors: Sensors) -> Int64s:
    """Return the largest fetch under each bound, none of which is NaN or below 0 (B§3.7)."""
    max_value = cast("Callable[[Doubles], Doubles]", sensors.windows.rate.max_value)  # it multiplies
    most = np.minimum(max_value(bounds), MAX_INT32).astype(np.int64)
    return np.where(bounds == UNLIMITED, MAX_INT64, most + FETCH_ANSWER_BYTES)
