"""TLS contexts: the context of a client, and the versions that a client or a listener enables.

The library that reads stores takes 10 MB of memory and 40 ms: import this module only where TLS is used.
Follows: Kafka `SslFactory`, `DefaultSslEngineFactory`.
"""

import ssl
from collections.abc import Mapping

from tidegate.errors import ConfigError
from tidegate.tls.settings import ENABLED_PROTOCOLS, TLS_SETTINGS, TlsSettings, listed
from tidegate.tls.stores import load_key_store, load_trust_store

__all__ = ["client_context", "enabled_versions"]

_PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JAVA_PROTOCOLS = ("TLS", *_PROTOCOLS)


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
