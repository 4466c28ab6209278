"""Reading server.properties."""

import traceback

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
        ("a=1\rb=2", {"a": "1", "b": "2"}),
        ("a=x\x0b\x0c\x1c\x85\u2028y\nb=2", {"a": "x\x0b\x0c\x1c\x85\u2028y", "b": "2"}),
        ("a=\\ud83d\\uDE00!", {"a": "\U0001f600!"}),
    ],
)
def test_parses_what_java_parses(text: str, expected: dict) -> None:
    """Comments, separators, continuation lines and escapes mean what they mean in Java."""
    assert parse_properties(text, source="x") == expected


@pytest.mark.parametrize("escape", ["\\u12", "\\user", "\\u+123", "\\u 123", "\\ud83d", "\\ude00\\ud83d"])
def test_names_the_line_of_a_bad_escape_and_no_password(escape: str) -> None:
    """A bad escape is refused with file and line, and what is on the line is not shown, not even as a cause."""
    with pytest.raises(ConfigError) as refused:
        parse_properties(f"a=1\nssl.keystore.password=tide{escape}gate", source="server.properties")
    assert str(refused.value).startswith("server.properties:2: invalid escape, expected \\u and four")
    shown = "".join(traceback.format_exception(refused.value))
    assert "tide" + escape not in shown
    assert "gate'" not in shown


def test_a_missing_file_is_a_config_error(tmp_path) -> None:
    """A file that is not there is named."""
    with pytest.raises(ConfigError, match=r"cannot read settings from .*none': No such file") as refused:
        load_properties(tmp_path / "none")
    assert refused.value.hint == "check the path and its permissions"


def test_a_huge_file_is_refused(tmp_path) -> None:
    """A file past the bound is refused before it is read line by line."""
    path = tmp_path / "big"
    path.write_bytes(b"#" * (MAX_PROPERTIES_BYTES + 1))
    with pytest.raises(ConfigError, match="expected at most"):
        load_properties(path)


def test_a_file_that_is_not_utf8_is_read_as_java_reads_it(tmp_path) -> None:
    """Every such file is ISO-8859-1 to Java, of which any bytes are text; here UTF-8 is tried first."""
    path = tmp_path / "server.properties"
    path.write_bytes(b"# f\xfcr alle\na=\xfc\n")
    assert load_properties(path) == {"a": "\u00fc"}
    path.write_bytes("# f\u00fcr alle\na=\u00fc\n".encode())
    assert load_properties(path) == {"a": "\u00fc"}


def test_a_mark_of_utf8_is_no_part_of_the_first_name(tmp_path) -> None:
    """Editors of Windows write one."""
    path = tmp_path / "server.properties"
    path.write_bytes(b"\xef\xbb\xbflisteners=PLAINTEXT://:9092\n")
    assert load_properties(path) == {"listeners": "PLAINTEXT://:9092"}
