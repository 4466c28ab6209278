"""Recommended quotas: a default for all entities, and overrides for the few entities that need more.

An entity needs the smallest limit that would never have throttled it, times a headroom. The few entities that need at
least twice as much as the next get quotas of their own, and so do protected entities. The default is what the other
entities need. If all limits together exceed the budget of a broker, the largest are cut to one height; those of
protected entities are not cut.

Follows: the advice of KIP-13 (a default, and overrides) and of KIP-599 (all mutation quotas together within what the
controller bears).
"""

import difflib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.config.quotas_file import MAX_ENTRIES, MAX_TEXT_CHARS, QuotaEntry, QuotasFile, parse_quotas_file
from tidegate.config.quotas_text import dump_quotas_file
from tidegate.config.values import checked_entity
from tidegate.config.windows import Windows
from tidegate.errors import ArgumentError, ConfigError
from tidegate.pipeline.proposals.evidence import (
    ENOUGH_REQUESTS,
    ENOUGH_WINDOWS,
    Evidence,
    Name,
    TooLittleDataError,
    was_throttled,
)
from tidegate.pipeline.replay.levels import ENTITIES_BY, QUOTA_TYPES, smallest_limit
from tidegate.pipeline.report.names import QUOTA_NAMES, entity_text
from tidegate.pipeline.report.rounding import chosen_up, given_text, needed_text, rounded_down
from tidegate.pipeline.report.text import count_text, things_text
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.managers.quota_type import QuotaType

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.pipeline.read.chunks import Chunk
    from tidegate.pipeline.replay.limits import Replays
    from tidegate.pipeline.replay.plan import Plan
    from tidegate.pipeline.results.table_rows import TableRows

