"""Every rule of Kafka's behaviour that is cited is written down, and each has its place in the code and its tests."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "kafka-behaviour.md"
CITING = ("src", "tests", "docs", "bench", "scripts", "*.md")

_NUMBER = r"\d+(?:\.\d+)*"
_NUMBERS = rf"{_NUMBER}(?:[-–]{_NUMBER})?"
_CITATION = re.compile(rf"B§({_NUMBERS}(?:, {_NUMBERS})*)")
_HEADING = re.compile(rf"^#{{2,3}} B§({_NUMBER}) ", re.MULTILINE)
_STEP = re.compile(r"^(\d+)\. ", re.MULTILINE)
_ROW = re.compile(rf"^\| B§({_NUMBER}) \|[^|]+\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_PLACE = re.compile(r"`(tidegate(?:\.\w+)*):([\w.]+)`")
_NOT_HERE = re.compile(r"not here: \S+ \S+ \S+")
_NAMED = re.compile(r"`(tests/[\w/-]+\.(?:py|json))?(?:::(\w+))?`")
"""A test of the table: a file of vectors, or a function of the file that is named with it or before it."""
PLAYED = ("tests/vectors/engine", "tests/vectors/wire")
"""The directories whose every file is played: by tests/vectors/test_engine_vectors.py, tests/e2e/test_recordings.py."""


def rules_of(text):
    """Return the numbers of the page's rules and chapters, in order, and those of their steps."""
    found = list(_HEADING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    steps = {
        f"{match[1]}.{step}"
        for match, end in zip(found, ends, strict=True)
        for step in _STEP.findall(text[match.end() : end])
    }
    return [match[1] for match in found], steps


TEXT = PAGE.read_text(encoding="utf-8")
HEADINGS, STEPS = rules_of(TEXT)
RULES = [rule for rule in HEADINGS if not any(other.startswith(f"{rule}.") for other in HEADINGS)]
ROWS = _ROW.findall(TEXT)


def between(first, last):
    """Return the numbers from `first` to `last` of one chapter: ("6.2", "6.4") is 6.2, 6.3, 6.4."""
    chapter, _, low = first.rpartition(".")
    chapter_of_last, _, high = last.rpartition(".")
    assert chapter == chapter_of_last, f"B§{first}–{last} goes from one chapter to another"
    return [f"{chapter}.{number}".removeprefix(".") for number in range(int(low), int(high) + 1)]


def cited_in(text):
    """Return the numbers that a text cites, those within ranges too."""
    numbers = []
    for cited in _CITATION.findall(text):
        for part in cited.split(", "):
            first, *last = re.split("[-–]", part)
            numbers += between(first, *last) if last else [first]
    return numbers


@cache
def citations():
    """Return each cited number with the places, as `file:line`, that cite it."""
    places = {}
    for path in sorted({path for pattern in CITING for path in files_under(pattern)}):
        for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for number in cited_in(line):
                places.setdefault(number, []).append(f"{path.relative_to(ROOT).as_posix()}:{at}")
    return places


def files_under(pattern):
    """Return the texts in a directory of the repository, or those that a pattern names; not this test."""
    top = ROOT / pattern
    found = [*top.rglob("*.py"), *top.rglob("*.md")] if top.is_dir() else ROOT.glob(pattern)
    return [path for path in found if path != Path(__file__)]


@cache
def definitions():
    """Return the modules of `tidegate` that define each name at their top level, without importing them."""
    modules = {}
    source = ROOT / "src"
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for name in names_of(node):
                modules.setdefault(name, []).append(module)
    return modules


def names_of(node):
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Assign):
        targets = node.targets
    else:
        return []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def mistake(module, name):
    """Return what is wrong with a place of the table, and where its name is instead; None where it is right."""
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ModuleNotFoundError, AttributeError) as error:
        top = name.split(".")[0]
        elsewhere = [f"{other}:{name}" for other in definitions().get(top, []) if other != module]
        return f"{module}:{name}: {error}; {top} is defined in {', '.join(elsewhere) or 'no other module'}"
    if module not in definitions().get(name.split(".")[0], []):
        return f"{module}:{name}: is only imported there, from one of {definitions().get(name.split('.')[0])}"
    return None


def named_in(cell):
    """Yield the file and the function of each test that a cell names; None for a file of vectors."""
    file = None
    for named, function in _NAMED.findall(cell):
        file = named or file
        yield file, function or None


