"""The limits of one type of quota: a default for all entities, and overrides for the few that need more.

An entity needs the smallest limit that would never have throttled it, times a headroom. The few entities that need at
least twice as much as the next get quotas of their own, and so do protected entities. The default is what the other
entities need. If all limits together exceed the budget of a broker, the largest are cut to one height; those of
protected entities are not cut.

Follows: the advice of KIP-13 (a default, and overrides) and of KIP-599 (all mutation quotas together within what the
controller bears).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.config.values import checked_entity
from tidegate.config.windows import Windows
from tidegate.errors import ConfigError
from tidegate.pipeline.proposals.evidence import Name, was_throttled
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.replay.levels import smallest_limit
from tidegate.pipeline.report.names import BYTE_QUOTAS, QUOTA_NAMES, entity_text
from tidegate.pipeline.report.rounding import chosen_up, given_text, needed_text, rounded_down
from tidegate.pipeline.report.text import count_text, things_text
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "ENTITY_COLUMNS",
    "LEAST",
    "MOST_OVERRIDES",
    "BudgetError",
    "NeedsOfType",
    "Row",
    "entity_of",
    "limits_of_type",
    "name_of",
]

LEAST: Mapping[str, float] = {
    QuotaType.PRODUCE.value: 65536.0,
    QuotaType.FETCH.value: 65536.0,
    QuotaType.REQUEST.value: 1.0,
    QuotaType.CONTROLLER_MUTATION.value: 1.0,
}
"""The floor of each type: the least that is proposed, where next to nothing was used."""

ENTITY_COLUMNS: Mapping[str, str] = {"user": "entity_user", "client-id": "entity_client_id"}
"""Columns of an entity's names by their kind."""

_FEW = 3  # overrides that a small cluster may have at least
_FEW_OF = 10  # one in so many entities may have one
MOST_OVERRIDES = 1000
"""Overrides of each type that a proposal may have beside those of protected entities."""


_TWICE = 2.0  # how much more than the next an entity needs to be one of the few

Row = Mapping[str, Any]


