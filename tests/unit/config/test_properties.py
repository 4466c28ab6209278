"""Reading server.properties."""

import pytest

from tidegate.config.properties import MAX_PROPERTIES_BYTES, load_properties, parse_properties
from tidegate.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a : b\r\n! no\r\n  # no\n\n", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("a=", {"a": ""}),
        ("a", {"a": ""}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a=1\\\n   ,2", {"a": "1,2"}),
        ("a=c:\\\\x", {"a": "c:\\x"}),
        ("a=\\u00e9\\t|", {"a": "é\t|"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=\\", {"a": ""}),
    ],
)
def test_parses_what_java_parses(text: str, expected: dict) -> None:
    """Comments, separators, continuation lines and escapes mean what they mean in Java."""
    assert parse_properties(text, source="x") == expected


def test_names_the_line_of_a_bad_escape() -> None:
    """A bad escape is refused with file and line."""
    with pytest.raises(ConfigError, match=r"^server.properties:2: bad escape in 'b=\\\\u12', expected"):
        parse_properties("a=1\nb=\\u12", source="server.properties")


def test_a_missing_file_is_a_config_error(tmp_path) -> None:
    """A file that is not there is named."""
    with pytest.raises(ConfigError, match=r"cannot read settings from .*none': No such file"):
        load_properties(tmp_path / "none")


def test_a_huge_file_is_refused(tmp_path) -> None:
    """A file past the bound is refused before it is read line by line."""
    path = tmp_path / "big"
    path.write_bytes(b"#" * (MAX_PROPERTIES_BYTES + 1))
    with pytest.raises(ConfigError, match="expected at most"):
        load_properties(path)


def test_a_file_that_is_not_utf8_is_refused(tmp_path) -> None:
    """Bytes that are no text are refused with their place."""
    path = tmp_path / "bad"
    path.write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 at byte 2"):
        load_properties(path)
