"""Key stores and trust stores in PEM: base64 between lines that say what is there.

Follows: Kafka `DefaultSslEngineFactory` (`PemStore`, `FileBasedPemStore`, `PemParser`), KIP-651. Line ends may be
blanks, as a setting has them.
"""

import base64
import binascii
import re

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from tidegate.errors import ConfigError
from tidegate.tls.key_stores import KeyStore, checked

__all__ = ["pem_key_store", "pem_trusted"]

_PEM = re.compile(
    r"-+BEGIN\s+([A-Z0-9 ]+?)-+\s+((?:[^\r\n:]*:[^\r\n]*[\r\n]+)*)([A-Za-z0-9/+=\s]*)-+END\s+\1-+"
)
_CERTIFICATE = "CERTIFICATE"
_KEY = "PRIVATE KEY"
_ENCRYPTED_KEY = "ENCRYPTED PRIVATE KEY"


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
