"""Settings of TLS at a listener: the broker's key, the trusted certificates, client authentication.

    listeners=CLIENTS://0.0.0.0:9093
    listener.security.protocol.map=CLIENTS:SSL
    ssl.keystore.type=PEM
    ssl.keystore.location=/etc/tidegate/key-and-certificates.pem
    ssl.truststore.type=PEM
    ssl.truststore.location=/etc/tidegate/authorities.pem
    listener.name.clients.ssl.client.auth=required

A listener's own setting overrides the broker's. At a SASL_SSL listener only its own `ssl.client.auth` counts, as in
Kafka: the login identifies the client. The library that reads stores takes 10 MB of memory, so this module is imported
only if a listener uses TLS.
Follows: Kafka `SslFactory`, `DefaultSslEngineFactory`.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from tidegate.config.distinguished_names import NotDerError, distinguished_name, name_text
from tidegate.config.principal_rules import DEFAULT_RULES, NoRuleError, PrincipalRules
from tidegate.errors import ConfigError
from tidegate.fair_share import ANONYMOUS
from tidegate.server.listening.cipher_suites import TLS_1_3_SUITES, cipher_suites
from tidegate.server.listening.key_stores import KeyStore, load_key, load_trusted, read_store
from tidegate.server.listening.pem_stores import pem_key_store, pem_trusted
from tidegate.server.listening.pkcs12_stores import pkcs12_key_store, pkcs12_trusted
from tidegate.server.listening.tls_settings import (
    CIPHER_SUITES,
    CLIENT_AUTH,
    ENABLED_PROTOCOLS,
    NONE,
    PRINCIPAL_RULES,
    REQUESTED,
    REQUIRED,
    TLS_SETTINGS,
    TlsSettings,
    client_auth,
    listed,
)

__all__ = ["TlsConfig", "client_context", "tls_config"]

_PEM = "PEM"
_BINARY_TYPES = ("PKCS12", "JKS")
_KEY_PASSWORD = "ssl.key.password"
_PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JAVA_PROTOCOLS = ("TLS", *_PROTOCOLS)
_VERIFY = {NONE: ssl.CERT_NONE, REQUESTED: ssl.CERT_OPTIONAL, REQUIRED: ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS at one listener.

    context: of the server's side, with key, certificates, versions and whom it trusts. client_auth: none, requested
    or required. rules: how subjects become names. subject, hosts: what the broker's own certificate is of.
    trusts_nobody: whether there is no trust store. notices: what was asked for and cannot be.
    """

    context: ssl.SSLContext
    client_auth: str
    rules: PrincipalRules
    subject: str
    hosts: frozenset[str]
    trusts_nobody: bool = True
    notices: tuple[str, ...] = ()

    def principal(self, der: bytes | None) -> str:
        """Return the principal of a certificate in DER; None stands for a client without a certificate.

        Raises `NoRuleError` where no rule is for it: Kafka closes the connection then.
        Follows: Kafka `DefaultKafkaPrincipalBuilder`, `SslTransportLayer.peerPrincipal`.
        """
        if der is None:
            return ANONYMOUS
        try:
            return self.rules.name(distinguished_name(der))
        except NotDerError as error:
            raise NoRuleError(f"cannot read the certificate: {error}") from error