class BudgetError(ConfigError):
    """Raise when the protected entities alone need more than the budget of a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsOfType:
    """The needs of the entities of one type of quota, as far as they decide about the limits to set.

    rows: of `LIMITS_BY_ENTITY`, in the order of the record: all protected entities, and of the others the
    `MOST_OVERRIDES` + 1 with the largest needs. others: number of entities that are not protected. nodes: rows of
    `LIMITS_BY_NODE` of these entities. on_node: number of entities on each node.
    """

    rows: Sequence[Row]
    others: int
    nodes: Sequence[Row]
    on_node: Mapping[Any, int]


@dataclass(slots=True)
class _Limit:
    """The limit to set for one entity, and the reason."""

    row: Row
    value: float
    is_protected: bool
    reason: str


def limits_of_type(
    default: EntityParts,
    needs: NeedsOfType,
    protected: frozenset[Name],
    wanted: Wanted,
    quota_type: QuotaType,
) -> dict[EntityParts, _Limit]:
    """Return the limits of one type by entity, the default first."""
    where = _where_needed(needs.nodes, quota_type)
    limits = [
        _needed(row, where[name_of(row)], name_of(row) in protected, wanted.headroom) for row in needs.rows
    ]
    own, others = _the_few(default, limits, needs.others)
    largest = (
        max(others, key=lambda limit: limit.value) if others else min(own, key=lambda limit: limit.value)
    )
    place = "the largest" if others else "the smallest protected"
    entities = needs.others + sum(limit.is_protected for limit in limits)
    among = entities - len(own) if others else len(own)
    place = f"{place} of {count_text(among)}" if among > 1 else "the only one"
    reason = f"{place} is {entity_text(largest.row)}: {largest.reason}"
    everybody = _Limit(largest.row, largest.value, False, reason)
    budget = wanted.budgets.get(quota_type.key)
    if budget is not None:
        _cut_to_budget(own, everybody, needs, budget, entities)
    found = {default: everybody}
    for limit in own:
        # After a cut to the budget, an override can be as low as the default. It would then change nothing.
        if limit.is_protected or limit.value > everybody.value:
            found[entity_of(default, limit.row)] = limit
    return found


def _where_needed(nodes: Sequence[Row], quota_type: QuotaType) -> dict[Name, str]:
    """Return by entity a text that names the node its limit is for; empty for token buckets on several nodes."""
    of_entity: dict[Name, list[Row]] = {}
    for node in nodes:
        of_entity.setdefault(name_of(node), []).append(node)
    found = {}
    for name, rows in of_entity.items():
        is_known = len(rows) == 1 or quota_type is not QuotaType.CONTROLLER_MUTATION
        node = max(rows, key=lambda node: (smallest_limit([node], Windows()), node["amount"]))
        found[name] = f" (node {node['node_id']})" if is_known else ""
    return found


def _needed(row: Row, where: str, is_protected: bool, headroom: float) -> _Limit:
    quota_type, never = row["quota_type"], row["never_throttled"]
    value = chosen_up(quota_type, never * headroom)
    reason = f"needs {needed_text(quota_type, never)}{where}, times {headroom:g}"
    if value < LEAST[quota_type]:
        value = LEAST[quota_type]
        needs = f"{needed_text(quota_type, never)}{where}"
        reason = f"the floor of {given_text(quota_type, value)}, because it needs only {needs}"
    if was_throttled(row):
        reason += ", was throttled when recorded and may need more"
    return _Limit(row, value, is_protected, f"protected, {reason}" if is_protected else reason)


def _the_few(default: EntityParts, limits: Sequence[_Limit], count: int) -> tuple[list[_Limit], list[_Limit]]:
    """Return the limits of entities with an override, and those of the others. count: entities without protection."""
    protected = [limit for limit in limits if limit.is_protected]
    others = sorted((limit for limit in limits if not limit.is_protected), key=lambda limit: -limit.value)
    # At most all but one: the default needs an entity to follow.
    few = min(max(_FEW, math.ceil(count / _FEW_OF)), MOST_OVERRIDES, count - 1)
    apart = 0
    for place in range(1, few + 1):
        if not _can_be_named(default, others[place - 1].row):
            break
        if others[place - 1].value >= _TWICE * others[place].value:
            apart = place
    return [*protected, *others[:apart]], others[apart:]


def _cut_to_budget(
    own: Sequence[_Limit], everybody: _Limit, needs: NeedsOfType, budget: float, entities: int
) -> None:
    """Cut the largest limits to one height, so that the sum of the limits on each node is within its budget."""
    quota_type = everybody.row["quota_type"]
    limit_of = {name_of(limit.row): limit for limit in own}
    on_node: dict[Any, list[_Limit]] = {node_id: [] for node_id in needs.on_node}
    for row in needs.nodes:
        if name_of(row) in limit_of:
            on_node[row["node_id"]].append(limit_of[name_of(row)])
    height = math.inf
    for node_id, here in sorted(on_node.items(), key=lambda of_node: of_node[0]):
        fixed = math.fsum(limit.value for limit in here if limit.is_protected)
        rest = [limit.value for limit in here if not limit.is_protected]
        rest += [everybody.value] * (needs.on_node[node_id] - len(here))
        if fixed > budget or (rest and fixed >= budget):
            raise BudgetError(
                f"{QUOTA_NAMES[quota_type]}: on node {node_id} the protected entities need "
                f"{needed_text(quota_type, fixed)} of the budget of {given_text(quota_type, budget)}: "
                "nothing is left for others",
                hint="protect fewer entities, or change --budget or --headroom",
            )
        height = min(height, _height(rest, budget - fixed))
    if height < 1 and quota_type in BYTE_QUOTAS:
        raise BudgetError(
            f"{QUOTA_NAMES[quota_type]}: a budget of {given_text(quota_type, budget)} per broker leaves some of "
            f"{things_text(entities, 'entity', 'entities')} less than one byte per second",
            hint="increase --budget",
        )
    height = rounded_down(quota_type, height)
    for limit in {id(limit): limit for limit in (*own, everybody)}.values():
        if not limit.is_protected and limit.value > height:
            limit.value = height
            limit.reason += f"; cut to fit the budget of {given_text(quota_type, budget)} per broker"


def _height(values: Sequence[float], room: float) -> float:
    """Return the height to which `values` must be cut so that their sum is at most `room`; infinity: none is cut."""
    if math.fsum(values) <= room:
        return math.inf
    # From the smallest up: values below the height stay, and the others divide the remaining room equally.
    left = len(values)
    for value in sorted(values):
        if value * left >= room:
            return room / left
        room -= value
        left -= 1
    return math.inf


def _can_be_named(default: EntityParts, row: Row) -> bool:
    try:
        checked_entity(entity_of(default, row))
    except ConfigError:
        return False
    return True


def entity_of(default: EntityParts, row: Row) -> EntityParts:
    """Return the entity of a row, at the level of the default."""
    return tuple((kind, row[ENTITY_COLUMNS[kind]]) for kind, _ in default)


def name_of(row: Row) -> Name:
    """Return user and client id of the entity of a row."""
    return row["entity_user"], row["entity_client_id"]
