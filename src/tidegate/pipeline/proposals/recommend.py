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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidegate.config.quotas_file import MAX_TEXT_CHARS, QuotaEntry, QuotasFile, parse_quotas_file
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
    from tidegate.pipeline.read.chunks import Chunk
    from tidegate.pipeline.replay.limits import Replays
    from tidegate.pipeline.replay.plan import Plan

__all__ = [
    "LEAST",
    "BudgetError",
    "NothingToRecommendError",
    "Recommendation",
    "Row",
    "Wanted",
    "chunk_users",
    "entity_of",
    "forecast_levels",
    "is_touched",
    "level_of",
    "name_of",
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

_FEW = 3  # overrides that a small cluster may have at least
_FEW_OF = 10  # one in so many entities may have one
_MOST = 1000  # overrides
_MOST_HEADROOM = 1000
_FEW_NAMES = 4  # two of them are users, whatever is null or empty
_BYTE_QUOTAS = {QuotaType.PRODUCE.value, QuotaType.FETCH.value}
_MOST_GUESSES = 20_000  # names that one is compared with
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
    entities: Sequence[Row]
    nodes: Sequence[Row]
    outcomes: Sequence[Row]
    backlogs: Sequence[Row]
    evidence: Evidence
    left_out: Sequence[Name] = ()
    withheld: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Limit:
    """The limit to set for one entity, and the reason."""

    row: Row
    value: float
    is_protected: bool
    reason: str


def recommend(
    replays: "Replays", by: str, wanted: Wanted, backlogs: Sequence[Row], evidence: Evidence
) -> Recommendation:
    """Return quotas for entities of the level `by`, with a forecast of the record under them as read from their file.

    replays: of plans like `levels_of(by)` and `forecast_levels(by)`. backlogs: rows of `BACKLOGS`.
    Raises `NothingToRecommendError`, `TooLittleDataError`, and what `propose` raises.
    """
    from tidegate.pipeline.replay.limits import find_limits, levels_of

    if evidence.is_imported and QuotaType.REQUEST.key in wanted.budgets:
        raise ConfigError(
            "request_percentage cannot have a budget: an imported record does not contain the time of network threads",
            hint="remove this budget, or use a record of `tidegate serve`",
        )
    left_out = evidence.internal - _named(wanted.protect, evidence.internal)
    found = find_limits(replays, levels_of(by), None)
    entities, nodes = ([row for row in rows if _is_judged(row, left_out, evidence)] for rows in found)
    if not entities:
        raise NothingToRecommendError(
            "nothing to recommend: the record has no request of an entity that can have a quota",
            hint="read more hours; `tidegate usage` shows the clients of the record",
        )
    requests = _requests(entities)
    _check_evidence(evidence, requests, wanted)
    few = {kind: count for kind, count in requests.items() if count < ENOUGH_REQUESTS and not wanted.force}
    enough = [row for row in entities if row["quota_type"] not in few]
    proposal = propose(by, enough, nodes, wanted, named_in=entities)
    quotas = parse_quotas_file(dump_quotas_file(proposal.quotas))
    outcomes = _forecast(replays, quotas, proposal, left_out)
    return Recommendation(
        by=by,
        quotas=quotas,
        entities=entities,
        nodes=nodes,
        outcomes=outcomes,
        backlogs=[row for row in backlogs if name_of(row) not in left_out],
        evidence=evidence,
        left_out=sorted(left_out, key=repr),
        withheld=few,
    )


def forecast_levels(by: str) -> "Plan":
    """Return a plan of the level of a proposal in closed loop, as `levels_of` returns one in open loop."""
    from tidegate.pipeline.replay.limits import levels_of

    return replace(levels_of(by), name="proposal", measures=False, is_closed=True)


def _is_judged(row: Row, left_out: Collection[Name], evidence: Evidence) -> bool:
    """Return whether a limit can be told from a row: not of a broker, nor of time that was not measured."""
    is_measured = not evidence.is_imported or row["quota_type"] != QuotaType.REQUEST.value
    return is_measured and name_of(row) not in left_out


def _requests(entities: Sequence[Row]) -> dict[str, int]:
    """Return how many requests were charged to each type of quota."""
    requests: dict[str, int] = {}
    for row in entities:
        requests[row["quota_type"]] = requests.get(row["quota_type"], 0) + row["requests"]
    return requests


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
    replays: "Replays", quotas: QuotasFile, proposal: Proposal, left_out: Collection[Name]
) -> list[Row]:
    """Return what the quotas would lead to. Raises `ConfigError` where they would throttle the protected."""
    from tidegate.pipeline.replay.plan import Plan

    plan = Plan(name="proposal", records=tuple(quotas.records()), is_closed=True)
    found = replays.outcomes([plan]).to_pylist()
    outcomes = [row for row in found if row["bound"] is not None and name_of(row) not in left_out]
    for row in outcomes:
        if name_of(row) in proposal.protected and is_touched(row):
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
    if wanted.budgets and not wanted.with_default:
        raise ConfigError(
            "--budget needs a default quota: clients without a quota can use any amount",
            hint="remove --no-default or --budget",
        )
    protected = _protected(by, entities if named_in is None else named_in, wanted.protect)
    values: dict[EntityParts, dict[str, float]] = {ENTITIES_BY[by]: {}}
    reasons: dict[EntityParts, list[str]] = {ENTITIES_BY[by]: []}
    for quota_type in QUOTA_TYPES:
        of_type = [row for row in entities if row["quota_type"] == quota_type.value]
        if not of_type:
            continue
        on_nodes = [row for row in nodes if row["quota_type"] == quota_type.value]
        for entity, limit in _of_type(
            ENTITIES_BY[by], of_type, on_nodes, protected, wanted, quota_type
        ).items():
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
    rows: Sequence[Row],
    nodes: Sequence[Row],
    protected: frozenset[Name],
    wanted: Wanted,
    quota_type: QuotaType,
) -> dict[EntityParts, _Limit]:
    """Return the limits of one type by entity, the default first."""
    where = _where_needed(nodes, quota_type)
    limits = [_needed(row, where[name_of(row)], name_of(row) in protected, wanted.headroom) for row in rows]
    own, others = _the_few(default, limits)
    largest = (
        max(others, key=lambda limit: limit.value) if others else min(own, key=lambda limit: limit.value)
    )
    place = "the largest" if others else "the smallest protected"
    among = len(others or own)
    place = f"{place} of {count_text(among)}" if among > 1 else "the only one"
    reason = f"{place} is {entity_text(largest.row)}: {largest.reason}"
    everybody = _Limit(largest.row, largest.value, False, reason)
    budget = wanted.budgets.get(quota_type.key)
    if budget is not None:
        _cut_to_budget(own, others, everybody, nodes, budget)
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


