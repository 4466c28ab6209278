"""TLS contexts: the stores that settings name, the context of a client, and the versions that are enabled.

A store is a file or a text, in PEM or PKCS12. The library that reads stores takes 10 MB of memory and 40 ms: import
this module only where TLS is used.
Follows: Kafka `SslFactory`, `DefaultSslEngineFactory`.
"""

import ssl
from collections.abc import Mapping

from cryptography import x509

from tidegate.errors import ConfigError
from tidegate.tls.key_stores import (
    KeyStore,
    load_key,
    load_trusted,
    pem_key_store,
    pem_trusted,
    pkcs12_key_store,
    pkcs12_trusted,
    read_store,
)
from tidegate.tls.settings import ENABLED_PROTOCOLS, TLS_SETTINGS, TlsSettings, listed

__all__ = ["client_context", "enabled_versions", "load_key_store", "load_trust_store"]

_PEM = "PEM"
_BINARY_TYPES = ("PKCS12", "JKS")
_KEY_PASSWORD = "ssl.key.password"
_PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JAVA_PROTOCOLS = ("TLS", *_PROTOCOLS)


def load_key_store(context: ssl.SSLContext, settings: TlsSettings) -> KeyStore:
    """Load the key store into a context and return it. Raises `ConfigError`, also where none is set."""
    store = _key_store(settings)
    load_key(context, store)
    return store


def load_trust_store(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    """Make a context trust the certificates of the trust store. Return whether one is set. Raises `ConfigError`."""
    trusted = _trusted(settings)
    if trusted:
        load_trusted(context, _trust_source(settings), trusted)
    return bool(trusted)


def _key_store(settings: TlsSettings) -> KeyStore:
    """Return the key. Refuses what Kafka `DefaultSslEngineFactory.createKeystore` does."""
    location, key, chain = "ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain"
    if not settings[location] and not settings[key]:
        raise ConfigError(
            f"listener {settings.listener} uses TLS but has no private key, expected {location}",
            hint=f"set {location} and ssl.keystore.type, or change the protocol of the listener",
        )
    is_pem = _is_pem(settings, "keystore", inline=(key, chain))
    if not settings[key]:
        if settings[chain]:
            raise ConfigError(f"{settings.named(chain)} is set without {key}, expected both")
        return _pem_file(settings) if is_pem else _pkcs12_file(settings)
    if settings[location]:
        raise ConfigError(
            f"{settings.named(location)} and {settings.named(key)} are both set, expected only one"
        )
    if not settings[chain]:
        raise ConfigError(f"{settings.named(key)} is set without {chain}, expected both")
    return pem_key_store(
        source=settings.source(key),
        key=settings[key],
        chain_source=settings.source(chain),
        certificates=settings[chain],
        password=settings[_KEY_PASSWORD] or None,
    )


def _pem_file(settings: TlsSettings) -> KeyStore:
    location = "ssl.keystore.location"
    text = _content(settings, location).decode(errors="replace")
    source = settings.source(location)
    password = settings[_KEY_PASSWORD] or None
    return pem_key_store(source=source, key=text, chain_source=source, certificates=text, password=password)


def _pkcs12_file(settings: TlsSettings) -> KeyStore:
    location, password = "ssl.keystore.location", "ssl.keystore.password"
    if settings[_KEY_PASSWORD] and settings[_KEY_PASSWORD] != settings[password]:
        raise ConfigError(
            f"{settings.named(_KEY_PASSWORD)} differs from {settings.named(password)}, expected the same password: "
            "PKCS12 has one password",
            hint=f"remove {_KEY_PASSWORD}; keytool, too, uses one password for a PKCS12 store",
        )
    return pkcs12_key_store(
        source=settings.source(location),
        location=settings[location],
        data=_content(settings, location),
        password=settings[password] or None,
    )


def _trusted(settings: TlsSettings) -> tuple[x509.Certificate, ...]:
    """Return the certificates that are trusted. Refuses what Kafka `DefaultSslEngineFactory.createTruststore` does."""
    location, certificates = "ssl.truststore.location", "ssl.truststore.certificates"
    if not settings[location] and not settings[certificates]:
        return ()
    is_pem = _is_pem(settings, "truststore", inline=(certificates,))
    if settings[location] and settings[certificates]:
        raise ConfigError(
            f"{settings.named(location)} and {settings.named(certificates)} are both set, expected only one"
        )
    source = _trust_source(settings)
    if not settings[location]:
        return pem_trusted(source=source, text=settings[certificates])
    data = _content(settings, location)
    if is_pem:
        return pem_trusted(source=source, text=data.decode(errors="replace"))
    password = settings["ssl.truststore.password"] or None
    return pkcs12_trusted(source=source, location=settings[location], data=data, password=password)


def _trust_source(settings: TlsSettings) -> str:
    name = "ssl.truststore.location"
    return settings.source(name if settings[name] else "ssl.truststore.certificates")


def _content(settings: TlsSettings, location: str) -> bytes:
    return read_store(settings[location], setting=settings.named(location))


def _is_pem(settings: TlsSettings, kind: str, *, inline: tuple[str, ...]) -> bool:
    """Return whether a store is in PEM. `inline`: settings that hold a store themselves, which PEM alone can."""
    name, password = f"ssl.{kind}.type", f"ssl.{kind}.password"
    if settings[name] != _PEM:
        if settings[name].upper() not in _BINARY_TYPES:
            raise ConfigError(f"{settings.named(name)} is {settings[name]!r}, expected one of PKCS12, {_PEM}")
        for each in inline:
            if settings[each]:
                raise ConfigError(
                    f"{settings.named(each)} is set, but {settings.named(name)} is {settings[name]!r}, "
                    f"expected {_PEM}"
                )
        return False
    if settings[password]:
        hint = "set the key's password with ssl.key.password" if kind == "keystore" else None
        raise ConfigError(f"{settings.named(password)} is set, but {_PEM} stores have no password", hint=hint)
    return True


def client_context(texts: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context of a client with the settings `texts`. Raises `ConfigError`.

    Without a trust store the client trusts the authorities that the system trusts. An empty
    `ssl.endpoint.identification.algorithm` accepts certificates of other hosts.
    """
    defaults = {name: default for name, (default, _) in TLS_SETTINGS.items()}
    settings = TlsSettings("", {**defaults, **texts}, {})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(texts.get("ssl.endpoint.identification.algorithm", "https").strip())
    versions = enabled_versions(settings)
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if not load_trust_store(context, settings):
        context.load_default_certs()
    if settings["ssl.keystore.location"] or settings["ssl.keystore.key"]:
        load_key_store(context, settings)
    return context


def enabled_versions(settings: TlsSettings) -> set[ssl.TLSVersion]:
    """Return the versions of TLS that the settings enable, at least one. Raises `ConfigError`."""
    if settings["ssl.protocol"] not in _JAVA_PROTOCOLS:
        raise ConfigError(
            f"{settings.named('ssl.protocol')} is {settings['ssl.protocol']!r}, "
            f"expected one of {', '.join(_JAVA_PROTOCOLS)}"
        )
    wanted = listed(settings[ENABLED_PROTOCOLS])
    if any(part not in _PROTOCOLS for part in wanted):
        raise ConfigError(
            f"{settings.named(ENABLED_PROTOCOLS)} is {settings[ENABLED_PROTOCOLS]!r}, "
            f"expected a list of {', '.join(_PROTOCOLS)}",
            hint="older versions are insecure; Java disables them too",
        )
    return {_PROTOCOLS[part] for part in wanted or _PROTOCOLS}
