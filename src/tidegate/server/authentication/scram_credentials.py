"""The SCRAM credentials of a cluster: describes and alters them, and finds them for logins.

An alteration is validated user by user, stored, and applies to logins after it is answered. Clients that are logged in
stay logged in. For a password, the salt, the iterations and two keys are stored (`tidegate.scram`).

Follows: Kafka `ScramControlManager`, `ScramImage` (KIP-554).
"""

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tidegate import error_codes
from tidegate.config.values import cut
from tidegate.errors import TidegateError
from tidegate.in_slices import batched, counts_in_slices, lots, release
from tidegate.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    CredentialChange,
    ScramCredential,
    ScramMechanism,
)
from tidegate.server.audit import HIDDEN, Audit
from tidegate.server.authentication.decoys import Decoys
from tidegate.server.requests.handler import Wait
from tidegate.server.requests.slices import OneAtATime

__all__ = [
    "MAX_BYTES",
    "MAX_SECRET_BYTES",
    "CredentialStore",
    "Deletion",
    "Described",
    "ScramCredentials",
    "Upsertion",
    "UserResult",
]

_log = logging.getLogger("tidegate.server")

MAX_BYTES = 64 * 1024 * 1024
"""Most bytes of all credentials, `_CREDENTIAL_BYTES` each plus name and salt: some 130,000 of usual length."""
MAX_SECRET_BYTES = 1024
"""Longest salt, which is sent to every client that begins a login, and longest salted password, which is hashed."""
_CREDENTIAL_BYTES = 450
_STORED_AT_A_TIME = 20  # about a millisecond, where there are many already
_STORED_AT_A_TIME_BYTES = 64 * 1024  # names may be 32 KB long
_DESCRIBED_AT_A_TIME = 250
_MECHANISM_BY_TYPE = {mechanism.type: mechanism for mechanism in SCRAM_MECHANISMS.values()}
_TWICE = "A user credential cannot be altered twice in the same request"
_NOT_STORED = "The credentials could not be stored; nothing was changed for this user."


class CredentialStore(Protocol):
    """A store of credentials. Its methods raise `TidegateError` or `OSError`."""

    def load_credentials(self) -> Iterable[CredentialChange]:
        """Return every credential."""

    def change_credentials(self, changes: Sequence[CredentialChange]) -> None:
        """Store all of `changes`, or none: they survive `kill -9` when this returns."""

    def decoy_key(self) -> bytes:
        """Return a secret of this cluster, which the first call creates."""


class Deletion(NamedTuple):
    """Remove a credential. mechanism: Kafka's number of it."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsertion:
    """Set a credential. mechanism: Kafka's number of it."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


class UserResult(NamedTuple):
    """The result of altering one user's credentials."""

    user: str
    error_code: int
    error_message: str | None


class Described(NamedTuple):
    """A user, and (Kafka's number of a mechanism, iterations) of each of its credentials."""

    user: str
    error_code: int
    error_message: str
    credentials: list[tuple[int, int]]


