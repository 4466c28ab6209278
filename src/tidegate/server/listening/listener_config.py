"""Settings of listeners: names, addresses, advertised addresses, and limits per listener.

    listeners=INTERNAL://10.0.0.5:9092,EXTERNAL://:9093
    advertised.listeners=EXTERNAL://broker.example.com:9093
    listener.security.protocol.map=INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL
    listener.name.external.max.connections=1000

Follows: Kafka `SocketServerConfigs`, `AbstractKafkaConfig`, KIP-103, B§6.9. Names are upper case. The
listeners of a controller are not listeners of the broker.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.errors import ConfigError
from tidegate.quota.connections.limits import UNLIMITED_CONNECTIONS, ListenerLimits, parse_listener_limit
from tidegate.server.listening.sasl_config import SaslConfig, sasl_config
from tidegate.tls.settings import CLIENT_AUTH, REQUIRED, client_auth, listed

__all__ = [
    "ALLOW_ANONYMOUS",
    "ListenerAddress",
    "ListenerConfig",
    "host_and_port",
    "inter_broker_listener",
    "is_loopback",
    "limit_settings",
    "listener_configs",
]

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ALLOW_ANONYMOUS = "tidegate.allow.anonymous"
_PLAINTEXT = "PLAINTEXT"
_NOWHERE = "0.0.0.0"
_PREFIX = "listener.name."
_LIMITS = ("max.connections", "max.connection.creation.rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """A listener's name, and a host and port: the bound address (port 0: any free one), or the advertised one."""

    name: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, setting: str) -> "ListenerAddress":
        """Return the listener that `NAME://host:port` stands for."""
        match = re.fullmatch(
            r"([A-Za-z0-9_.-]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([^:/\[\]]*)):([0-9]{1,5})", text.strip()
        )
        if match is None or int(match[4]) > 65_535:
            raise ConfigError(
                f"{setting} has {text!r}, expected NAME://host:port, such as PLAINTEXT://127.0.0.1:9092"
            )
        return cls(name=match[1].upper(), host=match[2] or match[3] or "", port=int(match[4]))


def host_and_port(host: str, port: int) -> str:
    """Return an address as clients accept it: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """One listener.

    advertised: the advertised address; None: the address that it is bound to. protocol: one of `SECURITY_PROTOCOLS`.
    sasl: the configuration of logins; None: clients do not log in.
    """

    address: ListenerAddress
    advertised: ListenerAddress | None
    limits: ListenerLimits
    protocol: str = _PLAINTEXT
    sasl: SaslConfig | None = None

    @property
    def name(self) -> str:
        """The listener's name."""
        return self.address.name

    @property
    def is_encrypted(self) -> bool:
        """Return whether the listener uses TLS."""
        return self.protocol.endswith("SSL")


def listener_configs(values: Mapping[str, Any], texts: Mapping[str, str]) -> tuple[ListenerConfig, ...]:
    """Return the listeners of a broker. `values` are settings in force, `texts` those that were given.

    Raises `ConfigError` if there is none; if two have the same name or address; if one is advertised that does not
    exist or that no client can connect to; if one has no security protocol; or if one accepts unauthenticated clients
    from other machines without `tidegate.allow.anonymous`.
    """
    controllers = {name.upper() for name in listed(values["controller.listener.names"])}
    addresses = _addresses(values, "listeners", controllers)
    if not addresses:
        raise ConfigError(
            f"listeners is {values['listeners']!r}, expected at least one listener that is not a controller's"
        )
    _check_places(addresses.values())
    advertised = _addresses(values, "advertised.listeners", controllers)
    for name, told in advertised.items():
        if name not in addresses:
            raise ConfigError(
                f"advertised.listeners has listener {name!r}, expected one of listeners: {', '.join(addresses)}"
            )
        if told.host == _NOWHERE:
            raise ConfigError(
                f"advertised.listeners has {_NOWHERE} for listener {name!r}, expected a reachable address",
                hint="use this machine's host name or address, or remove the listener from advertised.listeners",
            )
    protocols = _protocols(values["listener.security.protocol.map"])
    for name in addresses:
        _check_protocol(name, protocols.get(name))
    listeners = tuple(
        ListenerConfig(
            address=address,
            advertised=advertised.get(name),
            limits=_limits(name, texts),
            protocol=protocols[name],
            sasl=sasl_config(name, values, texts) if protocols[name].startswith("SASL_") else None,
        )
        for name, address in addresses.items()
    )
    if not values[ALLOW_ANONYMOUS]:
        for listener in listeners:
            _check_open_access(listener, values, texts)
    return listeners


