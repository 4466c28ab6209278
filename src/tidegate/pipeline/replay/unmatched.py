"""Entries of plans that match no client of the record: a misspelt client id, or a user if no client has logged in."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.replay.plan import Plan
from tidegate.quota.admin.definitions import EntityParts

__all__ = ["Unmatched", "unmatched_entries"]

_ANONYMOUS = "ANONYMOUS"  # the name of Kafka's KafkaPrincipal.ANONYMOUS
_MOST_GUESSES = 20  # entries that a nearest name is looked for
_MOST_NAMES = 20_000  # compared with each of those
_LONGEST_NAME = 100  # characters
_LENGTHS_APART = 3  # characters
_LIKE_ENOUGH = 0.7  # difflib's ratio: `loadr` is like `loader`


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """An entity of a plan, or a member of one of its groups, that no recorded client belongs to.

    kind: the part whose name no client has; None where each name is there, but never together.
    nearest: the recorded name of that kind that is most like it. no_users: every recorded client is ANONYMOUS.
    """

    plan: str
    entity: EntityParts
    kind: str | None = None
    nearest: str | None = None
    no_users: bool = False


def unmatched_entries(plans: Sequence[Plan], *, users: pa.Array, client_ids: pa.Array) -> list[Unmatched]:
    """Return the entities of the plans that match no client. users, client_ids: of each recorded client.

    An entity whose clients all have a more specific quota does match. Quotas of an ip are left out: connections
    are not replayed.
    """
    entities = [(plan.name, entity) for plan in plans for entity in _entities(plan)]
    clients = _Clients(users, client_ids, wanted=[dict(entity) for _, entity in entities])
    found: list[Unmatched] = []
    for plan, entity in entities:
        parts = dict(entity)
        kind = clients.missing(parts)
        if kind is not None:
            hopeless = kind == "user" and clients.are_anonymous
            guesses = not hopeless and len(found) < _MOST_GUESSES
            nearest = clients.nearest(kind, parts[kind] or "") if guesses else None
            found.append(Unmatched(plan=plan, entity=entity, kind=kind, nearest=nearest, no_users=hopeless))
        elif not clients.occur_together(parts):
            found.append(Unmatched(plan=plan, entity=entity))
    return found


class _Clients:
    """The recorded names among those that plans contain."""

    def __init__(
        self, users: pa.Array, client_ids: pa.Array, *, wanted: Sequence[dict[str, str | None]]
    ) -> None:
        self._names = {"user": users, "client-id": client_ids}
        asked = {
            kind: pa.array({parts[kind] for parts in wanted if parts.get(kind) is not None}, pa.string())
            for kind in self._names
        }
        is_asked = {kind: pc.is_in(names, asked[kind]) for kind, names in self._names.items()}
        self._there = {
            kind: set(pc.unique(names.filter(is_asked[kind])).to_pylist())
            for kind, names in self._names.items()
        }
        both = pc.and_(is_asked["user"], is_asked["client-id"])
        self._pairs = set(
            zip(users.filter(both).to_pylist(), client_ids.filter(both).to_pylist(), strict=True)
        )

    @property
    def are_anonymous(self) -> bool:
        """Return whether there are recorded clients and none of them has a user."""
        users = self._names["user"]
        return len(users) > 0 and pc.all(pc.equal(users, _ANONYMOUS)).as_py() is True

    def missing(self, parts: dict[str, str | None]) -> str | None:
        """Return the first kind of `parts` whose name no client has."""
        named = (kind for kind in self._names if parts.get(kind) is not None)
        return next((kind for kind in named if parts[kind] not in self._there[kind]), None)

    def occur_together(self, parts: dict[str, str | None]) -> bool:
        """Return whether some client has both names of `parts`, if there are two."""
        pair = parts.get("user"), parts.get("client-id")
        return None in pair or pair in self._pairs

    def nearest(self, kind: str, name: str) -> str | None:
        """Return the name that is most like `name`, among the first `_MOST_NAMES` of about the same length."""
        names = pc.unique(self._names[kind])
        apart = pc.abs(pc.subtract(pc.utf8_length(names), len(name)))
        near = names.filter(pc.less_equal(apart, _LENGTHS_APART)).slice(0, _MOST_NAMES).to_pylist()
        short = {other[:_LONGEST_NAME]: other for other in near}
        best = difflib.get_close_matches(name[:_LONGEST_NAME], short, n=1, cutoff=_LIKE_ENOUGH)
        return short[best[0]] if best else None


def _entities(plan: Plan) -> list[EntityParts]:
    """Return the client entities of a plan, of its settings and groups too, each once, in its order."""
    entities = dict.fromkeys(record.entity for record in plan.records or ())
    entities |= dict.fromkeys((member,) for member in plan.groups.members)
    return [entity for entity in entities if "ip" not in dict(entity)]
