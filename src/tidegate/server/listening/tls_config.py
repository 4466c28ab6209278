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
from tidegate.tls.contexts import enabled_versions, load_key_store, load_trust_store
from tidegate.tls.settings import (
    CIPHER_SUITES,
    CLIENT_AUTH,
    ENABLED_PROTOCOLS,
    NONE,
    PRINCIPAL_RULES,
    REQUESTED,
    REQUIRED,
    TlsSettings,
    client_auth,
    listed,
)

__all__ = ["TlsConfig", "tls_config"]

_VERIFY = {NONE: ssl.CERT_NONE, REQUESTED: ssl.CERT_OPTIONAL, REQUIRED: ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS at one listener.

    context: of the server's side, with key, certificates, versions and trusted certificates.
    client_auth: none, requested or required.
    rules: how subjects become names.
    subject, hosts: subject and host names of the broker's own certificate.
    has_trust_store: whether certificates of clients can be checked.
    notices: settings that have no effect.
    """

    context: ssl.SSLContext
    client_auth: str
    rules: PrincipalRules
    subject: str
    hosts: frozenset[str]
    has_trust_store: bool = False
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
    keys = load_key_store(context, settings)
    trusts = load_trust_store(context, settings)
    if not trusts and asked != NONE:
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
        has_trust_store=bool(trusts),
        notices=notices,
    )


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
    """Restrict a context to the versions and suites in the settings. Return texts about settings without effect."""
    versions = enabled_versions(settings)
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
