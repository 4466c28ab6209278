"""Which quotas to set: a default for everybody, and overrides for the few who need more.

What an entity needs is the smallest limit that would never have throttled it, times a headroom. The default is what
the others need when those few are left out who need at least twice as much as the next; they, and whoever is
protected, have quotas of their own. Where all limits together exceed what a broker may bear, the largest are cut to
one height, protected ones left alone.

Follows: the advice of KIP-13 (a default, and overrides) and of KIP-599 (all mutation quotas together within what the
controller bears).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.config.locations import Location
from tidegate.config.quotas_file import (
    MAX_TEXT_CHARS,
    QuotaEntry,
    QuotasFile,
    dump_quotas_file,
    parse_quotas_file,
)
from tidegate.config.values import checked_entity
from tidegate.errors import ConfigError
from tidegate.pipeline.backlogs import STEP_MS
from tidegate.pipeline.read.chunks import list_chunks, read_chunk
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.replay.limits import ENTITIES_BY, Replays, find_limits, levels_of
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.report.limits_report import ESTIMATED, entity_text, was_throttled
from tidegate.pipeline.report.text import (
    QUOTA_NAMES,
    bytes_text,
    count_text,
    duration_text,
    name_text,
    percent_text,
)
from tidegate.pipeline.rounding import limit_text, rounded_down, rounded_up
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "LEAST",
    "BudgetError",
    "NothingToRecommendError",
    "Recommendation",
    "Wanted",
    "hidden_notes",
    "outcome_notes",
    "propose",
    "recommend",
    "skew_notes",
    "starved_notes",
    "what_tells_apart",
]

LEAST: Mapping[str, float] = {
    QuotaType.PRODUCE.value: 65536.0,
    QuotaType.FETCH.value: 65536.0,
    QuotaType.REQUEST.value: 1.0,
    QuotaType.CONTROLLER_MUTATION.value: 1.0,
}
"""The least that is proposed: who hardly did anything may do a little."""

_FEW = 3  # overrides that a small cluster may have at least
_FEW_OF = 10  # one in so many entities may have one
_MOST = 1000  # overrides
_TWICE = 2.0  # how much more than the next an entity needs to be one of the few
_UNEVEN = 1.5  # times its fair share that a node has when it is worth a word
_LINES = 10  # entities that a note lists
_BEHIND = 10  # seconds of a quota that a backlog may take

Row = Mapping[str, Any]
_TYPE_BY_KEY = {quota_type.key: quota_type.value for quota_type in QUOTA_TYPES}

Name = tuple[str | None, str | None]
"""User and client id of an entity."""


class NothingToRecommendError(ConfigError):
    """Raise when the record has no request of an entity that can have a quota."""


class BudgetError(ConfigError):
    """Raise when the protected entities alone need more than the budget of a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks for. budgets: by Kafka's key, per second and broker. protect: (entity type, name) pairs."""

    headroom: float = 1.5
    budgets: Mapping[str, float] = field(default_factory=dict)
    protect: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The quotas, and whom they must not throttle."""

    quotas: QuotasFile
    protected: frozenset[Name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Quotas to set for entities of the level `by`, and what they come of.

    entities, nodes: rows of `LIMITS_BY_ENTITY` and `LIMITS_BY_NODE`. outcomes: what the quotas would have done, rows of
    `REPLAY_BY_ENTITY`. backlogs: how far behind consumers read, rows of `BACKLOGS`. missing: rows that are not there.
    """

    by: str
    quotas: QuotasFile
    entities: Sequence[Row]
    nodes: Sequence[Row]
    outcomes: Sequence[Row]
    backlogs: Sequence[Row]
    missing: Sequence[Missing]

    def notes(self, wanted: Wanted, *, events: int, is_imported: bool) -> list[str]:
        """Return what is to be said of the quotas, in sentences; what lists something is indented by two."""
        budgets = "".join(
            f", budget {key}={limit_text(_TYPE_BY_KEY[key], value)}" for key, value in wanted.budgets.items()
        )
        notes = [
            f"Proposed by tidegate recommend: headroom {wanted.headroom:g}{budgets}; of {count_text(events)} events.",
            *outcome_notes(self.outcomes),
        ]
        if wanted.protect:
            protected = " ".join(f"{kind}={name_text(name)}" for kind, name in wanted.protect)
            notes.append(f"Protected, and not throttled in it: {protected}.")
        notes += hidden_notes(self.entities)
        notes += starved_notes(self.by, self.quotas, self.entities, self.backlogs)
        notes += skew_notes(self.nodes)
        return [*notes, f"{ESTIMATED}."] if is_imported else notes


