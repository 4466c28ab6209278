"""Settings of logins at a listener: mechanisms, users of PLAIN, lifetime of a login.

    sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
    listener.name.clients.sasl.enabled.mechanisms=SCRAM-SHA-512
    listener.name.clients.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
        user_alice="secret";
    connections.max.reauth.ms=3600000
    listener.name.clients.scram-sha-512.connections.max.reauth.ms=60000

A listener's own setting overrides the broker's; a listener's setting for one mechanism overrides both. As in Kafka, a
JAAS line always belongs to one listener and one mechanism.
Follows: Kafka `BrokerSecurityConfigs`, `JaasContext`, `PlainServerCallbackHandler`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.config.jaas import parse_jaas
from tidegate.config.java_numbers import read_number
from tidegate.errors import ConfigError
from tidegate.quota.measure.throttle import MAX_INT64
from tidegate.scram import SCRAM_MECHANISMS
from tidegate.tls.settings import listed, listener_prefix

__all__ = ["ENABLED_MECHANISMS", "JAAS", "MAX_REAUTH", "PLAIN", "SaslConfig", "sasl_config", "sasl_settings"]

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *SCRAM_MECHANISMS)
ENABLED_MECHANISMS = "sasl.enabled.mechanisms"
MAX_REAUTH = "connections.max.reauth.ms"
JAAS = "sasl.jaas.config"
_USER = "user_"
_MODULES = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM_MECHANISMS, "org.apache.kafka.common.security.scram.ScramLoginModule"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """Logins at one listener.

    mechanisms: the enabled mechanisms, in the order of the setting. plain_users: password by name.
    max_reauth_ms: lifetime of a login by mechanism, in ms; 0: unlimited.
    """

    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str] = field(repr=False)
    max_reauth_ms: Mapping[str, int]


def sasl_config(listener: str, values: Mapping[str, Any], texts: Mapping[str, str]) -> SaslConfig:
    """Return what holds at `listener`. `values` are settings in force, `texts` those that were given.

    Raises `ConfigError`.
    """
    prefix = listener_prefix(listener)
    own = texts.get(f"{prefix}{ENABLED_MECHANISMS}")
    setting = ENABLED_MECHANISMS if own is None else f"{prefix}{ENABLED_MECHANISMS}"
    text = values[ENABLED_MECHANISMS] if own is None else own
    mechanisms = tuple(dict.fromkeys(listed(text)))
    unknown = [name for name in mechanisms if name not in MECHANISMS]
    if unknown or not mechanisms:
        raise ConfigError(
            f"{setting} is {text!r}, expected a list of {', '.join(MECHANISMS)}",
            hint=f"set {setting}, or change the protocol of listener {listener} to PLAINTEXT or SSL",
        )
    return SaslConfig(
        mechanisms=mechanisms,
        plain_users=_plain_users(listener, mechanisms, texts),
        max_reauth_ms={name: _max_reauth_ms(prefix, name, values, texts) for name in mechanisms},
    )


def sasl_settings(listeners: Iterable[str]) -> set[str]:
    """Return the names of the settings that logins at these listeners may have."""
    names = set()
    for prefix in map(listener_prefix, listeners):
        names |= {f"{prefix}{ENABLED_MECHANISMS}", f"{prefix}{MAX_REAUTH}"}
        for mechanism in MECHANISMS:
            names |= {f"{prefix}{mechanism.lower()}.{name}" for name in (JAAS, MAX_REAUTH)}
    return names


def _plain_users(listener: str, mechanisms: tuple[str, ...], texts: Mapping[str, str]) -> dict[str, str]:
    """Return the users of PLAIN; for SCRAM, JAAS has the broker's own name and password, which are not used."""
    users: dict[str, str] = {}
    for mechanism in mechanisms:
        setting = f"{listener_prefix(listener)}{mechanism.lower()}.{JAAS}"
        if setting in texts:
            module = parse_jaas(texts[setting], setting=setting)
            if module.name != _MODULES[mechanism]:
                raise ConfigError(
                    f"{setting} has login module {module.name!r}, expected {_MODULES[mechanism]!r}"
                )
            if mechanism == PLAIN:
                options = module.options.items()
                users = {key.removeprefix(_USER): text for key, text in options if key.startswith(_USER)}
        elif mechanism == PLAIN:
            raise ConfigError(
                f"listener {listener} has PLAIN in {ENABLED_MECHANISMS} but no users: expected {setting}",
                hint=f'set it to {_MODULES[PLAIN]} required user_NAME="PASSWORD"; or remove PLAIN',
            )
    return users


def _max_reauth_ms(prefix: str, mechanism: str, values: Mapping[str, Any], texts: Mapping[str, str]) -> int:
    for setting in (f"{prefix}{mechanism.lower()}.{MAX_REAUTH}", f"{prefix}{MAX_REAUTH}"):
        if setting in texts:
            try:
                milliseconds = read_number(texts[setting].strip(), MAX_INT64)
            except ValueError as error:
                raise ConfigError(
                    f"{setting} is {texts[setting]!r}, expected a whole number of ms"
                ) from error
            return max(milliseconds, 0)
    return max(int(values[MAX_REAUTH]), 0)
