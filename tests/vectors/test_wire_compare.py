"""The rules by which an answer is compared with the recorded one: each lets through what it says, and no more."""

import pytest
from tests.vectors.wire_compare import Rules, first_break, values_at
from tests.wire.messages import Difference

ANSWER = {
    "throttle_time_ms": 100,
    "topics": [{"name": "a", "id": "x1", "parts": [1, 2]}, {"name": "b", "id": "x2", "parts": [3]}],
}


def with_(**fields):
    """Return the answer with other values."""
    return {**ANSWER, **fields}


def topics(*names_and_ids):
    """Return the answer with these topics."""
    return with_(topics=[{"name": name, "id": id_, "parts": parts} for name, id_, parts in names_and_ids])


@pytest.mark.parametrize(
    ("ours", "path", "expected", "got"),
    [
        (with_(throttle_time_ms=101), "throttle_time_ms", 100, 101),
        (with_(throttle_time_ms=100.0), "throttle_time_ms", 100, 100.0),
        (with_(throttle_time_ms=True), "throttle_time_ms", 100, True),
        ({"topics": ANSWER["topics"]}, "throttle_time_ms", 100, "no such field"),
        (with_(more=1), "more", "no such field", 1),
        (topics(("a", "x1", [1, 2])), "topics.length", 2, 1),
        (topics(("a", "x1", [1, 2]), ("b", "x2", [4])), "topics.1.parts.0", 3, 4),
        (topics(("b", "x2", [3]), ("a", "x1", [1, 2])), "topics.0.name", "a", "b"),
    ],
)
def test_first_field_that_differs_is_named(ours, path, expected, got):
    """Without rules every field counts: its value, its type, its place, and whether it is there."""
    assert first_break(ours, ANSWER, Rules()) == Difference(path=path, expected=expected, got=got)


@pytest.mark.parametrize(
    ("ours", "rules"),
    [
        (ANSWER, Rules()),
        ({"else": 1}, Rules(variable=["*"])),
        (topics(("a", "y", [1, 2]), ("b", "z", [3])), Rules(variable=["topics.*.id"])),
        (topics(("a", "y", [1, 2]), ("b", "x2", [3])), Rules(variable=["topics.0.id"])),
        (topics(("a", "x1", [1, 9]), ("b", "x2", [3])), Rules(variable=["topics.0.parts.1"])),
        (topics(("b", "x2", [3]), ("a", "x1", [1, 2])), Rules(unordered=["topics"])),
        (topics(("b", "x2", [3]), ("a", "x1", [2, 1])), Rules(unordered=["topics", "topics.*.parts"])),
        (with_(throttle_time_ms=103), Rules(bounds={"throttle_time_ms": (100, 103)})),
        (topics(("a", "x7", [1, 2]), ("b", "x8", [3])), Rules(patterns={"topics.*.id": r"x\d"})),
    ],
)
def test_what_a_rule_lets_through(ours, rules):
    """Each rule lets through what it names, in any order of ours."""
    assert first_break(ours, ANSWER, rules) is None


@pytest.mark.parametrize(
    ("ours", "rules", "path"),
    [
        (with_(throttle_time_ms=104), Rules(bounds={"throttle_time_ms": (100, 103)}), "throttle_time_ms"),
        (with_(throttle_time_ms=None), Rules(bounds={"throttle_time_ms": (100, 103)}), "throttle_time_ms"),
        ({"topics": ANSWER["topics"]}, Rules(bounds={"throttle_time_ms": (0, 9)}), "throttle_time_ms"),
        (topics(("a", "x77", [1, 2]), ("b", "x2", [3])), Rules(patterns={"topics.*.id": r"x\d"}), "topics.*.id"),
        (topics(("a", None, [1, 2]), ("b", "x2", [3])), Rules(patterns={"topics.*.id": r"x\d"}), "topics.*.id"),
        (topics(("a", "x1", [1, 2]), ("b", "x2", [4])), Rules(variable=["topics.*.id"]), "topics.1.parts.0"),
        (topics(("b", "x2", [3]), ("a", "x1", [2, 1])), Rules(unordered=["topics"]), "topics.0.parts.0"),
        (with_(topics=[]), Rules(variable=["topics.0.id"]), "topics.length"),
        (with_(topics=None), Rules(variable=["topics.0.id"], unordered=["topics"]), "topics"),
    ],
)  # fmt: skip
def test_what_a_rule_does_not_let_through(ours, rules, path):
    """What is out of bounds, does not match, is missing, or is not named, is a difference."""
    assert first_break(ours, ANSWER, rules).path == path


def test_values_at_a_path_that_leads_nowhere():
    """An answer may be anything: a path through what is not there has no values."""
    assert values_at(ANSWER, "topics.*.name") == ["a", "b"]
    for path in ("nothing", "topics.7.name", "throttle_time_ms.0", "topics.0.name.x"):
        assert values_at(ANSWER, path) == []