__all__ = [
    "ENTITY_COLUMNS",
    "LEAST",
    "MOST_GUESSES",
    "MOST_OVERRIDES",
    "BudgetError",
    "NeedsOfType",
    "NothingToRecommendError",
    "Recommendation",
    "Row",
    "Wanted",
    "chunk_users",
    "entity_of",
    "forecast_levels",
    "level_of",
    "name_of",
    "proposal_of",
    "propose",
    "recommend",
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
_MOST_PROTECTED = MAX_ENTRIES - 1 - len(QUOTA_TYPES) * MOST_OVERRIDES
_MOST_HEADROOM = 1000
_FEW_NAMES = 4  # two of them are users, whatever is null or empty
_BYTE_QUOTAS = {QuotaType.PRODUCE.value, QuotaType.FETCH.value}
MOST_GUESSES = 20_000
"""Names that a name which the record does not contain is compared with."""
_LONGEST_GUESS = 100  # characters
_TWICE = 2.0  # how much more than the next an entity needs to be one of the few

Row = Mapping[str, Any]


class NothingToRecommendError(ConfigError):
    """Raise when the record has no entity that a quota can be proposed for."""


class BudgetError(ConfigError):
    """Raise when the protected entities alone need more than the budget of a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The user's request. budgets: by Kafka's key, per second and broker. protect: (entity type, name) pairs.

    force: propose quotas even from too little data. with_default: propose a quota for all others, too.
    """

    headroom: float = 1.5
    budgets: Mapping[str, float] = field(default_factory=dict)
    protect: Sequence[tuple[str, str]] = ()
    force: bool = False
    with_default: bool = True

    def __post_init__(self) -> None:
        """Check the headroom. Raises `ArgumentError`."""
        if (
            isinstance(self.headroom, bool)
            or not isinstance(self.headroom, int | float)
            or not 1 <= self.headroom <= _MOST_HEADROOM
        ):
            raise ArgumentError(
                f"headroom must be a number from 1 to {_MOST_HEADROOM}, got {self.headroom!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The quotas, and the entities that they must not throttle."""

    quotas: QuotasFile
    protected: frozenset[Name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Quotas to set for entities of the level `by`, and what they come of.

    entities, nodes: rows of `LIMITS_BY_ENTITY` and `LIMITS_BY_NODE`. outcomes: a forecast of the recorded traffic under
    the quotas, rows of `REPLAY_BY_ENTITY`. backlogs: how far behind consumers read, rows of `BACKLOGS`. evidence: of
    the record. left_out: brokers' own entities. withheld: requests by type of quota that has too few for a proposal.
    """

    by: str
    quotas: QuotasFile
    entities: "TableRows"
    nodes: "TableRows"
    outcomes: "TableRows"
    backlogs: "TableRows"
    evidence: Evidence
    left_out: Sequence[Name] = ()
    withheld: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsOfType:
    """The needs of the entities of one type of quota, as far as they decide about the limits to set.

    rows: of `LIMITS_BY_ENTITY`, in the order of the record: all protected entities, and those with the largest needs of
    the others, `MOST_OVERRIDES` and one at least. others: how many entities are not protected. nodes: rows of
    `LIMITS_BY_NODE` of these entities. on_node: how many entities there are on each node.
    """

    rows: Sequence[Row]
    others: int
    nodes: Sequence[Row]
    on_node: Mapping[Any, int]


class Needs(Protocol):
    """The limits that were found for the entities of a record."""

    def named(self, kind: str, name: str) -> set[Name]:
        """Return the entities with a name of a kind, `user` or `client-id`."""

    def names(self, kind: str) -> list[str]:
        """Return names of entities in order, `MOST_GUESSES` at most."""

    def of_type(self, quota_type: QuotaType, protected: Collection[Name]) -> NeedsOfType:
        """Return what the entities of a type of quota need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowNeeds:
    """Needs as rows like `LIMITS_BY_ENTITY` and `LIMITS_BY_NODE`. named_in: of all entities that can be protected."""

    entities: Sequence[Row]
    nodes: Sequence[Row]
    named_in: Sequence[Row]

    def named(self, kind: str, name: str) -> set[Name]:
        """Return the entities with a name."""
        return {name_of(row) for row in self.named_in if row[ENTITY_COLUMNS[kind]] == name}

    def names(self, kind: str) -> list[str]:
        """Return names of entities in order, `MOST_GUESSES` at most."""
        column = ENTITY_COLUMNS[kind]
        return sorted({row[column] for row in self.named_in if row[column] is not None})[:MOST_GUESSES]

    def of_type(self, quota_type: QuotaType, protected: Collection[Name]) -> NeedsOfType:
        """Return what all entities of a type of quota need."""
        rows = [row for row in self.entities if row["quota_type"] == quota_type.value]
        nodes = [row for row in self.nodes if row["quota_type"] == quota_type.value]
        return NeedsOfType(
            rows=rows,
            others=sum(name_of(row) not in protected for row in rows),
            nodes=nodes,
            on_node=Counter(row["node_id"] for row in nodes),
        )


@dataclass(slots=True)
class _Limit:
    """The limit to set for one entity, and the reason."""

    row: Row
    value: float
    is_protected: bool
    reason: str


def recommend(
    replays: "Replays",
    by: str,
    wanted: Wanted,
    backlogs: "pa.Table",
    evidence: Evidence,
    *,
    only_throttled: bool = False,
) -> Recommendation:
    """Return quotas for entities of the level `by`, with a forecast of the record under them as read from their file.

    replays: of plans like `levels_of(by)` and `forecast_levels(by)`. backlogs: rows of `BACKLOGS`. only_throttled: the
    outcomes are those that `rows_touched` returns; where none can be, nothing is forecast (decision 0154).
    Raises `NothingToRecommendError`, `TooLittleDataError`, and what `propose` raises.
    """
    from tidegate.pipeline.proposals.needs import (
        TableNeeds,
        are_enough,
        requests_by_type,
        rows_judged,
        rows_of_others,
    )
    from tidegate.pipeline.replay.limits import levels_of
    from tidegate.pipeline.report.compared import entity_rows
    from tidegate.pipeline.results.table_rows import TableRows
    from tidegate.pipeline.rollup.limits import limits_without_tolerance

    if evidence.is_imported and QuotaType.REQUEST.key in wanted.budgets:
        raise ConfigError(
            "request_percentage cannot have a budget: an imported record does not contain the time of network threads",
            hint="remove this budget, or use a record of `tidegate serve`",
        )
    left_out = evidence.internal - _named(wanted.protect, evidence.internal)
    found = [TableRows(table) for table in limits_without_tolerance(replays, levels_of(by))]
    entities, nodes = (rows_judged(rows, left_out, evidence) for rows in found)
    if not entities:
        raise NothingToRecommendError(
            "nothing to recommend: the record has no request of an entity that can have a quota",
            hint="read more hours; `tidegate usage` shows the clients of the record",
        )
    requests = requests_by_type(entities)
    _check_evidence(evidence, requests, wanted)
    few = {kind: count for kind, count in requests.items() if count < ENOUGH_REQUESTS and not wanted.force}
    proposal = proposal_of(by, TableNeeds(entities, nodes, wanted, withheld=few), wanted)
    quotas = parse_quotas_file(dump_quotas_file(proposal.quotas))
    if only_throttled and not evidence.has_before and are_enough(quotas, by, found[0]):
        outcomes = entity_rows([])
    else:
        del found
        outcomes = _forecast(replays, quotas, proposal, left_out, only_throttled=only_throttled)
    return Recommendation(
        by=by,
        quotas=quotas,
        entities=entities,
        nodes=nodes,
        outcomes=outcomes,
        backlogs=rows_of_others(TableRows(backlogs), left_out),
        evidence=evidence,
        left_out=sorted(left_out, key=repr),
        withheld=few,
    )


def forecast_levels(by: str) -> "Plan":
    """Return a plan of the level of a proposal in closed loop, as `levels_of` returns one in open loop."""
    from tidegate.pipeline.replay.limits import levels_of

    return replace(levels_of(by), name="proposal", measures=False, is_closed=True)


def _check_evidence(evidence: Evidence, requests: Mapping[str, int], wanted: Wanted) -> None:
    """Raise `TooLittleDataError` where a record is too short, or has too few requests of any type."""
    if wanted.force:
        return
    hint = "record the busiest hours, or use --force"
    if evidence.windows < ENOUGH_WINDOWS:
        windows = things_text(evidence.windows, "window")
        raise TooLittleDataError(
            f"too little data for a proposal: requests in {windows} of 10 seconds, expected {ENOUGH_WINDOWS} or more",
            hint=hint,
        )
    if max(requests.values()) < ENOUGH_REQUESTS:
        most = things_text(max(requests.values()), "request")
        raise TooLittleDataError(
            f"too little data for a proposal: {most} of one type of quota, expected {ENOUGH_REQUESTS} or more",
            hint=hint,
        )


def _forecast(
    replays: "Replays",
    quotas: QuotasFile,
    proposal: Proposal,
    left_out: Collection[Name],
    *,
    only_throttled: bool,
) -> "TableRows":
    """Return what the quotas would lead to. Raises `ConfigError` where they would throttle the protected."""
    from tidegate.pipeline.proposals.needs import rows_of_others, rows_touched
    from tidegate.pipeline.replay.plan import Plan
    from tidegate.pipeline.results.table_rows import TableRows

    plan = Plan(name="proposal", records=tuple(quotas.records()), is_closed=True)
    found = replays.outcomes([plan])
    outcomes = TableRows(found.filter(found["bound"].is_valid()))
    del found
    outcomes = rows_of_others(outcomes, left_out)
    if only_throttled:
        outcomes = rows_touched(outcomes, with_ranges=True)
    for row in rows_touched(outcomes) if proposal.protected else ():
        if name_of(row) in proposal.protected:
            name = f"{QUOTA_NAMES[row['quota_type']]} {entity_text(row)}"
            raise ConfigError(
                f"the proposed quotas would throttle {name}, which is protected",
                hint="increase --headroom or --budget",
            )
    return outcomes


def level_of(users: Iterable[str], wanted: Wanted) -> str:
    """Return the default level of entities: that of the protected ones, else `user` if there are several users.

    users: what `chunk_users` finds in all chunks; read only as far as need be.
    """
    kinds = {kind for kind, _ in wanted.protect}
    if kinds:
        return kinds.pop() if len(kinds) == 1 else "both"
    first = None
    for user in users:
        first = first or user
        if user != first:
            return "user"
    return "client-id"


def chunk_users(chunk: "Chunk") -> list[str]:
    """Return some users of a chunk, several if there are several. Raises `UsageFilesError`."""
    from tidegate.pipeline.read.chunks import read_chunk

    found = read_chunk(chunk, ("user",))["user"].unique()[:_FEW_NAMES].to_pylist()
    return [user for user in found if user]


def propose(
    by: str,
    entities: Sequence[Row],
    nodes: Sequence[Row],
    wanted: Wanted,
    *,
    named_in: Sequence[Row] | None = None,
) -> Proposal:
    """Return quotas for entities of the level `by`, out of what `find_limits` found.

    named_in: rows of all entities that can be protected; None: `entities`.
    Raises `BudgetError`, `NothingToRecommendError`, and `ConfigError` if the record does not contain a protected entity
    or there is a budget without a default.
    """
    every = entities if named_in is None else named_in
    return proposal_of(by, _RowNeeds(entities=entities, nodes=nodes, named_in=every), wanted)


def proposal_of(by: str, needs: Needs, wanted: Wanted) -> Proposal:
    """Return what `propose` returns, out of needs."""
    if wanted.budgets and not wanted.with_default:
        raise ConfigError(
            "--budget needs a default quota: clients without a quota can use any amount",
            hint="remove --no-default or --budget",
        )
    protected = _protected(by, needs, wanted.protect)
    values: dict[EntityParts, dict[str, float]] = {ENTITIES_BY[by]: {}}
    reasons: dict[EntityParts, list[str]] = {ENTITIES_BY[by]: []}
    for quota_type in QUOTA_TYPES:
        of_type = needs.of_type(quota_type, protected)
        if not of_type.rows:
            continue
        for entity, limit in _of_type(ENTITIES_BY[by], of_type, protected, wanted, quota_type).items():
            if entity == ENTITIES_BY[by] and not wanted.with_default:
                continue
            values.setdefault(entity, {})[quota_type.key] = limit.value
            reasons.setdefault(entity, []).append(f"{QUOTA_NAMES[quota_type.value]}: {limit.reason}")
    entries = [
        QuotaEntry(entity=entity, values=of_entity, reason=_cut("; ".join(reasons[entity])))
        for entity, of_entity in values.items()
        if of_entity
    ]
    if not entries:
        raise NothingToRecommendError(
            "nothing to recommend without a default: no entity needs at least twice as much as the next one",
            hint="name entities with --protect, or leave out --no-default",
        )
    return Proposal(quotas=QuotasFile(entries=tuple(entries)), protected=protected)


# --- one type of quota ------------------------------------------------------------------------------------------------


def _of_type(
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
    """Return by entity, in words, the node that its limit is for; nothing where several may be: of token buckets."""
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
        reason += ", was throttled when recorded and may want more"
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
    """Cut the largest limits to one height, so that all of a node together stay within its budget."""
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
    if height < 1 and quota_type in _BYTE_QUOTAS:
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
    """Return the height that `values` are cut to for their sum to be at most `room`; infinity: none is cut."""
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


# --- entities ---------------------------------------------------------------------------------------------------------


def _protected(by: str, needs: Needs, protect: Sequence[tuple[str, str]]) -> frozenset[Name]:
    found: set[Name] = set()
    for kind, name in protect:
        if by not in (kind, "both"):
            raise ConfigError(
                f"cannot protect {kind}={name!r}: the quotas are by {by} only",
                hint="remove --by, or use --by both",
            )
        named = needs.named(kind, name)
        if not named:
            near = difflib.get_close_matches(name[:_LONGEST_GUESS], needs.names(kind), n=1)
            raise ConfigError(
                f"cannot protect {kind}={name!r}: the record does not contain it",
                hint=f"did you mean {near[0]!r}?"
                if near
                else "`tidegate usage` shows the clients of the record",
            )
        found |= named
    if len(found) > _MOST_PROTECTED:
        raise ConfigError(
            f"cannot protect {count_text(len(found))} entities: each has quotas of its own, at most "
            f"{count_text(_MOST_PROTECTED)}",
            hint="protect fewer client ids, or use --by user",
        )
    return frozenset(found)


def _named(protect: Sequence[tuple[str, str]], names: Collection[Name]) -> set[Name]:
    """Return the names that are to be protected."""
    wanted = set(protect)
    return {name for name in names if {("user", name[0]), ("client-id", name[1])} & wanted}


def _can_be_named(default: EntityParts, row: Row) -> bool:
    try:
        checked_entity(entity_of(default, row))
    except ConfigError:
        return False
    return True


def entity_of(default: EntityParts, row: Row) -> EntityParts:
    """Return the entity of a row, of the level that the default is of."""
    return tuple((kind, row[ENTITY_COLUMNS[kind]]) for kind, _ in default)


def name_of(row: Row) -> Name:
    """Return user and client id of the entity of a row."""
    return row["entity_user"], row["entity_client_id"]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"
