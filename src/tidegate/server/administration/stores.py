"""Stores that the front needs: quota definitions, ACLs, and settings changed on the running broker."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tidegate.acl import Acl
from tidegate.quota import QuotaRecord

__all__ = ["AclStore", "QuotaStore", "SettingStore"]


class QuotaStore(Protocol):
    """A store of quota definitions; `tidegate.storage` has the store on disk."""

    def load_quotas(self) -> Iterable[QuotaRecord]:
        """Return a record per stored definition."""

    def apply_quota_records_in_slices(self, records: Sequence[QuotaRecord]) -> Generator[Any, None, None]:
        """Store all of `records`, or none, yielding in between: they survive `kill -9` when this returns.

        Yields None, or a `Wait`.

        Raises `TidegateError` or `OSError` where they cannot be stored; nothing has changed then. One at a time.
        """


class SettingStore(Protocol):
    """A store of settings changed on the running broker. Raises `TidegateError` or `OSError`."""

    def load_settings(self) -> Iterable[tuple[str, str, str]]:
        """Return node (empty: all nodes), name and text of each."""

    def change_settings(self, node: str, changes: Mapping[str, str | None]) -> None:
        """Keep settings of a node, all of `changes` or none; None forgets one."""


class AclStore(Protocol):
    """A store of ACLs. Raises `TidegateError` or `OSError`; nothing has changed then."""

    def load_acls(self) -> Iterable[Acl]:
        """Return every ACL."""

    def create_acls(self, acls: Sequence[Acl]) -> None:
        """Keep all of `acls`, or none: they survive `kill -9` when this returns."""

    def delete_acls(self, acls: Sequence[Acl]) -> None:
        """Forget all of `acls`, or none."""
