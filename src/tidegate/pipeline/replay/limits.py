"""The smallest limits that would have throttled nothing, or no more than is tolerated, by entity and type of quota.

A rate depends on its limit only where requests are throttled. So the largest rate that a sensor measures while no
client is throttled is the smallest limit that never throttles, and one pass finds it. Tolerable limits, and the limits
of token buckets, are searched for: each pass replays a ladder of plans, in which every sensor has its own rungs, and
the next ladder lies between the two rungs that enclose the answer. A byte quota also cuts a fetch that is larger than
all windows but one (B§3.7); a limit that does so counts as one that throttles.

Limits of each quota type are found as if there were no other type. Times stay as recorded (open loop).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tidegate.config.quotas_file import QuotasFile, load_quotas_file
from tidegate.config.windows import Windows
from tidegate.errors import ConfigError
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.layout import FETCH, MUTATION, PRODUCE, REQUEST
from tidegate.pipeline.replay.levels import ENTITIES_BY, smallest_limit
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan, Rung, between
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.entity import Tags
from tidegate.quota.admin.sanitizer import sanitize

__all__ = [
    "ENTITIES_BY",
    "MAX_LADDERS",
    "Replays",
    "Tolerance",
    "TooManyEntitiesError",
    "find_limits",
    "levels_of",
    "levels_of_file",
    "levels_of_quotas",
    "smallest_limit",
]

MAX_LADDERS = 200_000
"""Sensors whose limits are searched for at once: some 500 bytes each, on the driver and on executors.

`tidegate limits` searches one share of the clients after another, so that a record may have more."""

_ENTITY = ["quota_type", "entity_user", "entity_client_id"]
_DELAYS = ["delayed_amount", "longest_throttle_ms", "rejected_mutations", "capped_fetches"]
_OUTCOME = ["plan", "bound", *_ENTITY, "requests", "amount", *_DELAYS]  # what decides about a rung
_FREE = 2.0**60  # a bound that throttles no client, and is not the one of a client without a quota
_RUNGS = 10  # plans of a ladder: three passes are a thousand steps
_MAX_PASSES = 6
_CLOSE_ENOUGH = 1.007  # what three ladders of ten rungs make of `_LOWEST_PERCENT`
_LOWEST_PERCENT = 1 / 1024  # of the peak: below it, a request quota would delay far more than is tolerated
_LOWEST_PERMITS = 2.0**-20  # of what lets all permits pass at once: a record of 133 days
_TYPE_OF = {quota_type.value: index for index, quota_type in enumerate(QUOTA_TYPES)}

Sensor = tuple[int, Tags]
Row = dict[str, Any]


class TooManyEntitiesError(UsageFilesError):
    """Raise where there are more entities than limits can be searched for."""


class Replays(Protocol):
    """Replays of the same files against plans of the same levels, here or on Spark."""

    @property
    def shares(self) -> int:
        """Return how many shares of the clients there are; all clients of an entity are in one of them."""

    def peaks(self, plan: Plan, share: int | None = None) -> pa.Table:
        """Return what was measured, columns `LIMITS_BY_NODE`, one row per entity and node. share: None: all clients."""

    def outcomes(self, plans: Sequence[Plan], share: int | None = None) -> pa.Table:
        """Return what became of the plans, columns `REPLAY_BY_ENTITY`. share: None: all clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Delay that a limit may cause: a share (0 to 1) of an entity's bytes, time or permits, and the longest, in ms."""

    share: float = 0.01
    longest_ms: int = 1000

    def allows(self, row: Mapping[str, Any]) -> bool:
        """Return whether that is all that was delayed, refused or cut in a row of `REPLAY_BY_ENTITY`."""
        delayed: int = row["delayed_amount"] + row["rejected_mutations"]
        longest_ms: int = row["longest_throttle_ms"]
        capped: int = row["capped_fetches"]
        return (
            longest_ms <= self.longest_ms
            and delayed <= self.share * row["amount"]
            and capped <= self.share * row["requests"]
        )


_NOTHING = Tolerance(share=0.0, longest_ms=0)


class _Bracket(NamedTuple):
    """The range in which a limit is searched for: `high` is allowed, and nothing below `low` is."""

    low: float
    high: float

    @property
    def is_open(self) -> bool:
        return self.high > self.low * _CLOSE_ENOUGH


