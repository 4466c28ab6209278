"""Rules for principals: each answer of Kafka's own class (`tests/vectors/principals`), and what is refused."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tidegate.config.principal_rules import NoRuleError, PrincipalRules
from tidegate.errors import ConfigError

RECORDED = json.loads((Path(__file__).parents[2] / "vectors" / "principals" / "rules.json").read_text())
FAILS = "fails"


def answer(rules: str, subject: str) -> Any:
    """Return what rules make of a subject: a name, None for no rule, or that they fail."""
    try:
        parsed = PrincipalRules.parse(rules)
    except ConfigError:
        return FAILS
    try:
        return parsed.name(subject)
    except NoRuleError as error:
        return FAILS if "replacement" in str(error) else None


NOT_READ = re.compile(
    r"\\[1-9]|(?<!RULE:)\(\?i|\(\?[sx]\)|&&|\[-Z]|\\[QpbZRh]|\\0101|\\k<|\(\?<[=!]|RULE:\(\?i\)\(\?i\)"
)
"""What a pattern may have in Java and not here: other flags, classes in classes, Unicode, lookbehind and others."""


def test_rules_are_as_recorded() -> None:
    """All rules and subjects that Kafka's class was asked, but for those that this project says it does not read."""
    subjects = RECORDED["subjects"]
    differences = []
    compared = 0
    for rules, answers in RECORDED["rules"]:
        if NOT_READ.search(rules):
            with pytest.raises(ConfigError):
                PrincipalRules.parse(rules)
            continue
        expected = answers if isinstance(answers, list) else [answers] * len(subjects)
        for subject, recorded in zip(subjects, expected, strict=True):
            compared += 1
            wanted = FAILS if isinstance(recorded, dict) else recorded
            got = answer(rules, subject)
            if got != wanted:
                differences.append((rules, subject, wanted, got))
    assert differences[:5] == []
    assert compared > 7500


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("default", "invalid rule 'default', expected DEFAULT or RULE:pattern/replacement/"),
        ("RULE:a/b", "invalid rule 'RULE:a/b'"),
        ("RULE:CN=(.*/$1/", "pattern 'CN=(.*' is not supported: missing )"),
        ("RULE:(?x)a/b/", "has '(?' at 0 that Java and Python may read differently"),
        ("RULE:\\p{IsLatin}/b/", "has '\\\\p' at 0 that Java"),
        ("RULE:a(?!(b))/c/", "has '(' at 4 that Java"),
        ("RULE:(a|b)*+/c/", "has ')' at 4 that Java"),
        ("RULE:" + "a" * 20_000 + "/b/", "has 20000 characters, expected at most"),
        ("RULE:" + "(" * 5000 + ")" * 5000 + "/b/", "is not supported"),
        ("RULE:a{99999999999}/b/", "is not supported"),
        ("RULE:(?<=a+)b/c/", "has '(?' at 0 that Java"),
    ],
)
def test_mistakes_are_refused(rules: str, message: str) -> None:
    """With the rule, or the pattern and the place in it."""
    with pytest.raises(ConfigError) as refused:
        PrincipalRules.parse(rules)
    assert message in str(refused.value)
    assert (refused.value.hint is not None) == ("pattern '" in str(refused.value))


def test_replacements_that_cannot_be_applied_are_told() -> None:
    """Kafka finds them when the first client comes; whoever starts a broker wants to know before."""
    rules = PrincipalRules.parse("RULE:(.*)/$1$2$3/,RULE:a/$/,RULE:(?<a>x)/${b}/,RULE:a/$1/,RULE:(.*)/$1/")
    assert rules.mistakes() == [
        "'$1$2$3' refers to group 3, but the pattern has 1",
        "'$' has a $ without a group, expected \\$ for a literal $",
        "'${b}' refers to group 'b', which the pattern does not have",
        "'$1' refers to group 1, but the pattern has 0",
    ]


def test_long_subjects_are_refused_at_once() -> None:
    """A pattern may take the square of a subject's length."""
    began = time.monotonic()
    with pytest.raises(NoRuleError, match="has 1000000 characters"):
        PrincipalRules.parse("RULE:.*CN=(.*),.*/$1/").name("CN=" + "x" * 999_997)
    assert time.monotonic() - began < 1
