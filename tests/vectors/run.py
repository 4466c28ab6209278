"""Run engine vector files against the engine: `python tests/vectors/run.py FILE...`.

Each file names its family; `players/<family>.py` plays it. Every failing step is printed with what was
expected and what came. The last line is `N passed, N failed`, counted in steps.
Exit code: 0 all passed; 1 a step failed; 2 a file could not be run.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from players._doubles import normalise

__all__ = ["Outcome", "VectorFileError", "main", "run_file"]

Player = Callable[[dict], Iterator[tuple[int, object, object]]]

_FAMILY = re.compile(r"[a-z][a-z_]*")
_PLAYERS = Path(__file__).parent / "players"


class VectorFileError(Exception):
    """A vector file that cannot be read, or that no player knows."""


@dataclass(slots=True)
class Outcome:
    """How many steps passed and failed, and a text for each failure."""

    passed: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Add the counts and texts of `other`."""
        self.passed += other.passed
        self.failed += other.failed
        self.failures += other.failures


def run_file(path: Path, play: Player | None = None) -> Outcome:
    """Play every scenario of one vector file, by `play` where it is given, else as the family's player does.

    Raises `VectorFileError` when there is nothing to play.
    """
    document = _read(path)
    play = play or _player(path, document.get("family"))
    outcome = Outcome()
    for scenario in document["scenarios"]:
        outcome.add(_run_scenario(play, scenario))
    return outcome


def main(arguments: list[str] | None = None) -> int:
    """Run the files named on the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="run.py", description="Run engine vector files against the engine.")
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path, help="a vector file of one family")
    total, unusable = Outcome(), 0
    for path in parser.parse_args(arguments).files:
        try:
            outcome = run_file(path)
        except VectorFileError as error:
            print(f"error: {error}", file=sys.stderr)
            unusable += 1
            continue
        for text in outcome.failures:
            print(f"{path}: {text}")
        total.add(outcome)
    print(f"{total.passed} passed, {total.failed} failed")
    return 2 if unusable else int(total.failed > 0)


def _read(path: Path) -> dict:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VectorFileError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise VectorFileError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("scenarios"), list):
        raise VectorFileError(f"{str(path)!r} is not a vector file: expected 'family' and 'scenarios'")
    return document


def _player(path: Path, family: object) -> Player:
    known = sorted(module.stem for module in _PLAYERS.glob("[a-z]*.py"))
    if not isinstance(family, str) or not _FAMILY.fullmatch(family) or family not in known:
        expected = ", ".join(known)
        raise VectorFileError(f"{str(path)!r} has the unknown family {family!r}, expected one of {expected}")
    return importlib.import_module(f"players.{family}").play


def _run_scenario(play: Player, scenario: dict) -> Outcome:
    """Play one scenario; a step that raises, or that the player leaves out, has failed."""
    steps, seen, outcome = scenario["steps"], set(), Outcome()
    reason = "not played"
    try:
        for index, expected, got in play(scenario):
            seen.add(index)
            _compare(outcome, scenario, index, normalise(expected), normalise(got))
    except Exception as error:
        reason = f"not played: {type(error).__name__}: {error}"
    for index in sorted(set(range(len(steps))) - seen):
        outcome.failed += 1
        outcome.failures.append(f"{_title(scenario, index)}\n  {reason}")
    return outcome


def _compare(outcome: Outcome, scenario: dict, index: int, expected: object, got: object) -> None:
    if _same(expected, got):
        outcome.passed += 1
        return
    outcome.failed += 1
    outcome.failures.append(f"{_title(scenario, index)}\n  expected {expected!r}\n  got      {got!r}")


def _same(expected: object, got: object) -> bool:
    """Compare without Python's kindness: 1, 1.0 and True are three different answers."""
    if type(expected) is not type(got):
        return False
    if isinstance(expected, dict):
        return expected.keys() == got.keys() and all(_same(expected[key], got[key]) for key in expected)
    if isinstance(expected, list):
        return len(expected) == len(got) and all(map(_same, expected, got))
    return expected == got


def _title(scenario: dict, index: int) -> str:
    step = scenario["steps"][index]
    return f"{scenario['name']} step {index}: {step['op']} {json.dumps(step['args'])}"


if __name__ == "__main__":
    sys.exit(main())
