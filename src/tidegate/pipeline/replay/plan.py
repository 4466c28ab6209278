"""Plans to replay traffic against: quotas from a file, or the quotas in force when the traffic was recorded."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.config.quotas_file import QuotaEntry, QuotaGroup, QuotasFile, load_quotas_file
from tidegate.config.windows import Windows
from tidegate.errors import ConfigError
from tidegate.pipeline.layout import FETCH
from tidegate.pipeline.read.answers import Answer
from tidegate.pipeline.replay.levels import QUOTA_TYPES
from tidegate.pipeline.replay.resolved import NOT_BY_NAMES, Resolved, ResolvedColumns
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.entity import DEFAULT, EntityQuotas, QuotaEntity, Tags
from tidegate.quota.admin.groups import GROUP_TAG, Groups
from tidegate.quota.admin.sanitizer import desanitize, sanitize
from tidegate.quota.managers.extensions import (
    CLUSTER_WIDE,
    EXEMPT_CLIENTS,
    EXTENSION_SETTINGS,
    THROTTLE_MAX_MS,
)
from tidegate.quota.measure.throttle import MAX_INT64, UNLIMITED, saturate_to_int32
from tidegate.usage.texts import tags_text

__all__ = [
    "INDEX_BY_KEY",
    "IN_FORCE",
    "QUOTA_TYPES",
    "Definitions",
    "Plan",
    "group_tags",
    "in_force_plan",
    "is_beyond_kafka",
    "load_plans",
    "plan_of",
    "resolved_answer",
]

IN_FORCE = "in force"
"""Name of the plan that follows the recorded `quota` rows."""

INDEX_BY_KEY = {quota_type.key: index for index, quota_type in enumerate(QUOTA_TYPES)}
"""Index in `QUOTA_TYPES` by the key of a quota."""

_FEW_CLIENTS = 32  # up to this number, clients are matched one by one: grouping equal ones would take longer
_IN_THE_ROWS = {EXEMPT_CLIENTS, THROTTLE_MAX_MS, CLUSTER_WIDE}  # recorded rows contain their effects

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Definitions, settings beyond Kafka and windows under a name. `records` is None for the quotas in force.

    groups: clients that share a limit in place of their own quotas.
    limit_texts: the text of a value in the file, by Kafka's key and value.
    rung: a bound for each sensor of a search, by its number; NaN: unlimited. It replaces the values of the records.
    measures: the largest rate of each sensor is kept.
    is_closed: throttled clients send later (closed loop); else all times are as recorded.
    """

    name: str
    records: tuple[QuotaRecord, ...] | None
    windows: Windows = field(default_factory=Windows)
    limit_texts: Mapping[tuple[str, float], str] = field(default_factory=dict)
    groups: Groups = field(default_factory=Groups)
    rung: Doubles | None = field(default=None, compare=False)
    measures: bool = False
    is_closed: bool = False

    @property
    def shared_kinds(self) -> frozenset[str]:
        """Return the kinds of names (user, client id) that all entities of the plan have.

        Clients that differ in such a name share no sensor, because a sensor belongs to an entity that has it (B§3.3).
        """
        kinds = {frozenset(kind for kind, _ in record.entity) for record in self.records or ()}
        return frozenset.intersection(*kinds) if kinds else frozenset()

    @property
    def is_in_force(self) -> bool:
        """Return whether the plan follows the recorded `quota` rows."""
        return self.records is None

    @property
    def leaves_state(self) -> bool:
        """Return whether the plan's replay leaves a state; for the quotas in force the record itself holds states."""
        return self.records is not None and not self.is_closed

    @property
    def is_beyond_kafka(self) -> bool:
        """Return whether a setting of the plan needs the kernel for features beyond Kafka; groups do not need it."""
        return any(map(is_beyond_kafka, self.records or ()))


def is_beyond_kafka(record: QuotaRecord) -> bool:
    """Return whether a record enables a feature beyond Kafka that the kernel has to implement."""
    return record.key in EXTENSION_SETTINGS - _IN_THE_ROWS and record.value is not None


def group_tags(group: str) -> str:
    """Return the tags that a group is counted under, as JSON."""
    return tags_text({GROUP_TAG: group})


