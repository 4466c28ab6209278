"""Proposed quotas: those of all types for the entities that need them, with their reasons."""

import difflib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate.config.quotas_file import MAX_ENTRIES, MAX_TEXT_CHARS, QuotaEntry, QuotasFile
from tidegate.errors import ConfigError
from tidegate.pipeline.proposals.evidence import Name
from tidegate.pipeline.proposals.limits_of_type import (
    ENTITY_COLUMNS,
    MOST_OVERRIDES,
    NeedsOfType,
    Row,
    limits_of_type,
    name_of,
)
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.replay.levels import ENTITIES_BY, QUOTA_TYPES
from tidegate.pipeline.report.names import QUOTA_NAMES
from tidegate.pipeline.report.text import count_text
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["MOST_GUESSES", "NothingToRecommendError", "Proposal", "proposal_of", "propose"]

_MOST_PROTECTED = MAX_ENTRIES - 1 - len(QUOTA_TYPES) * MOST_OVERRIDES
MOST_GUESSES = 20_000
"""Number of names that a name unknown to the record is compared with."""
_LONGEST_GUESS = 100  # characters


class NothingToRecommendError(ConfigError):
    """Raise when the record has no entity that a quota can be proposed for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The quotas, and the entities that they must not throttle."""

    quotas: QuotasFile
    protected: frozenset[Name]


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
    """Needs as rows like `LIMITS_BY_ENTITY` and `LIMITS_BY_NODE`. named_in: rows of entities that can be protected."""

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
        for entity, limit in limits_of_type(ENTITIES_BY[by], of_type, protected, wanted, quota_type).items():
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


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"
