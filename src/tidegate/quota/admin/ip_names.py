"""Names of `ip` entities: which are addresses, and which may be the name of a host. Asks no name server.

>>> ip_literal("127.1"), ip_literal("[::FFFF:192.0.2.7]")
(IpLiteral(address='127.0.0.1', interface=None), IpLiteral(address='192.0.2.7', interface=None))
>>> ip_literal("0x7f.1"), may_be_host_name("0x7f.1"), may_be_host_name("broker.test")
(None, False, True)

Follows: Java `InetAddress.getByName` (17), which Kafka asks; its parsing of addresses is wider than Python's.
"""

import ipaddress
import re
from typing import NamedTuple

__all__ = ["IpLiteral", "ip_literal", "may_be_host_name"]

MAX_HOST_NAME = 255  # RFC 1035; the resolver refuses longer ones
MAX_IPV4_TEXT = 15  # Java `IPAddressUtil.textToNumericFormatV4`
_IPV4 = re.compile(r"[0-9]+(?:\.[0-9]+){0,3}")
_NUMBERS = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)(?:\.(?:0[xX][0-9a-fA-F]*|[0-9]+))*\.?")
_LEADING_ZEROS = re.compile(r"(?<![0-9a-fA-F])0+(?=[0-9a-fA-F])")
_ZONE_NUMBER = re.compile(r"[0-9]{1,9}")
_NOT_IN_HOST_NAMES = re.compile(r"[\x00-\x20\x7f:%\[\]]")


class IpLiteral(NamedTuple):
    """An address as Python writes it; `interface`: the one it is local to, where one is named."""

    address: str
    interface: str | None = None


def ip_literal(name: str) -> IpLiteral | None:
    """Return the address that `name` is written as, None where it is none."""
    octets = _ipv4(name)
    if octets is not None:
        return IpLiteral(".".join(map(str, octets)))
    if name[:1] == "[":
        if name[-1:] != "]":
            return None
        name = name[1:-1]
    return _ipv6(name) if ":" in name else None


def may_be_host_name(name: str) -> bool:
    """Return whether a name that is no address is worth looking up."""
    return (
        0 < len(name) <= MAX_HOST_NAME
        and not _NUMBERS.fullmatch(
            name
        )  # the resolver would read `0x7f.1` as an address; Java does not ask it
        and not _NOT_IN_HOST_NAMES.search(name)
    )


def _ipv4(text: str) -> bytes | None:
    """Return the four bytes of an address whose last part may stand for several."""
    if len(text) > MAX_IPV4_TEXT or not _IPV4.fullmatch(text):
        return None
    *leading, last = map(int, text.split("."))
    try:
        return bytes(leading) + last.to_bytes(4 - len(leading), "big")
    except (ValueError, OverflowError):
        return None


def _ipv6(text: str) -> IpLiteral | None:
    text, percent, zone = text.partition("%")
    if percent and not zone:
        return None
    if "." in text:
        head, _, tail = text.rpartition(":")
        octets = _ipv4(tail) if tail.count(".") == 3 else None
        if octets is None:
            return None
        text = f"{head}:{octets[:2].hex()}:{octets[2:].hex()}"
    try:
        address = ipaddress.IPv6Address(_LEADING_ZEROS.sub("", text))
    except ValueError:
        return None
    if address.ipv4_mapped is not None:
        return IpLiteral(str(address.ipv4_mapped))
    return IpLiteral(str(address), zone if percent and not _ZONE_NUMBER.fullmatch(zone) else None)
