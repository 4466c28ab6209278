"""Explanation of which quota a client has, and why.

>>> from tidegate.quota.admin.entity import DEFAULT, QuotaEntity
>>> print(Explanation(
...     quota_type=QuotaType.PRODUCE, user="alice", client_id="c1", tags={"user": "alice", "client-id": ""},
...     levels=Level.USER, considered=(QuotaEntity(user="alice"), QuotaEntity(user=DEFAULT)),
...     entity=QuotaEntity(user=DEFAULT), bound=1000.0))
Produce quota of user 'alice', client id 'c1': 1000.0 of (user=<default>), no quota for (user='alice'); \
shared by all clients with user='alice'

Follows: B§3.4.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidegate.quota.admin.entity import Level, QuotaEntity
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The entity whose bound applies to a client. `entity` and `bound` are None if the client is unlimited.

    considered: the entities whose bound was looked up, most specific first; empty with a custom callback.
    defined: the entities of the eight levels, most specific first, each with its own quota, None without one; empty
        with a custom callback.
    """

    quota_type: QuotaType
    user: str
    client_id: str
    tags: Mapping[str, str]
    levels: Level
    considered: tuple[QuotaEntity, ...]
    entity: QuotaEntity | None
    bound: float | None
    defined: tuple[tuple[QuotaEntity, float | None], ...] = ()

    def outcomes(self) -> Iterator[tuple[QuotaEntity, float | None, str]]:
        """Yield the entity of each level, its own quota, and why that applies or not.

        >>> from tidegate.quota.managers.client_quota import ClientQuotaManager
        >>> produce = ClientQuotaManager(QuotaType.PRODUCE)
        >>> produce.update_quota(QuotaEntity(user="alice"), 1000.0)
        >>> produce.update_quota(QuotaEntity(client_id="c1"), 10.0)
        >>> for entity, bound, reason in produce.explain("alice", "c1").outcomes():
        ...     if bound is not None:
        ...         print(entity, bound, reason)
        QuotaEntity(user='alice') 1000.0 applies
        QuotaEntity(client_id='c1') 10.0 a more specific quota applies
        """
        has_applied = False
        for entity, bound in self.defined:
            if bound is None:
                reason = "no quota is defined"
            elif entity == self.entity:
                reason, has_applied = "applies", True
            elif has_applied:
                reason = "a more specific quota applies"
            elif not self.client_id:
                reason = "does not apply to an empty client id"
            else:
                shared = ", ".join(f"{name}={value!r}" for name, value in self.tags.items() if value)
                reason = f"not looked up, because usage is counted by {shared}"
            yield entity, bound, reason

    def __str__(self) -> str:
        """Return one sentence."""
        client = f"{self.quota_type.value} quota of user {self.user!r}, client id {self.client_id!r}"
        if self.levels is Level.NONE:
            return f"{client}: unlimited, no quota of this type is defined"
        shared = ", ".join(f"{name}={value!r}" for name, value in self.tags.items() if value) or "no tags"
        return f"{client}: {self._reason()}; shared by all clients with {shared}"

    def _reason(self) -> str:
        if Level.CUSTOM in self.levels:
            return f"{'unlimited' if self.bound is None else self.bound} by the custom callback"
        if self.entity is None:
            return f"unlimited, no quota for {_names(self.considered)}"
        before = self.considered[: self.considered.index(self.entity)]
        return f"{self.bound} of {_names((self.entity,))}" + (
            f", no quota for {_names(before)}" if before else ""
        )


def _names(entities: tuple[QuotaEntity, ...]) -> str:
    return ", ".join(map(_name, entities))


def _name(entity: QuotaEntity) -> str:
    no_client_id = entity.user is None and entity.client_id == ""
    return "an empty client id" if no_client_id else repr(entity).removeprefix("QuotaEntity")