@dataclass(slots=True)
class _Limit:
    """What one entity is to have, and why."""

    row: Row
    value: float
    is_protected: bool
    reason: str


def recommend(
    replays: Replays, by: str, wanted: Wanted, backlogs: Sequence[Row], *, missing: Sequence[Missing]
) -> Recommendation:
    """Return quotas for entities of the level `by`, replayed as they will be read from their file.

    backlogs: rows of `BACKLOGS`. missing: which rows of the record are not there.
    Raises `NothingToRecommendError`, and what `propose` raises.
    """
    levels = levels_of(by)
    entities, nodes = find_limits(replays, levels, None)
    if not entities:
        raise NothingToRecommendError(
            "nothing to recommend: the record has no request of an entity that can have a quota"
        )
    proposal = propose(by, entities, nodes, wanted)
    quotas = parse_quotas_file(dump_quotas_file(proposal.quotas))
    found = replays.outcomes([Plan(name="proposal", records=tuple(quotas.records()))]).to_pylist()
    outcomes = [row for row in found if row["bound"] is not None]
    for row in outcomes:
        if _name(row) in proposal.protected and _is_touched(row):
            who = f"{QUOTA_NAMES[row['quota_type']]} {entity_text(row)}"
            raise ConfigError(f"the quotas found would throttle {who}, which is to be protected")
    return Recommendation(
        by=by,
        quotas=quotas,
        entities=entities,
        nodes=nodes,
        outcomes=outcomes,
        backlogs=backlogs,
        missing=missing,
    )


def what_tells_apart(files: Sequence[Location], protect: Sequence[tuple[str, str]]) -> str:
    """Return what `--by` is where nobody says: what is protected by, else the user, if there is more than one."""
    kinds = {kind for kind, _ in protect}
    if kinds:
        return kinds.pop() if len(kinds) == 1 else "both"
    users: set[str] = set()
    for chunk in list_chunks(files):
        users.update(filter(None, read_chunk(chunk, ("user",))["user"].unique().to_pylist()))
        if len(users) > 1:
            return "user"
    return "client-id"


def propose(by: str, entities: Sequence[Row], nodes: Sequence[Row], wanted: Wanted) -> Proposal:
    """Return quotas for entities of the level `by`, out of what `find_limits` found.

    Raises `BudgetError`, and `ConfigError` where nobody is who is to be protected.
    """
    protected = _protected(entities, wanted.protect)
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
            values.setdefault(entity, {})[quota_type.key] = limit.value
            reasons.setdefault(entity, []).append(f"{QUOTA_NAMES[quota_type.value]}: {limit.reason}")
    entries = [
        QuotaEntry(entity=entity, values=of_entity, reason=_cut("; ".join(reasons[entity])))
        for entity, of_entity in values.items()
        if of_entity
    ]
    return Proposal(quotas=QuotasFile(entries=tuple(entries)), protected=protected)


def outcome_notes(outcomes: Sequence[Row]) -> list[str]:
    """Return what the proposal would have done to the recorded requests: rows of `REPLAY_BY_ENTITY`."""
    touched = sorted((row for row in outcomes if _is_touched(row)), key=lambda row: -row["throttle_ms"])
    if not touched:
        return ["Replayed against what was recorded, it throttles nobody."]
    notes = ["Replayed against what was recorded, it would have throttled:"]
    notes += [
        f"  {QUOTA_NAMES[row['quota_type']]} {entity_text(row)}: "
        f"{count_text(row['throttled_requests'])} of {count_text(row['requests'])} requests, "
        f"{duration_text(row['throttle_ms'])} in all, {duration_text(row['longest_throttle_ms'])} at most"
        + (f", {count_text(row['capped_fetches'])} fetches cut" if row["capped_fetches"] else "")
        + (
            f", {count_text(row['rejected_mutations'])} mutations refused"
            if row["rejected_mutations"]
            else ""
        )
        for row in touched[:_LINES]
    ]
    return notes + _more(touched)


def hidden_notes(entities: Sequence[Row]) -> list[str]:
    """Return whose demand the record does not show, as they were throttled: rows of `LIMITS_BY_ENTITY`."""
    hidden = [row for row in entities if was_throttled(row)]
    if not hidden:
        return []
    notes = ["Throttled when recorded, so that what they wanted is hidden:"]
    notes += [
        f"  {QUOTA_NAMES[row['quota_type']]} {entity_text(row)}: {count_text(row['recorded_throttled_requests'])} of "
        f"{count_text(row['requests'])} requests, {duration_text(row['recorded_throttle_ms'])} in all"
        + (
            f", {count_text(row['recorded_rejected_mutations'])} mutations refused"
            if row["recorded_rejected_mutations"]
            else ""
        )
        for row in sorted(hidden, key=lambda row: -row["recorded_throttle_ms"])[:_LINES]
    ]
    return [*notes, *_more(hidden), "Raise their quotas for a while, record that, and ask again."]


