"""Key stores and trust stores: the broker's key with its certificates, and the certificates that it trusts.

A store is read (`store_formats`), checked and only then given to an `ssl.SSLContext`, so that a mistake
is told with the file, what was found and what was expected. No error and no `repr` shows a key or a password.
"""

import secrets
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from tidegate.errors import ConfigError

__all__ = ["KeyStore", "checked", "load_key", "load_trusted", "read_store", "subject"]

_LARGEST = 4 << 20  # bytes of a store: those of all public authorities take 0.3 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStore:
    """A private key and its certificates, the key's own first. `source` says where they are from, for errors."""

    source: str
    key: PrivateKeyTypes = field(repr=False)
    chain: tuple[x509.Certificate, ...]


def read_store(location: str, *, setting: str) -> bytes:
    """Return what is in the file of a store. Raises `ConfigError`."""
    try:
        with Path(location).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{setting} is {location!r}, which cannot be read: {reason}") from error
    if len(data) > _LARGEST:
        raise ConfigError(f"{setting} is {location!r}, which is too large, expected at most {_LARGEST} bytes")
    return data


def checked(store: KeyStore) -> KeyStore:
    """Return the store. Raises `ConfigError` for a key that TLS cannot use or that is not of the first certificate."""
    if not isinstance(store.key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{store.source} has an unsupported kind of private key, expected RSA or EC")
    own = _public_bytes(store.key.public_key())
    matching = [_public_bytes(certificate.public_key()) == own for certificate in store.chain]
    if not matching[0]:
        hint = (
            "put the certificate of the key first, then the certificates of its authorities"
            if any(matching)
            else None
        )
        raise ConfigError(
            f"{store.source}: private key does not match the first certificate, {subject(store.chain[0])}",
            hint=hint,
        )
    for certificate in store.chain:
        _check_dates(store.source, certificate)
    return store


def _check_dates(source: str, certificate: x509.Certificate) -> None:
    """Raise `ConfigError` where a certificate of ours holds no more, or not yet."""
    now = datetime.now(UTC)
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > until:
        raise ConfigError(
            f"{source}: certificate {subject(certificate)} expired at {until}, expected a valid certificate"
        )
    if now < since:
        raise ConfigError(
            f"{source}: certificate {subject(certificate)} is not valid before {since}, expected a valid certificate",
            hint="check the clock of this machine",
        )


def load_key(context: ssl.SSLContext, store: KeyStore) -> None:
    """Load the key and its certificates into a context. Raises `ConfigError`.

    `SSLContext.load_cert_chain` reads only files: a temporary file holds the key, encrypted with a random password that
    is not kept.
    """
    password = secrets.token_bytes(32).hex()
    encrypted = store.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    chain = (certificate.public_bytes(serialization.Encoding.PEM) for certificate in store.chain)
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join((encrypted, *chain)))
        file.flush()
        try:
            context.load_cert_chain(file.name, password=password)
        except ssl.SSLError as error:
            raise ConfigError(
                f"{store.source} cannot be used for TLS: {error.reason}",
                hint="use RSA keys of at least 2048 bits, and signatures with SHA-256 or better",
            ) from error


def load_trusted(context: ssl.SSLContext, source: str, certificates: Sequence[x509.Certificate]) -> None:
    """Make a context trust these certificates and, as Java does, those that they signed. Raises `ConfigError`."""
    data = b"".join(each.public_bytes(serialization.Encoding.DER) for each in certificates)
    try:
        context.load_verify_locations(cadata=data)
    except ssl.SSLError as error:
        raise ConfigError(f"{source} cannot be used for TLS: {error.reason}") from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _public_bytes(key: object) -> bytes:
    assert hasattr(key, "public_bytes")
    data: bytes = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return data


def subject(certificate: x509.Certificate) -> str:
    """Return the subject of a certificate, for errors."""
    try:
        return repr(certificate.subject.rfc4514_string())
    except ValueError:
        return f"with serial number {certificate.serial_number:x}"
