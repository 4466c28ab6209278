"""Decoys: SCRAM credentials for users that do not exist, so that a login does not reveal which users exist.

A decoy looks like the credentials of existing users: its iterations and the form of its salt are drawn from those of
the mechanism's users, with the same frequency. The draw depends only on the name and on a secret of the cluster, so it
is the same for each login and after a restart. When users are added or removed, few decoys change: shares are counted
in powers of two, and a changed share moves names only to or from its own form (weighted rendezvous hashing).

>>> from tidegate.scram import SCRAM_MECHANISMS
>>> decoys = Decoys(b"secret of the cluster")
>>> decoys.of(SCRAM_MECHANISMS["SCRAM-SHA-256"], "mallory").iterations
4096
>>> alice = ScramCredential(salt=b"s" * 24, stored_key=b"", server_key=b"", iterations=8192)
>>> decoys.count_credential("SCRAM-SHA-256", alice)
>>> decoys.of(SCRAM_MECHANISMS["SCRAM-SHA-256"], "mallory").iterations
8192
"""

import hashlib
import hmac
import math
import re
import string
from heapq import nlargest
from itertools import islice
from typing import Final, NamedTuple

from tidegate.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism

__all__ = ["Decoys", "Form"]

_MOST_FORMS = 16  # most forms that a decoy is drawn from: each costs a hash at every login
_MOST_LOOKED_AT = 1024  # forms that are compared when shares have changed: a millisecond
_KAFKA_SALT_BITS = 130  # Kafka `ScramFormatter.secureRandomString`: a number in base 36
_KAFKA_SALT_BYTES = range(20, 27)
_BASE_36: Final = (string.digits + string.ascii_lowercase).encode()
_ALPHABETS: Final = {
    "kafka": _BASE_36,
    "hex": b"0123456789abcdef",
    "letters": (string.digits + string.ascii_letters).encode(),
    "base64": (string.digits + string.ascii_letters + "+/=-_").encode(),
    "bytes": bytes(range(256)),
}
_PATTERNS: Final = {
    kind: re.compile(b"[" + re.escape(alphabet) + b"]*", re.DOTALL)
    for kind, alphabet in sorted(_ALPHABETS.items(), key=lambda item: len(item[1]))
}


class Form(NamedTuple):
    """The parts of a credential that a login shows. salt_bytes: 0 for Kafka's own salts, whose length varies."""

    iterations: int
    salt_kind: str
    salt_bytes: int

    @classmethod
    def of(cls, credential: ScramCredential) -> "Form":
        """Return the form of a credential."""
        salt = credential.salt
        kind = next(kind for kind, pattern in _PATTERNS.items() if pattern.fullmatch(salt))
        if len(salt) in _KAFKA_SALT_BYTES and _PATTERNS["kafka"].fullmatch(salt):
            return cls(credential.iterations, "kafka", 0)
        return cls(credential.iterations, "letters" if kind == "kafka" else kind, len(salt))


_DEFAULT = Form(MIN_ITERATIONS, "kafka", 0)
"""The form for a mechanism without users: the default of `kafka-configs.sh`."""
_ANY = ScramCredential(salt=_BASE_36[:25], stored_key=b"", server_key=b"", iterations=MIN_ITERATIONS)


class Decoys:
    """The decoys of a cluster. key: a secret, with which decoys could be distinguished from credentials.

    Call `count_credential` for each credential that is added, and `remove` for each that is removed.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._counts: dict[str, dict[Form, int]] = {}
        self._shares: dict[str, dict[Form, int]] = {}

    def count_credential(self, mechanism: str, credential: ScramCredential) -> None:
        """Count a credential of a mechanism, given by its name."""
        self._count(mechanism, Form.of(credential), 1)

    def remove(self, mechanism: str, credential: ScramCredential) -> None:
        """Stop counting a credential."""
        self._count(mechanism, Form.of(credential), -1)

    def of(
        self, mechanism: ScramMechanism, user: str, other: ScramCredential | None = None
    ) -> ScramCredential:
        """Return the decoy of a user: the same each time; no password fits.

        other: the credential that the user has for another mechanism. Users mostly have credentials of one form, and
        so have decoys: the form of `other` is taken where the mechanism has it.
        """
        of_other = Form.of(
            other or _ANY
        )  # always computed: the time must not reveal whether there is another credential
        form = self._form(mechanism.name, user, of_other if other else None)
        digest = mechanism.hmac(self._key, user.encode())
        return ScramCredential(
            salt=_salt(form, digest),
            stored_key=mechanism.hmac(self._key, digest),
            server_key=digest,
            iterations=form.iterations,
        )

    def _count(self, mechanism: str, form: Form, change: int) -> None:
        counts = self._counts.setdefault(mechanism, {})
        before = counts.get(form, 0)
        counts[form] = before + change
        if not counts[form]:
            del counts[form]
        if before.bit_length() != (before + change).bit_length():
            self._shares.pop(mechanism, None)

    def _form(self, mechanism: str, user: str, other: Form | None) -> Form:
        """Return the form that is drawn for a user, alike for all mechanisms whose users have the same forms."""
        shares = self._shares.get(mechanism)
        if shares is None:
            shares = self._shares[mechanism] = _shares(self._counts.get(mechanism, {}))
        name = user.encode()
        drawn = min(shares, key=lambda form: self._rank(name, form) / shares[form])
        return other if other in shares else drawn

    def _rank(self, name: bytes, form: Form) -> float:
        """Return a number above 0, exponentially distributed over names and forms."""
        digest = hmac.digest(self._key, b"%d %b %d " % (form[0], form[1].encode(), form[2]) + name, "sha256")
        return -math.log((int.from_bytes(digest[:6]) + 1) / (1 << 48 | 1))


def _shares(counts: dict[Form, int]) -> dict[Form, int]:
    """Return the weights of the forms that most users have, each the largest power of two up to its count."""
    looked_at = islice(counts.items(), _MOST_LOOKED_AT)
    most = nlargest(_MOST_FORMS, ((1 << count.bit_length() - 1, form) for form, count in looked_at))
    return {form: share for share, form in most} or {_DEFAULT: 1}


def _salt(form: Form, seed: bytes) -> bytes:
    """Return a salt of a form that follows from `seed`."""
    if form.salt_kind == "kafka":
        number = int.from_bytes(hashlib.shake_256(seed).digest(32)) % (1 << _KAFKA_SALT_BITS)
        digits = bytearray()
        while number:
            number, digit = divmod(number, len(_BASE_36))
            digits.append(_BASE_36[digit])
        return bytes(reversed(digits))
    alphabet = _ALPHABETS[form.salt_kind]
    stream = hashlib.shake_256(seed).digest(2 * form.salt_bytes)
    numbers = (int.from_bytes(stream[at : at + 2]) for at in range(0, len(stream), 2))
    return bytes(alphabet[number % len(alphabet)] for number in numbers)
