"""JAAS settings: read as Java reads them, and never shown."""

import pytest

from tidegate.config.jaas import parse_jaas
from tidegate.errors import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PLAIN} required;", {}),
        (f'{PLAIN} required user_alice="a b";', {"user_alice": "a b"}),
        (
            f'{PLAIN} REQUIRED username=admin password=\'x=;y\' user_admin="q\\"\\\\\\t\\101" ;',
            {"username": "admin", "password": "x=;y", "user_admin": 'q"\\\tA'},
        ),
        (
            f'{PLAIN} required // a comment\n user_a-b="1" /* user_c="2"\n */ user_$d.e="3";',
            {"user_a-b": "1", "user_$d.e": "3"},
        ),
        (
            f'{PLAIN} required user_\u00e9="\u20ac" user_x="a" user_x="b";',
            {"user_\u00e9": "\u20ac", "user_x": "b"},
        ),
        (f'{PLAIN} required "user_with blank"="";', {"user_with blank": ""}),
    ],
)
def test_a_module_and_its_options(text: str, options: dict[str, str]) -> None:
    """Quotes, escapes, comments and flags are understood; of an option that is there twice the last counts."""
    module = parse_jaas(text, setting="s")
    assert module.name == PLAIN
    assert module.options == options


@pytest.mark.parametrize(
    "text",
    [
        "", ";", "Module", "Module;", "Module required", "Module hunter2;", 'Module required user_a="hunter2',
        'Module required user_a "hunter2";', "Module required user_a=;", "Module required =hunter2;",
        'Module required user_a="hunter2"; Module required;', 'Module required user_a="hunter2";;',
        "Module required user_a=hunter2/;", '"hunter2" "hunter2" "hunter2";', "Module required user_a==hunter2;",
    ],
)  # fmt: skip
def test_mistakes_are_refused_without_showing_the_value(text: str) -> None:
    """The setting is named and how it is written; what was given may hold a password."""
    with pytest.raises(ConfigError, match=r"^listener\.x is not a valid JAAS configuration: ") as refused:
        parse_jaas(text, setting="listener.x")
    assert "hunter2" not in f"{refused.value}{refused.value.hint}"
    assert refused.value.hint


def test_a_long_text_is_read_in_time() -> None:
    """A megabyte of users takes no longer than reading it."""
    users = "".join(f' user_{number}="p{number}"' for number in range(40_000))
    assert len(parse_jaas(f"{PLAIN} required{users};", setting="s").options) == 40_000
    with pytest.raises(ConfigError):
        parse_jaas(f"{PLAIN} required{users}", setting="s")


def test_nothing_shows_an_option() -> None:
    """The options are left out of `repr`."""
    assert repr(parse_jaas('M required user_a="hunter2";', setting="s")) == "LoginModule(name='M')"
