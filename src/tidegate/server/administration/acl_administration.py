"""The ACLs of a cluster: loading, creating and deleting. All its nodes ask one `Authorizer`.

A change is stored, applied, written to the audit log, and answered, in this order and a piece at a time: a request that
changes many ACLs delays no other. Each ACL has its own result, as in Kafka; between two pieces others may change ACLs.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Protocol

from tidegate import error_codes
from tidegate.acl import Acl, Authorizer, acl_problem, parse_super_users
from tidegate.acl.authorizer import MAX_ACL_BYTES, MAX_TEXT
from tidegate.error_codes import Problem
from tidegate.errors import TidegateError
from tidegate.in_slices import batched
from tidegate.server.audit import Audit
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.kafka_settings import ALLOW_IF_NO_ACL, AUTHORIZER_CLASS, SUPER_USERS

__all__ = ["AclAdministration", "AclStore"]

_log = logging.getLogger("tidegate.acl")

_AT_ONCE = 25  # ACLs stored, or logged, between two yields: less than a millisecond

_NOT_STORED: Problem = error_codes.KAFKA_STORAGE_ERROR, "The ACL could not be stored; it was not changed."
_NO_ROOM: Problem = error_codes.POLICY_VIOLATION, f"ACLs take at most {MAX_ACL_BYTES} bytes of memory."
_TOO_LONG: Problem = (
    error_codes.POLICY_VIOLATION,
    f"Names in an ACL may have at most {MAX_TEXT} characters.",
)


class AclStore(Protocol):
    """A store of ACLs. Raises `TidegateError` or `OSError`; nothing has changed then."""

    def load_acls(self) -> Iterable[Acl]:
        """Return every ACL."""

    def create_acls(self, acls: Sequence[Acl]) -> None:
        """Store all of `acls`, or none: they survive `kill -9` when this returns."""

    def delete_acls(self, acls: Sequence[Acl]) -> None:
        """Delete all of `acls`, or none."""


class AclAdministration:
    """The ACL operations behind CreateAcls, DeleteAcls and DescribeAcls."""

    def __init__(self, store: AclStore, authorizer: Authorizer) -> None:
        """Load the stored ACLs into the authorizer."""
        self.authorizer = authorizer
        self._store = store
        authorizer.add_acls(store.load_acls())

    @classmethod
    def of(cls, config: ServerConfig, store: AclStore) -> "AclAdministration | None":
        """Return the administration for the settings; None if they name no authorizer."""
        if not config[AUTHORIZER_CLASS]:
            return None
        authorizer = Authorizer(
            super_users=parse_super_users(config[SUPER_USERS]),
            allow_if_no_acl=config[ALLOW_IF_NO_ACL],
        )
        return cls(store, authorizer)

    def create_in_slices(
        self, acls: Sequence[Acl], audit: Audit
    ) -> Generator[None, None, list[Problem | None]]:
        """Create ACLs; return the error of each, if any. An ACL that already exists is not an error."""
        problems: list[Problem | None] = []
        for some in batched(acls, _AT_ONCE):
            added: dict[Acl, None] = {}
            room_bytes = self.authorizer.room_bytes
            for acl in some:
                problem = _problem(acl)
                if problem is None and acl not in self.authorizer and acl not in added:
                    room_bytes -= acl.memory_bytes
                    if room_bytes < 0:
                        problem = _NO_ROOM
                    else:
                        added[acl] = None
                problems.append(problem)
            if added and self._stored(self._store.create_acls, list(added)):
                self.authorizer.add_acls(added)
                for acl in added:
                    audit.changed("create", "ACL", str(acl))
            elif added:
                problems[-len(some) :] = [
                    _NOT_STORED if acl in added else problem
                    for acl, problem in zip(some, problems[-len(some) :], strict=True)
                ]
            yield
        return problems

    def delete_in_slices(
        self, acls: Sequence[Acl], audit: Audit
    ) -> Generator[None, None, dict[Acl, Problem]]:
        """Delete ACLs; return those that could not be deleted, with the reasons."""
        failed: dict[Acl, Problem] = {}
        for some in batched(acls, _AT_ONCE):
            there = [acl for acl in dict.fromkeys(some) if acl in self.authorizer]
            if there and self._stored(self._store.delete_acls, there):
                self.authorizer.remove(there)
                for acl in there:
                    audit.changed("delete", "ACL", str(acl))
            elif there:
                failed |= dict.fromkeys(there, _NOT_STORED)
            yield
        return failed

    @staticmethod
    def _stored(store: Callable[[Sequence[Acl]], None], acls: Sequence[Acl]) -> bool:
        try:
            store(acls)
        except (TidegateError, OSError) as error:
            _log.error("cannot store ACLs: %s", error, extra={"repeats": "acls"})
            return False
        return True


def _problem(acl: Acl) -> Problem | None:
    text = acl_problem(acl)
    if text is not None:
        return error_codes.INVALID_REQUEST, text
    if max(len(acl.resource_name), len(acl.principal), len(acl.host)) > MAX_TEXT:
        return _TOO_LONG
    return None