def tls_config(listener: str, values: Mapping[str, Any], texts: Mapping[str, str]) -> TlsConfig:
    """Return what holds at `listener`. `values` are settings in force, `texts` those that were given.

    Raises `ConfigError`.
    """
    settings = TlsSettings(listener, values, texts)
    asked = client_auth(listener, values, texts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    notices = _set_versions_and_ciphers(context, settings)
    keys = _key_store(settings)
    load_key(context, keys)
    trusted = _trusted(settings)
    if trusted:
        load_trusted(context, _trust_source(settings), trusted)
    elif asked != NONE:
        raise ConfigError(
            f"{settings.named(CLIENT_AUTH)} is {asked!r}, which needs trusted certificates: expected "
            "ssl.truststore.location",
            hint="set it to a file with the certificates of the authorities that sign client certificates",
        )
    context.verify_mode = _VERIFY[asked]
    subject, hosts = _names(keys.chain[0], keys.source)
    return TlsConfig(
        context=context,
        client_auth=asked,
        rules=_rules(settings),
        subject=subject,
        hosts=hosts,
        trusts_nobody=not trusted,
        notices=notices,
    )


def client_context(texts: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context of a client with the settings `texts`. Raises `ConfigError`.

    Without a trust store the client trusts the authorities that the system trusts. An empty
    `ssl.endpoint.identification.algorithm` accepts certificates of other hosts.
    """
    defaults = {name: default for name, (default, _) in TLS_SETTINGS.items()}
    settings = TlsSettings("", {**defaults, **texts}, {})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(texts.get("ssl.endpoint.identification.algorithm", "https").strip())
    versions = _versions(settings)
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    trusted = _trusted(settings)
    if trusted:
        load_trusted(context, _trust_source(settings), trusted)
    else:
        context.load_default_certs()
    if settings["ssl.keystore.location"] or settings["ssl.keystore.key"]:
        load_key(context, _key_store(settings))
    return context


def _names(certificate: x509.Certificate, source: str) -> tuple[str, frozenset[str]]:
    """Return the subject of a certificate and its alternative names. Raises `ConfigError`."""
    try:
        subject = name_text(certificate.subject.public_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return subject, frozenset()
    except ValueError as error:
        raise ConfigError(f"{source}: cannot read the names of the certificate: {error}") from error
    return subject, frozenset(f"{type(name).__name__}:{name.value}" for name in names)


def _rules(settings: TlsSettings) -> PrincipalRules:
    setting = settings.named(PRINCIPAL_RULES)
    try:
        rules = PrincipalRules.parse(settings[PRINCIPAL_RULES])
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}", hint=error.hint) from error
    for mistake in rules.mistakes():
        raise ConfigError(f"{setting}: replacement {mistake}")
    if not rules.rules:
        raise ConfigError(
            f"{setting} is {settings[PRINCIPAL_RULES]!r}, expected at least one rule, or {DEFAULT_RULES}"
        )
    return rules


def _set_versions_and_ciphers(context: ssl.SSLContext, settings: TlsSettings) -> tuple[str, ...]:
    """Restrict a context to what the settings allow. Return what they ask for that cannot be."""
    versions = _versions(settings)
    names = listed(settings[CIPHER_SUITES])
    notices: list[str] = []
    if names:
        setting = settings.named(CIPHER_SUITES)
        try:
            chosen = cipher_suites(names)
        except ConfigError as error:
            raise ConfigError(f"{setting} {error}") from error
        if not chosen.of_tls_1_3:
            versions.discard(ssl.TLSVersion.TLSv1_3)
        if not chosen.older:
            versions.discard(ssl.TLSVersion.TLSv1_2)
        if not versions:
            raise ConfigError(
                f"{setting} has no cipher suite for {settings.named(ENABLED_PROTOCOLS)}="
                f"{settings[ENABLED_PROTOCOLS]}, expected at least one",
                hint="TLSv1.3 has its own suites, such as TLS_AES_256_GCM_SHA384; DHE suites are not supported",
            )
        if chosen.older:
            context.set_ciphers(chosen.older)
        if ssl.TLSVersion.TLSv1_3 in versions and chosen.of_tls_1_3 != TLS_1_3_SUITES:
            others = ", ".join(sorted(TLS_1_3_SUITES - chosen.of_tls_1_3))
            notices.append(
                f"{setting} does not list {others}, which stay enabled: Python cannot disable TLS 1.3 suites"
            )
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE  # as Java
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    return tuple(notices)


def _versions(settings: TlsSettings) -> set[ssl.TLSVersion]:
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


def _key_store(settings: TlsSettings) -> KeyStore:
    """Return the broker's key. Refuses what Kafka `DefaultSslEngineFactory.createKeystore` does."""
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
