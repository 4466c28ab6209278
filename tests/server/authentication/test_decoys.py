"""Decoys: unknown users are asked with what existing users have, and with the same each time."""

import random
import re
from collections import Counter

import pytest
from tests.unit.test_scram import final, server_of

from tidegate.scram import SCRAM_MECHANISMS, InvalidCredentialsError, ScramCredential
from tidegate.server.authentication.decoys import Decoys, Form

SHA_256, SHA_512 = SCRAM_MECHANISMS.values()
NAMES = [f"user-{number}" for number in range(2000)]
KAFKA_SALT = b"1h9z0ssbj8fjdwp4hqb3h2f0q"


def credential(iterations: int, salt: bytes = KAFKA_SALT) -> ScramCredential:
    """Return a credential that nobody can log in with."""
    return ScramCredential(salt=salt, stored_key=b"", server_key=b"", iterations=iterations)


def decoys_of(*credentials: ScramCredential, key: bytes = b"key") -> Decoys:
    """Return the decoys of a cluster whose users have these credentials for SHA-512."""
    made = Decoys(key)
    for each in credentials:
        made.count_credential(SHA_512.name, each)
    return made


def test_a_decoy_stays_the_same_and_no_password_fits() -> None:
    """It has the size of a credential, and differs by user, mechanism and key."""
    decoys = decoys_of()
    decoy = decoys.of(SHA_512, "mallory")
    assert decoy == decoys_of().of(SHA_512, "mallory")
    others = (
        decoys.of(SHA_512, "other"),
        decoys.of(SHA_256, "mallory"),
        decoys_of(key=b"k").of(SHA_512, "mallory"),
    )
    assert decoy.salt not in {each.salt for each in others}
    assert len(decoy.stored_key) == 64
    first = b"n,,n=mallory,r=x"
    server = server_of(SHA_512, {"mallory": decoy})
    with pytest.raises(InvalidCredentialsError):
        server.respond(final(SHA_512, first, server.respond(first), b"guess"))


@pytest.mark.parametrize(
    ("salt", "pattern"),
    [
        (KAFKA_SALT, rb"[0-9a-z]{22,25}|1[0-9a-z]{25}"),  # 130 bits in base 36
        (bytes(range(64)), rb"(?s).{64}"),
        (b"0123456789abcdef" * 2, rb"[0-9a-f]{32}"),
        (b"q83vEjRWeJA=" * 2, rb"[0-9A-Za-z+/=_-]{24}"),
        (b"Zz9" * 3, rb"[0-9A-Za-z]{9}"),
        (b"", rb""),
    ],
)
def test_iterations_and_salts_are_those_of_existing_users(salt: bytes, pattern: bytes) -> None:
    """Where all users have 8192 iterations and salts of one kind, so has each decoy."""
    decoys = decoys_of(*[credential(8192, salt)] * 3)
    for name in NAMES:
        decoy = decoys.of(SHA_512, name)
        assert decoy.iterations == 8192
        assert re.fullmatch(pattern, decoy.salt), decoy.salt


def test_forms_are_as_frequent_as_among_users() -> None:
    """Of users with three forms, decoys have each about as often."""
    shares = {Form(4096, "kafka", 0): 800, Form(8192, "kafka", 0): 150, Form(16384, "bytes", 64): 50}
    salts = {"kafka": KAFKA_SALT, "bytes": bytes(range(64))}
    users = [
        credential(form.iterations, salts[form.salt_kind]) for form, n in shares.items() for _ in range(n)
    ]
    found = Counter(Form.of(decoys_of(*users).of(SHA_512, name)) for name in NAMES)
    assert found.keys() == shares.keys()
    for form, count in shares.items():
        assert 0.5 < found[form] / len(NAMES) / (count / 1000) < 2


def test_few_decoys_change_when_users_come_and_go() -> None:
    """A user more changes none or few; the order in which users came does not count, as at a restart."""
    users = [credential(4096 + 4096 * (number % 3 == 0)) for number in range(100)]
    decoys = decoys_of(*users)
    before = [decoys.of(SHA_512, name) for name in NAMES]
    decoys.count_credential(SHA_512.name, credential(4096))
    assert [decoys.of(SHA_512, name) for name in NAMES] == before
    decoys.count_credential(SHA_512.name, credential(16384))
    after = [decoys.of(SHA_512, name) for name in NAMES]
    changed = [new.iterations for new, old in zip(after, before, strict=True) if new != old]
    assert 0 < len(changed) < len(NAMES) / 20
    assert set(changed) == {16384}
    decoys.remove(SHA_512.name, credential(16384))
    decoys.remove(SHA_512.name, credential(4096))
    assert [decoys.of(SHA_512, name) for name in NAMES] == before
    random.Random(1).shuffle(users)
    assert [decoys_of(*users).of(SHA_512, name) for name in NAMES[:100]] == before[:100]


def test_both_mechanisms_ask_a_user_alike() -> None:
    """As most users have one form for both, so have decoys, and users that have one mechanism only."""
    decoys = decoys_of(credential(4096), credential(8192))
    for iterations in (4096, 8192):
        decoys.count_credential(SHA_256.name, credential(iterations))
    forms = [{Form.of(decoys.of(each, name)) for each in (SHA_256, SHA_512)} for name in NAMES]
    assert {len(each) for each in forms} == {1}
    assert {decoys.of(SHA_512, name, credential(8192)).iterations for name in NAMES} == {8192}
    rare = {decoys.of(SHA_512, name, credential(9999)).iterations for name in NAMES}
    assert rare == {4096, 8192}  # 9999 would tell that the user exists


def test_many_forms_cost_no_more_than_few() -> None:
    """The most frequent count: a login makes at most 16 hashes, whatever the credentials are."""
    users = [credential(4096 + number) for number in range(10_000)] + [credential(4096)] * 63
    decoys = decoys_of(*users)
    found = Counter(decoys.of(SHA_512, name).iterations for name in NAMES)
    assert len(found) <= 16
    assert found.most_common(1)[0][0] == 4096
