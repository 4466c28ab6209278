"""SCRAM as the RFCs show it, and as Kafka reads it."""

import base64
import hashlib
import hmac

import pytest

from tidegate.scram import (
    MAX_MESSAGE_BYTES,
    SCRAM_MECHANISMS,
    AuthenticationError,
    InvalidCredentialsError,
    ScramCredential,
    ScramMechanism,
    ScramServer,
)

SHA_1 = ScramMechanism(name="SCRAM-SHA-1", type=0, hash_name="sha1")
SHA_256 = SCRAM_MECHANISMS["SCRAM-SHA-256"]
SHA_512 = SCRAM_MECHANISMS["SCRAM-SHA-512"]
RFC_7677 = (
    SHA_256,
    "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)
RFC_5802 = (
    SHA_1,
    "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    "3rfcNHYJY1ZVvWVs7j",
    "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)


def credential(mechanism: ScramMechanism, password: bytes = b"pencil", salt: bytes = b"s") -> ScramCredential:
    """Return what is kept of a password."""
    return mechanism.credential(password, salt=salt, iterations=4096)


def server_of(
    mechanism: ScramMechanism, users: dict[str, ScramCredential], nonce: str = "srv"
) -> ScramServer:
    """Return a login whose part of the nonce is known."""
    return ScramServer(mechanism, users.get, make_nonce=nonce.encode)


def final(mechanism: ScramMechanism, client_first: bytes, server_first: bytes, password: bytes) -> bytes:
    """Return a client's last token, made the long way."""
    fields = dict(part.split(b"=", 1) for part in server_first.split(b","))
    salt, iterations = base64.b64decode(fields[b"s"]), int(fields[b"i"])
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    without_proof = b"c=biws,r=" + fields[b"r"]
    message = b",".join((client_first.split(b",", 2)[2], server_first, without_proof))
    signature = hmac.digest(stored_key, message, mechanism.hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return without_proof + b",p=" + base64.b64encode(proof)


@pytest.mark.parametrize("example", [RFC_5802, RFC_7677], ids=["rfc-5802", "rfc-7677"])
def test_examples_of_the_rfcs(example: tuple[ScramMechanism, str, str, str, str, str]) -> None:
    """The exchanges that the RFCs print go through letter by letter; SHA-1 differs in nothing but the hash."""
    mechanism, client_first, nonce, server_first, client_final, server_final = example
    salt = base64.b64decode(server_first.split(",s=")[1].split(",")[0])
    server = server_of(mechanism, {"user": credential(mechanism, salt=salt)}, nonce)
    assert server.respond(client_first.encode()) == server_first.encode()
    assert not server.complete
    assert server.respond(client_final.encode()) == server_final.encode()
    assert (server.complete, server.user) == (True, "user")


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS.values(), ids=str)
def test_a_right_password_fits_and_a_wrong_one_does_not(mechanism: ScramMechanism) -> None:
    """Both mechanisms, with names that have escaped letters; after a failure nothing is complete."""
    users = {"a,b=c": credential(mechanism)}
    first = b"n,,n=a=2Cb=3Dc,r=clientnonce"
    for password, fits in ((b"pencil", True), (b"pen", False), (b"", False)):
        server = server_of(mechanism, users)
        answer = server.respond(first)
        token = final(mechanism, first, answer, password)
        if fits:
            assert server.respond(token).startswith(b"v=")
        else:
            with pytest.raises(InvalidCredentialsError):
                server.respond(token)
        assert server.complete is fits
        with pytest.raises(InvalidCredentialsError):
            server.respond(first)


@pytest.mark.parametrize(
    "token",
    [
        b"", b"n,,n=user", b"n,,r=x,n=user", b"y,,n=user,r=x", b"p=tls-unique,,n=user,r=x", b"n,,n=us=er,r=x",
        b"n,,n=user,r=", b"n,,n=,r=x", b"n,,n=user,r=x y", b"n,,n=us\x00er,r=x", "n,,n=us\u00e9r,r=x".encode(),
        b"n,,n=user,r=x,1=2", b"n,,n=user,r=x,", b"n,,n=other,r=x", b"\xff" * 40,
        b"n,,n=user,r=" + b"x" * MAX_MESSAGE_BYTES,
    ],
)  # fmt: skip
def test_first_tokens_that_are_none(token: bytes) -> None:
    """What is not in SCRAM's form, and who is not there, fails alike."""
    with pytest.raises(InvalidCredentialsError):
        server_of(SHA_256, {"user": credential(SHA_256)}).respond(token)


def test_what_kafka_takes_in_a_first_token() -> None:
    """A name to act for, if it is one's own, a reserved field, and extensions are taken."""
    users = {"user": credential(SHA_256)}
    for token in (b"n,a=user,n=user,r=x", b"n,,m=future,n=user,r=x", b"n,,n=user,r=x,tokenauth=true,b=c"):
        assert server_of(SHA_256, users).respond(token).startswith(b"r=xsrv,")
    with pytest.raises(AuthenticationError, match="authorization id that is different") as refused:
        server_of(SHA_256, users).respond(b"n,a=admin,n=user,r=x")
    assert not isinstance(refused.value, InvalidCredentialsError)


def test_last_tokens_that_are_none() -> None:
    """Another nonce, a proof that is short or long, and what has no form fail."""
    first, users = b"n,,n=user,r=x", {"user": credential(SHA_256)}
    answer = server_of(SHA_256, users).respond(first)
    good = final(SHA_256, first, answer, b"pencil")
    proof = base64.b64decode(good.rpartition(b"p=")[2])
    start = good.rpartition(b"p=")[0] + b"p="
    for token in (
        good.replace(b"r=xsrv", b"r=xsrw"), start + base64.b64encode(proof[:-1]),
        start + base64.b64encode(proof + b"\0"), start, good + b",", good[1:], first, b"",
    ):  # fmt: skip
        server = server_of(SHA_256, users)
        server.respond(first)
        with pytest.raises(InvalidCredentialsError):
            server.respond(token)
    server = server_of(SHA_256, users)
    server.respond(first)
    assert server.respond(good)


def test_nonces_differ() -> None:
    """Each login has a nonce of its own."""
    users = {"user": credential(SHA_256)}
    answers = {ScramServer(SHA_256, users.get).respond(b"n,,n=user,r=x") for _ in range(100)}
    assert len(answers) == 100


def test_nothing_shows_a_secret() -> None:
    """No `repr` has salt or keys."""
    shown = repr(credential(SHA_256, salt=b"a-salt"))
    assert shown == "ScramCredential(iterations=4096)"