def limit_settings(listeners: tuple[ListenerConfig, ...]) -> dict[str, str]:
    """Return the names of the settings that limit one listener, each with the name of the setting for all listeners."""
    return {_limit_setting(listener.name, limit): limit for listener in listeners for limit in _LIMITS}


def inter_broker_listener(values: Mapping[str, Any], listeners: tuple[ListenerConfig, ...]) -> str | None:
    """Return the listener that is exempt from the broker's limits; by default PLAINTEXT, as in Kafka.

    Return None if no listener has the default name. Raises `ConfigError` if the setting names an unknown listener.
    """
    names = [listener.name for listener in listeners]
    given: str = values["inter.broker.listener.name"].upper()
    if given and given not in names:
        raise ConfigError(
            f"inter.broker.listener.name is {given!r}, expected one of listeners: {', '.join(names)}"
        )
    name = given or _PLAINTEXT
    return name if name in names else None


def _addresses(values: Mapping[str, Any], setting: str, controllers: set[str]) -> dict[str, ListenerAddress]:
    """Return the listeners of one setting by name, without those of a controller."""
    addresses: dict[str, ListenerAddress] = {}
    for part in listed(values[setting]):
        address = ListenerAddress.parse(part, setting=setting)
        if address.name in addresses:
            raise ConfigError(
                f"{setting} has listener {address.name!r} twice, expected a different name for each",
                hint="give each listener its own name, and add the names to listener.security.protocol.map",
            )
        if address.name not in controllers:
            addresses[address.name] = address
    return addresses


def _check_places(addresses: Iterable[ListenerAddress]) -> None:
    """Refuse two listeners at one address. Follows: Kafka `SocketServerConfigs.listenerListToEndPoints`."""
    taken: dict[tuple[str, int], str] = {}
    for address in addresses:
        place = address.host, address.port
        if address.port and place in taken:
            raise ConfigError(
                f"listeners has {taken[place]!r} and {address.name!r} both at "
                f"{host_and_port(address.host or '*', address.port)}, expected a different port for each"
            )
        taken[place] = address.name


def _protocols(text: str) -> dict[str, str]:
    """Return the security protocol of each listener in the map."""
    protocols: dict[str, str] = {}
    for pair in listed(text):
        name, colon, protocol = (part.strip().upper() for part in pair.partition(":"))
        if not name or not colon or protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map has {pair!r}, expected NAME:PROTOCOL with one of "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        if name in protocols:
            raise ConfigError(f"listener.security.protocol.map has listener {name!r} twice, expected it once")
        protocols[name] = protocol
    return protocols


def _check_protocol(name: str, protocol: str | None) -> None:
    """Refuse a listener whose security protocol is not known."""
    if protocol is None:
        raise ConfigError(
            f"listener {name!r} has no security protocol, expected an entry in listener.security.protocol.map",
            hint=f"add {name}:{_PLAINTEXT} to listener.security.protocol.map",
        )


def _check_open_access(listener: ListenerConfig, values: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Refuse a listener that other machines can reach and that does not authenticate its clients."""
    if is_loopback(listener.address.host) or listener.sasl is not None:
        return
    if listener.is_encrypted and client_auth(listener.name, values, texts) == REQUIRED:
        return
    where = listener.address.host or "all addresses"
    raise ConfigError(
        f"listener {listener.name!r} accepts unauthenticated clients at {where} ({listener.protocol}), "
        f"expected 127.0.0.1, a protocol with logins, or {ALLOW_ANONYMOUS}=true",
        hint=f"on a network that you trust, set {ALLOW_ANONYMOUS}=true; otherwise use the protocol SASL_SSL, "
        f"or SSL with {CLIENT_AUTH}={REQUIRED}",
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address. A host name other than localhost may have any address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _limits(name: str, texts: Mapping[str, str]) -> ListenerLimits:
    most, rate = (_limit(_limit_setting(name, limit), texts) for limit in _LIMITS)
    return ListenerLimits(max_connections=most, max_connection_creation_rate=rate)


def _limit_setting(name: str, limit: str) -> str:
    return f"{_PREFIX}{name.lower()}.{limit}"


def _limit(setting: str, texts: Mapping[str, str]) -> int | None:
    text = texts.get(setting)
    if text is None:
        return None
    try:
        return parse_listener_limit(setting, text.strip())
    except ConfigError as error:
        raise ConfigError(
            f"{setting} is {text!r}, expected a whole number from 1 to {UNLIMITED_CONNECTIONS}"
        ) from error