def _the_few(default: EntityParts, limits: Sequence[_Limit]) -> tuple[list[_Limit], list[_Limit]]:
    """Return the limits of entities with an override, and those of the others."""
    protected = [limit for limit in limits if limit.is_protected]
    others = sorted((limit for limit in limits if not limit.is_protected), key=lambda limit: -limit.value)
    # At most all but one: the default needs an entity to follow.
    few = min(max(_FEW, math.ceil(len(others) / _FEW_OF)), _MOST, len(others) - 1)
    apart = 0
    for place in range(1, few + 1):
        if not _can_be_named(default, others[place - 1].row):
            break
        if others[place - 1].value >= _TWICE * others[place].value:
            apart = place
    return [*protected, *others[:apart]], others[apart:]


def _cut_to_budget(
    own: Sequence[_Limit], others: Sequence[_Limit], everybody: _Limit, nodes: Sequence[Row], budget: float
) -> None:
    """Cut the largest limits to one height, so that all of a node together stay within its budget."""
    quota_type = everybody.row["quota_type"]
    limit_of = {name_of(limit.row): everybody for limit in others} | {
        name_of(limit.row): limit for limit in own
    }
    height = math.inf
    for node_id in sorted({row["node_id"] for row in nodes}):
        here = [limit_of[name_of(row)] for row in nodes if row["node_id"] == node_id]
        fixed = math.fsum(limit.value for limit in here if limit.is_protected)
        rest = [limit.value for limit in here if not limit.is_protected]
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
            f"{things_text(len(limit_of), 'entity', 'entities')} less than one byte per second",
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


def _protected(by: str, entities: Sequence[Row], protect: Sequence[tuple[str, str]]) -> frozenset[Name]:
    found: set[Name] = set()
    for kind, name in protect:
        if by not in (kind, "both"):
            raise ConfigError(
                f"cannot protect {kind}={name!r}: the quotas are by {by} only",
                hint="remove --by, or use --by both",
            )
        column = "entity_user" if kind == "user" else "entity_client_id"
        named = {name_of(row) for row in entities if row[column] == name}
        if not named:
            others = sorted({row[column] for row in entities if row[column] is not None})[:_MOST_GUESSES]
            near = difflib.get_close_matches(name[:_LONGEST_GUESS], others, n=1)
            raise ConfigError(
                f"cannot protect {kind}={name!r}: the record does not contain it",
                hint=f"did you mean {near[0]!r}?"
                if near
                else "`tidegate usage` shows the clients of the record",
            )
        found |= named
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
    columns = {"user": "entity_user", "client-id": "entity_client_id"}
    return tuple((kind, row[columns[kind]]) for kind, _ in default)


def name_of(row: Row) -> Name:
    """Return user and client id of the entity of a row."""
    return row["entity_user"], row["entity_client_id"]


def is_touched(row: Row) -> bool:
    """Return whether anything of a row of `REPLAY_BY_ENTITY` was held back, refused or cut."""
    return bool(row["throttled_requests"] or row["rejected_mutations"] or row["capped_fetches"])


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"
