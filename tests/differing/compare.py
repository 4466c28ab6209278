"""Play as many sequences as are asked for, count the differences that are declared, and shrink those that are not."""

import collections
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.differing.declared import declared
from tests.differing.play import Difference, Player
from tests.differing.requests import COMPARED, Made
from tests.differing.sequences import make_sequence
from tests.differing.shrink import Shrunk, shrunk

__all__ = ["Comparison", "Found", "described"]

SHOWN_CHARACTERS = 2000
SHRINK_WITHIN_S = 40.0


@dataclass(frozen=True, slots=True)
class Found:
    """A difference that is not declared, and the smallest sequence that shows it: None where it was not seen again."""

    difference: Difference
    smallest: Shrunk | None


@dataclass
class Comparison:
    """What came of playing sequences of one seed."""

    player: Player
    seed: int
    keys: Sequence[int] = COMPARED
    shrink_within_s: float = SHRINK_WITHIN_S
    requests: int = 0
    rows: collections.Counter[str] = field(default_factory=collections.Counter)
    """How often the brokers differed as each row of docs/kafka-differences.md says."""

    def run(self, count: int) -> Iterator[Found | None]:
        """Play sequences until they had `count` requests; yield what was found in each, None where nothing was."""
        for number in itertools.count():
            if self.requests >= count:
                return
            yield self.play(number)

    def play(self, number: int) -> Found | None:
        """Play one sequence to its end or to its first difference that is not declared, and shrink that."""
        sequence = make_sequence(self.seed, number, self.keys)
        self.requests += len(sequence)
        difference = self._first(self.player.play(number, sequence))
        if difference is None:
            return None
        smallest = shrunk(sequence, lambda made: self._again(made, difference), within_s=self.shrink_within_s)
        return Found(difference, smallest)

    def _first(self, differences: Iterable[Difference]) -> Difference | None:
        """Return the first difference that is not declared; nothing is compared where the brokers have parted."""
        for difference in differences:
            row = declared(difference)
            if row is None:
                return difference
            self.rows[row.row] += 1
            if row.parts:
                break
        return None

    def _again(self, sequence: Sequence[Made], known: Difference) -> Difference | None:
        found = Comparison(self.player, self.seed)._first(self.player.play(known.number, sequence))
        return found if found is not None and _kind(found) == _kind(known) else None


def _kind(difference: Difference) -> tuple[Any, ...]:
    """Return what two differences have in common that are likely to be one."""
    answers = (difference.kafka, difference.tidegate)
    codes = map(_codes, answers) if difference.what == "answer" else ()
    return difference.what, difference.made.api_key, *codes


def _codes(answer: Any) -> Any:
    return (
        frozenset(re.findall(r"'error_code': (-?\d+)", str(answer))) if isinstance(answer, dict) else answer
    )


def described(found: Found) -> str:
    """Return what was asked and answered, for a person to read."""
    difference = found.difference if found.smallest is None else found.smallest.difference
    seen = "not seen again" if found.smallest is None else "smallest sequence"
    lines = [f"--- sequence {difference.number}, {difference.what} of {difference.made}; {seen}:"]
    for place, made in enumerate(found.smallest.sequence if found.smallest else ()):
        lines.append(f"  {place}: {made} {_short(made.message)}")
    parts = [
        ("asked", difference.made.message),
        ("kafka", difference.kafka),
        ("tidegate", difference.tidegate),
    ]
    return "\n".join([*lines, *(f"  {name:8} {_short(value)}" for name, value in parts)])


def _short(value: Any) -> str:
    return re.sub(r"(.)\1{50,}", r"\1...\1", str(value))[:SHOWN_CHARACTERS]
