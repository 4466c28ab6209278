"""Patterns of Java as Python reads them: each answer of the JDK (`tests/vectors/principals/patterns.json`)."""

import json
import re
from pathlib import Path

import pytest

from tidegate.config.java_patterns import JavaPatternError, java_pattern

RECORDED = json.loads((Path(__file__).parents[2] / "vectors" / "principals" / "patterns.json").read_text())


def found(pattern: re.Pattern[str], subject: str) -> str:
    """Return whether a subject matches, and where the first match and its groups are, as they are recorded."""
    match = pattern.search(subject)
    if match is None:
        return ""
    groups = (
        f"{match.start(group)}:{match.end(group)}" if match[group] else "-"
        for group in range(1, pattern.groups + 1)
    )
    whole = "all " if pattern.fullmatch(subject) else ""
    return " ".join((f"{whole}{match.start()}:{match.end()}", *groups))


def test_patterns_find_what_java_finds() -> None:
    """Each random pattern is refused here, or finds the same in every subject."""
    accepted, differences = 0, []
    for text, recorded in RECORDED["patterns"]:
        try:
            pattern = java_pattern(text)
        except JavaPatternError:
            continue
        accepted += 1
        answer = "/".join(found(pattern, subject) for subject in RECORDED["subjects"])
        if answer != recorded:
            differences.append((text, recorded, answer))
    assert differences == []
    assert accepted > 400


@pytest.mark.parametrize(
    "text",
    [
        "(?x)a", "a(?i)b", "(?i:a)", "[[a]b]", "[a&&b]", "\\b", "\\Z", "\\R", "\\h", "\\Qa\\E", "\\p{Lu}", "(?<=a)b",
        "(a)\\1", "(?<n>a)\\k<n>", "[^\\w]", "[]a]", "(?!(a))", "(?=(a))", "(?>(a))", "(a)++", "(a){2}", "(?=a)*",
        "a**", "{", "a{,3}", "\\", "[", "*",
    ],
)  # fmt: skip
def test_what_the_languages_read_differently_is_refused(text: str) -> None:
    """With the place in the pattern."""
    with pytest.raises(JavaPatternError, match="that Java and Python may read differently"):
        java_pattern(text)