def mistakes_of_tests(cell):
    """Return each test of a cell that does not exist, and each file of vectors that no test plays."""
    return [f"{file}::{function}" for file, function in named_in(cell) if not is_a_test(file, function)]


def is_a_test(file, function):
    """Return whether a file defines a test function at its top level or, without a function, is played by a test."""
    if file is None or not (ROOT / file).is_file():
        return False
    if function is None:
        return file.endswith(".json") and file.rpartition("/")[0] in PLAYED
    defined = ast.parse((ROOT / file).read_text(encoding="utf-8")).body if file.endswith(".py") else []
    return function.startswith("test_") and any(function in names_of(node) for node in defined)


def test_citations_are_read_as_they_are_meant():
    """Lists and ranges name all of their numbers; what follows a citation is none of them."""
    assert cited_in("as in B§3.9, 8, 10.1. Also (B§1.3–1.5, 1.7), B§6.2-6.4: B§6.9.3, no more") == [
        *("3.9", "8", "10.1"),
        *("1.3", "1.4", "1.5", "1.7"),
        *("6.2", "6.3", "6.4"),
        "6.9.3",
    ]


def test_the_page_was_found_whole():
    """The page has its chapters, rules and steps, each number once."""
    assert len(RULES) > 40
    assert {"6.3.1", "6.3.4", "6.9.3"} <= STEPS
    assert sorted(set(HEADINGS)) == sorted(HEADINGS)


def test_every_cited_rule_is_on_the_page():
    """A number in code, tests or documents leads somewhere."""
    known = {*HEADINGS, *STEPS}
    assert {number: places for number, places in citations().items() if number not in known} == {}


def test_every_rule_has_one_row():
    """The table has the page's rules, in their order."""
    assert [rule for rule, _, _ in ROWS] == RULES


@pytest.mark.parametrize(
    ("rule", "where"), [(rule, where) for rule, where, _ in ROWS], ids=[rule for rule, _, _ in ROWS]
)
def test_rules_are_cited_in_the_code_or_the_table_says_why_not(rule, where):
    """A rule with a place is cited in `src`; one without is not, and its row has a reason."""
    in_code = [place for place in citations().get(rule, []) if place.startswith("src/")]
    if _PLACE.search(where):
        assert in_code, f"no module of src cites B§{rule}"
    else:
        assert _NOT_HERE.match(where), "neither `module:name` nor 'not here:' with a reason"
        assert in_code == [], f"B§{rule} has no place in the table"


@pytest.mark.parametrize("where", [where for _, where, _ in ROWS], ids=[rule for rule, _, _ in ROWS])
def test_places_of_the_table_are_there(where):
    """Each `module:name` can be imported, and is defined in that module."""
    assert [wrong for place in _PLACE.findall(where) if (wrong := mistake(*place))] == []


@pytest.mark.parametrize("cell", [cell for _, _, cell in ROWS], ids=[rule for rule, _, _ in ROWS])
def test_tests_of_the_table_exist(cell):
    """Each test that a row names is a function of its file, or a file of vectors that a test plays."""
    assert mistakes_of_tests(cell) == []
    assert _NAMED.sub("", cell).replace(", ", "") == "", "more than tests"


def test_each_rule_has_a_test():
    """No row is without a test, those of rules that no code here follows included."""
    assert [rule for rule, _, cell in ROWS if not list(named_in(cell))] == []


def test_a_test_that_is_gone_is_found():
    """A row with a function, a file or vectors that do not exist fails."""
    here = "tests/ground/test_rules.py"
    assert (
        mistakes_of_tests(f"`{here}::test_every_rule_has_one_row`, `::test_a_moved_function_is_found`") == []
    )
    assert mistakes_of_tests(f"`{here}::test_every_rule_has_one_row`, `::test_gone`") == [
        f"{here}::test_gone"
    ]
    assert mistakes_of_tests(f"`{here}`, `::RULES`") == [f"{here}::None", f"{here}::RULES"]
    assert mistakes_of_tests("`tests/vectors/engine/gone.json`") == ["tests/vectors/engine/gone.json::None"]
    assert mistakes_of_tests("`tests/vectors/metrics.json`") == ["tests/vectors/metrics.json::None"]


def test_a_moved_function_is_found():
    """Where a name has gone to another module, the table's mistake says which."""
    assert mistake("tidegate.quota.nowhere", "round_half_up").endswith(":round_half_up")
    assert mistake("tidegate.quota", "QuotaWindow") is not None
