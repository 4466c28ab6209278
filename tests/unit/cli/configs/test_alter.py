"""Changes and credentials that `tidegate configs --alter` is given; the rest is in `tests/e2e/test_configs.py`."""

import pytest

from tidegate.cli.configs.alter import parse_configs, read_changes, read_credential
from tidegate.cli.configs.command import checked_command
from tidegate.cli.configs.options import RefusedError, parse_options
from tidegate.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "iterations", "password"),
    [
        ("password=x", 4096, "x"),
        ("iterations=-1,password=x", 4096, "x"),
        ("iterations=8192,password=a,b=c", 8192, "a,b=c"),
    ],
)
def test_credentials(text, iterations, password):
    """Iterations come first and can be left out; the password is all that follows."""
    found = read_credential("sam", "SCRAM-SHA-256", text)
    assert (found.iterations, found.password) == (iterations, password)


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("password", RefusedError, "Invalid credential property SCRAM_SHA_512=[hidden]"),
        ("iterations=,password=x", RefusedError, 'For input string: ""'),
        ("iterations=4095,password=x", RefusedError,
         "Iterations 4095 is less than the minimum 4096 required for SCRAM-SHA-512"),
        ("iterations=20000,password=x", ConfigError, "iterations must be at most 16384, got 20000"),
        ("password=", ConfigError, "password must not be empty"),
    ],
)  # fmt: skip
def test_credentials_that_are_refused(text, error, reason):
    """No password is in the reason, and no number of iterations keeps the command busy."""
    with pytest.raises(error) as refused:
        read_credential("sam", "SCRAM-SHA-512", text)
    assert str(refused.value) == reason


def _changes(*arguments):
    return read_changes(checked_command(parse_options(["--bootstrap-server", "x:1", "--alter", *arguments])))


@pytest.mark.parametrize(
    ("text", "configs"),
    [
        ("a=1,b=[2,3],c=", {"a": "1", "b": "2,3", "c": ""}),
        (" a = x y ,b=4,", {"a": "x y", "b": "4"}),
        ("a=[k=v,l=w]", {"a": "k=v,l=w"}),
        ("=5", {"": "5"}),
        (",", {}),
    ],
)
def test_add_config(text, configs):
    """Commas and equals signs between brackets belong to the value; brackets do not."""
    assert parse_configs(text) == configs


@pytest.mark.parametrize("text", ["", "a", "a=b=c", "a=1,,b=2"])
def test_add_config_that_is_no_list(text):
    """As Kafka's tool says it."""
    with pytest.raises(RefusedError, match=r"^requirement failed: Invalid entity config: all configs"):
        parse_configs(text)


def test_a_file_of_configs(tmp_path):
    """Values of a file are taken as they are, so that it can hold passwords with any letters."""
    (tmp_path / "f").write_text("SCRAM-SHA-256=iterations=8192,password=a[b],c\n")
    changes = _changes("--user", "a", "--add-config-file", str(tmp_path / "f"))
    assert (changes.added, changes.are_quotas) == (
        {"SCRAM-SHA-256": "iterations=8192,password=a[b],c"},
        False,
    )
    with pytest.raises(ConfigError, match="No such file"):
        _changes("--user", "a", "--add-config-file", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--user", "a", "--add-config", "x y=1"], "Invalid character found for config key: x y"),
        (["--client", "a", "--add-config", "SCRAM-SHA-256=x,y=1"],
         "Only quota configs can be added for 'clients' using --bootstrap-server. "
         "Unexpected config names: Set(y, SCRAM-SHA-256)"),
        (["--user", "a", "--delete-config", "x,y"],
         "Only quota and SCRAM credential configs can be deleted for 'users' using --bootstrap-server. "
         "Unexpected config names: ArrayBuffer(x, y)"),
        (["--ip", "127.0.0.1", "--add-config", "x=1", "--delete-config", "y"],
         "Only connection quota configs can be added for 'ips' using --bootstrap-server. "
         "Unexpected config names: x,y"),
    ],
)  # fmt: skip
def test_keys_that_an_entity_does_not_have(arguments, reason):
    """Are refused before the cluster is asked."""
    with pytest.raises(RefusedError) as refused:
        _changes(*arguments)
    assert str(refused.value) == reason


def test_a_misspelt_key_has_a_hint():
    """Below the line of Kafka's tool: the key that was probably meant, or all of them."""
    for arguments, hint in (
        (["--user", "a", "--add-config", "producer_byte_rat=1"], "did you mean 'producer_byte_rate'?"),
        (["--client", "a", "--delete-config", "request-percentage"], "did you mean 'request_percentage'?"),
        (["--ip", "127.0.0.1", "--add-config", "x=1"], "expected one of connection_creation_rate"),
    ):
        with pytest.raises(RefusedError) as refused:
            _changes(*arguments)
        assert refused.value.hint == hint


def test_nothing_to_change_for_a_pair():
    """Kafka's tool ends with an IllegalStateException here."""
    with pytest.raises(ConfigError, match="nothing to change"):
        _changes("--user", "a", "--client", "c", "--add-config", ",")
