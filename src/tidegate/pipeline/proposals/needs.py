"""The needs of many entities as columns: of a million, a proposal and its notes look at a few thousand rows.

The results are those of the same functions over rows, which metrics are read as.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.config.quotas_file import QuotasFile
from tidegate.pipeline.proposals import limits_of_type
from tidegate.pipeline.proposals.evidence import Evidence, Name
from tidegate.pipeline.proposals.limits_of_type import ENTITY_COLUMNS, LEAST, NeedsOfType, name_of
from tidegate.pipeline.proposals.propose import MOST_GUESSES
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.replay.levels import ENTITIES_BY, QUOTA_TYPES
from tidegate.pipeline.report.rounding import chosen_up
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup.sums import decoded
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "TableNeeds",
    "are_enough",
    "requests_by_type",
    "rows_judged",
    "rows_of_others",
    "rows_throttled",
    "rows_touched",
    "uneven_shares",
]

_NAME = ("entity_user", "entity_client_id")

Flags = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]


class TableNeeds:
    """Needs out of tables with rows of `LIMITS_BY_ENTITY` and `LIMITS_BY_NODE`: `propose.Needs`.

    withheld: types of quota of which none is proposed.
    """

    def __init__(
        self, entities: TableRows, nodes: TableRows, wanted: Wanted, *, withheld: Collection[str] = ()
    ) -> None:
        self._entities, self._nodes, self._wanted = entities, nodes, wanted
        self._withheld = withheld

    def named(self, kind: str, name: str) -> set[Name]:
        """Return the entities with a name."""
        found = self._entities.only(_has_name(self._entities, kind, name)).table
        names = found.select(_NAME).group_by(_NAME, use_threads=False).aggregate([])
        return {name_of(row) for row in decoded(names).to_pylist()}

    def names(self, kind: str) -> list[str]:
        """Return names of entities in order, `MOST_GUESSES` at most."""
        found = pc.unique(self._entities.table[ENTITY_COLUMNS[kind]].cast(pa.string())).drop_null()
        names: list[str] = found.take(pc.sort_indices(found)[:MOST_GUESSES]).to_pylist()
        return names

    def of_type(self, quota_type: QuotaType, protected: Collection[Name]) -> NeedsOfType:
        """Return what the entities of a type of quota need."""
        none = NeedsOfType(rows=[], others=0, nodes=[], on_node={})
        if quota_type.value in self._withheld:
            return none
        rows = self._entities.where(quota_type=quota_type.value)
        if not len(rows):
            return none
        is_protected = rows.are_of(protected, _NAME) if protected else np.zeros(len(rows), bool)
        value = _chosen(quota_type.value, rows.table["never_throttled"].to_numpy() * self._wanted.headroom)
        others = np.flatnonzero(~is_protected)
        largest = others[np.argsort(-value[others], kind="stable")[: limits_of_type.MOST_OVERRIDES + 1]]
        is_shown = is_protected.copy()
        is_shown[largest] = True
        shown = list(rows.only(is_shown))
        nodes = self._nodes.where(quota_type=quota_type.value)
        counts = pc.value_counts(nodes.table["node_id"])
        return NeedsOfType(
            rows=shown,
            others=len(others),
            nodes=list(nodes.of_entities({name_of(row) for row in shown}, _NAME)),
            on_node={count["values"]: count["counts"] for count in counts.to_pylist()},
        )


def are_enough(quotas: QuotasFile, by: str, entities: TableRows) -> bool:
    """Return whether quotas surely throttle, refuse and cut nothing in the record that they are proposed from.

    This holds if each entity has at least its smallest limit, and none was throttled when recorded: without recorded
    throttles, requests come at their recorded times. entities: rows of `LIMITS_BY_ENTITY`, of all clients.
    """
    if len(rows_throttled(entities)):
        return False
    default = next((entry.values for entry in quotas.entries if entry.entity == ENTITIES_BY[by]), {})
    for quota_type in QUOTA_TYPES:
        key, rows = quota_type.key, entities.where(quota_type=quota_type.value)
        own = {
            tuple(dict(entry.entity).get(kind) for kind in ENTITY_COLUMNS): entry.values[key]
            for entry in quotas.entries
            if entry.entity != ENTITIES_BY[by] and key in entry.values
        }
        limit = np.full(len(rows), default.get(key, math.inf))
        has_own = rows.are_of(own, _NAME) if own else np.zeros(len(rows), bool)
        limit[has_own] = [own[name_of(row)] for row in rows.only(has_own)]
        if not (rows.table["never_throttled"].to_numpy() <= limit).all():
            return False
    return True


def rows_judged(rows: TableRows, left_out: Collection[Name], evidence: Evidence) -> TableRows:
    """Return the rows from which a limit can be found: those of brokers and of unmeasured time are left out."""
    rows = rows_of_others(rows, left_out)
    if not evidence.is_imported:
        return rows
    return rows.only(pc.not_equal(rows.table["quota_type"], QuotaType.REQUEST.value).to_numpy())


def rows_of_others(rows: TableRows, left_out: Collection[Name]) -> TableRows:
    """Return the rows of all entities that are not left out."""
    return rows.only(~rows.are_of(left_out, _NAME)) if left_out else rows


def rows_throttled(entities: TableRows) -> TableRows:
    """Return the rows of `LIMITS_BY_ENTITY` of entities that were throttled when recorded."""
    held_back = ("recorded_throttled_requests", "recorded_rejected_mutations")
    return entities.only(_any_is_set(entities, held_back))


def rows_touched(outcomes: TableRows, *, with_ranges: bool = False) -> TableRows:
    """Return the rows of `REPLAY_BY_ENTITY` with a throttled or cut request, or a refused mutation.

    with_ranges: also rows in which only the range of the forecast has throttled requests.
    """
    columns = ["throttled_requests", "rejected_mutations", "capped_fetches"]
    return outcomes.only(_any_is_set(outcomes, [*columns, *["throttled_requests_high"] * with_ranges]))


def requests_by_type(entities: TableRows) -> dict[str, int]:
    """Return how many requests were charged to each type of quota."""
    types = entities.distinct("quota_type")
    return {name: int(entities.where(quota_type=name).numbers("requests").sum()) for name in types}


def uneven_shares(
    nodes: TableRows, quota_type: QuotaType, *, brokers: int, least: float, most: int
) -> Mapping[Name | None, Mapping[int, int]]:
    """Return the usage on each node: of all clients (None), and of the `most` entities with the most on one node.

    nodes: rows of `LIMITS_BY_NODE`. brokers: their number. least: multiple of its fair share that the largest node has.
    """
    table = decoded(nodes.where(quota_type=quota_type.value).table.select(["node_id", "amount", *_NAME]))
    table = table.set_column(1, "amount", table["amount"].cast(pa.int64()))
    table = table.append_column("place", pa.array(np.arange(len(table))))
    shares: dict[Name | None, dict[int, int]] = {}
    for row in _by(table, ["node_id"]).to_pylist():
        shares.setdefault(None, {})[row["node_id"]] = row["amount_sum"]
    found = _by(table, _NAME)
    largest, total = (found[f"amount_{what}"].to_numpy().astype(float) for what in ("max", "sum"))
    is_uneven = (largest * brokers >= least * total) & (total > 0)
    shown = TableRows(found.filter(pa.array(is_uneven))).largest("amount_max", top=most)
    for row in TableRows(table).of_entities([name_of(row) for row in shown], _NAME):
        shares.setdefault(name_of(row), {})[row["node_id"]] = row["amount"]
    return shares


def _by(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the largest amount and the sum of amounts by `keys`, in order of the first row of each."""
    wanted = [("amount", "max"), ("amount", "sum"), ("place", "min")]
    return table.group_by(list(keys), use_threads=False).aggregate(wanted).sort_by("place_min")


def _has_name(rows: TableRows, kind: str, name: str) -> Flags:
    found: Flags = pc.fill_null(pc.equal(rows.table[ENTITY_COLUMNS[kind]], name), False).to_numpy()
    return found


def _any_is_set(rows: TableRows, columns: Collection[str]) -> Flags:
    found = np.zeros(len(rows), bool)
    for name in columns:
        found |= rows.numbers(name) != 0
    return found


def _chosen(quota_type: str, limits: Doubles) -> Doubles:
    """Return the result of `chosen_up` for each limit, at least the floor of the type."""
    least = LEAST[quota_type]
    finite = limits[np.isfinite(limits)]
    steps = np.array([*_steps(quota_type, least / 2, finite.max(initial=least))])
    places = np.searchsorted(steps, limits)
    chosen = np.where(places < len(steps), steps[np.minimum(places, len(steps) - 1)], limits)
    return np.maximum(chosen, least)


def _steps(quota_type: str, first: float, last: float) -> Iterator[float]:
    """Yield the results of `chosen_up` from `first` on, up to its result for `last`."""
    step = chosen_up(quota_type, first)
    while step < last:
        yield step
        step = chosen_up(quota_type, math.nextafter(step, math.inf))
    yield step
