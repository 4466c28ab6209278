"""The documents point at things that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("constraints/*.md"),
        *ROOT.glob("tests/**/*.md"),
    ]
)
ROWS = re.findall(
    r"^\| (\w+) \|(.+)\|$", (ROOT / "docs" / "kafka-differences.md").read_text("utf-8"), re.MULTILINE
)
DIFFERENCES = ROWS[1:] if ROWS and ROWS[0][0] == "#" else ROWS


def names_in(path):
    """Return the names of all functions and classes in a module, and of their assignments, at any depth."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    assigned = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return assigned | {node.name for node in ast.walk(tree) if isinstance(node, defined)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    """Every relative link in a document is a file or a directory of the repository."""
    targets = re.findall(r"\]\((?!https?://)([^)#\s]+)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_readme_of_the_tests_names_what_is_there():
    """Each directory of tests has its line, and each file and directory that is named is there."""
    tests = ROOT / "tests"
    named = re.findall(r"`([\w/-]+(?:/|\.py))`", (tests / "README.md").read_text(encoding="utf-8"))
    assert [name for name in named if not (tests / name).exists() and not (ROOT / name).exists()] == []
    directories = {path.name for path in tests.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {f"{name}/" for name in directories} - set(named) == set()


def test_there_are_differences():
    """The table was found, whatever its shape."""
    assert len(DIFFERENCES) > 10


@pytest.mark.parametrize("row", [row for _, row in DIFFERENCES], ids=[number for number, _ in DIFFERENCES])
def test_each_difference_names_a_test_that_is_there(row):
    """A difference from Kafka that no test shows is a rumour."""
    named = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)", row)
    assert named
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or not set(test.split("::")) <= names_in(ROOT / file)
    ]
    assert missing == []


def test_differences_have_numbers_of_their_own():
    """A row can be cited."""
    numbers = [number for number, _ in DIFFERENCES]
    assert len(numbers) == len(set(numbers))