def levels_of(by: str) -> Plan:
    """Return a plan that measures every entity of a level of `ENTITIES_BY`, in Kafka's windows."""
    records = [QuotaRecord(entity=ENTITIES_BY[by], key=kind.key, value=_FREE) for kind in QUOTA_TYPES]
    return Plan(name="levels", records=tuple(records), measures=True)


def levels_of_file(path: Path) -> Plan:
    """Return a plan that measures the entities that the quotas of a file make, in its windows. Raises `ConfigError`.

    A file with groups or smooth mode is refused: limits are looked for by Kafka's own rules.
    """
    return levels_of_quotas(load_quotas_file(path), str(path))


def levels_of_quotas(file: QuotasFile, name: str) -> Plan:
    """Return what `levels_of_file` returns, of a file that was read; `name` stands for it in messages."""
    if (part := file.beyond_kafka()) is not None:
        raise ConfigError(
            f"{name} has {part}, and limits are looked for by Kafka's own rules",
            hint="give a file without them, or replay some plans with other limits beside one another",
        )
    records = [QuotaRecord(entity=record.entity, key=record.key, value=_FREE) for record in file.records()]
    return Plan(name="levels", records=tuple(records), windows=Windows.of(file.windows), measures=True)


def find_limits(
    replays: Replays, levels: Plan, tolerance: Tolerance | None, *, share: int | None = None
) -> tuple[list[Row], list[Row]]:
    """Return the limits, columns `LIMITS_BY_ENTITY`, and what they come from, `LIMITS_BY_NODE`, both sorted.

    tolerance: None leaves out the tolerable limits, which take most of the time. share: of the clients; None: all.
    Raises `TooManyEntitiesError`.
    """
    measured = replays.peaks(levels, share)
    if len(measured.group_by(_ENTITY).aggregate([])) > MAX_LADDERS:  # before they become objects
        raise TooManyEntitiesError(
            f"more than {MAX_LADDERS} entities to find limits for", hint="give --by user, or fewer hours"
        )
    nodes = sorted(measured.to_pylist(), key=_order)
    entities = _by_sensor(nodes)
    rates = {
        sensor: smallest_limit(rows, levels.windows)
        for sensor, rows in entities.items()
        if sensor[0] != MUTATION
    }
    permits = {
        sensor: _all_at_once(rows, levels.windows)
        for sensor, rows in entities.items()
        if sensor[0] == MUTATION
    }
    lowest = {
        sensor: _Bracket(high * _lowest(sensor[0], levels.windows, tolerance or _NOTHING), high)
        for sensor, high in (rates | permits).items()
        if high > 0
    }
    # Rates need no search: the largest measured rate is the smallest limit that never throttles (decision 0061).
    never = _Search(lowest, (MUTATION,), _NOTHING)
    # A request throttle takes fetched bytes back (B§6.3), so request and fetch limits are searched in separate plans.
    types = () if tolerance is None else ((PRODUCE, FETCH, MUTATION), (REQUEST,))
    tolerables = [_Search(lowest, of_types, tolerance or _NOTHING) for of_types in types]
    _climb(replays, share, levels, [*tolerables, never])
    rates |= never.found()
    tolerable = {sensor: limit for search in tolerables for sensor, limit in search.found().items()}
    found = [
        _summed(rows) | {"never_throttled": rates.get(sensor, 0.0), "tolerable": tolerable.get(sensor, 0.0)}
        for sensor, rows in entities.items()
    ]
    return found, nodes


