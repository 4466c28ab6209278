"""What our own files and commands refuse although Kafka would take it, with the exact sentences."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.values import (
    MAX_NAME_BYTES,
    MAX_SIZE_BYTES,
    QuotaValueError,
    checked_entity,
    checked_value,
    checked_window_setting,
    did_you_mean,
    entity_text,
    parse_size_bytes,
    parse_value,
)
from tidegate.errors import ConfigError

ALICE = (("client-id", None), ("user", "alice"))
IP = (("ip", "10.0.0.1"),)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("request_percentage", math.nan, "request_percentage must be finite, got nan"),
        ("producer_byte_rate", math.inf, "producer_byte_rate must be finite, got inf"),
        ("producer_byte_rate", -math.inf, "producer_byte_rate must be finite, got -inf"),
        ("consumer_byte_rate", 0, "consumer_byte_rate must be greater than 0, got 0"),
        ("controller_mutation_rate", -0.5, "controller_mutation_rate must be greater than 0, got -0.5"),
        ("producer_byte_rate", 1235.0000001, "producer_byte_rate must be a whole number, got 1235.0000001"),
        ("producer_byte_rate", 1e19, "producer_byte_rate must be at most 9223372036854775807, got 1e+19"),
        ("producer_byte_rate", "4MiB", "producer_byte_rate must be a number, got '4MiB'"),
        ("producer_byte_rate", True, "producer_byte_rate must be a number, got True"),
        ("connection_creation_rate", 5, "connection_creation_rate is a quota of ip, got 5"),
    ],
)
def test_nonsense_is_refused_with_value_and_entity(key: str, value: object, message: str) -> None:
    """The error names key, expectation, value and entity, and has them as attributes."""
    with pytest.raises(QuotaValueError) as caught:
        checked_value(key, value, ALICE)
    assert str(caught.value) == f"{message} for user='alice', client-id=<default>"
    assert (caught.value.key, caught.value.value, caught.value.entity) == (key, value, ALICE)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**31, "connection_creation_rate must be at most 2147483647, got 2147483648 for ip='10.0.0.1'"),
        (10**400, f"connection_creation_rate must be finite, got {10**400} for ip='10.0.0.1'"),
        (1.5, "connection_creation_rate must be a whole number, got 1.5 for ip='10.0.0.1'"),
    ],
)
def test_connection_rate_is_a_whole_int(value: float, message: str) -> None:
    """An INT has its own largest value."""
    with pytest.raises(QuotaValueError) as caught:
        checked_value("connection_creation_rate", value, IP)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("producer_byte_rate", 2**63 - 1, 2.0**63),
        ("producer_byte_rate", 1.0, 1.0),
        ("request_percentage", 0.01, 0.01),
        ("controller_mutation_rate", 1e300, 1e300),
    ],
)
def test_meaningful_values_become_doubles(key: str, value: float, stored: float) -> None:
    """Also the largest LONG, which as a double is 2**63."""
    assert checked_value(key, value, ALICE) == stored
    assert type(checked_value(key, value, ALICE)) is float


def test_unknown_key_comes_with_the_one_that_was_meant() -> None:
    """The hint names the nearest key that the entity may carry."""
    with pytest.raises(ConfigError, match=r"^unknown quota key 'produce_byte_rate'$") as caught:
        checked_value("produce_byte_rate", 1, ALICE)
    assert caught.value.hint == "did you mean 'producer_byte_rate'?"


@pytest.mark.parametrize(
    ("parts", "message", "hint"),
    [
        ([], "an entity needs a user, a client-id or an ip", None),
        ([("usr", "a")], "unknown entity type 'usr'", "did you mean 'user'?"),
        ([("group", "a")], "unknown entity type 'group'", "expected one of user, client-id, ip"),
        (
            [("ip", None), ("user", "a")],
            "an ip cannot be combined with other parts, got user='a', ip=<default>",
            None,
        ),
        ([("user", "")], "the name of a user must not be empty", None),
        ([("ip", "localhost")], "ip='localhost' is not an IPv4 or IPv6 address", None),
        ([("user", "\ud800")], r"user='\ud800' is not valid Unicode", None),
        ([("user", "é" * 16384)], "the name of a user must be at most 32767 bytes, got 32768", None),
    ],
)
def test_entities_that_cannot_be_meant_are_refused(parts: list, message: str, hint: str | None) -> None:
    """Each with one sentence."""
    with pytest.raises(ConfigError) as caught:
        checked_entity(parts)
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_entity_is_returned_in_stored_form() -> None:
    """Sorted by type, whatever the order given; a name may be as long as the wire allows."""
    assert checked_entity([("user", "alice"), ("client-id", None)]) == ALICE
    assert checked_entity([("user", "x" * MAX_NAME_BYTES)])
    assert entity_text((("foo", "x"), ("ip", None))) == "ip=<default>, foo='x'"


@pytest.mark.parametrize("value", [0, -1, 3601, 1.0, True, "11", None, math.nan])
def test_window_setting_is_a_whole_number_from_one(value: object) -> None:
    """Everything else is refused with the range."""
    with pytest.raises(ConfigError) as caught:
        checked_window_setting("quota.window.num", value)
    assert str(caught.value) == f"quota.window.num must be a whole number from 1 to 3600, got {value!r}"


def test_window_settings_are_known_by_name() -> None:
    """A good value is returned, a wrong name comes with a hint."""
    assert checked_window_setting("controller.quota.window.size.seconds", 2**31 - 1) == 2**31 - 1
    assert checked_window_setting("controller.quota.window.num", 3600) == 3600
    with pytest.raises(ConfigError, match=r"^unknown window setting 'quota.windows.num'$") as caught:
        checked_window_setting("quota.windows.num", 1)
    assert caught.value.hint == "did you mean 'quota.window.num'?"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1024", 1024),
        ("7B", 7),
        ("4MiB", 4 * 1024**2),
        ("10M", 10 * 1024**2),
        ("1.5 GiB", 1_610_612_736),
        ("1.5\tGiB", 1_610_612_736),
        ("2T", 2 * 1024**4),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("0.5K", 512),
        ("2.25MB", 2_250_000),
        ("007K", 7168),
        ("1TB", 10**12),
        (str(MAX_SIZE_BYTES), MAX_SIZE_BYTES),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    """A number and a unit, with a blank between them or none."""
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "'' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("MiB", "'MiB' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("-1", "'-1' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("1e3", "'1e3' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("1_000", "'1_000' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        (".5M", "'.5M' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("1.M", "'1.M' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("1,5M", "'1,5M' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        (" 1M", "' 1M' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("1M\n", "'1M\\n' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("٤M", "'٤M' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("9" * 65, f"'{'9' * 64}...' is not a size", "write a number and a unit, such as 4MiB or 10M"),
        ("4MiB/s", "'4MiB/s' is not a size", "remove the '/s'"),
        ("4mib", "'4mib' has unknown unit 'mib'", "did you mean MiB?"),
        ("4k", "'4k' has unknown unit 'k'", "did you mean K?"),
        (
            "4PiB",
            "'4PiB' has unknown unit 'PiB'",
            "expected one of B, K, M, G, T, KiB, MiB, GiB, TiB, KB, MB, GB, TB",
        ),
        ("1.1KiB", "'1.1KiB' is not a whole number of bytes", None),
        ("8388608TiB", "'8388608TiB' must be at most 9223372036854775807 bytes", None),
    ],
)
def test_nonsense_is_no_size(text: str, message: str, hint: str | None) -> None:
    """Nothing is guessed: each text outside the grammar is refused with a hint."""
    with pytest.raises(ConfigError) as caught:
        parse_size_bytes(text)
    assert (str(caught.value), caught.value.hint) == (message, hint)


@given(text=st.text(max_size=80))
def test_any_text_is_a_size_or_one_error(text: str) -> None:
    """No input leads to anything but a number in range or a `ConfigError`."""
    try:
        size_bytes = parse_size_bytes(text)
    except ConfigError:
        return
    assert 0 <= size_bytes <= MAX_SIZE_BYTES


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("producer_byte_rate", "4MiB", 4194304.0),
        ("producer_byte_rate", "1000", 1000.0),
        ("producer_byte_rate", "1e6", 1e6),
        ("producer_byte_rate", "+5.", 5.0),
        ("request_percentage", "2.5E-1", 0.25),
    ],
)
def test_values_of_a_command_line(key: str, text: str, value: float) -> None:
    """Numbers in any usual notation, and sizes for byte rates."""
    assert parse_value(key, text, ALICE) == value


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("producer_byte_rate", "NaN", "producer_byte_rate must be finite, got nan for"),
        ("request_percentage", "-Infinity", "request_percentage must be finite, got -inf for"),
        ("request_percentage", "1e999", "request_percentage must be finite, got inf for"),
        ("request_percentage", "4MiB", "request_percentage must be a number, got '4MiB' for"),
        ("request_percentage", "1_000", "request_percentage must be a number, got '1_000' for"),
        ("request_percentage", "", "request_percentage must be a number, got '' for"),
        ("producer_byte_rate", "-5", "producer_byte_rate must be greater than 0, got -5 for"),
        ("producer_byte_rate", "0.5", "producer_byte_rate must be a whole number, got 0.5 for"),
        ("producer_byte_rate", "lots", "'lots' is not a size"),
        ("producer_byte_rate", "9" * 500, "'" + "9" * 64 + "...' is not a size"),
        ("produce_byte_rate", "5", "unknown quota key 'produce_byte_rate'"),
    ],
)
def test_nonsense_on_a_command_line_is_refused(key: str, text: str, message: str) -> None:
    """Also what Kafka's own tool would send."""
    with pytest.raises(ConfigError) as caught:
        parse_value(key, text, ALICE)
    assert str(caught.value).startswith(message)


def test_hint_finds_the_word_in_spite_of_its_spelling() -> None:
    """Case, hyphens and underscores do not matter."""
    assert did_you_mean("CLIENT_ID", ["user", "client-id"]) == "did you mean 'client-id'?"
    assert did_you_mean("x" * 10_000, ["user"]) == "expected one of user"
