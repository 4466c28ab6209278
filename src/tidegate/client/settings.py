"""Settings of a client, by Kafka's names of them: addresses, timeouts, TLS and SASL.

>>> settings = client_settings({"bootstrap.servers": "kafka1:9092,kafka2:9092", "client.id": "ops"})
>>> settings.addresses, settings.request_timeout_s
((Address(host='kafka1', port=9092), Address(host='kafka2', port=9092)), 30.0)

Follows: Kafka `AdminClientConfig`, `SaslConfigs`, `SslConfigs`.
"""

import difflib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tidegate.client.errors import shown
from tidegate.config.jaas import parse_jaas
from tidegate.config.properties import load_properties
from tidegate.errors import ConfigError
from tidegate.quota.measure.throttle import MAX_INT32

__all__ = [
    "Address",
    "ClientSettings",
    "client_settings",
    "load_client_settings",
    "misspelt_settings",
    "parse_addresses",
]

MAX_ADDRESSES = 100
_DEFAULT_CLIENT_ID = "tidegate"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES = ("PlainLoginModule", "ScramLoginModule")
_DURATIONS = {  # by Kafka's name, with Kafka's default, in ms
    "request.timeout.ms": 30_000,
    "default.api.timeout.ms": 60_000,
    "socket.connection.setup.timeout.ms": 10_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    "retry.backoff.ms": 100,
    "metrics.sample.window.ms": 30_000,
}
_SAMPLES = "metrics.num.samples"
_KEYS = ("ssl.keystore.location", "ssl.keystore.key")
_TEXTS = (
    "bootstrap.servers",
    "client.id",
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
)


class Address(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        host = shown(self.host)  # also of a broker's answer
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of a client. `tls` is None without TLS; `mechanism` is empty without SASL.

    has_certificate: with TLS the client shows a certificate of its own, where the broker asks for one.
    misspelt: the names that were given and are not known, each with the known name that is most like it.
    """

    addresses: tuple[Address, ...]
    client_id: str = _DEFAULT_CLIENT_ID
    request_timeout_s: float = 30.0
    api_timeout_s: float = 60.0
    connect_timeout_s: float = 10.0
    reconnect_backoff_s: float = 0.05
    reconnect_backoff_max_s: float = 1.0
    retry_backoff_s: float = 0.1
    metrics_samples: int = 2
    metrics_window_ms: int = 30_000
    tls: ssl.SSLContext | None = None
    has_certificate: bool = False
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    misspelt: Mapping[str, str] = field(default_factory=dict)


def load_client_settings(bootstrap: str | None, path: Path | None = None) -> ClientSettings:
    """Return the settings of a `client.properties` file; `bootstrap` wins over its addresses. Raises `ConfigError`."""
    texts = {} if path is None else load_properties(path)
    if bootstrap is not None:
        texts["bootstrap.servers"] = bootstrap
    return client_settings(texts)


def client_settings(texts: Mapping[str, str]) -> ClientSettings:
    """Return the settings that `texts` hold by Kafka's names. Raises `ConfigError`.

    Other settings of Kafka's clients, such as `acks`, have no effect.
    """
    seconds = {
        name: _whole(texts, name, default, MAX_INT32, " of milliseconds") / 1000
        for name, default in _DURATIONS.items()
    }
    protocol = _chosen(texts, "security.protocol", "PLAINTEXT", _PROTOCOLS)
    mechanism, user, password = _login(texts) if protocol.startswith("SASL") else ("", "", "")
    return ClientSettings(
        addresses=parse_addresses(texts.get("bootstrap.servers", "")),
        client_id=texts.get("client.id") or _DEFAULT_CLIENT_ID,
        request_timeout_s=seconds["request.timeout.ms"],
        api_timeout_s=seconds["default.api.timeout.ms"],
        connect_timeout_s=seconds["socket.connection.setup.timeout.ms"],
        reconnect_backoff_s=seconds["reconnect.backoff.ms"],
        reconnect_backoff_max_s=seconds["reconnect.backoff.max.ms"],
        retry_backoff_s=seconds["retry.backoff.ms"],
        metrics_samples=_whole(texts, _SAMPLES, default=2, most=100),
        metrics_window_ms=round(1000 * seconds["metrics.sample.window.ms"]),
        tls=_tls(texts) if protocol.endswith("SSL") else None,
        has_certificate=protocol.endswith("SSL") and any(map(texts.get, _KEYS)),
        mechanism=mechanism,
        user=user,
        password=password,
        misspelt=misspelt_settings(texts),
    )


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Return the addresses of a list such as `kafka1:9092,[::1]:9092`. Raises `ConfigError`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or len(parts) > MAX_ADDRESSES:
        raise ConfigError(
            f"bootstrap servers must be 1 to {MAX_ADDRESSES} addresses, got {len(parts)}",
            hint="write HOST:PORT, separated by commas, for example localhost:9092",
        )
    return tuple(_address(part) for part in parts)


def _address(text: str) -> Address:
    _, _, rest = text.rpartition("://")
    host, colon, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(
            f"bootstrap server must be HOST:PORT, got {text!r}",
            hint="for example localhost:9092 or [::1]:9092",
        )
    return Address(host, int(port))


def _whole(texts: Mapping[str, str], name: str, default: int, most: int, unit: str = "") -> int:
    text = texts.get(name, str(default)).strip()
    if not (text.isascii() and text.isdigit() and len(text) < 11 and 1 <= int(text) <= most):
        raise ConfigError(f"{name} must be a whole number{unit} from 1 to {most}, got {text!r}")
    return int(text)


def _chosen(texts: Mapping[str, str], name: str, default: str, known: tuple[str, ...]) -> str:
    text = texts.get(name, default).strip().upper()
    if text not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, got {texts[name]!r}")
    return text


def _login(texts: Mapping[str, str]) -> tuple[str, str, str]:
    """Return mechanism, user and password. Raises `ConfigError`, which shows no password."""
    mechanism = _chosen(texts, "sasl.mechanism", _MECHANISMS[0], _MECHANISMS)
    module = parse_jaas(texts.get("sasl.jaas.config", ""), setting="sasl.jaas.config")
    if module.name.rpartition(".")[2] not in _MODULES:
        raise ConfigError(f"sasl.jaas.config names {module.name!r}, expected one of {', '.join(_MODULES)}")
    user, password = module.options.get("username"), module.options.get("password")
    if not user or password is None:
        raise ConfigError(
            "sasl.jaas.config has no username or no password",
            hint="for example: org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="ops" password="...";',
        )
    return mechanism, user, password


def _tls(texts: Mapping[str, str]) -> ssl.SSLContext:
    from tidegate.tls.contexts import client_context  # imports cryptography: 40 ms

    return client_context(texts)


def misspelt_settings(texts: Mapping[str, str]) -> dict[str, str]:
    """Return unknown names that resemble a known one, each with that; others belong to producers and consumers."""
    known = (*_TEXTS, *_DURATIONS, _SAMPLES)
    found = {
        name: difflib.get_close_matches(name, known, n=1, cutoff=0.9) for name in texts if name not in known
    }
    return {name: like[0] for name, like in found.items() if like}
