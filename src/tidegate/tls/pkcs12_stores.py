"""Key stores and trust stores in PKCS12, as keytool and openssl make them. The standard `ssl` reads none.

Java's type JKS stands for PKCS12 too: since Java 9 keytool makes PKCS12 whatever the file is called, and Java reads
by what is there (`keystore.type.compat`). Java's own older format is refused with the command that converts it.
Follows: Kafka `DefaultSslEngineFactory.FileBasedStore`, RFC 7292.
"""

from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import pkcs12

from tidegate.errors import ConfigError
from tidegate.tls.key_stores import KeyStore, checked

__all__ = ["pkcs12_key_store", "pkcs12_trusted"]

_OLD_FORMATS = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}
_PEM_BEGIN = b"-----BEGIN"
_SEQUENCE = b"\x30"


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
