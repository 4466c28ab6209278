r"""A login module as a JAAS setting names it: `Module required name="value" ...;`.

>>> module = parse_jaas('org.x.PlainLoginModule required user_alice="a secret";', setting="s")
>>> module.name, module.options["user_alice"]
('org.x.PlainLoginModule', 'a secret')

Options hold passwords: no error and no `repr` shows one. Follows: Kafka `JaasConfig`, `java.io.StreamTokenizer`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.errors import ConfigError

__all__ = ["LoginModule", "parse_jaas"]

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s+|//[^\n\r]*|/\*.*?\*/|"(?P<double>(?:[^"\\\n\r]|\\.)*)"|'(?P<single>(?:[^'\\\n\r]|\\.)*)'"""
    r"""|(?P<word>[^\s=;"'/]+)|(?P<mark>[=;])""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module's class name and its options."""

    name: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str, *, setting: str) -> LoginModule:
    """Return the one login module of a setting. Raises `ConfigError` naming the setting, never its value."""
    tokens = _tokens(text, setting)
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise _mistake(setting, "expected a login module, a flag, options, and a semicolon at the end")
    (name, _), (flag, _), *rest = tokens
    if flag.lower() not in _FLAGS:
        raise _mistake(setting, f"expected one of {', '.join(_FLAGS)} as the second word")
    options: dict[str, str] = {}
    at = 0
    while [is_mark for _, is_mark in rest[at : at + 3]] == [False, True, False] and rest[at + 1][0] == "=":
        options[rest[at][0]] = rest[at + 2][0]
        at += 3
    if at != len(rest) - 1:
        number = at // 3 + 1
        raise _mistake(setting, f'expected one login module, and name="value" as option {number}')
    return LoginModule(name, options)


def _tokens(text: str, setting: str) -> list[tuple[str, bool]]:
    """Return each token and whether it is a mark."""
    tokens: list[tuple[str, bool]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _mistake(setting, "found an unclosed quote or a stray slash")
        at = match.end()
        if match.lastgroup is not None:
            value = match[match.lastgroup]
            quoted = match.lastgroup in ("double", "single")
            tokens.append((_ESCAPE.sub(_unescaped, value) if quoted else value, match.lastgroup == "mark"))
    return tokens


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped.isdigit() and escaped[0] < "8" else _ESCAPED.get(escaped, escaped)


def _mistake(setting: str, expected: str) -> ConfigError:
    return ConfigError(
        f"{setting} is not a valid JAAS configuration: {expected} (the value is not shown)",
        hint='write it as org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";',
    )
