"""The table of SCRAM credentials: Kafka's checks, what is kept, and its bounds."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms, whole

from tidegate.scram import SCRAM_MECHANISMS, CredentialChange
from tidegate.server.audit import Audit
from tidegate.server.authentication import scram_credentials
from tidegate.server.authentication.scram_credentials import (
    Deletion,
    Described,
    ScramCredentials,
    Upsertion,
    UserResult,
)
from tidegate.server.requests.handler import Connection
from tidegate.storage.errors import StorageError
from tidegate.storage.metadata.store import MetadataStore

SHA_256 = SCRAM_MECHANISMS["SCRAM-SHA-256"]
SALTED = bytes(range(32))
AUDIT = Audit(Connection(1, "CLIENTS", "127.0.0.1", "127.0.0.1", 9092))
TWICE = "A user credential cannot be altered twice in the same request"
TOO_LONG = "Salt and salted password must have at most 1024 bytes"
MISSING = "Attempt to delete a user credential that does not exist"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    """Return a store on disk."""
    made = MetadataStore(tmp_path / "metadata.sqlite")
    yield made
    made.close()


def upsertion(
    user: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt", salted: bytes = SALTED
) -> Upsertion:
    """Return what sets a credential."""
    return Upsertion(user=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted)


def altered(
    credentials: ScramCredentials,
    deletions: Sequence[Deletion] = (),
    upsertions: Sequence[Upsertion] = (),
) -> set[UserResult]:
    """Alter at once and return the results."""
    return set(whole(credentials.alter_in_slices(deletions, upsertions, AUDIT)))


def described(credentials: ScramCredentials, *names: str) -> list[Described]:
    """Describe at once."""
    found: list[Described] = whole(credentials.describe_in_slices(names))
    return found


def test_a_credential_is_kept_found_and_removed(store: MetadataStore) -> None:
    """It holds when it is answered, survives, and what is kept is no password."""
    credentials = ScramCredentials(store, exact=True)
    assert credentials.credential_of(SHA_256, "alice") is None
    assert altered(credentials, [], [upsertion("alice"), upsertion("bob", 2, 8192)]) == {
        ("alice", 0, None), ("bob", 0, None),
    }  # fmt: skip
    expected = SHA_256.credential_of_salted(SALTED, salt=b"salt", iterations=4096)
    assert credentials.credential_of(SHA_256, "alice") == expected
    assert credentials.credential_of(SHA_256, "bob") is None
    again = ScramCredentials(store, exact=True)
    assert again.credential_of(SHA_256, "alice") == expected
    assert described(again, "bob") == [("bob", 0, "", [(2, 8192)])]
    assert sorted(described(again)) == [("alice", 0, "", [(1, 4096)]), ("bob", 0, "", [(2, 8192)])]
    assert altered(again, [Deletion("alice", 1)]) == {("alice", 0, None)}
    assert ScramCredentials(store, exact=True).credential_of(SHA_256, "alice") is None
    for path in (Path(store._path), store.recent_path):
        assert SALTED not in path.read_bytes()


def test_unknown_users_look_like_those_that_exist(store: MetadataStore) -> None:
    """At once after a change, after a restart, and for the other mechanism of a user that has one."""
    credentials = ScramCredentials(store)
    salt = bytes(range(200, 264 - 8)) + b"12345678"
    altered(credentials, [], [upsertion("alice", 1, 8192, salt), upsertion("bob", 2, 8192, salt)])
    unknown = credentials.credential_of(SHA_256, "mallory"), credentials.credential_of(SHA_256, "bob")
    assert [(each.iterations, len(each.salt)) for each in unknown if each] == [(8192, len(salt))] * 2
    again = ScramCredentials(store)
    assert unknown == (again.credential_of(SHA_256, "mallory"), again.credential_of(SHA_256, "bob"))
    altered(again, [Deletion("alice", 1)], [])
    gone = again.credential_of(SHA_256, "alice")
    assert gone is not None
    assert gone.iterations == 4096  # no user has the mechanism now


@pytest.mark.parametrize(
    ("deletions", "upsertions", "results"),
    [
        ([], [upsertion("a", iterations=4095)], {("a", 93, "Too few iterations")}),
        ([], [upsertion("a", iterations=16385)], {("a", 93, "Too many iterations")}),
        ([], [upsertion("", 9)], {("", 93, "Username must not be empty")}),
        ([], [upsertion("a", 3, 1)], {("a", 33, "Unknown SCRAM mechanism")}),
        ([Deletion("a", 0)], [], {("a", 33, "Unknown SCRAM mechanism")}),
        ([Deletion("a", 1)], [], {("a", 91, MISSING)}),
        ([Deletion("a", 1)], [upsertion("a")], {("a", 91, MISSING)}),
        ([Deletion("there", 1)], [upsertion("there")], {("there", 92, TWICE)}),
        ([Deletion("there", 1), Deletion("there", 1)], [], {("there", 92, TWICE)}),
        ([], [upsertion("a"), upsertion("a", 2)], {("a", 92, TWICE)}),
        ([], [upsertion("a", iterations=1), upsertion("a")], {("a", 93, "Too few iterations")}),
        ([], [upsertion("a", salted=b""), upsertion("b")], {("a", -1, None), ("b", 0, None)}),
        ([], [upsertion("a", salted=b""), upsertion("a")], {("a", 92, TWICE)}),
        ([], [upsertion("a", salt=b"")], {("a", 0, None)}),
        ([], [upsertion("a", salt=bytes(1025))], {("a", 93, TOO_LONG)}),
        ([], [upsertion("a", salted=bytes(1025))], {("a", 93, TOO_LONG)}),
        ([], [], set()),
    ],
)  # fmt: skip
def test_what_kafka_refuses(
    store: MetadataStore,
    deletions: list[Deletion],
    upsertions: list[Upsertion],
    results: set[tuple[str, int, str | None]],
) -> None:
    """Each user has one result, and only what has none of Kafka's errors is done."""
    credentials = ScramCredentials(store)
    altered(credentials, [], [upsertion("there")])
    assert altered(credentials, deletions, upsertions) == results
    good = {user for user, code, _ in results if code == 0}
    assert {each.user for each in described(credentials)} == good | {"there"}


