"""Names of ip entities against what Java 17 made of them."""

import pytest

from tidegate.quota.admin.ip_names import MAX_HOST_NAME, ip_literal, may_be_host_name
from tidegate.quota.connections.limits import host_address

ADDRESSES = {
    "127.0.0.1": "127.0.0.1",
    "127.1": "127.0.0.1",
    "1.2.3": "1.2.0.3",
    "1": "0.0.0.1",
    "4294967295": "255.255.255.255",
    "1.256": "1.0.1.0",
    "1.16777215": "1.255.255.255",
    "1.2.65535": "1.2.255.255",
    "01.02.03.04": "1.2.3.4",
    "010.0.0.1": "10.0.0.1",
    "[::1]": "0:0:0:0:0:0:0:1",
    "::1%1": "0:0:0:0:0:0:0:1",
    "::1%0": "0:0:0:0:0:0:0:1",
    "::1%lo": "0:0:0:0:0:0:0:1",
    "fe80::1%1": "fe80:0:0:0:0:0:0:1",
    "fe80::1%99999": "fe80:0:0:0:0:0:0:1",
    "[fe80::1%1]": "fe80:0:0:0:0:0:0:1",
    "::ffff:1.2.3.4": "1.2.3.4",
    "::ffff:0102:0304": "1.2.3.4",
    "::1.2.3.4": "0:0:0:0:0:0:102:304",
    "::": "0:0:0:0:0:0:0:0",
    "1::": "1:0:0:0:0:0:0:0",
    "1:2:3:4:5:6:7:8": "1:2:3:4:5:6:7:8",
    "1:2:3:4:5:6:7::": "1:2:3:4:5:6:7:0",
    "::2:3:4:5:6:7:8": "0:2:3:4:5:6:7:8",
    "1:2:3:4:5:6:1.2.3.4": "1:2:3:4:5:6:102:304",
    "0": "0.0.0.0",
    "08.1": "8.0.0.1",
    "1.2.3.04": "1.2.3.4",
    "255.255.255.255": "255.255.255.255",
    "999": "0.0.3.231",
    "0000127.0.0.1": "127.0.0.1",
    "::0001": "0:0:0:0:0:0:0:1",
    "::00001": "0:0:0:0:0:0:0:1",
    "::ffff:0:1.2.3.4": "0:0:0:0:ffff:0:102:304",
    "::FFFF:127.0.0.1": "127.0.0.1",
}
"""Name → `InetAddress.getByName(name).getHostAddress()`, without the zone."""

NO_ADDRESSES = [
    "0x7f.1",
    "0x7f.0.0.1",
    "4294967296",
    "256.1",
    "1.16777216",
    "1.2.65536",
    "127.0.0.1.",
    "127..1",
    ".1",
    "1.",
    "1.2.3.4.5",
    "[127.0.0.1]",
    "fe80::1%",
    " 127.0.0.1",
    "127.0.0.1 ",
    "a..b",
    ".",
    "..",
    "localhost.",
    "\u00e9.example",
    "xn--bcher-kva.invalid",
    "1:2:3:4:5:6:7:8:9",
    "12345::",
    "g::",
    "[::1",
    "::1]",
    "[]",
    "[localhost]",
    "a b",
    "a\u0000b",
    "127.0.0.1\u0000",
    "host name",
    "-1",
    "+1",
    "1e3",
    "0x1",
    "0b1",
    "0377.1",
    "0x",
    "1.2.3.0x4",
    "1.2.3.a",
    "\u0661.\u0662.\u0663.\u0664",
    "::\uff11",
    "1:2",
    "a:b",
    "localhost:80",
    "::1:",
    "\uff1a\uff1a1",
    "1.2.3.4%1",
    "127.0.0.1%lo",
    "x" * 300,
    "1" * 300,
    "1." * 100,
    "a_b.invalid",
    "*",
    "?",
    "/127.0.0.1",
    "http://a",
    "255.255.255.256",
    "1.2.3.1234",
    "1:2:3:4:5:6:7:1.2.3.4",
    "::1.2.3",
    "::1.2.3.4.5",
]
"""Names that Java refuses, on a machine where no name server knows them."""

NEVER_LOOKED_UP = [
    "", "0x7f.1", "0377.1.1.1.1", "4294967296", "256.1", "1.2.3.4.", "::1]", "[::1", "[localhost]", "a b", "a\0b",
    "localhost:80", "fe80::1%", "127.0.0.1%lo", "x" * (MAX_HOST_NAME + 1),
]  # fmt: skip


@pytest.mark.parametrize("name", ADDRESSES)
def test_addresses_are_read_as_java_reads_them(name: str) -> None:
    """Short forms, leading zeros, brackets, zones, IPv4 inside IPv6."""
    literal = ip_literal(name)
    assert literal is not None
    assert host_address(literal.address) == ADDRESSES[name]


@pytest.mark.parametrize("name", NO_ADDRESSES)
def test_what_java_refuses_is_no_address(name: str) -> None:
    """Some may still be names of hosts, which is for a resolver to say."""
    assert ip_literal(name) is None


@pytest.mark.parametrize("name", NEVER_LOOKED_UP)
def test_some_are_not_even_looked_up(name: str) -> None:
    """A resolver would take `0x7f.1` for an address, or be asked in vain."""
    assert (ip_literal(name), may_be_host_name(name)) == (None, False)


@pytest.mark.parametrize(
    "name", ["localhost", "broker.test", "a..b", ".", "é.example", "xn--bcher-kva.invalid", "a_b", "1e3"]
)
def test_others_may_be_hosts(name: str) -> None:
    """Whatever could be in a table of hosts."""
    assert (ip_literal(name), may_be_host_name(name)) == (None, True)


def test_an_interface_is_told_apart_from_a_number() -> None:
    """A number needs no looking at; an interface has to exist."""
    assert [ip_literal(f"fe80::1%{zone}").interface for zone in ("1", "0", "99999", "lo", "1x")] == [
        None, None, None, "lo", "1x",
    ]  # fmt: skip
