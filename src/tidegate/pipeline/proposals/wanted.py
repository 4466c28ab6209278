"""The request of a user for a proposal, and the level of entities that it is for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

from tidegate.config.values import QuotaValueError, checked_entity, checked_value, did_you_mean
from tidegate.errors import ArgumentError, ConfigError
from tidegate.pipeline.arguments import check_number
from tidegate.pipeline.replay.levels import QUOTA_TYPES

if TYPE_CHECKING:
    from tidegate.pipeline.read.chunks import Chunk

__all__ = ["BUDGET_KEYS", "PROTECTED_TYPES", "Wanted", "chunk_users", "level_of"]

BUDGET_KEYS = tuple(kind.key for kind in QUOTA_TYPES)
PROTECTED_TYPES = ("user", "client-id")
"""Types of entities that can be protected."""

_MOST_HEADROOM = 1000
_FEW_NAMES = 4  # distinct values: at least two of four are users, as one may be null and one empty


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
        """Check what a caller gave; pairs may be lists, as in JSON. Raises `ConfigError`."""
        check_number(self.headroom, "headroom", 1, _MOST_HEADROOM)
        object.__setattr__(self, "budgets", _budgets(self.budgets))
        object.__setattr__(self, "protect", _protected(self.protect))


def level_of(users: Iterable[str], wanted: Wanted) -> str:
    """Return the default level of entities: the level of the protected ones, else `user` if there are several users.

    users: results of `chunk_users` for all chunks; read only as far as needed.
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


def _budgets(given: Any) -> dict[str, float]:
    """Return budgets as numbers. Raises `ConfigError`."""
    if not isinstance(given, Mapping):
        raise ArgumentError(f"budgets must be a mapping such as {{'producer_byte_rate': 1e8}}, got {given!r}")
    budgets = {}
    for key, value in given.items():
        if key not in BUDGET_KEYS:
            hint = did_you_mean(str(key), BUDGET_KEYS)
            raise ConfigError(f"budgets has the unknown key {key!r}", hint=hint)
        try:
            number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
            budgets[key] = checked_value(key, number, (("user", None),))
        except QuotaValueError as error:
            raise ArgumentError(f"{key} in budgets {error.expected}, got {value!r}") from None
    return budgets


def _protected(given: Any) -> list[tuple[str, str]]:
    """Return pairs of an entity type and a name. Raises `ConfigError`."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ArgumentError(f"protect must be pairs such as [('user', 'checkout')], got {given!r}")
    return list(map(_pair, given))


def _pair(given: Any) -> tuple[str, str]:
    if not isinstance(given, tuple | list) or [isinstance(part, str) for part in given] != [True, True]:
        raise ArgumentError(f"protect must be pairs such as [('user', 'checkout')], got {given!r} among them")
    kind, name = given
    if kind not in PROTECTED_TYPES:
        hint = did_you_mean(kind, PROTECTED_TYPES)
        raise ConfigError(f"protect has the unknown entity type {kind!r}", hint=hint)
    checked_entity([(kind, name)])
    return kind, name
