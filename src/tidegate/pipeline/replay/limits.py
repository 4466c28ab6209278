"""The smallest limits that would have throttled nothing, or no more than is tolerated, by entity and quota type.

A limit changes a rate only when it throttles. So the largest rate that a sensor measures while no client is throttled
is the smallest limit that never throttles, and one pass finds it. Tolerable limits, and the limits of token buckets,
need a search: each pass replays a ladder of plans, in which every sensor has its own limits, the rungs. The next ladder
lies between the two rungs that enclose the answer. A byte quota also shortens a fetch that is larger than all windows
but one (B§3.7); a limit that does so counts as one that throttles.

The limits of each quota type are found as if there were no other type. Requests keep their recorded times (open loop).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.config.quotas_file import QuotasFile, load_quotas_file
from tidegate.config.windows import Windows
from tidegate.errors import ConfigError
from tidegate.pipeline.arguments import check_number, check_whole
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import FETCH, MUTATION, PRODUCE, REQUEST, Int64s
from tidegate.pipeline.replay.levels import ENTITIES_BY, smallest_limit
from tidegate.pipeline.replay.partition import Searched
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.entity import Tags

__all__ = [
    "ENTITIES_BY",
    "MAX_LADDERS",
    "Replays",
    "Sensor",
    "Sensors",
    "Tolerance",
    "TooManyEntitiesError",
    "all_at_once",
    "check_entities",
    "levels_of",
    "levels_of_file",
    "levels_of_quotas",
    "search_limits",
    "smallest_limit",
]

MAX_LADDERS = 200_000
"""Most sensors whose limits are searched at once: some KB each, on the driver.

A record may have more: `tidegate limits` searches one share of the clients after another."""

_FREE = 2.0**60  # a bound that never throttles, and differs from that of a client without a quota
_RUNGS = 10  # plans of a ladder: three passes distinguish a thousand steps
_MAX_PASSES = 6
_CLOSE_ENOUGH = 1.007  # ratio of the ends of a final range: three ladders from `_LOWEST_PERCENT` to 1
_LOWEST_PERCENT = 1 / 1024  # of the peak: below it, a request quota would delay far more than is tolerated
_LOWEST_PERMITS = 2.0**-20  # of the limit that admits all permits at once: enough for a record of 133 days
_INT64_END = 2.0**63

Sensor = tuple[int, Tags | str]
"""A quota type, by its place in `QUOTA_TYPES`, and the tags that usage is counted under."""
Sums = Mapping[str, Int64s]
"""Columns of `RUNGS` by plan and sensor."""
Flags = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]


class TooManyEntitiesError(UsageFilesError):
    """Raised if there are more entities than limits can be searched for at once."""


class Replays(Protocol):
    """Replays of the same files against plans of the same levels, here or on Spark."""

    @property
    def shares(self) -> int:
        """Return how many shares of the clients there are; all clients of an entity are in one of them."""

    def peaks(self, plan: Plan, share: int | None = None) -> pa.Table:
        """Return measured rates, columns `LIMITS_BY_NODE`, one row per entity and node. share: None: all clients."""

    def outcomes(self, plans: Sequence[Plan], share: int | None = None) -> pa.Table:
        """Return the outcomes of the plans, columns `REPLAY_BY_ENTITY`. share: None: all clients."""

    def searched(self, plan: Plan, numbers: Mapping[Sensor, int], share: int | None = None) -> Searched:
        """Return the argument of `rungs`: the numbers of the sensors of clients. plan: the plan without a rung."""

    def rungs(self, plans: Sequence[Plan], searched: Searched, share: int | None = None) -> pa.Table:
        """Return the outcomes of plans with a rung, columns `RUNGS`; a sensor has a row for each of its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Delay that a limit may cause: a share (0 to 1) of an entity's bytes, time or permits, and the longest, in ms."""

    share: float = 0.01
    longest_ms: int = 1000

    def __post_init__(self) -> None:
        """Check the numbers. Raises `ArgumentError`."""
        check_number(self.share, "share", 0, 1)
        check_whole(self.longest_ms, "longest_ms", 0)

    def allow(self, sums: Sums) -> Flags:
        """Return, for each sensor under each plan, whether no more was delayed, refused or shortened than allowed."""
        are_short: Flags = sums["longest_throttle_ms"] <= self.longest_ms
        return (
            are_short
            & _are_at_most(sums["delayed_amount"] + sums["rejected_mutations"], self.share, sums["amount"])
            & _are_at_most(sums["capped_fetches"], self.share, sums["requests"])
        )


_NOTHING = Tolerance(share=0.0, longest_ms=0)


