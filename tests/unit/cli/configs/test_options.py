"""How `tidegate configs` reads its options: as Kafka's tool does."""

import pytest

from tidegate.cli.configs.options import RefusedError, parse_options, usage


def test_options_take_the_next_argument():
    """Whatever it begins with; arguments that belong to no option are ignored, and all after two dashes."""
    options = parse_options(["x", "-user", "--describe", "-", "--client=", "c", "--ip=a=b", "--", "--alter"])
    assert options.given == (("user", "--describe"), ("client", "c"), ("ip", "a=b"))


def test_keys_to_remove_are_separated_by_commas():
    """Empty ones are left out, unless there is nothing else."""
    assert parse_options(["--delete-config", "x,y,,z"]).values("delete-config") == ["x", "y", "z"]
    assert parse_options(["--delete-config", ","]).values("delete-config") == [","]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--user"], "Option user requires an argument"),
        (["--desc"], "desc is not a recognized option"),
        (["-xyz"], "x is not a recognized option"),
    ],
)
def test_what_cannot_be_read(arguments, reason):
    """In the words of Kafka's tool."""
    with pytest.raises(RefusedError) as refused:
        parse_options(arguments)
    assert str(refused.value) == reason


def test_a_misspelt_option_is_named():
    """With the option that was probably meant."""
    with pytest.raises(RefusedError) as refused:
        parse_options(["--boostrap-server", "x"])
    assert refused.value.hint == "did you mean '--bootstrap-server'?"


def test_an_option_that_was_given_twice():
    """Is refused where one value is needed."""
    with pytest.raises(
        RefusedError, match="Found multiple arguments for option user, but you asked for only one"
    ):
        parse_options(["--user", "a", "--user", "b"]).value("user")


def test_usage_fits_80_columns():
    """Also on stderr."""
    assert [line for line in usage().splitlines() if len(line) > 80] == []
