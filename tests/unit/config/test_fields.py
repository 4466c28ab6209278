"""Fields of a configuration file: each kind, and the sentence when it is another one."""

from collections.abc import Callable

import pytest

from tidegate.config.fields import Fields
from tidegate.config.plain_yaml import ConfigFileError, Node, read_plain_yaml
from tidegate.config.values import cut
from tidegate.errors import ConfigError

FIELDS = Fields("f")


def _refused(read: Callable[[Node], object], text: str) -> tuple[str, str | None]:
    with pytest.raises(ConfigFileError) as caught:
        read(read_plain_yaml(text, name="f"))
    return str(caught.value), caught.value.hint


def _number(node: Node) -> int | float:
    return FIELDS.decimal(node, label="rate")


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("42", 42), ("-7", -7), ("2.50", 2.5), ('"3"', 3), (".inf", float("inf"))]
)
def test_numbers_in_plain_digits(text: str, number: float) -> None:
    """Whole ones are ints, quoted or not."""
    got = _number(read_plain_yaml(text, name="f"))
    assert (got, type(got)) == (number, type(number))


@pytest.mark.parametrize("text", ["1e3", "017", "1_000", "0x10", "12:30", ".5", "5.", "+5", "0b1"])
def test_disputed_numbers_come_with_a_hint(text: str) -> None:
    """What YAML versions read differently is not guessed."""
    hint = f"YAML versions read {text} differently; write plain digits, such as 1000"
    assert _refused(_number, text) == (f"f:1: rate must be a number, got {text!r}", hint)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("50%", "f:1: rate must be a number, got '50%'", "remove the '%'"),
        ("yes", "f:1: rate must be a number, got 'yes'", None),
        ('"1e3"', "f:1: rate must be a number, got '1e3'", None),
        ('""', "f:1: rate must be a number, got ''", None),
        ("~", "f:1: rate must be a number, got '~'", None),
        ("[1]", "f:1: rate must be a single value, got a list", None),
        ("{a: 1}", "f:1: rate must be a single value, got a mapping", None),
    ],
)
def test_what_is_no_number(text: str, message: str, hint: str | None) -> None:
    """Shown as it stands in the file."""
    assert _refused(_number, text) == (message, hint)


def test_overlong_number_is_shortened_in_the_message() -> None:
    """No double has that many digits."""
    message, _ = _refused(_number, "9" * 1000)
    assert message == f"f:1: rate must be a number, got {'9' * 80 + '...'!r}"


def test_text_that_yaml_could_mistake_has_to_be_quoted() -> None:
    """In quotes it is taken."""
    read = lambda node: FIELDS.text(node, label="name")  # noqa: E731
    assert _refused(read, "no") == (
        "f:1: name must be quoted: YAML reads no without quotes as a boolean",
        'write "no"',
    )
    assert read(read_plain_yaml("'no'", name="f")) == "no"
    assert _refused(lambda node: FIELDS.table(node, ["a"], label="x") and read(node.items["a"]), "a:") == (
        "f:1: name is empty",
        None,
    )


def test_tables_have_known_keys_only() -> None:
    """An unknown one is told with its own line and the likely word."""
    read = lambda node: FIELDS.table(node, ["client-id", "user"], label="a quota")  # noqa: E731
    assert _refused(read, "user: 1\nclient_id: 2") == (
        "f:2: unknown key 'client_id' in a quota",
        "did you mean 'client-id'?",
    )
    assert _refused(read, "[]") == ("f:1: a quota must be a mapping, got a list", None)


def test_lists_are_lists() -> None:
    """The hint shows how to write an empty one."""
    read = lambda node: FIELDS.list(node, label="quotas")  # noqa: E731
    assert _refused(read, "a: 1") == (
        "f:1: quotas must be a list, got a mapping",
        "write 'quotas: []' for an empty list",
    )
    assert read(read_plain_yaml("[]", name="f")).items == []


def test_errors_of_checks_get_file_line_and_field() -> None:
    """Their hint stays."""

    def check() -> None:
        raise ConfigError("too much", hint="take less")

    read = lambda node: FIELDS.checked(node, check, label="rate")  # noqa: E731
    assert _refused(read, "\n\nx") == ("f:3: rate: too much", "take less")
    assert FIELDS.checked(read_plain_yaml("x", name="f"), lambda: 5) == 5


def test_long_texts_are_cut() -> None:
    """At eighty characters."""
    assert cut("x" * 80) == "x" * 80
    assert cut("x" * 81) == "x" * 80 + "..."
