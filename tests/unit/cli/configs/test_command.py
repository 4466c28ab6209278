"""Which options of `tidegate configs` go together, and what they ask for: as in Kafka's tool."""

import pytest

from tidegate.cli.configs.command import checked_command
from tidegate.cli.configs.options import RefusedError, parse_options

TO = ["--bootstrap-server", "localhost:9092"]


def _command(*arguments):
    return checked_command(parse_options([*TO, *arguments]))


@pytest.mark.parametrize(
    ("arguments", "types", "names"),
    [
        (["--user", "a", "--client-defaults"], ("users", "clients"), ("a", "")),
        (["--user", "a", "--client", "c"], ("clients", "users"), ("c", "a")),
        (["-user", "a"], ("users",), ("a",)),
        (["--entity-type=clients", "--entity-default", "--entity-type", "users", "--entity-name", "--a"],
         ("clients", "users"), ("", "--a")),
        (["--entity-type", "users", "--entity-name", ""], ("users",), ("",)),
        (["--entity-type", "users", "--", "--entity-name", "x"], ("users",), ()),
        (["ignored", "-", "--ip", "127.1"], ("ips",), ("127.1",)),
    ],
)  # fmt: skip
def test_entities(arguments, types, names):
    """Types in the long form come as given, those of flags in Kafka's order; an option takes any argument."""
    command = _command("--describe", *arguments)
    assert (command.entity_types, command.entity_names) == (types, names)


def test_keys_to_remove_are_separated_by_commas():
    """Empty ones are left out; spaces around them are not part of a key."""
    command = _command("--alter", "--user", "a", "--delete-config", " x , y,,z")
    assert command.delete_config == ("x", "y", "z")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--describe", "--user", "a", "--add-config", "b=1"],
         'Option "[describe]" can\'t be used with option "[add-config]"'),
        (["--describe", "--topic", "t", "--user", "a"],
         "Only 'users' and 'clients' entity types may be specified together"),
        (["--describe", "--entity-type", "topics", "--entity-default"],
         "--entity-default must not be specified with --describe of topics"),
        (["--alter", "--entity-type", "topics", "--add-config", "a=1"],
         "An entity name must be specified with --alter of topics"),
        (["--alter", "--entity-type", "users", "--entity-type", "clients", "--entity-name", "a", "--add-config", "b=1"],
         "An entity name must be specified for every entity type"),
        (["--describe", "--user", "a", "--bootstrap-controller", "x:1"],
         "Only one of --bootstrap-server or --bootstrap-controller can be specified"),
        (["--describe", "--broker", "2147483648"],
         "The entity name for brokers must be a valid integer broker id, but it is: 2147483648"),
    ],
)  # fmt: skip
def test_what_kafkas_tool_refuses(arguments, reason):
    """In its words; `tests/vectors/cli/errors.json` has more of them."""
    with pytest.raises(RefusedError) as refused:
        _command(*arguments)
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("arguments", "reason", "hint"),
    [
        (["--describe", "--group", "g", *TO], "Entity type groups is not supported", "use kafka-configs.sh"),
        (["--describe", "--user", "a", "--bootstrap-controller", "x:1"],
         "--bootstrap-controller is not supported: a controller does not describe client quotas",
         "use --bootstrap-server"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(arguments, reason, hint):
    """With a way that works."""
    with pytest.raises(RefusedError) as refused:
        checked_command(parse_options(arguments))
    assert str(refused.value).startswith(reason)
    assert refused.value.hint.startswith(hint)
