"""Formats of key stores and trust stores: PEM, and PKCS12, which the standard `ssl` does not read.

PEM is base64 between lines that say what is there; line ends may be blanks, as a setting has them. keytool and openssl
make PKCS12. Java's type JKS stands for PKCS12 too: since Java 9 keytool makes PKCS12 whatever the file is called, and
Java reads by what is there (`keystore.type.compat`). Java's own older format is refused with the command that converts
it. Follows: Kafka `DefaultSslEngineFactory` (`PemStore`, `FileBasedPemStore`, `PemParser`, `FileBasedStore`), KIP-651,
RFC 7292.
"""

import base64
import binascii
import re
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import pkcs12

from tidegate.errors import ConfigError
from tidegate.tls.key_stores import KeyStore, checked

__all__ = ["pem_key_store", "pem_trusted", "pkcs12_key_store", "pkcs12_trusted"]

_PEM = re.compile(
    r"-+BEGIN\s+([A-Z0-9 ]+?)-+\s+((?:[^\r\n:]*:[^\r\n]*[\r\n]+)*)([A-Za-z0-9/+=\s]*)-+END\s+\1-+"
)
_CERTIFICATE = "CERTIFICATE"
_KEY = "PRIVATE KEY"
_ENCRYPTED_KEY = "ENCRYPTED PRIVATE KEY"
_OLD_FORMATS = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}
_PEM_BEGIN = b"-----BEGIN"
_SEQUENCE = b"\x30"


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
