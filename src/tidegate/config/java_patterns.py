r"""Regular expressions of `java.util.regex` that Python's `re` reads in the same way; all others are refused.

>>> java_pattern(r"CN=(?<who>[a-z]+)").fullmatch("CN=alice")["who"]
'alice'
>>> java_pattern(r"CN=[a-z&&[^b]]+")
Traceback (most recent call last):
    ...
tidegate.config.java_patterns.JavaPatternError: has '[' at 3 that Java and Python may read differently

These patterns decide which principal a certificate names, so a construct is accepted only if both languages give it one
meaning: groups, alternatives, quantifiers, plain classes, lookahead, and the flag `i` in front of all. `\w`, `\d`, `\s`
and case are ASCII. Java's meaning of `.`, `^`, `$` and `\z`, which Python reads differently, is written out.

Refused are, among others: flags in other places, `&&` and classes in classes, `\b`, `\Z`, `\R`, `\h`, `\Q`, `\p{...}`,
lookbehind and back-references. A capturing group in a lookahead, or in an atomic, possessive or counted group is
refused as well: the two languages capture different texts there.

Follows: `java.util.regex.Pattern` of JDK 17.
"""

import re

__all__ = ["JavaPatternError", "java_pattern"]

_IGNORE_CASE = "(?i)"
_LINE_ENDS = r"\n\r\x85\u2028\u2029"
_WRITTEN_OUT = {
    ".": f"[^{_LINE_ENDS}]",
    "^": r"(?:\A)",
    r"\A": r"(?:\A)",
    r"\z": r"(?:\Z)",
    "$": r"(?:(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\Z))",  # also before a last line end
}
"""Java's meaning of each construct, written for Python, in a group so that a quantifier can follow."""
_ESCAPE = r"\\(?:[!-/:-@\[-`{-~]|[tnrf]|x[0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})"
_SINGLE = rf"(?:[^\\\[\]^&~|-]|&(?!&)|{_ESCAPE})"
_PLAIN = rf"(?:{_SINGLE}-{_SINGLE}|{_SINGLE})"
_CLASS = rf"\[(?:\^?(?:-?{_PLAIN}+-?|-)|-?(?:{_PLAIN}|\\[dws])+-?)\]"
_ATOM = rf"[.^$)\]}}]|\\[AzdwsDWS]|{_CLASS}|{_ESCAPE}|[^\\\[(){{*+?|]"
_QUANTIFIER = r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})[?+]?"
_OPENING = r"\((?:\?(?:[:=!>]|<[A-Za-z][A-Za-z0-9]*>))?(?!\?)|\|"
_TOKEN = rf"(?P<opening>{_OPENING})|(?P<atom>{_ATOM})(?P<quantifier>{_QUANTIFIER})?"
_ATOMIC = ("(?=", "(?!", "(?>")
_MOST = 10_000  # characters, far more than a pattern written by hand has


class JavaPatternError(ValueError):
    """Raise for a text that is no regular expression of Java, or one that Python may read differently."""


def java_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern with the meaning of Java's `Pattern.compile(text)`. Raises `JavaPatternError`."""
    if len(text) > _MOST:
        raise JavaPatternError(f"has {len(text)} characters, expected at most {_MOST}")
    flags = re.ASCII
    index = 0
    if text.startswith(_IGNORE_CASE):
        flags |= re.IGNORECASE
        index = len(_IGNORE_CASE)
    parts: list[str] = []
    open_groups: list[str] = []
    token_at = re.compile(_TOKEN, re.DOTALL).match  # here, because few brokers have patterns
    while index < len(text):
        token = token_at(text, index)
        if token is None or not _captures_alike(token, open_groups):
            pair = text[index : index + 2]
            found = pair if pair == "(?" or pair[0] == "\\" else pair[0]
            raise JavaPatternError(f"has {found!r} at {index} that Java and Python may read differently")
        parts.append(_written(token))
        index = token.end()
    try:
        return re.compile("".join(parts), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise JavaPatternError(f"is not supported: {error}") from error


def _captures_alike(token: re.Match[str], open_groups: list[str]) -> bool:
    """Return whether Java and Python capture the same if this token comes next; keep track of its groups."""
    opening, quantifier = token["opening"], token["quantifier"] or ""
    if opening is not None and opening != "|":
        is_capturing = opening == "(" or opening.startswith("(?<")
        if is_capturing and any(group in _ATOMIC for group in open_groups):
            return False
        open_groups.append(opening)
    elif token["atom"] == ")" and open_groups:
        closed = open_groups.pop()
        is_counted = quantifier.startswith("{")
        return not (is_counted or quantifier[1:].endswith("+") or (quantifier and closed in _ATOMIC))
    return True


def _written(token: re.Match[str]) -> str:
    """Return one token as Python reads it."""
    opening, atom, quantifier = token["opening"], token["atom"], token["quantifier"]
    if opening is not None:
        return opening.replace("(?<", "(?P<")
    return _WRITTEN_OUT.get(atom, atom) + (quantifier or "")