def resolved_answer(answer: Answer | None, user: str, client_id: str) -> Resolved:
    """Return the answer of a callback for a client. None: the record does not contain it; the client is not limited."""
    if answer is None:
        tags = sanitize(user), client_id
        return Resolved(tags, tags, UNLIMITED, MAX_INT64, None)
    bound = UNLIMITED if answer.limit is None else answer.limit
    return Resolved(answer.pair or answer.tags, answer.name, bound, MAX_INT64, None)


class Definitions:
    """The definitions of client quotas at one moment, by the engine's own rules of matching (B§3.4), and groups."""

    def __init__(self, records: Iterable[QuotaRecord] = (), *, groups: Groups | None = None) -> None:
        self._groups = groups or Groups()
        self._group_keys = frozenset(key for _, key in self._groups.limits)
        self._quotas = [EntityQuotas() for _ in QUOTA_TYPES]
        for record in records:
            self.apply(record)

    @classmethod
    def of(cls, plan: Plan) -> "Definitions":
        """Return the definitions of a plan; none for the plan that follows the quotas in force."""
        return cls(plan.records or (), groups=plan.groups)

    def apply(self, record: QuotaRecord) -> int | None:
        """Apply a definition; return the index of its quota type, or None if it is not a client quota."""
        index = INDEX_BY_KEY.get(record.key)
        if index is None:
            return None
        entity = _entity(record)
        if record.value is None:
            self._quotas[index].remove(entity)
        else:
            self._quotas[index].set(entity, record.value)
        return index

    def clear(self) -> None:
        """Remove all definitions."""
        self._quotas = [EntityQuotas() for _ in QUOTA_TYPES]

    def is_enabled(self, index: int) -> bool:
        """Return whether any quota of the type is defined (B§3.3)."""
        return bool(self._quotas[index].levels) or QUOTA_TYPES[index].key in self._group_keys

    def entities(self, index: int) -> frozenset[QuotaEntity]:
        """Return the entities that have a quota of the type. Only they determine which clients share a sensor."""
        return frozenset(entity for entity, _ in self._quotas[index])

    def bound(self, index: int, tags: Tags) -> float | None:
        """Return the bound per second of the clients that are counted under `tags`; None: unlimited."""
        return self._quotas[index].bound(tags)

    def tags(self, index: int, user: str, client_id: str) -> Tags:
        """Return the tags that the usage of a client in no group is counted under; `user` is raw."""
        return self._quotas[index].tags(sanitize(user), client_id)

    def members(self, users: pa.Array, client_ids: pa.Array) -> dict[int, str]:
        """Return the group of each client that is in one, by the client's index."""
        if not self._groups.members:
            return {}
        is_one = np.zeros(len(users), bool)
        for kind, names in (("user", users), ("client-id", client_ids)):
            known = pa.array([name for of, name in self._groups.members if of == kind], pa.string())
            is_one |= pc.is_in(names, value_set=known).to_numpy(zero_copy_only=False)
        places = np.flatnonzero(is_one)
        of_members = (names.take(pa.array(places)).to_pylist() for names in (users, client_ids))
        found = map(self._groups.group_of, *of_members)
        return {
            place: group for place, group in zip(places.tolist(), found, strict=True) if group is not None
        }

    def resolve(self, index: int, user: str, client_id: str, windows: Windows) -> Resolved:
        """Return the sensor and tags of a client, its bound, and the cap on its fetches (B§3.4, 3.7)."""
        group = self._groups.group_of(user, client_id)
        if group is not None:
            return self._of_group(index, group, windows)
        return self._of_own_rules(index, user, client_id, windows)

    def _of_own_rules(self, index: int, user: str, client_id: str, windows: Windows) -> Resolved:
        tags = self.tags(index, user, client_id)
        match = self._quotas[index].match(tags)
        entity, bound = (None, None) if match is None else match
        return Resolved(tags, tags, *_limited(index, bound, windows), entity)

    def _of_group(self, index: int, group: str, windows: Windows) -> Resolved:
        bound = self._groups.limit(group, QUOTA_TYPES[index].key)
        return Resolved(group_tags(group), group, *_limited(index, bound, windows), None)

    def resolved(
        self, index: int, users: pa.Array, client_ids: pa.Array, windows: Windows
    ) -> ResolvedColumns:
        """Return the results of `resolve` for several clients."""
        if len(users) <= max(_FEW_CLIENTS, len(self._quotas[index])):
            clients = zip(users.to_pylist(), client_ids.to_pylist(), strict=True)
            found = [self.resolve(index, *client, windows) for client in clients]
            return ResolvedColumns.of(users, client_ids, found)
        row, first = self.alike(index, users, client_ids)
        some = users.take(pa.array(first)), client_ids.take(pa.array(first))
        clients = zip(*(names.to_pylist() for names in some), strict=True)
        alike = ResolvedColumns.of(*some, [self._of_own_rules(index, *client, windows) for client in clients])
        rows, names = [*alike.rows], alike.names
        groups: dict[str, int] = {}
        for place, group in self.members(users, client_ids).items():
            row[place] = groups.setdefault(group, len(rows) + len(groups))
        rows += [self._of_group(index, group, windows) for group in groups]
        names = np.append(names, np.full(len(groups), NOT_BY_NAMES))
        return ResolvedColumns(users, client_ids, rows, row, names)

    def alike(self, index: int, users: pa.Array, client_ids: pa.Array) -> tuple[Ints, Ints]:
        """Return a number for each client, equal for clients that are alike, and the first client of each number.

        Clients are alike if `resolve` differs only in their tags: their names are not empty, and no entity has them.
        """
        entities = self.entities(index)
        user = _places(users, {desanitize(each.user) for each in entities if isinstance(each.user, str)})
        client_id = _places(
            client_ids, {each.client_id for each in entities if isinstance(each.client_id, str)}
        )
        code = user * (1 + int(client_id.max(initial=0))) + client_id
        _, first, alike = np.unique(code, return_index=True, return_inverse=True)
        return alike.reshape(-1), first


