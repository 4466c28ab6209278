r"""Mapping of a certificate's subject to the name of a principal: `ssl.principal.mapping.rules`.

>>> rules = PrincipalRules.parse(r"RULE:^CN=([^,]+),OU=Sales.*$/sales-$1/L, DEFAULT")
>>> rules.name("CN=Alice,OU=Sales,O=Example"), rules.name("CN=Bob")
('sales-alice', 'CN=Bob')

The first rule whose pattern matches the whole subject replaces each match in it. Follows: Kafka `SslPrincipalMapper`,
KIP-371, and Java's `Matcher.replaceAll`.
"""

import re
from dataclasses import dataclass, field
from typing import Self

from tidegate.config.java_patterns import JavaPatternError, java_pattern
from tidegate.errors import ConfigError, TidegateError
from tidegate.quota.measure.throttle import MAX_INT32

__all__ = ["DEFAULT_RULES", "NoRuleError", "PrincipalRules"]

DEFAULT_RULES = "DEFAULT"
_DOT = "[^\\n\\r\\x85\\u2028\\u2029]"
_RULE = rf"(DEFAULT)|RULE:((?:\\{_DOT}|[^\\/])*)/((?:\\{_DOT}|[^\\/])*)/([LU]?){_DOT}*?|({_DOT}*?)"
# Compiled when they are used, because few brokers have rules.
_RULE_OF_SEVERAL = rf"\s*({_RULE})\s*(?:,\s*|\Z)"
_REFERENCE = r"\$([0-9]+)"
_NAME = r"\{([A-Za-z][A-Za-z0-9]*)\}"
_BLANKS = "".join(map(chr, range(33)))  # what Java's `String.trim` takes away
_PATTERN_HINT = "use groups, alternatives, quantifiers, simple classes such as [^,], and (?i) only in front"
_LONGEST = 4096  # letters of a subject: a pattern may take the square of them in steps


class NoRuleError(TidegateError, ValueError):
    """Raise when no rule matches a subject, or when the matching rule cannot be applied."""


class _ReplacementError(ValueError):
    """Raise when a replacement names a group that is not there, or ends in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One rule. pattern: None in `DEFAULT`. parts: texts, and numbers of groups; None where the replacement fails."""

    pattern: re.Pattern[str] | None = None
    parts: tuple[str | int, ...] | None = ()
    case: str = ""
    mistake: str | None = None

    def apply(self, subject: str) -> str | None:
        """Return the name; None if the rule does not match."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        if self.parts is None:
            raise NoRuleError(f"cannot apply a rule: replacement {self.mistake}")
        name = self._replace_all(self.pattern, subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _replace_all(self, pattern: re.Pattern[str], subject: str) -> str:
        """Replace each match. After an empty match Java continues one letter later, and Python at the same place."""
        replaced: list[str] = []
        at = written = 0
        while at <= len(subject) and (match := pattern.search(subject, at)) is not None:
            replaced += (subject[written : match.start()], self._replaced(match))
            written = match.end()
            at = match.end() + (match.start() == match.end())
        return "".join((*replaced, subject[written:]))

    def _replaced(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.parts or ())


@dataclass(frozen=True, slots=True)
class PrincipalRules:
    """The rules of a listener, in their order."""

    rules: tuple[_Rule, ...] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the rules that a setting stands for. Raises `ConfigError`."""
        rules = []
        for match in re.finditer(_RULE_OF_SEVERAL, text.strip(_BLANKS), re.ASCII):
            rule = _parsed(match[1])
            if rule is not None:
                rules.append(rule)
        return cls(tuple(rules))

    def mistakes(self) -> list[str]:
        """Return the mistakes in replacements; a rule with one fails for every subject that it matches."""
        return [rule.mistake for rule in self.rules if rule.mistake is not None]

    def name(self, subject: str) -> str:
        """Return the principal's name. Raises `NoRuleError` where no rule is for a subject."""
        if len(subject) > _LONGEST:
            raise NoRuleError(f"subject has {len(subject)} characters, expected at most {_LONGEST}")
        for rule in self.rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise NoRuleError(f"no rule matches subject {subject!r}")


def _parsed(text: str) -> _Rule | None:
    """Return one rule; None if there is nothing between two commas."""
    match = re.match(_RULE, text)
    if match is None or match.end() != len(text):
        raise ConfigError(
            f"invalid rule {text!r}, expected DEFAULT or RULE:pattern/replacement/, optionally with L or U"
        )
    if match[1] is not None:
        return _Rule()
    if match[2] is None:
        return None
    try:
        pattern = java_pattern(match[2])
    except JavaPatternError as error:
        raise ConfigError(f"pattern {match[2]!r} {error}", hint=_PATTERN_HINT) from error
    try:
        parts = tuple(_parts(_escaped(match[3], pattern.groups), pattern))
    except _ReplacementError as error:
        return _Rule(pattern=pattern, parts=None, mistake=f"{match[3]!r} {error}")
    return _Rule(pattern=pattern, parts=parts, case=match[4] or "")


def _escaped(replacement: str, groups: int) -> str:
    """Return a replacement with a backslash before each `$n` that has no group.

    As in Kafka, places of later references are those in the text before the first backslash was added.
    Follows: `SslPrincipalMapper.Rule.escapeLiteralBackReferences`.
    """
    if not groups:
        return replacement
    text = replacement
    for match in re.finditer(_REFERENCE, replacement):
        if match[1].startswith("0"):
            continue
        # Twenty digits are enough to see that a number is too large for Java's `int`.
        number = int(match[1][:20])
        if number > MAX_INT32:
            raise _ReplacementError(f"refers to group {match[1][:20]}, expected at most {MAX_INT32}")
        # Java reads only as many digits as there are groups for; `_group` does the same.
        while number > groups and number >= 10:
            number //= 10
        if number > groups:
            text = f"{text[: match.start()]}\\{text[match.start() :]}"
    return text


def _parts(replacement: str, pattern: re.Pattern[str]) -> list[str | int]:
    """Return the texts and groups of a replacement. Follows: Java's `Matcher.appendReplacement`."""
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        letter = replacement[at]
        at += 1
        if letter == "\\":
            if at == len(replacement):
                raise _ReplacementError("ends with a backslash")
            parts.append(replacement[at])
            at += 1
        elif letter == "$":
            group, at = _group(replacement, at, pattern)
            parts.append(group)
        else:
            parts.append(letter)
    return parts


def _group(replacement: str, at: int, pattern: re.Pattern[str]) -> tuple[int, int]:
    """Return the group that is named after a `$`, and where its name ends: as many digits as there are groups for."""
    named = re.compile(_NAME).match(replacement, at)
    if named is not None:
        if named[1] not in pattern.groupindex:
            raise _ReplacementError(f"refers to group {named[1]!r}, which the pattern does not have")
        return pattern.groupindex[named[1]], named.end()
    if not "0" <= replacement[at : at + 1] <= "9":
        raise _ReplacementError("has a $ without a group, expected \\$ for a literal $")
    number = int(replacement[at])
    at += 1
    while "0" <= replacement[at : at + 1] <= "9" and number * 10 + int(replacement[at]) <= pattern.groups:
        number = number * 10 + int(replacement[at])
        at += 1
    if number > pattern.groups:
        raise _ReplacementError(f"refers to group {number}, but the pattern has {pattern.groups}")
    return number, at
