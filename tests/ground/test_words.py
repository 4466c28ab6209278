"""Words of docstrings: the first one says what a function does, or what a module, a class or a constant is."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VAGUE = re.compile(r"(Do|Give|Go|Have|How|Let|Of|Put|Say|So|Take|What|Where|Whether|Which|Whom?)\b")
"""Words that begin a sentence without a subject, or with a verb that could mean anything."""


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of a module, and of each function, class, constant and field in it."""
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, documented):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", path.stem), text
        body = getattr(node, "body", None)
        for assigned, documentation in itertools.pairwise(body if isinstance(body, list) else ()):
            match assigned, documentation:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                    yield ast.unparse(assigned).partition(" =")[0], text


@pytest.mark.parametrize(
    "path",
    sorted(path for folder in ("bench", "src") for path in (ROOT / folder).rglob("*.py")),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_docstrings_begin_with_a_concrete_word(path: Path) -> None:
    """A function begins with the verb that says what happens; a module, class or constant with a noun phrase."""
    assert [f"{name}: {text.splitlines()[0]}" for name, text in docstrings(path) if VAGUE.match(text)] == []
