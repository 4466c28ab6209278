"""Tests of topic names: rules and texts of Kafka's."""

import pytest

from tidegate.broker.topic_names import MAX_NAME_LENGTH, name_problem


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * MAX_NAME_LENGTH])
def test_legal_names(name: str) -> None:
    """Letters, digits, dot, underscore and minus, up to the longest."""
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string is not allowed"),
        (None, "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("é", "'é' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a\n", "'a\n' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
    ],
)
def test_problems(name: str | None, problem: str) -> None:
    """Each rule has its text."""
    assert name_problem(name) == problem