class _Search:
    """Brackets that are searched together, for what a tolerance allows: types that do not change one another."""

    def __init__(
        self, brackets: Mapping[Sensor, _Bracket], types: Sequence[int], tolerance: Tolerance
    ) -> None:
        self.brackets = {sensor: bracket for sensor, bracket in brackets.items() if sensor[0] in types}
        self._lowest = dict(self.brackets)
        self._types = {QUOTA_TYPES[index].key for index in types}
        self._tolerance = tolerance

    def found(self) -> dict[Sensor, float]:
        """Return the limits; 0 where a bucket of any rate would do: a refusal comes one request late (B§5.2)."""
        return {
            sensor: 0.0 if sensor[0] == MUTATION and bracket.low == self._lowest[sensor].low else bracket.high
            for sensor, bracket in self.brackets.items()
        }

    def ladder(self, levels: Plan, name: str) -> list[Plan]:
        """Return a plan for each rung, the lowest first; none where all is found."""
        open_ones = {sensor: bracket for sensor, bracket in self.brackets.items() if bracket.is_open}
        records = tuple(record for record in levels.records or () if record.key in self._types)
        rungs = range(1, _RUNGS + 1) if open_ones else ()
        return [
            Plan(
                name=f"{name} {rung}",
                records=records,
                windows=levels.windows,
                rung=Rung(open_ones, rung / _RUNGS),
            )
            for rung in rungs
        ]

    def narrow(self, ladder: Sequence[Plan], rows: Iterable[Mapping[str, Any]]) -> None:
        """Set the brackets to the rungs that enclose the limit, by what became of the plans of `ladder`."""
        rung_of = {plan.name: rung for rung, plan in enumerate(ladder, start=1)}
        refused: dict[Sensor, int] = {}  # the highest rung that delays more than is tolerated
        seen: set[Sensor] = set()
        for row in rows:
            if row["plan"] in rung_of and row["bound"] is not None:
                sensor = _sensor(row)
                seen.add(sensor)
                # The highest refused rung counts: delays need not fall with each step, as throttled fetches are taken
                # back (decision 0061).
                if not self._tolerance.allows(row):
                    refused[sensor] = max(refused.get(sensor, 0), rung_of[row["plan"]])
        for sensor in seen:
            self.brackets[sensor] = _narrowed(self.brackets[sensor], refused.get(sensor, 0))


def _climb(replays: Replays, share: int | None, levels: Plan, searches: Sequence[_Search]) -> None:
    """Replay ladders until all is found."""
    for _ in range(_MAX_PASSES):
        ladders = [search.ladder(levels, f"ladder {place}") for place, search in enumerate(searches)]
        plans = [plan for ladder in ladders for plan in ladder]
        if not plans:
            return
        found = TableRows(replays.outcomes(plans, share).select(_OUTCOME))
        for search, ladder in zip(searches, ladders, strict=True):
            search.narrow(ladder, found)


def _narrowed(bracket: _Bracket, refused: int) -> _Bracket:
    if refused == _RUNGS:  # a clock that went back can take tokens away: look higher
        return _Bracket(bracket.high, bracket.high * _RUNGS)
    low = between(*bracket, refused / _RUNGS) if refused else bracket.low
    return _Bracket(low, between(*bracket, (refused + 1) / _RUNGS))


def _all_at_once(rows: Sequence[Row], windows: Windows) -> float:
    """Return the limit whose bucket holds all permits that were asked for on a node."""
    window = windows.mutation
    permits: int = max(row["amount"] for row in rows)
    return permits / (window.samples * window.window_ms / 1000)


def _lowest(index: int, windows: Windows, tolerance: Tolerance) -> float:
    """Return the share of the upper end below which more is delayed than is tolerated."""
    if index == MUTATION:
        return _LOWEST_PERMITS
    window_ms = windows.rate.max_value(1000.0)  # a rate R over Q by W ms waits (R - Q) / Q * W (B§2.1)
    if index == REQUEST or window_ms <= 0:
        return _LOWEST_PERCENT
    return max(_LOWEST_PERCENT, window_ms / (window_ms + tolerance.longest_ms + 1))


def _by_sensor(nodes: Iterable[Row]) -> dict[Sensor, list[Row]]:
    entities: dict[Sensor, list[Row]] = {}
    for row in nodes:
        entities.setdefault(_sensor(row), []).append(row)
    return entities


def _sensor(row: Mapping[str, Any]) -> Sensor:
    tags = sanitize(row["entity_user"] or ""), row["entity_client_id"] or ""
    return _TYPE_OF[row["quota_type"]], tags


def _order(row: Row) -> tuple[Any, ...]:
    return *_sensor(row), row["node_id"]


def _summed(rows: Sequence[Row]) -> Row:
    """Return the sums over nodes."""
    sums = (
        "requests",
        "amount",
        "recorded_throttled_requests",
        "recorded_throttle_ms",
        "recorded_rejected_mutations",
    )
    names = {name: rows[0][name] for name in ("quota_type", "entity_user", "entity_client_id")}
    return names | {name: sum(row[name] for row in rows) for name in sums}
