"""Read a `server.properties` file: Java's properties syntax, UTF-8 (row D10), one dictionary of texts.

Follows: `java.util.Properties.load` (comments, separators, ends of lines, line continuation, escapes).
"""

import re
from pathlib import Path

from tidegate.errors import ConfigError

__all__ = ["MAX_PROPERTIES_BYTES", "load_properties", "parse_properties"]

MAX_PROPERTIES_BYTES = 1 << 20
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_END_OF_LINE = re.compile("\r\n|\r|\n")  # no others of `str.splitlines`: they may be in a password
_KEY_AND_VALUE = re.compile(
    r"(?P<key>(?:[^\\=: \t\f]++|\\.?)*+)[ \t\f]*+(?:[=:][ \t\f]*+)?(?P<value>.*)", re.DOTALL
)
_ESCAPE = re.compile(r"\\(?:u(?P<hex>[0-9A-Fa-f]{4})|(?P<letter>.))", re.DOTALL)


def load_properties(path: Path) -> dict[str, str]:
    """Return the keys and values of the file at `path`. Raises `ConfigError` naming the file and line.

    A file that is not UTF-8 is read as ISO-8859-1, as Java reads all; a byte order mark of UTF-8 is dropped.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read settings from {str(path)!r}: {error.strerror}",
            hint="check the path and its permissions",
        ) from error
    if len(data) > MAX_PROPERTIES_BYTES:
        raise ConfigError(
            f"{str(path)!r} has {len(data)} bytes, expected at most {MAX_PROPERTIES_BYTES}",
            hint="use a file of settings, one `name=value` a line",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    return parse_properties(text, source=str(path))


def parse_properties(text: str, *, source: str) -> dict[str, str]:
    r"""Return the keys and values of `text`; `source` names it in errors.

    >>> parse_properties("# a comment\nnum.partitions = 3\nlisteners: PLAINTEXT://\\\n  :9092", source="x")
    {'num.partitions': '3', 'listeners': 'PLAINTEXT://:9092'}
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            values[_unescape(key)] = _unescape(value)
        except ValueError:  # the line is not shown: it may have a password
            raise ConfigError(
                f"{source}:{number}: invalid escape, expected \\u and four hexadecimal digits",
                hint="write a literal backslash as two backslashes",
            ) from None
    return values


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    joined, begun_at = "", 0
    for number, raw in enumerate(_END_OF_LINE.split(text), start=1):
        line = raw.lstrip(" \t\f")
        if not joined:
            # Comments and blank lines exist only between properties, not inside a continued line.
            if not line or line[0] in "#!":
                continue
            begun_at = number
        joined += line
        # An odd number of backslashes continues the line; an even number is escaped backslashes.
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        lines.append((begun_at, joined))
        joined = ""
    if joined:
        lines.append((begun_at, joined))
    return lines


def _split(line: str) -> tuple[str, str]:
    """Return key and value: an equals sign, a colon or a blank ends the key, unless it is escaped."""
    match = _KEY_AND_VALUE.fullmatch(line)
    assert match is not None, "each part of the pattern may be empty"
    return match["key"], match["value"]


def _unescape(text: str) -> str:
    """Return a text without its escapes. Raises `ValueError` for one that is no letter."""
    unescaped = _ESCAPE.sub(_letter, text)
    if "\\u" in text:  # letters beyond U+FFFF are written as two halves
        return unescaped.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    return unescaped


def _letter(escape: re.Match[str]) -> str:
    if escape["hex"] is not None:
        return chr(int(escape["hex"], 16))
    if escape["letter"] == "u":
        raise ValueError("expected four hexadecimal digits")
    return _ESCAPES.get(escape["letter"], escape["letter"])
