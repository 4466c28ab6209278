"""The request of a user for a proposal, and the level of entities that it is for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.errors import ArgumentError

if TYPE_CHECKING:
    from tidegate.pipeline.read.chunks import Chunk

__all__ = ["Wanted", "chunk_users", "level_of"]

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
        """Check the headroom. Raises `ArgumentError`."""
        if (
            isinstance(self.headroom, bool)
            or not isinstance(self.headroom, int | float)
            or not 1 <= self.headroom <= _MOST_HEADROOM
        ):
            raise ArgumentError(
                f"headroom must be a number from 1 to {_MOST_HEADROOM}, got {self.headroom!r}"
            )


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