def test_describing_names(store: MetadataStore) -> None:
    """A name that is asked for twice, is not there, or is empty has its error; others are described."""
    credentials = ScramCredentials(store)
    altered(credentials, [], [upsertion("a"), upsertion("b")])
    altered(credentials, [], [upsertion("a", 2, 5000)])
    text = "Cannot describe SCRAM credentials for the same user twice in a single request: b"
    missing = "Attempt to describe a user credential that does not exist: "
    assert described(credentials, "a", "b", "b", "") == [
        ("a", 0, "", [(1, 4096), (2, 5000)]), ("b", 92, text, []), ("", 91, missing, []),
    ]  # fmt: skip


def test_what_cannot_be_stored_is_not_in_force(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its user is told error 56, the credential of before goes on, and the audit log has no line."""
    credentials = ScramCredentials(store, exact=True)
    altered(credentials, [], [upsertion("a")])
    caplog.set_level(logging.INFO, "tidegate.audit")

    def fail(changes: Sequence[CredentialChange]) -> None:
        raise StorageError("the disk is full")

    before = credentials.credential_of(SHA_256, "a")
    credentials._store = type("Full", (), {"change_credentials": staticmethod(fail)})()
    ((user, code, text),) = altered(credentials, [], [upsertion("a", iterations=5000)])
    assert (user, code) == ("a", 56)
    assert "nothing was changed" in str(text)
    assert credentials.credential_of(SHA_256, "a") == before
    assert "the disk is full" in caplog.text
    assert [record.name for record in caplog.records] == ["tidegate.server"]
    assert all(hasattr(record, "repeats") for record in caplog.records), (
        "a client can write it by the thousand"
    )


def test_the_table_is_bounded(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound error 44; what is removed or replaced makes room."""
    monkeypatch.setattr(scram_credentials, "MAX_BYTES", 1500)
    credentials = ScramCredentials(store)
    for name in ("a", "b", "c"):
        assert altered(credentials, [], [upsertion(name)]) == {(name, 0, None)}
    ((_, code, _),) = altered(credentials, [], [upsertion("d")])
    assert code == 44
    ((_, code, _),) = altered(credentials, [], [upsertion("x" * 400)])
    assert code == 44
    altered(credentials, [Deletion("a", 1)])
    assert altered(credentials, [], [upsertion("d")]) == {("d", 0, None)}
    for name in ("b", "c", "d"):
        altered(credentials, [Deletion(name, 1)])
    assert (credentials._bytes, credentials._users) == (0, {})


@pytest.mark.alone
def test_many_at_once_leave_others_their_turn(store: MetadataStore) -> None:
    """20,000 credentials in a request are changed and described in short steps, but for SQLite's checkpoints."""
    credentials = ScramCredentials(store)
    names = [f"user-{number}" for number in range(20_000)]
    add = [upsertion(name) for name in names]
    remove = [Deletion(name, 1) for name in names]
    for begin, times in (
        (lambda: credentials.alter_in_slices([], add, AUDIT), 3),
        (lambda: credentials.describe_in_slices([]), 3),
        (lambda: credentials.describe_in_slices(names), 3),
        (lambda: credentials.alter_in_slices(remove, [], AUDIT), 1),
    ):
        results, longest_ms = longest_step_ms(begin, times=times)
        assert {result[:2] for result in results} == {(name, 0) for name in names}
        assert longest_ms < (MOST_STEP_MS if times > 1 else 3 * MOST_STEP_MS)
