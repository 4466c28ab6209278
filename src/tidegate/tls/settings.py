"""Settings of TLS: names, defaults, and the values of one listener or client.

A listener's own setting overrides the broker's. At a SASL_SSL listener only its own `ssl.client.auth` counts, as in
Kafka: the login identifies the client. Follows: Kafka `SslConfigs`, `BrokerSecurityConfigs`, `SaslChannelBuilder`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.config.principal_rules import DEFAULT_RULES
from tidegate.errors import ConfigError

__all__ = [
    "ALLOW_DN_CHANGES",
    "ALLOW_SAN_CHANGES",
    "CIPHER_SUITES",
    "CLIENT_AUTH",
    "ENABLED_PROTOCOLS",
    "NONE",
    "PRINCIPAL_RULES",
    "REQUESTED",
    "REQUIRED",
    "SECRET_TLS_SETTINGS",
    "STORE_SETTINGS",
    "TLS_SETTINGS",
    "TlsSettings",
    "client_auth",
    "listed",
    "listener_prefix",
    "tls_settings",
]

NONE, REQUESTED, REQUIRED = _CLIENT_AUTHS = "none", "requested", "required"
CLIENT_AUTH = "ssl.client.auth"
CIPHER_SUITES = "ssl.cipher.suites"
ENABLED_PROTOCOLS = "ssl.enabled.protocols"
PRINCIPAL_RULES = "ssl.principal.mapping.rules"
TLS_SETTINGS: Mapping[str, tuple[str, str]] = {
    "ssl.keystore.type": (
        "JKS",
        "Format of the key store: PKCS12 or PEM. JKS is read as PKCS12.",
    ),
    "ssl.keystore.location": ("", "File with the broker's private key and certificates."),
    "ssl.keystore.password": ("", "Password of the key store file."),
    "ssl.keystore.key": ("", "The broker's private key, in PEM, instead of a file."),
    "ssl.keystore.certificate.chain": (
        "",
        "Certificate chain of ssl.keystore.key, in PEM, the broker's certificate first.",
    ),
    "ssl.key.password": ("", "Password of the broker's private key."),
    "ssl.truststore.type": ("JKS", "Format of the trust store: PKCS12 or PEM. JKS is read as PKCS12."),
    "ssl.truststore.location": ("", "File with the trusted certificates."),
    "ssl.truststore.password": ("", "Password of the trust store file."),
    "ssl.truststore.certificates": ("", "Trusted certificates, in PEM, instead of a file."),
    ENABLED_PROTOCOLS: (
        "TLSv1.2,TLSv1.3",
        "TLS versions that the broker accepts, comma-separated. Empty: TLSv1.2 and TLSv1.3.",
    ),
    "ssl.protocol": (
        "TLSv1.3",
        "Java's TLS version. It has no effect: ssl.enabled.protocols sets the accepted versions.",
    ),
    CIPHER_SUITES: (
        "",
        "Accepted cipher suites, by Java's names, in order of preference. Empty: OpenSSL's default.",
    ),
    PRINCIPAL_RULES: (
        DEFAULT_RULES,
        "Rules that turn the subject of a client's certificate into its principal.",
    ),
    CLIENT_AUTH: (NONE, "Whether clients present a certificate: none, requested or required."),
}
"""Default and meaning of each; all are texts."""

ALLOW_DN_CHANGES = "ssl.allow.dn.changes"
ALLOW_SAN_CHANGES = "ssl.allow.san.changes"
STORE_SETTINGS = tuple(
    name for name in TLS_SETTINGS if name.startswith(("ssl.keystore.", "ssl.key.", "ssl.truststore."))
)
"""Those that can change while a node runs. Follows: Kafka `SslConfigs.RECONFIGURABLE_CONFIGS`."""

SECRET_TLS_SETTINGS = frozenset(
    (
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.certificates",
        "ssl.truststore.password",
    )
)
"""Those that are passwords to Kafka: never described. Follows: Kafka `SslConfigs`, type PASSWORD."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings of one listener, its own before those of the node. A client has no listener: ''."""

    listener: str
    values: Mapping[str, Any]
    texts: Mapping[str, str]

    def named(self, name: str) -> str:
        """Return the name of the setting that holds."""
        own = f"{listener_prefix(self.listener)}{name}"
        return own if own in self.texts else name

    def __getitem__(self, name: str) -> str:
        own = f"{listener_prefix(self.listener)}{name}"
        text: str = self.texts[own].strip() if own in self.texts else self.values[name]
        return text

    def source(self, name: str) -> str:
        """Return the setting as the beginning of a sentence, with its value where that is a location."""
        return f"{self.named(name)} {self[name]!r}" if name.endswith(".location") else self.named(name)


def client_auth(listener: str, values: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """Return what is asked of clients at `listener`: `NONE`, `REQUESTED` or `REQUIRED`. Raises `ConfigError`.

    At a SASL_SSL listener only its own setting says.
    """
    settings = TlsSettings(listener, values, texts)
    pairs = (pair.rpartition(":") for pair in values["listener.security.protocol.map"].upper().split(","))
    protocols = {name.strip(): protocol.strip() for name, _, protocol in pairs}
    own = settings.named(CLIENT_AUTH) != CLIENT_AUTH
    text = settings[CLIENT_AUTH]
    if not own and protocols.get(listener.upper()) == "SASL_SSL":
        return NONE
    if text not in _CLIENT_AUTHS:
        raise ConfigError(
            f"{settings.named(CLIENT_AUTH)} is {text!r}, expected one of {', '.join(_CLIENT_AUTHS)}"
        )
    return text


def tls_settings(listeners: Iterable[str]) -> set[str]:
    """Return the names of the settings that TLS at these listeners may have."""
    return {f"{listener_prefix(listener)}{name}" for listener in listeners for name in TLS_SETTINGS}


def listener_prefix(listener: str) -> str:
    """Return the beginning of the names of a listener's own settings."""
    return f"listener.name.{listener.lower()}."


def listed(text: str) -> list[str]:
    """Return the parts of a list, which commas separate."""
    return [part.strip() for part in text.split(",") if part.strip()]
