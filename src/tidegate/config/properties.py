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
_HEX = re.compile("[0-9A-Fa-f]{4}")


def load_properties(path: Path) -> dict[str, str]:
    """Return the keys and values of the file at `path`. Raises `ConfigError` naming the file and line.

    What is not UTF-8 is read as ISO-8859-1, as Java reads every such file; a mark of UTF-8 at its beginning is dropped.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read settings from {str(path)!r}: {error.strerror}") from error
    if len(data) > MAX_PROPERTIES_BYTES:
        raise ConfigError(f"{str(path)!r} has {len(data)} bytes, expected at most {MAX_PROPERTIES_BYTES}")
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
    escaped = False
    for at, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in "=: \t\f":
            rest = line[at:].lstrip(" \t\f")
            if rest[:1] in ("=", ":"):
                rest = rest[1:].lstrip(" \t\f")
            return line[:at], rest
    return line, ""


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    has_halves = False
    while at < len(text):
        char = text[at]
        if char != "\\" or at + 1 == len(text):
            out.append(char)
            at += 1
        elif text[at + 1] == "u":
            digits = text[at + 2 : at + 6]
            if _HEX.fullmatch(digits) is None:
                raise ValueError("expected four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            has_halves = has_halves or "\ud800" <= out[-1] <= "\udfff"
            at += 6
        else:
            out.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
    unescaped = "".join(out)
    if (
        has_halves
    ):  # of letters beyond U+FFFF, which escapes write as two; half a letter alone is a `ValueError`
        return unescaped.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    return unescaped
