"""Names made fit for metric tags, sensor names and JMX bean names, and back.

User names are sanitised in metric tags and sensor names, client ids are not. The default entity is written
`<default>`; a user of that name sanitises to something else, so the two never meet.

>>> sanitize("O=A client,CN=localhost")
'O%3DA%20client%2CCN%3Dlocalhost'
>>> desanitize(sanitize("<default>"))
'<default>'
>>> print(jmx_sanitize("a*b"))
"a\\*b"

Follows: Kafka `Sanitizer` with Java's `URLEncoder`, `URLDecoder` and `ObjectName.quote`; B§1.7, 3.10.
"""

import re
import unicodedata
from urllib.parse import quote

from tidegate.errors import TidegateError

__all__ = ["SanitizeError", "desanitize", "jmx_sanitize", "name_of_tag", "sanitize"]

_ESCAPES = re.compile(r"(?:%..)+", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")
_NEEDS_NO_QUOTES = re.compile(r"[A-Za-z0-9_ %.\t-]*")
_JMX_ESCAPED = re.compile(r'["*?\\]')
_FULL_WIDTH_A = (0xFF21, 0xFF41)  # the letters A and a of East Asian typography
_FULL_WIDTH_HEX = {chr(first + i): 10 + i for first in _FULL_WIDTH_A for i in range(6)}


class SanitizeError(TidegateError, ValueError):
    """Raise when a text holds a `%` that two hexadecimal digits do not follow."""

    def __init__(self, text: str) -> None:
        super().__init__(f"cannot decode {text!r}: expected two hexadecimal digits after every '%'")
        self.text = text


def sanitize(name: str) -> str:
    """Return `name` with all but ASCII letters, digits, `.`, `-`, `_` escaped; a lone surrogate is `%3F`."""
    if _PLAIN.fullmatch(name):
        return name
    return quote(_utf8(name), safe="").replace("~", "%7E")


def desanitize(text: str) -> str:
    """Return the name that sanitises to `text`; `+` is a blank and bytes that are no UTF-8 become U+FFFD.

    Raises `SanitizeError` where an escape is malformed.
    """
    if "%" not in text:
        return text.replace("+", " ")
    parts, at = [], 0
    for run in _ESCAPES.finditer(text):
        parts.append(_plain(text, text[at : run.start()]))
        parts.append(_decode_run(text, run.group()))
        at = run.end()
    return "".join(parts) + _plain(text, text[at:])


def name_of_tag(tag: str) -> str:
    """Return the user whose sanitised name is in a tag; the tag itself if a quota callback made it in another way.

    >>> name_of_tag("O%3DA"), name_of_tag("50%")
    ('O=A', '50%')
    """
    try:
        name = desanitize(tag)
    except SanitizeError:
        return tag
    return name if sanitize(name) == tag else tag


def jmx_sanitize(name: str) -> str:
    """Return `name` as it stands in a JMX bean name: quoted when it holds anything out of the ordinary."""
    if _NEEDS_NO_QUOTES.fullmatch(name):
        return name
    escaped = _JMX_ESCAPED.sub(r"\\\g<0>", name).replace("\n", "\\n")
    return f'"{escaped}"'


def _utf8(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        joined = name.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return joined.encode("utf-8", "replace")


def _decode_run(text: str, escapes: str) -> str:
    """Decode escapes that follow each other together: characters may be made of several bytes."""
    octets = bytes(_octet(text, escapes[i + 1], escapes[i + 2]) for i in range(0, len(escapes), 3))
    return octets.decode("utf-8", "replace")


def _plain(text: str, part: str) -> str:
    if "%" in part:
        raise SanitizeError(text)
    return part.replace("+", " ")


def _octet(text: str, first: str, second: str) -> int:
    """Return the number of two digits as Java's `Integer.parseInt` reads it: `+f` is 15, and `-0` is 0."""
    high = 0 if first in "+-" else _hex_digit(first)
    low = _hex_digit(second)
    if high < 0 or low < 0 or (first == "-" and low > 0):
        raise SanitizeError(text)
    return high << 4 | low


def _hex_digit(char: str) -> int:
    """Return the value of a hexadecimal digit of any script, or -1. Follows: Java `Character.digit`."""
    if char in "abcdefABCDEF":
        return int(char, 16)
    return unicodedata.decimal(char, _FULL_WIDTH_HEX.get(char, -1))