def levels_of(by: str) -> Plan:
    """Return a plan that measures every entity of a level of `ENTITIES_BY`, in Kafka's windows."""
    records = [QuotaRecord(entity=ENTITIES_BY[by], key=kind.key, value=_FREE) for kind in QUOTA_TYPES]
    return Plan(name="levels", records=tuple(records), measures=True)


def levels_of_file(path: Path) -> Plan:
    """Return a plan that measures the quota entities of a file, in its windows. Raises `ConfigError`.

    A file with groups or smooth mode is refused, because the search for limits uses Kafka's own rules.
    """
    return levels_of_quotas(load_quotas_file(path), str(path))


def levels_of_quotas(file: QuotasFile, name: str) -> Plan:
    """Return the plan of `levels_of_file` for a loaded file. name: that of the file, for messages."""
    if (part := file.beyond_kafka()) is not None:
        raise ConfigError(
            f"{name} has {part}, but limits are found by Kafka's own rules",
            hint="give a file without them, or replay several plans with different limits",
        )
    records = [QuotaRecord(entity=record.entity, key=record.key, value=_FREE) for record in file.records()]
    return Plan(name="levels", records=tuple(records), windows=Windows.of(file.windows), measures=True)


def check_entities(count: int) -> None:
    """Raise `TooManyEntitiesError` where the limits of so many entities cannot be searched for at once."""
    if count > MAX_LADDERS:
        raise TooManyEntitiesError(
            f"more than {MAX_LADDERS} entities to find limits for", hint="give --by user, or fewer hours"
        )


class Sensors(NamedTuple):
    """Sensors of a search, without equals. quota_types: places in `QUOTA_TYPES`. limits: which throttle nothing."""

    quota_types: Int64s
    tags: Sequence[Tags]
    limits: Doubles


def search_limits(
    replays: Replays, levels: Plan, sensors: Sensors, tolerance: Tolerance | None, *, share: int | None
) -> tuple[Doubles, Doubles]:
    """Return the smallest limit of each sensor that never throttles, and its smallest tolerable limit.

    sensors: their limits are known never to throttle; for rates, they are the smallest such limits (decision 0061).
    tolerance: None: do not search for tolerable limits, which takes most of the time, and return 0 for them.
    """
    never = _Search(sensors, levels.windows, (MUTATION,), _NOTHING, low=tolerance or _NOTHING)
    # A request throttle takes fetched bytes back (B§6.3), so request and fetch limits are searched in separate plans.
    types = () if tolerance is None else ((PRODUCE, FETCH, MUTATION), (REQUEST,))
    tolerables = [
        _Search(sensors, levels.windows, of_types, tolerance or _NOTHING, low=tolerance or _NOTHING)
        for of_types in types
    ]
    _climb(replays, share, levels, sensors, [*tolerables, never])
    tolerable = np.zeros(len(sensors.limits))
    for search in tolerables:
        tolerable[search.are_of_types] = search.found()[search.are_of_types]
    return np.where(never.are_of_types, never.found(), sensors.limits), tolerable


class _Search:
    """The ranges in which a search for the limits of several sensors continues, under one tolerance.

    Quota types are independent. The tolerance allows the upper end of a range, but no limit below its lower end.
    """

    def __init__(
        self,
        sensors: Sensors,
        windows: Windows,
        types: Collection[int],
        allowed: Tolerance,
        *,
        low: Tolerance,
    ) -> None:
        self.are_of_types = np.isin(sensors.quota_types, list(types))
        self._high = sensors.limits.copy()
        parts = np.array([_lowest(index, windows, low) for index in range(len(QUOTA_TYPES))])
        self._lowest = self._low = self._high * parts[sensors.quota_types]
        self._is_bucket = sensors.quota_types == MUTATION
        self._types = {QUOTA_TYPES[index].key for index in types}
        self._tolerance = allowed

    @property
    def _is_open(self) -> Flags:
        is_open: Flags = self.are_of_types & (self._high > self._low * _CLOSE_ENOUGH)
        return is_open

    def found(self) -> Doubles:
        """Return the limits; 0 if a bucket of any rate is enough, because a refusal comes one request late (B§5.2)."""
        return np.where(self._is_bucket & (self._low == self._lowest), 0.0, self._high)

    def ladder(self, levels: Plan, name: str) -> list[Plan]:
        """Return a plan for each rung, the lowest first; none if all limits are found."""
        is_open = self._is_open
        if not is_open.any():
            return []
        records = tuple(record for record in levels.records or () if record.key in self._types)
        self._rungs = np.full((_RUNGS, len(is_open)), np.nan)
        self._rungs[:, is_open] = _between(self._low[is_open], self._high[is_open])
        return [
            Plan(name=f"{name} {place}", records=records, windows=levels.windows, rung=rung)
            for place, rung in enumerate(self._rungs, start=1)
        ]

    def narrow(self, sums: Sums) -> None:
        """Narrow the ranges to the rungs that enclose the limits, from the outcomes of the plans of the ladder."""
        # The highest refused rung counts: delays need not fall with each step, as throttled fetches are taken back
        # (decision 0061).
        steps = np.arange(1, _RUNGS + 1)[:, np.newaxis]
        refused = np.where(self._tolerance.allow(sums), 0, steps).max(axis=0)
        rungs, each, is_open = self._rungs, np.arange(len(refused)), self._is_open
        low = np.where(refused > 0, rungs[refused - 1, each], self._low)
        # If all are refused, look higher: a clock that went back can take tokens away.
        high = np.where(refused == _RUNGS, self._high * _RUNGS, rungs[np.minimum(refused, _RUNGS - 1), each])
        self._low, self._high = np.where(is_open, low, self._low), np.where(is_open, high, self._high)


