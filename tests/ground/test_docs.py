"""The documents point at things that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "tidegate"
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
_PATH = re.compile(r"[a-z_]+(?:/[a-z_]+)*(?:\.py|/)|[a-z_]+(?:/[a-z_]+)+")
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


DECISIONS = ROOT / "docs" / "decisions"
DECISION_PAGES = sorted(DECISIONS.glob("**/[0-9]*.md"))
TITLE = re.compile(r"# \d{4}: (.+)")


def test_the_index_of_decisions_names_each_once():
    """Every decision has one line with its title: under a topic, or in the archive section at the end."""
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    topics, archive = index.split("\n## Archive\n")
    pages = {"": topics, "archive/": archive}
    for folder, section in pages.items():
        named = re.findall(r"^- \[(\d{4})\]\((\S+)\): (.+?)(?: \(replaced by .+\))?$", section, re.M)
        expected = [
            (path.name[:4], f"{folder}{path.name}", title_of(path))
            for path in (DECISIONS / folder).glob("[0-9]*.md")
        ]
        assert sorted(named) == sorted(expected)


def title_of(path):
    """Return the title of a decision without its number."""
    match = TITLE.fullmatch(path.read_text(encoding="utf-8").splitlines()[0])
    assert match, f"{path.name}: the first line must be '# NNNN: title'"
    return match[1]


@pytest.mark.parametrize("path", DECISION_PAGES, ids=lambda path: path.name[:4])
def test_replaced_decisions_are_in_the_archive(path):
    """A page is in the archive exactly if a later decision replaces it as a whole, and each number is used once."""
    state = re.search(
        r"^Date: \d{4}-\d\d-\d\d\. State: (accepted|replaced by)\b", path.read_text("utf-8"), re.M
    )
    assert state, f"{path.name}: no line with date and state"
    assert (state[1] == "replaced by") == (path.parent.name == "archive")
    assert len([other for other in DECISION_PAGES if other.name[:4] == path.name[:4]]) == 1


def test_mentions_of_decisions_lead_to_a_page():
    """Each decision that code, tests or documents mention by its number exists."""
    numbers = {path.name[:4] for path in DECISION_PAGES}
    places = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/**/*.py"), *DOCUMENTS]
    missing = [
        f"{path.relative_to(ROOT)}: {number}"
        for path in places
        for number in re.findall(r"\b[Dd]ecisions?[ \n/\[]+(0\d{3})\b", path.read_text(encoding="utf-8"))
        if number not in numbers
    ]
    assert missing == []


def test_readme_of_the_tests_names_what_is_there():
    """Each directory of tests has its line, and each file and directory that is named is there."""
    tests = ROOT / "tests"
    named = re.findall(r"`([\w/-]+(?:/|\.py))`", (tests / "README.md").read_text(encoding="utf-8"))
    assert [name for name in named if not (tests / name).exists() and not (ROOT / name).exists()] == []
    directories = {path.name for path in tests.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {f"{name}/" for name in directories} - set(named) == set()


def test_the_paths_of_the_map_are_there():
    """What ARCHITECTURE.md calls a file or a package is one: of Tidegate, of the row's package, of the repository."""
    paths = [
        (roots_of(line), text)
        for line in ARCHITECTURE.splitlines()
        for text in re.findall(r"`([^`]+)`", line)
        if _PATH.fullmatch(text)
    ]
    assert len(paths) > 50
    assert [text for roots, text in paths if not is_below(roots, text)] == []


def test_every_package_is_in_the_map():
    """Each package below `src/tidegate`, and each module beside them, has its row in ARCHITECTURE.md."""
    places = [
        *(f"{path.parent.relative_to(SOURCE).as_posix()}/" for path in SOURCE.glob("*/**/__init__.py")),
        *(path.stem for path in SOURCE.glob("[a-z]*.py")),
    ]
    table = ARCHITECTURE.split("## Code map and layers\n")[1].split("\n## ")[0]
    assert len(places) > 30
    assert [place for place in places if f"`{place}`" not in table] == []


def roots_of(line):
    """Return where the paths of a line of ARCHITECTURE.md may begin."""
    row = re.match(r"\| `(\w+)/` \|", line)
    return [SOURCE, ROOT, *([SOURCE / row[1]] if row else [])]


def is_below(roots, path):
    """Return whether a file or directory is below one of them; `.py` may be left out."""
    return any(place.exists() for root in roots for place in (root / path, root / f"{path}.py"))


def test_the_walk_names_what_is_in_its_files():
    """Every function and class that the walk of a record names is defined in the file that is named before it."""
    walk = ARCHITECTURE.split("## The path of a record\n")[1].split("\n## ")[0]
    defined, checked, missing = set(), 0, []
    for text in re.findall(r"`([^`\n]+)`", walk):
        if text.endswith(".py"):
            path = SOURCE / text
            defined = names_in(path) if path.is_file() else set()
        elif not text.endswith("/"):
            checked += 1
            missing += [] if set(text.split(".")) <= defined else [f"{path.name}: {text}"]
    assert checked > 40
    assert missing == []


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


BOUNDS = re.findall(r"^\| (.+) \|$", (ROOT / "docs" / "fair-bounds.md").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    "row", [row for row in BOUNDS if "`tests/" in row], ids=lambda row: row.split(" | ")[0]
)
def test_each_divided_bound_names_a_test_that_is_there(row):
    """A bound that clients share is divided as the page says: a test fills it."""
    missing = [
        f"{file}::{test}"
        for file, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        if not (ROOT / file).is_file() or (test and test not in names_in(ROOT / file))
    ]
    assert missing == []


def test_differences_have_numbers_of_their_own():
    """A row can be cited."""
    numbers = [number for number, _ in DIFFERENCES]
    assert len(numbers) == len(set(numbers))


KIPS = re.findall(
    r"^\| (\d+) \|(.+)\|$", (ROOT / "docs" / "kips.md").read_text(encoding="utf-8"), re.MULTILINE
)


def test_all_kips_are_in_the_table():
    """Those of quotas, each once."""
    assert [number for number, _ in KIPS] == ["13", "55", "124", "219", "257", "546", "599", "612"]


@pytest.mark.parametrize("row", [row for _, row in KIPS], ids=[number for number, _ in KIPS])
def test_each_kip_works_and_names_tests_that_are_there(row):
    """Of a promise that is kept there is a test: the link leads to its file, and says its name."""
    named = re.findall(r"\]\(\.\./(tests/[\w/]+\.py)#(\w+)\)", row)
    assert named
    assert [(file, test) for file, test in named if test not in names_in(ROOT / file)] == []
    assert row.split("|")[1].strip() == "works"
