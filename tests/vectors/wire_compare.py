"""Compare an answer with the recorded one, by the rules of a step (`tests/vectors/wire/README.md`).

`variable` paths may differ, `unordered` ones are bags, `bounds` and `patterns` say what else a value may be.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.wire.messages import Difference, first_difference

__all__ = ["Rules", "blank", "first_break", "values_at"]

_ANYTHING = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What of an answer need not be as recorded; paths are dotted names and indexes, `*` is every element."""

    variable: Sequence[str] = ()
    unordered: Sequence[str] = ()
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    patterns: Mapping[str, str] = field(default_factory=dict)


def first_break(ours: Any, recorded: Any, rules: Rules) -> Difference | None:
    """Return the first field of a decoded body that breaks the rules, None where it is as recorded."""
    if _ANYTHING in rules.variable:
        return None
    ours, recorded = json.loads(json.dumps(ours)), json.loads(json.dumps(recorded))
    broken = next(_out_of_range(ours, rules), None)
    for path in (*rules.variable, *rules.bounds, *rules.patterns):
        blank(ours, path)
        blank(recorded, path)
    for path in sorted(rules.unordered, key=len, reverse=True):  # what lies deeper is put in order first
        for array in (*values_at(ours, path), *values_at(recorded, path)):
            if isinstance(array, list):
                array.sort(key=lambda item: json.dumps(item, sort_keys=True))
    return broken or first_difference(ours, recorded)


def _out_of_range(body: Any, rules: Rules) -> Iterator[Difference]:
    for path, (low, high) in rules.bounds.items():
        for value in values_at(body, path):
            if not isinstance(value, int | float) or not low <= value <= high:
                yield Difference(path=path, expected=f"{low} to {high}", got=value)
    for path, pattern in rules.patterns.items():
        for value in values_at(body, path):
            if not isinstance(value, str) or not re.fullmatch(pattern, value):
                yield Difference(path=path, expected=f"match of {pattern}", got=value)


def values_at(body: Any, path: str) -> list[Any]:
    """Return all values at a path; none where it does not lead anywhere."""
    return _values(body, path.split(".")) if path else [body]


def _values(body: Any, path: list[str]) -> list[Any]:
    if not path:
        return [body]
    head, rest = path[0], path[1:]
    if isinstance(body, list):
        items = body if head == "*" else body[int(head) : int(head) + 1]
        return [found for item in items for found in _values(item, rest)]
    return _values(body[head], rest) if isinstance(body, dict) and head in body else []


def blank(body: Any, path: str, *, only: type = object) -> None:
    """Put the same word in place of what is at a path, where it is of type `only`."""
    parent_path, _, last = path.rpartition(".")
    for parent in values_at(body, parent_path):
        if isinstance(parent, dict) and last in parent and isinstance(parent[last], only):
            parent[last] = "varies"
        elif isinstance(parent, list):
            for index in range(len(parent)) if last == "*" else [int(last)]:
                parent[index : index + 1] = ["varies"] * (index < len(parent))
