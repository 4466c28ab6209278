"""Limits as they are configured: texts, addresses, and values stored as doubles."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigError
from tidegate.quota.connections.limits import (
    host_address,
    parse_listener_limit,
    parse_per_ip_overrides,
)


@pytest.mark.parametrize(("text", "limit"), [("1", 1), ("+7", 7), ("2147483647", 2**31 - 1)])
def test_listener_limit_is_an_int_above_zero(text: str, limit: int) -> None:
    """Java reads a sign, too."""
    assert parse_listener_limit("max.connections", text) == limit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "Invalid max.connections 0"),
        ("-3", "Invalid max.connections -3"),
        ("abc", 'For input string: "abc"'),
        ("2147483648", 'For input string: "2147483648"'),
        ("", 'For input string: ""'),
        ("1 ", 'For input string: "1 "'),
    ],
)
def test_listener_limit_is_refused_in_kafkas_words(text: str, message: str) -> None:
    """Zero is not a limit of a listener, and what is no int is shown."""
    with pytest.raises(ConfigError) as caught:
        parse_listener_limit("max.connections", text)
    assert str(caught.value) == message


def test_overrides_are_split_at_the_last_colon() -> None:
    """So that IPv6 addresses work; blanks and empty pairs do not matter."""
    text = " host.test : 5, ::1:7 ,,127.0.0.1:0,10.0.0.1:-1"
    assert parse_per_ip_overrides(text) == {"host.test": 5, "::1": 7, "127.0.0.1": 0, "10.0.0.1": -1}
    assert parse_per_ip_overrides("") == {}


@pytest.mark.parametrize("pair", ["host", "host:", ":5", "host:x", "host:2147483648", "host:-2147483649"])
def test_broken_override_is_named(pair: str) -> None:
    """One error with the pair that is wrong."""
    with pytest.raises(ConfigError, match="must be pairs of host and count") as caught:
        parse_per_ip_overrides(f"127.0.0.1:1,{pair}")
    assert repr(pair) in str(caught.value)
    assert caught.value.hint == "write host:100,127.0.0.1:200"


@pytest.mark.parametrize(
    ("address", "notation"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::a0", "2001:db8:0:0:0:0:0:a0"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
    ],
)
def test_an_address_has_one_notation(address: str, notation: str) -> None:
    """Counts and rates are kept by Java's notation, whatever was written."""
    assert host_address(address) == notation


@pytest.mark.parametrize(
    "name", ["localhost", "", "256.0.0.1", "010.0.0.1", "1.2.3", "1.2.3.4\n", "\u0661.2.3.4"]
)
def test_what_is_no_address(name: str) -> None:
    """Names are resolved before they come here, and half an address is none."""
    with pytest.raises(ConfigError) as caught:
        host_address(name)
    assert str(caught.value) == f"{name!r} is not an IPv4 or IPv6 address"


@given(address=st.ip_addresses())
def test_notation_is_an_address_that_stays(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """Taking the notation of a notation changes nothing."""
    notation = host_address(str(address))
    assert host_address(notation) == notation
