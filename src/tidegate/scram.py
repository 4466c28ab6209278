"""SCRAM-SHA-256 and SCRAM-SHA-512: stored credentials, and the exchange of a login, on both sides.

A server stores the salt, the iterations and two keys that are derived from the salted password. Neither the password
nor a client's proof can be derived from them. The derivation (PBKDF2) takes place when a credential is set; a login
costs three hashes.

>>> mechanism = SCRAM_MECHANISMS["SCRAM-SHA-256"]
>>> credential = mechanism.credential(b"pencil", salt=b"salt", iterations=4096)
>>> server = ScramServer(mechanism, {"user": credential}.get, make_nonce=lambda: b"server")
>>> server.respond(b"n,,n=user,r=client")
b'r=clientserver,s=c2FsdA==,i=4096'

Names and passwords are taken as they are, without SASLprep, and names are ASCII, as in Kafka.
Follows: RFC 5802, RFC 7677, Kafka `ScramSaslServer`, `ScramFormatter`, `ScramMessages` (KIP-84).
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.errors import TidegateError

__all__ = [
    "MAX_ITERATIONS",
    "MIN_ITERATIONS",
    "SCRAM_MECHANISMS",
    "AuthenticationError",
    "CredentialChange",
    "InvalidCredentialsError",
    "ScramClient",
    "ScramCredential",
    "ScramMechanism",
    "ScramServer",
]

MIN_ITERATIONS = 4096  # Kafka `ScramMechanism`
MAX_ITERATIONS = 16384  # Kafka `ScramControlManager`
MAX_MESSAGE_BYTES = 8192
"""Longest login message: names, nonces and proofs are short, and parsing one must not hold the loop."""
_NONCE_BYTES = 24
_MAX_ITERATIONS_OF_SERVER = 1_000_000  # half a second of work for the client

_NAME = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE = rb"[\x01-\x2b\x2d-\x7f]+"
_PRINTABLE = rb"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = rb"(?:,[A-Za-z]+=" + _VALUE + rb")*"
_BASE64 = rb"(?:[A-Za-z0-9/+]{4})*(?:[A-Za-z0-9/+]{3}=|[A-Za-z0-9/+]{2}==)?"
_CLIENT_FIRST = (
    rb"n,(?:a=(?P<authorization_id>" + _NAME + rb"))?,(?:m=" + _VALUE + rb",)?"
    rb"(?P<bare>n=(?P<name>" + _NAME + rb"),r=(?P<nonce>" + _PRINTABLE + rb")" + _EXTENSIONS + rb")"
)
_CLIENT_FINAL = (
    rb"(?P<without_proof>c=" + _BASE64 + rb",r=(?P<nonce>" + _PRINTABLE + rb")" + _EXTENSIONS + rb")"
    rb",p=(?P<proof>" + _BASE64 + rb")"
)

_SERVER_FIRST = (
    rb"r=(?P<nonce>"
    + _PRINTABLE
    + rb"),s=(?P<salt>"
    + _BASE64
    + rb"),i=(?P<iterations>[0-9]{1,9})"
    + _EXTENSIONS
)


class AuthenticationError(TidegateError):
    """Raised if a login fails for a reason that is sent to the client."""


class InvalidCredentialsError(AuthenticationError):
    """Raised if a login fails and the client must not learn why, for example because the user does not exist."""

    def __init__(self) -> None:
        super().__init__("invalid credentials")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The data stored for a user's password and one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


class CredentialChange(NamedTuple):
    """One credential that changes: `credential` None removes it. mechanism: its name."""

    user: str
    mechanism: str
    credential: ScramCredential | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramMechanism:
    """One mechanism. type: Kafka's number of it; hash_name: Python's name of its hash function."""

    name: str
    type: int
    hash_name: str

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Return the HMAC of `data`."""
        return hmac.digest(key, data, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        """Return the hash of `data`."""
        return hashlib.new(self.hash_name, data).digest()

    def credential(self, password: bytes, *, salt: bytes, iterations: int) -> ScramCredential:
        """Return the credential for a password. Takes milliseconds."""
        salted = hashlib.pbkdf2_hmac(self.hash_name, password, salt, iterations)
        return self.credential_of_salted(salted, salt=salt, iterations=iterations)

    def credential_of_salted(
        self, salted_password: bytes, *, salt: bytes, iterations: int
    ) -> ScramCredential:
        """Return the credential for a password that the client has already salted."""
        return ScramCredential(
            salt=salt,
            stored_key=self.hash(self.hmac(salted_password, b"Client Key")),
            server_key=self.hmac(salted_password, b"Server Key"),
            iterations=iterations,
        )


SCRAM_MECHANISMS: Mapping[str, ScramMechanism] = {
    mechanism.name: mechanism
    for mechanism in (
        ScramMechanism(name="SCRAM-SHA-256", type=1, hash_name="sha256"),
        ScramMechanism(name="SCRAM-SHA-512", type=2, hash_name="sha512"),
    )
}


class ScramServer:
    """One login: give each token of the client to `respond` and send what it returns, until `complete`.

    user: the name of the user, known from the first token on, and logged in once `complete`.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        *,
        make_nonce: Callable[[], bytes] = lambda: secrets.token_urlsafe(_NONCE_BYTES).encode(),
    ) -> None:
        self.complete = False
        self.user = ""
        self._mechanism = mechanism
        self._find = find
        self._make_nonce = make_nonce
        self._begun = False
        self._credential: ScramCredential | None = None  # the next token is checked against it
        self._nonce = self._client_first = self._server_first = b""

    def respond(self, token: bytes) -> bytes:
        """Return the answer to a token. Raises `AuthenticationError`: the login is over then."""
        credential, self._credential = self._credential, None
        is_first, self._begun = not self._begun, True
        if len(token) <= MAX_MESSAGE_BYTES:
            if is_first:
                return self._on_first(token)
            if credential is not None:
                return self._on_final(token, credential)
        raise InvalidCredentialsError

    def _on_first(self, token: bytes) -> bytes:
        match = re.fullmatch(_CLIENT_FIRST, token)
        if match is None:
            raise InvalidCredentialsError
        self.user = match["name"].replace(b"=2C", b",").replace(b"=3D", b"=").decode()
        credential = self._find(self.user)
        if credential is None:
            raise InvalidCredentialsError
        authorization_id = match["authorization_id"]
        # Compared with the name as it was sent, in which two letters are escaped, as by Kafka.
        if authorization_id and authorization_id.decode() != self.user:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._credential = credential
        self._nonce = match["nonce"] + self._make_nonce()
        self._client_first = match["bare"]
        salt = base64.b64encode(credential.salt)
        self._server_first = b"r=%b,s=%b,i=%d" % (self._nonce, salt, credential.iterations)
        return self._server_first

    def _on_final(self, token: bytes, credential: ScramCredential) -> bytes:
        match = re.fullmatch(_CLIENT_FINAL, token)
        if match is None or match["nonce"] != self._nonce:
            raise InvalidCredentialsError
        message = b",".join((self._client_first, self._server_first, match["without_proof"]))
        signature = self._mechanism.hmac(credential.stored_key, message)
        proof = base64.b64decode(match["proof"])
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=False))
        fits = hmac.compare_digest(self._mechanism.hash(client_key), credential.stored_key)
        if not fits or len(proof) != len(signature):
            raise InvalidCredentialsError
        self.complete = True
        return b"v=" + base64.b64encode(self._mechanism.hmac(credential.server_key, message))


class ScramClient:
    """The client's side of one login.

    Send `first_message()`; send `final_message(...)` of what the server answered; give that answer to `check_final`.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        password: str,
        *,
        make_nonce: Callable[[], bytes] = lambda: secrets.token_urlsafe(_NONCE_BYTES).encode(),
    ) -> None:
        name = user.replace("=", "=3D").replace(",", "=2C").encode()
        self._mechanism = mechanism
        self._password = password.encode()
        self._nonce = make_nonce()
        self._bare = b"n=%b,r=%b" % (name, self._nonce)
        self._server_signature = b""

    def first_message(self) -> bytes:
        """Return the first token."""
        return b"n,," + self._bare

    def salting(self, server_first: bytes) -> tuple[bytes, int]:
        """Return salt and iterations that the server asks for. Raises `AuthenticationError` for a malformed message."""
        match = self._read_first(server_first)
        iterations = int(match["iterations"])
        if not MIN_ITERATIONS <= iterations <= _MAX_ITERATIONS_OF_SERVER:
            raise AuthenticationError(
                f"the server asks for {iterations} iterations, expected {MIN_ITERATIONS} to {_MAX_ITERATIONS_OF_SERVER}"
            )
        return base64.b64decode(match["salt"]), iterations

    def salted_password(self, salt: bytes, iterations: int) -> bytes:
        """Return the salted password. Takes milliseconds, or half a second where the server wants that."""
        return hashlib.pbkdf2_hmac(self._mechanism.hash_name, self._password, salt, iterations)

    def final_message(self, server_first: bytes, salted: bytes | None = None) -> bytes:
        """Return the token that answers the server's first one. Raises `AuthenticationError` where that is malformed.

        salted: the salted password, where it is known; making it takes milliseconds.
        """
        if salted is None:
            salted = self.salted_password(*self.salting(server_first))
        mechanism, nonce = self._mechanism, self._read_first(server_first)["nonce"]
        client_key = mechanism.hmac(salted, b"Client Key")
        without_proof = b"c=biws,r=" + nonce
        message = b",".join((self._bare, server_first, without_proof))
        signature = mechanism.hmac(mechanism.hash(client_key), message)
        self._server_signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return without_proof + b",p=" + base64.b64encode(proof)

    def _read_first(self, server_first: bytes) -> re.Match[bytes]:
        match = re.fullmatch(_SERVER_FIRST, server_first)
        if match is None or not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise AuthenticationError("the server's first SCRAM message is malformed")
        return match

    def check_final(self, server_final: bytes) -> None:
        """Raise `AuthenticationError` unless the server has proven that it knows the user's keys."""
        expected = b"v=" + base64.b64encode(self._server_signature)
        if not hmac.compare_digest(server_final, expected):
            raise AuthenticationError("the server could not prove that it knows the password")
