"""Key stores and trust stores: the broker's key with its certificates, and those whom it trusts, as read from PEM.

A store is read, checked and only then given to an `ssl.SSLContext`, so that a mistake is told with the file, what was
found and what was expected. No error and no `repr` shows a key or a password.
Follows: Kafka `DefaultSslEngineFactory` (`PemStore`, `FileBasedPemStore`, `PemParser`), KIP-651.
"""

import base64
import binascii
import re
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

__all__ = ["KeyStore", "load_key", "load_trusted", "pem_key_store", "pem_trusted", "read_store"]

_LARGEST = 4 << 20  # bytes of a store: those of all public authorities take 0.3 MB
_PEM = re.compile(
    r"-+BEGIN\s+([A-Z0-9 ]+?)-+\s+((?:[^\r\n:-]*:[^\r\n]*[\r\n]+)*)([A-Za-z0-9/+=\s]*)-+END\s+\1-+"
)
_CERTIFICATE = "CERTIFICATE"
_KEY = "PRIVATE KEY"
_ENCRYPTED_KEY = "ENCRYPTED PRIVATE KEY"


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
        raise ConfigError(f"{setting} is {location!r}, expected at most {_LARGEST} bytes, found more")
    return data


def pem_key_store(
    *, source: str, key: str, chain_source: str, certificates: str, password: str | None
) -> KeyStore:
    """Return the key in the PEM text `key` and the certificates in `certificates`. Raises `ConfigError`.

    source, chain_source: where they are from. password: that of an encrypted key.
    """
    keys = [(name, data) for name, data in _blocks(key, source) if name.endswith(_KEY)]
    if len(keys) != 1:
        raise ConfigError(f"{source} has {len(keys)} private keys, expected one")
    name, data = keys[0]
    if name not in (_KEY, _ENCRYPTED_KEY):
        raise ConfigError(
            f"{source} has a key in the format of {name!r}, expected PKCS#8 ({_KEY!r} or {_ENCRYPTED_KEY!r})",
            hint="openssl pkcs8 -topk8 -in KEY -out NEW_KEY makes PKCS#8 of it",
        )
    if password is None and name == _ENCRYPTED_KEY:
        raise ConfigError(f"{source} has an encrypted key, expected its password in ssl.key.password")
    if password is not None and name == _KEY:
        raise ConfigError(f"{source} has a key that is not encrypted, expected no ssl.key.password")
    chain = pem_trusted(source=chain_source, text=certificates)
    return checked(KeyStore(source=source, key=_private_key(source, data, password), chain=chain))


def pem_trusted(*, source: str, text: str) -> tuple[x509.Certificate, ...]:
    """Return the certificates in a PEM text. Raises `ConfigError`."""
    found = [data for name, data in _blocks(text, source) if name == _CERTIFICATE]
    if not found:
        raise ConfigError(
            f"{source} has no certificate, expected at least one ('-----BEGIN CERTIFICATE-----')"
        )
    certificates = []
    for number, data in enumerate(found, 1):
        try:
            certificates.append(x509.load_der_x509_certificate(data))
        except ValueError as error:
            raise ConfigError(f"{source}: certificate {number} cannot be read: {error}") from error
    return tuple(certificates)


def checked(store: KeyStore) -> KeyStore:
    """Return the store. Raises `ConfigError` for a key that TLS cannot use or that is not of the first certificate."""
    if not isinstance(store.key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{store.source} has a key that is neither RSA nor EC, expected one of these")
    own = _public_bytes(store.key.public_key())
    matching = [_public_bytes(certificate.public_key()) == own for certificate in store.chain]
    if not matching[0]:
        hint = "put the certificate of the key before those that signed it" if any(matching) else None
        raise ConfigError(
            f"{store.source}: the key is not that of the first certificate, {_subject(store.chain[0])}",
            hint=hint,
        )
    for certificate in store.chain:
        check_dates(store.source, certificate)
    return store


def check_dates(source: str, certificate: x509.Certificate) -> None:
    """Raise `ConfigError` where a certificate of ours holds no more, or not yet."""
    now = datetime.now(UTC)
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > until:
        raise ConfigError(
            f"{source}: {_subject(certificate)} expired at {until}, expected one that holds now"
        )
    if now < since:
        raise ConfigError(
            f"{source}: {_subject(certificate)} holds from {since} on, expected one that holds now",
            hint="is the clock of this machine right?",
        )


def load_key(context: ssl.SSLContext, store: KeyStore) -> None:
    """Give a context the key and its certificates. Raises `ConfigError`.

    `SSLContext.load_cert_chain` reads files alone: the one that is there for that moment holds the key encrypted with
    a password that nobody has seen.
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
                hint="OpenSSL takes RSA keys of at least 2048 bits, and signatures by SHA-256 or better",
            ) from error


def load_trusted(context: ssl.SSLContext, source: str, certificates: Sequence[x509.Certificate]) -> None:
    """Make a context trust these certificates and, as Java does, those that they signed. Raises `ConfigError`."""
    data = b"".join(each.public_bytes(serialization.Encoding.DER) for each in certificates)
    try:
        context.load_verify_locations(cadata=data)
    except ssl.SSLError as error:
        raise ConfigError(f"{source} cannot be used for TLS: {error.reason}") from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _blocks(text: str, source: str) -> list[tuple[str, bytes]]:
    """Return kind and content of every block of a PEM text."""
    found = []
    for match in _PEM.finditer(text):
        try:
            found.append((match[1], base64.b64decode("".join(match[3].split()), validate=True)))
        except binascii.Error as error:
            raise ConfigError(f"{source} has a block {match[1]!r} that is not base64") from error
    return found


def _private_key(source: str, data: bytes, password: str | None) -> PrivateKeyTypes:
    try:
        return serialization.load_der_private_key(data, None if password is None else password.encode())
    except (ValueError, TypeError) as error:
        if password is None:
            raise ConfigError(f"{source} has a private key that cannot be read") from error
        raise ConfigError(
            f"{source} has a private key that cannot be decrypted with ssl.key.password"
        ) from error
    except Exception as error:  # cryptography's UnsupportedAlgorithm, and what its future versions raise
        raise ConfigError(
            f"{source} has a private key that cannot be read: {type(error).__name__}"
        ) from error


def _public_bytes(key: object) -> bytes:
    assert hasattr(key, "public_bytes")
    data: bytes = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return data


def _subject(certificate: x509.Certificate) -> str:
    try:
        return repr(certificate.subject.rfc4514_string())
    except ValueError:
        return f"the certificate {certificate.serial_number:x}"