class ScramCredentials:
    """All SCRAM credentials. exact: an unknown user is refused at the first token, as by Kafka."""

    def __init__(self, store: CredentialStore, *, exact: bool = False) -> None:
        self._store = store
        self._exact = exact
        self._users: dict[str, dict[str, ScramCredential]] = {}
        self._bytes = 0
        self._changes = OneAtATime()
        self._decoys = Decoys(store.decoy_key())
        for change in store.load_credentials():
            self._put(change)

    @property
    def is_empty(self) -> bool:
        """Return whether there are no credentials: no client can log in by SCRAM."""
        return not self._users

    def credential_of(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Return the credential that a login is checked against; for an unknown user a decoy, or None if `exact`.

        Both take the same time: the decoy is always made.
        """
        credentials = self._users.get(user, {})
        credential = credentials.get(mechanism.name)
        if self._exact:
            return credential
        decoy = self._decoys.of(mechanism, user, next(iter(credentials.values()), None))
        return credential or decoy

    # --- describing

    def describe_in_slices(self, names: Sequence[str]) -> Generator[None, None, list[Described]]:
        """Return the credentials of each of `names`; of all users if `names` is empty."""
        found: list[Described] = []
        if not names:
            for users in batched(list(self._users), _DESCRIBED_AT_A_TIME):
                there = (
                    (user, self._users.get(user, {})) for user in users
                )  # some may be gone after a yield
                found += [_described(user, credentials) for user, credentials in there if credentials]
                yield
            return found
        seen = yield from counts_in_slices(names)
        for some in batched(list(seen), _DESCRIBED_AT_A_TIME):
            for name in some:
                if seen[name] > 1:
                    text = "Cannot describe SCRAM credentials for the same user twice in a single request: "
                    found.append(Described(name, error_codes.DUPLICATE_RESOURCE, text + name, []))
                else:
                    found.append(_described(name, self._users.get(name, {})))
            yield
        yield from release(seen)
        return found

    # --- altering

    def alter_in_slices(
        self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion], audit: Audit
    ) -> Generator[Wait | None, None, list[UserResult]]:
        """Change credentials, and return a result for each user that is named."""
        yield from self._changes.acquire()
        try:
            accepted, refused = yield from self._decide_in_slices(deletions, upsertions)
            results = yield from self._store_in_slices(accepted.values(), audit)
            results += refused.values()
            yield from release(accepted, refused)
            return results
        finally:
            self._changes.release()

    def _decide_in_slices(
        self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
    ) -> Generator[None, None, tuple[dict[str, Deletion | Upsertion], dict[str, UserResult]]]:
        """Return changes and errors by user. After an error, other changes of the same user are ignored."""
        accepted: dict[str, Deletion | Upsertion] = {}
        refused: dict[str, UserResult] = {}
        lists: tuple[Sequence[Deletion | Upsertion], ...] = (deletions, upsertions)
        for alterations in lists:
            for some in batched(alterations):
                for alteration in some:
                    user = alteration.user
                    if user in refused:
                        continue
                    if accepted.pop(user, None) is not None:
                        refused[user] = UserResult(user, error_codes.DUPLICATE_RESOURCE, _TWICE)
                        continue
                    error = self._error_of(alteration)
                    if error is not None:
                        refused[user] = UserResult(user, *error)
                    else:
                        accepted[user] = alteration
                yield
        return accepted, refused

    def _error_of(self, alteration: Deletion | Upsertion) -> tuple[int, str] | None:
        if not alteration.user:
            return error_codes.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
        mechanism = _MECHANISM_BY_TYPE.get(alteration.mechanism)
        if mechanism is None:
            return error_codes.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
        if isinstance(alteration, Deletion):
            if mechanism.name in self._users.get(alteration.user, {}):
                return None
            return error_codes.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        if alteration.iterations < MIN_ITERATIONS:
            return error_codes.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
        if alteration.iterations > MAX_ITERATIONS:
            return error_codes.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
        if max(len(alteration.salt), len(alteration.salted_password)) > MAX_SECRET_BYTES:
            text = f"Salt and salted password must have at most {MAX_SECRET_BYTES} bytes"
            return error_codes.UNACCEPTABLE_CREDENTIAL, text
        return None

    def _store_in_slices(
        self, alterations: Iterable[Deletion | Upsertion], audit: Audit
    ) -> Generator[None, None, list[UserResult]]:
        """Store some changes at a time. Each lot is stored and applied, or its users get the error."""
        results: list[UserResult] = []
        good: list[Deletion | Upsertion] = []
        for some in batched(list(alterations)):
            for each in some:
                if isinstance(each, Upsertion) and not each.salted_password:  # Kafka cannot make keys of it
                    results.append(UserResult(each.user, error_codes.UNKNOWN_SERVER_ERROR, None))
                else:
                    good.append(each)
            yield
        for changes in lots(
            map(_change, good), _letters, most=_STORED_AT_A_TIME, most_size=_STORED_AT_A_TIME_BYTES
        ):
            if self._bytes + sum(map(_cost, changes)) > MAX_BYTES:
                text = f"At most {MAX_BYTES >> 20} MB of SCRAM credentials can be kept."
                results += [UserResult(each.user, error_codes.POLICY_VIOLATION, text) for each in changes]
                yield
                continue
            try:
                self._store.change_credentials(changes)
            except (TidegateError, OSError) as error:
                _log.error("cannot store SCRAM credentials: %s", error, extra={"repeats": "credentials"})
                results += [
                    UserResult(change.user, error_codes.KAFKA_STORAGE_ERROR, _NOT_STORED)
                    for change in changes
                ]
            else:
                for change in changes:
                    self._audit(audit, change)
                    self._put(change)
                results += [UserResult(change.user, error_codes.NONE, None) for change in changes]
            yield
        yield from release(good)
        return results

    def _audit(self, audit: Audit, change: CredentialChange) -> None:
        """Write a change to the audit log before it is applied: only the iterations, no salt and no key."""
        user, mechanism, credential = change
        old = self._users.get(user, {}).get(mechanism)
        audit.changed(
            "delete" if credential is None else "alter",
            "SCRAM credential",
            repr(cut(user)),
            key=mechanism,
            old=None if old is None else f"{old.iterations} iterations",
            new=None if credential is None else f"{credential.iterations} iterations, password {HIDDEN}",
        )

    def _put(self, change: CredentialChange) -> None:
        user, mechanism, credential = change
        credentials = self._users.setdefault(user, {})
        old = credentials.pop(mechanism, None)
        if old is not None:
            self._bytes -= _cost(CredentialChange(user, mechanism, old))
            self._decoys.remove(mechanism, old)
        if credential is not None:
            credentials[mechanism] = credential
            self._decoys.count_credential(mechanism, credential)
        if not credentials:
            del self._users[user]
        self._bytes += _cost(change)


def _described(user: str, credentials: Mapping[str, ScramCredential]) -> Described:
    if not credentials:
        text = f"Attempt to describe a user credential that does not exist: {user}"
        return Described(user, error_codes.RESOURCE_NOT_FOUND, text, [])
    kinds = [(SCRAM_MECHANISMS[name].type, each.iterations) for name, each in sorted(credentials.items())]
    return Described(user, error_codes.NONE, "", kinds)


def _change(alteration: Deletion | Upsertion) -> CredentialChange:
    mechanism = _MECHANISM_BY_TYPE[alteration.mechanism]
    if isinstance(alteration, Deletion):
        return CredentialChange(alteration.user, mechanism.name, None)
    credential = mechanism.credential_of_salted(
        alteration.salted_password, salt=alteration.salt, iterations=alteration.iterations
    )
    return CredentialChange(alteration.user, mechanism.name, credential)


def _cost(change: CredentialChange) -> int:
    """Return how many of `MAX_BYTES` a credential takes; 0 if it is removed."""
    if change.credential is None:
        return 0
    return _CREDENTIAL_BYTES + 4 * len(change.user) + len(change.credential.salt)


def _letters(change: CredentialChange) -> int:
    return len(change.user)
