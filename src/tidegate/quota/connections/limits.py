"""Configured limits of connections: number, rate, and number for each address.

>>> parse_per_ip_overrides("127.0.0.1:200,::1:0")
{'127.0.0.1': 200, '::1': 0}
>>> host_address("::ffff:192.0.2.7"), host_address("::1")
('192.0.2.7', '0:0:0:0:0:0:0:1')

Follows: Kafka `SocketServerConfigs`, `ConnectionQuotas`, KIP-612, B§6.9.
"""

import functools
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.errors import ConfigError
from tidegate.quota.measure.throttle import MAX_INT32, MIN_INT32

__all__ = [
    "PER_IP_OVERRIDES",
    "UNLIMITED_CONNECTIONS",
    "ConnectionLimits",
    "ListenerLimits",
    "host_address",
    "parse_listener_limit",
    "parse_per_ip_overrides",
]

PER_IP_OVERRIDES = "max.connections.per.ip.overrides"
UNLIMITED_CONNECTIONS = MAX_INT32
"""A count or a rate that is no limit. Follows: Kafka's default, Java Integer.MAX_VALUE."""

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}")  # the common case, without the library's cost
_INT = re.compile(r"[-+]?\d{1,20}")  # in any script, as Java reads an int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of a whole broker, by Kafka's names; addresses of the overrides in any notation."""

    max_connections: int = UNLIMITED_CONNECTIONS
    max_connection_creation_rate: int = UNLIMITED_CONNECTIONS
    max_connections_per_ip: int = UNLIMITED_CONNECTIONS
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """The limits of one listener; None takes over the broker's at the time the listener is added."""

    max_connections: int | None = None
    max_connection_creation_rate: int | None = None


def parse_listener_limit(name: str, text: str) -> int:
    """Return a listener's own limit. Raises `ConfigError`, in Kafka's words, unless it is above 0."""
    if not _INT.fullmatch(text) or not MIN_INT32 <= int(text) <= MAX_INT32:
        raise ConfigError(f'For input string: "{text}"')
    if int(text) <= 0:
        raise ConfigError(f"Invalid {name} {int(text)}")
    return int(text)


@functools.lru_cache(maxsize=2)
def parse_per_ip_overrides(text: str) -> Mapping[str, int]:
    """Return counts by host from `host:100,127.0.0.1:200`; hosts are still to be resolved. Raises `ConfigError`.

    Below 0 is as good as 0, as in Kafka. The last results are kept: a long list is looked up again for each host.
    """
    counts: dict[str, int] = {}
    for pair in text.split(","):
        host, _, count = pair.rpartition(":")
        host, count = host.strip(), count.strip()
        if host and _INT.fullmatch(count) and MIN_INT32 <= (number := int(count)) <= MAX_INT32:
            counts[host] = number
        elif pair := pair.strip():
            raise ConfigError(
                f"max.connections.per.ip.overrides must be pairs of host and count, got {pair!r}",
                hint="write host:100,127.0.0.1:200",
            )
    return counts


def host_address(address: str) -> str:
    """Return the notation that stands for an address in counts, metrics and messages. Raises `ConfigError`.

    An IPv4 address written as IPv6 is the IPv4 address, and a zone does not matter. Follows: Java
    `InetAddress.getHostAddress`, which does not shorten IPv6.
    """
    if _IPV4.fullmatch(address):
        return address
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise ConfigError(f"{address!r} is not an IPv4 or IPv6 address") from error
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    octets = parsed.packed
    return ":".join(f"{octets[i] << 8 | octets[i + 1]:x}" for i in range(0, 16, 2))