def starved_notes(by: str, quotas: QuotasFile, entities: Sequence[Row], backlogs: Sequence[Row]) -> list[str]:
    """Return which consumers the quotas would keep behind: rows of `LIMITS_BY_ENTITY` and of `BACKLOGS`.

    That is who has yet to read more than ten seconds of its quota hold: at the end of the record, as what it caught up
    with before needed no more; where the quota is less than it needed, whenever it was furthest behind.
    How long it takes is arithmetic: the backlog over what the quota leaves beside what comes in.
    """
    key = QuotaType.FETCH.key
    values = {entry.entity: entry.values[key] for entry in quotas.entries if key in entry.values}
    needs = {
        _name(row): row["never_throttled"] for row in entities if row["quota_type"] == QuotaType.FETCH.value
    }
    behind: list[tuple[float, str]] = []
    for row in backlogs:
        value = values.get(_entity(ENTITIES_BY[by], row), values.get(ENTITIES_BY[by]))
        if value is None or row["largest_lag_bytes"] is None:
            continue
        is_enough = value >= needs.get(_name(row), math.inf)
        lag_bytes = row["last_lag_bytes"] if is_enough else row["largest_lag_bytes"]
        if lag_bytes > _BEHIND * value:
            behind.append((lag_bytes / value, _behind_text(row, lag_bytes, value)))
    if not behind:
        return []
    shown = [text for _, text in sorted(behind, key=lambda found: (-found[0], found[1]))]
    return [
        f"Their quota keeps them behind, with more to read than {_BEHIND} seconds of it hold:",
        *shown[:_LINES],
        *_more(shown),
        "Let them catch up first, or give them a larger quota.",
    ]


def _behind_text(row: Row, lag_bytes: int, value: float) -> str:
    seconds = (row["last_ms"] + STEP_MS - row["first_ms"]) / 1000
    grown = row["fetched_bytes"] + row["last_lag_bytes"] - row["first_lag_bytes"]
    coming = max(0.0, grown / seconds)
    if value > coming:
        how_long = f"takes {duration_text(round(1000 * lag_bytes / (value - coming)))}"
    else:
        how_long = "is never enough"
    return (
        f"  {QUOTA_NAMES[QuotaType.FETCH.value]} {entity_text(row)}: {bytes_text(lag_bytes)} behind on node "
        f"{row['node_id']}; {limit_text(QuotaType.FETCH.value, value)} a second {how_long}, with "
        f"{bytes_text(coming)} a second coming in"
    )


def skew_notes(nodes: Sequence[Row]) -> list[str]:
    """Return where brokers, or one entity's use of them, are uneven: rows of `LIMITS_BY_NODE`.

    A quota holds on each broker by itself: who uses one of three most is throttled there, and only there.
    """
    node_ids = {row["node_id"] for row in nodes}
    if len(node_ids) < 2:
        return []
    notes = []
    for quota_type in (QuotaType.PRODUCE.value, QuotaType.FETCH.value, QuotaType.REQUEST.value):
        of_type = [row for row in nodes if row["quota_type"] == quota_type]
        groups: dict[Name | None, list[Row]] = {None: of_type}
        for row in of_type:
            groups.setdefault(_name(row), []).append(row)
        uneven = sorted(
            (
                (amount, who, node, total)
                for who, rows in groups.items()
                for amount, node, total in [_largest_share(rows)]
                if amount * len(node_ids) >= _UNEVEN * total > 0
            ),
            key=lambda found: (found[1] is not None, -found[0]),
        )
        for amount, who, node, total in uneven[:_FEW]:
            whose = "all" if who is None else entity_text(_named(who))
            share = percent_text(amount, total)
            notes.append(
                f"{QUOTA_NAMES[quota_type]}: node {node} has {share} of what {whose} used of {len(node_ids)}"
            )
    if notes:
        notes.append("A quota holds on each broker by itself: evened out, less of it would do.")
    return notes


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
    busiest: dict[Name, Row] = {}
    for node in sorted(nodes, key=lambda node: (node["peak"], node["amount"])):
        busiest[_name(node)] = node
    limits = [_needed(row, busiest[_name(row)], _name(row) in protected, wanted.headroom) for row in rows]
    own, others = _the_few(default, limits)
    largest = (
        max(others, key=lambda limit: limit.value) if others else min(own, key=lambda limit: limit.value)
    )
    place = "the largest" if others else "for lack of others the smallest"
    reason = f"{place} of {count_text(len(others or own))} is {entity_text(largest.row)}: {largest.reason}"
    everybody = _Limit(largest.row, largest.value, False, reason)
    budget = wanted.budgets.get(quota_type.key)
    if budget is not None:
        _cut_to_budget(own, others, everybody, nodes, budget)
    found = {default: everybody}
    for limit in own:
        if limit.is_protected or limit.value > everybody.value:
            found[_entity(default, limit.row)] = limit
    return found