def in_force_plan() -> Plan:
    """Return the plan that follows the recorded `quota` rows."""
    return Plan(name=IN_FORCE, records=None)


def load_plans(paths: Iterable[Path], *, is_closed: bool = False) -> list[Plan]:
    """Return a plan per file, named after it. Raises `ConfigError` for a bad file, or the same name twice.

    is_closed: they are replayed in closed loop.
    """
    plans: dict[str, Plan] = {}
    for path in paths:
        file = load_quotas_file(path)
        name = path.stem
        if name in plans or name == IN_FORCE:
            raise ConfigError(
                f"two plans are called {name!r}", hint="plans are named after their files: rename one"
            )
        plans[name] = plan_of(name, file, is_closed=is_closed)
    return list(plans.values())


def plan_of(name: str, file: QuotasFile, *, is_closed: bool) -> Plan:
    """Return the plan of a quotas file."""
    return Plan(
        name=name,
        records=tuple(file.records()),
        windows=Windows.of(file.windows),
        limit_texts=_limit_texts(file),
        groups=file.members_and_limits(),
        is_closed=is_closed,
    )


def _limit_texts(file: QuotasFile) -> dict[tuple[str, float], str]:
    """Return the text of each value; for equal values the first text."""
    texts: dict[tuple[str, float], str] = {}
    quotas: tuple[QuotaEntry | QuotaGroup, ...] = (*file.entries, *file.groups)
    for entry in quotas:
        for key, text in entry.texts.items():
            texts.setdefault((key, entry.values[key]), text)
    return texts


def _limited(index: int, bound: float | None, windows: Windows) -> tuple[float, int]:
    """Return a bound per second and the largest fetch in bytes. bound: None: unlimited."""
    if bound is None:
        return UNLIMITED, MAX_INT64
    return bound, saturate_to_int32(windows.rate.max_value(bound)) if index == FETCH else MAX_INT64


def _entity(record: QuotaRecord) -> QuotaEntity:
    """Return the entity for matching quotas: its user is sanitised, its client id raw."""
    parts = dict(record.entity)
    user = client_id = None
    if "user" in parts:
        user = DEFAULT if parts["user"] is None else sanitize(parts["user"])
    if "client-id" in parts:
        client_id = DEFAULT if parts["client-id"] is None else parts["client-id"]
    return QuotaEntity(user=user, client_id=client_id)


def _places(names: pa.Array, known: Collection[str]) -> Ints:
    """Return a number for each name: one of its own if it is known, one for the empty, one for all others."""
    if not known:
        are_there: Ints = pc.not_equal(names, "").cast(pa.int8()).to_numpy().astype(np.int64)
        return are_there
    places = pc.index_in(names, value_set=pa.array(sorted(known), pa.string()))
    others = pc.if_else(pc.equal(names, ""), len(known), len(known) + 1)
    found: Ints = pc.coalesce(places.cast(pa.int64()), others.cast(pa.int64())).to_numpy(zero_copy_only=False)
    return found
