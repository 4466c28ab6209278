"""Key stores and trust stores: the broker's key with its certificates, and the certificates that it trusts.

A store is read, checked and only then given to an `ssl.SSLContext`, so that a mistake is told with the file, what was
found and what was expected. No error and no `repr` shows a key or a password.

The formats are PEM, and PKCS12, which the standard `ssl` does not read. PEM is base64 between lines that say what is
there; line ends may be blanks, as a setting has them. keytool and openssl make PKCS12. Java's type JKS stands for
PKCS12 too: since Java 9 keytool makes PKCS12 whatever the file is called, and Java reads by what is there
(`keystore.type.compat`). Java's own older format is refused with the command that converts it.
Follows: Kafka `DefaultSslEngineFactory` (`PemStore`, `FileBasedPemStore`, `PemParser`, `FileBasedStore`), KIP-651,
RFC 7292.
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
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import pkcs12

from tidegate.errors import ConfigError

__all__ = [
    "KeyStore",
    "checked",
    "load_key",
    "load_trusted",
    "pem_key_store",
    "pem_trusted",
    "pkcs12_key_store",
    "pkcs12_trusted",
    "read_store",
    "subject",
]

_LARGEST = 4 << 20  # bytes of a store: those of all public authorities take 0.3 MB
_PEM = re.compile(
    r"-+BEGIN\s+([A-Z0-9 ]+?)-+\s+((?:[^\r\n:]*:[^\r\n]*[\r\n]+)*)([A-Za-z0-9/+=\s]*)-+END\s+\1-+"
)
_CERTIFICATE = "CERTIFICATE"
_KEY = "PRIVATE KEY"
_ENCRYPTED_KEY = "ENCRYPTED PRIVATE KEY"
_OLD_FORMATS = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}
_PEM_BEGIN = b"-----BEGIN"
_SEQUENCE = b"\x30"


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


def pem_key_store(
    *, source: str, key: str, chain_source: str, certificates: str, password: str | None
) -> KeyStore:
    """Return the key in the PEM text `key` and the certificates in `certificates`. Raises `ConfigError`.

    source, chain_source: where they are from. password: that of an encrypted key.
    """
    keys = [(name, data) for name, data in _blocks(key, source) if name.endswith(_KEY)]
    if len(keys) != 1:
        raise ConfigError(f"{source} has {len(keys)} private keys, expected exactly one")
    name, data = keys[0]
    if name not in (_KEY, _ENCRYPTED_KEY):
        raise ConfigError(
            f"{source} has a private key of format {name!r}, expected PKCS#8 ({_KEY!r} or {_ENCRYPTED_KEY!r})",
            hint="convert the key with: openssl pkcs8 -topk8 -in KEY -out NEW_KEY",
        )
    if password is None and name == _ENCRYPTED_KEY:
        raise ConfigError(f"{source} has an encrypted private key, expected its password in ssl.key.password")
    if password is not None and name == _KEY:
        raise ConfigError(f"{source} has an unencrypted private key, expected no ssl.key.password")
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


def pkcs12_key_store(*, source: str, location: str, data: bytes, password: str | None) -> KeyStore:
    """Return the key in a file and its certificates: its own, that of its signer, and so on. Raises `ConfigError`.

    source: setting and file, for errors. Where there are several keys, the first counts.
    """
    store = _read(source, location, data, password, kind="keystore")
    if store.key is None:
        raise ConfigError(
            f"{source} has no private key, expected one",
            hint="check that the file is the key store, not the trust store",
        )
    if store.cert is None:
        raise ConfigError(f"{source} has no certificate for its private key, expected one")
    chain = _chain(store.cert.certificate, [each.certificate for each in store.additional_certs])
    return checked(KeyStore(source=source, key=store.key, chain=chain))


def pkcs12_trusted(
    *, source: str, location: str, data: bytes, password: str | None
) -> tuple[x509.Certificate, ...]:
    """Return the certificates in a file. Raises `ConfigError`, also where there is a private key among them."""
    store = _read(source, location, data, password, kind="truststore")
    if store.key is not None:
        raise ConfigError(
            f"{source} has a private key, expected only trusted certificates",
            hint="make a trust store with: keytool -importcert -file CERTIFICATE -alias NAME -keystore NEW_FILE",
        )
    trusted = tuple(each.certificate for each in store.additional_certs)
    if not trusted:
        raise ConfigError(f"{source} has no certificate, expected at least one")
    return trusted


def _read(
    source: str, location: str, data: bytes, password: str | None, *, kind: str
) -> pkcs12.PKCS12KeyAndCertificates:
    old = _OLD_FORMATS.get(data[:4])
    if old is not None:
        raise ConfigError(
            f"{source} is in Java's old format {old}, expected PKCS12",
            hint="convert the store with: "
            f"keytool -importkeystore -srckeystore {location} -destkeystore {location}.p12 -deststoretype PKCS12",
        )
    if data.lstrip().startswith(_PEM_BEGIN):
        raise ConfigError(f"{source} is in PEM, expected PKCS12", hint=f"set ssl.{kind}.type=PEM")
    if not data.startswith(_SEQUENCE):
        raise ConfigError(f"{source} has an unknown format, expected PKCS12, or PEM with ssl.{kind}.type=PEM")
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        raise ConfigError(
            f"{source} cannot be opened with ssl.{kind}.password"
            if password is not None
            else f"{source} cannot be opened without ssl.{kind}.password",
            hint=f"check the password and the file with: keytool -list -keystore {location}",
        ) from error
    except UnsupportedAlgorithm as error:
        raise ConfigError(f"{source} uses an unsupported encryption: {error}") from error


def _chain(own: x509.Certificate, others: Sequence[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """Return a certificate, that of its signer, and so on, as far as they are there."""
    by_name = {each.subject.public_bytes(): each for each in others}
    chain = [own]
    while chain[-1].issuer != chain[-1].subject:
        signer = by_name.pop(chain[-1].issuer.public_bytes(), None)
        if signer is None:
            break
        chain.append(signer)
    return tuple(chain)