def _needed(row: Row, busiest: Row, is_protected: bool, headroom: float) -> _Limit:
    quota_type, never = row["quota_type"], row["never_throttled"]
    value = rounded_up(quota_type, never * headroom)
    reason = f"needs {limit_text(quota_type, never)} (node {busiest['node_id']}), times {headroom:g}"
    if value < LEAST[quota_type]:
        value, reason = LEAST[quota_type], "the least that is proposed"
    if was_throttled(row):
        reason += ", was throttled when recorded and may want more"
    return _Limit(row, value, is_protected, f"protected, {reason}" if is_protected else reason)


def _the_few(default: EntityParts, limits: Sequence[_Limit]) -> tuple[list[_Limit], list[_Limit]]:
    """Return who has a limit of its own, and the others."""
    protected = [limit for limit in limits if limit.is_protected]
    others = sorted((limit for limit in limits if not limit.is_protected), key=lambda limit: -limit.value)
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
    limit_of = {_name(limit.row): everybody for limit in others} | {_name(limit.row): limit for limit in own}
    height = math.inf
    for node_id in sorted({row["node_id"] for row in nodes}):
        here = [limit_of[_name(row)] for row in nodes if row["node_id"] == node_id]
        fixed = math.fsum(limit.value for limit in here if limit.is_protected)
        rest = [limit.value for limit in here if not limit.is_protected]
        if fixed > budget or (rest and fixed >= budget):
            raise BudgetError(
                f"{QUOTA_NAMES[quota_type]}: of the {limit_text(quota_type, budget)} of node {node_id} the "
                f"protected need {limit_text(quota_type, fixed)}: nothing is left",
                hint="protect fewer, or change --budget or --headroom",
            )
        height = min(height, _height(rest, budget - fixed))
    height = rounded_down(quota_type, height)
    for limit in {id(limit): limit for limit in (*own, everybody)}.values():
        if not limit.is_protected and limit.value > height:
            limit.value = height
            limit.reason += f"; cut to what a budget of {limit_text(quota_type, budget)} a broker leaves"


def _height(values: Sequence[float], room: float) -> float:
    """Return the height that `values` are cut to for their sum to be at most `room`; infinity: none is cut."""
    if math.fsum(values) <= room:
        return math.inf
    left = len(values)
    for value in sorted(values):
        if value * left >= room:
            return room / left
        room -= value
        left -= 1
    return math.inf


# --- entities ---------------------------------------------------------------------------------------------------------


def _protected(entities: Sequence[Row], protect: Sequence[tuple[str, str]]) -> frozenset[Name]:
    found: set[Name] = set()
    for kind, name in protect:
        column = "entity_user" if kind == "user" else "entity_client_id"
        named = {_name(row) for row in entities if row[column] == name}
        if not named:
            raise ConfigError(
                f"nobody in the record is {kind}={name!r}, so it cannot be protected",
                hint="tidegate usage shows who there is; --by says what tells entities apart",
            )
        found |= named
    return frozenset(found)


def _can_be_named(default: EntityParts, row: Row) -> bool:
    try:
        checked_entity(_entity(default, row))
    except ConfigError:
        return False
    return True


def _entity(default: EntityParts, row: Row) -> EntityParts:
    columns = {"user": "entity_user", "client-id": "entity_client_id"}
    return tuple((kind, row[columns[kind]]) for kind, _ in default)


def _name(row: Row) -> Name:
    return row["entity_user"], row["entity_client_id"]


def _named(name: Name) -> Row:
    return {"entity_user": name[0], "entity_client_id": name[1]}


def _is_touched(row: Row) -> bool:
    return bool(row["throttled_requests"] or row["rejected_mutations"] or row["capped_fetches"])


def _largest_share(rows: Sequence[Row]) -> tuple[int, int, int]:
    """Return the largest amount on one node, the node, and the amount on all."""
    by_node: dict[int, int] = {}
    for row in rows:
        by_node[row["node_id"]] = by_node.get(row["node_id"], 0) + row["amount"]
    node = max(by_node, key=lambda node: by_node[node]) if by_node else 0
    return by_node.get(node, 0), node, sum(by_node.values())


def _more(rows: Sequence[object]) -> list[str]:
    return [f"  and {count_text(len(rows) - _LINES)} more"] if len(rows) > _LINES else []


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"