def _climb(
    replays: Replays, share: int | None, levels: Plan, sensors: Sensors, searches: Sequence[_Search]
) -> None:
    """Replay ladders until all limits are found."""
    searched: Searched | None = None
    for _ in range(_MAX_PASSES):
        ladders = [search.ladder(levels, f"ladder {place}") for place, search in enumerate(searches)]
        plans = [plan for ladder in ladders for plan in ladder]
        if not plans:
            return
        if searched is None:
            keys = zip(sensors.quota_types.tolist(), sensors.tags, strict=True)
            numbers: dict[Sensor, int] = {sensor: number for number, sensor in enumerate(keys)}
            searched = replays.searched(levels, numbers, share)
        sums = _by_plan_and_sensor(replays.rungs(plans, searched, share), (len(plans), len(sensors.limits)))
        first = 0
        for search, ladder in zip(searches, ladders, strict=True):
            if ladder:
                here = slice(first, first + len(ladder))
                search.narrow({name: column[here] for name, column in sums.items()})
            first += len(ladder)


def _by_plan_and_sensor(found: pa.Table, shape: tuple[int, int]) -> Sums:
    """Return rows of `RUNGS` as columns of this shape, those of the same plan and sensor together."""
    place = found["plan"].to_numpy() * np.int64(shape[1]) + found["sensor"].to_numpy()
    sums = {}
    for name in found.column_names[2:]:
        column = np.zeros(shape[0] * shape[1], np.int64)
        add = np.maximum if name == "longest_throttle_ms" else np.add
        add.at(column, place, found[name].to_numpy())
        sums[name] = column.reshape(shape)
    return sums


def _between(low: Doubles, high: Doubles) -> Doubles:
    """Return the bounds of each rung from `low` (not included) to `high`, in geometric steps; the last is `high`."""
    ratios, place = np.unique(low / high, return_inverse=True)
    # Powers of Python: those of numpy depend on the processor.
    powers = [[ratio ** (1.0 - rung / _RUNGS) for ratio in ratios.tolist()] for rung in range(1, _RUNGS + 1)]
    bounds: Doubles = high * np.array(powers)[:, place.reshape(-1)]
    return bounds


def _are_at_most(amounts: Int64s, share: float, wholes: Int64s) -> Flags:
    """Return whether each amount is at most a share of its total, exact for 64-bit integers."""
    most = share * wholes.astype(np.float64)
    below_end = np.floor(np.minimum(most, np.nextafter(_INT64_END, 0.0)))
    found: Flags = (most >= _INT64_END) | (amounts <= below_end.astype(np.int64))
    return found


def all_at_once(permits: Int64s, windows: Windows) -> Doubles:
    """Return the limits whose buckets hold so many permits, those that were asked for on one node."""
    window = windows.mutation
    return permits / (window.samples * window.window_ms / 1000)


def _lowest(index: int, windows: Windows, tolerance: Tolerance) -> float:
    """Return the share of the upper end below which more is delayed than is tolerated."""
    if index == MUTATION:
        return _LOWEST_PERMITS
    window_ms = windows.rate.max_value(1000.0)  # a rate R over Q by W ms waits (R - Q) / Q * W (B§2.1)
    if index == REQUEST or window_ms <= 0:
        return _LOWEST_PERCENT
    return max(_LOWEST_PERCENT, window_ms / (window_ms + tolerance.longest_ms + 1))
