"""`make`, set-up and the rule that nothing is skipped: the ground that the other tests stand on."""

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SETUP = ROOT / "scripts" / "setup.sh"
TARGETS = (
    "help",
    "setup",
    "demo",
    "test",
    "e2e-long",
    "soak",
    "lint",
    "check",
    "bench",
    "bench-kafka",
    "bench-gateway",
    "codecs",
    "older-messages",
    "request-logs",
    "bundle",
    "pins",
    "clean",
)
TOOLS_OF_SETUP = ("bash", "cat", "cksum", "dirname", "env", "grep", "id", "sed", "xargs")

MARKER = "[a-z_]+ [!=<>]+ '[A-Za-z0-9.]+'"


def run(*command, cwd=ROOT, env=None):
    """Run a command to its end, knowing nothing of the `make` and the pytest that may have started the tests."""
    if env is None:
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("MAKE", "MFLAGS", "PYTEST_"))
        }
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_make_alone_prints_help():
    """A newcomer who types `make` is told what there is, and nothing else happens."""
    done = run("make")
    assert done.returncode == 0
    assert tuple(re.findall(r"^  make ([\w-]+)", done.stdout, re.MULTILINE)) == TARGETS


@pytest.mark.alone
def test_set_up_has_nothing_to_do_the_second_time():
    """With everything in place set-up is silent and takes less than a second."""
    started = time.monotonic()
    done = run("make", "setup")
    assert time.monotonic() - started < 1
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def fresh(tmp_path):
    """Return a fresh clone's directory, and a PATH on which the only Python is too old."""
    clone, tools = tmp_path / "clone", tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS_OF_SETUP:
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/sh\n[ \"$1\" = -V ] && echo 'Python 3.9.2' && exit 0\nexit 1\n")
    (tools / "python3").chmod(0o755)
    (clone / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", clone / "scripts")
    shutil.copytree(ROOT / "constraints", clone / "constraints")
    shutil.copy(ROOT / "pyproject.toml", clone)
    return clone, {"PATH": str(tools)}


def test_an_old_python_is_named(fresh):
    """Without Python 3.11 set-up says which Python it found and how to name another."""
    clone, env = fresh
    done = run("bash", "scripts/setup.sh", cwd=clone, env=env)
    assert done.returncode == 1
    assert done.stderr == (
        "error: no Python 3.11 or newer found (python3 is Python 3.9.2)\n"
        "hint: install one, or name it: PYTHON=/path/to/python3.11 make setup\n"
    )


def test_the_python_that_is_named_makes_the_environment(fresh):
    """`PYTHON=... make setup`, as the hint says, uses that interpreter."""
    clone, env = fresh
    shutil.copy(ROOT / "Makefile", clone)
    named = clone / "named-python"
    named.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "ran $*"\nexit 1\n')
    named.chmod(0o755)
    make = shutil.which("make")
    env["PATH"] += os.pathsep + str(Path(shutil.which("bash")).parent)
    done = run(make, "setup", cwd=clone, env={**env, "PYTHON": str(named)})
    assert "ran -m venv --clear .venv" in done.stdout


@pytest.fixture(params=["python.txt", "build.txt"])
def pins(request):
    """Return the pins of a file: what is installed, where it is wanted, and the hashes of its files."""
    text = (ROOT / "constraints" / request.param).read_text(encoding="utf-8")
    return request.param, [line.split() for line in text.replace("\\\n", "").splitlines()]


def test_pins_are_names_versions_and_hashes_only(pins):
    """No pin says where a package comes from, and none may be another file than it was when it was pinned."""
    for pin in pins[1]:
        requirement = " ".join(part for part in pin if not part.startswith("--hash="))
        hashes = [part for part in pin if part.startswith("--hash=")]
        assert re.fullmatch(rf"[a-z0-9-]+==[a-z0-9.]+( ; {MARKER}( and {MARKER})*)?", requirement), pin
        assert hashes, pin
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", text) for text in hashes), pin


def test_what_is_needed_is_pinned():
    """Every direct dependency has a pin, and so has what builds it."""
    pinned = {name: pinned_names(name) for name in ("python.txt", "build.txt")}
    requirements = re.findall(r'^    "([A-Za-z0-9-]+)(?:[<>=].*)?",', _dependency_tables(), re.MULTILINE)
    assert len(requirements) > 20
    assert {name.lower() for name in requirements} <= pinned["python.txt"]
    assert {"pip", "setuptools", "wheel"} <= pinned["build.txt"]


def pinned_names(file):
    """Return the names of the packages in a file of pins."""
    text = (ROOT / "constraints" / file).read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))


def test_a_package_that_is_not_what_was_pinned_is_not_installed(tmp_path):
    """A file with another hash is refused, and nothing of it is run."""
    package = tmp_path / "tidegate_pinned-1.0-py3-none-any.whl"
    with zipfile.ZipFile(package, "w") as wheel:
        wheel.writestr("tidegate_pinned-1.0.dist-info/METADATA", "Name: tidegate-pinned\nVersion: 1.0\n")
        wheel.writestr("tidegate_pinned-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tidegate_pinned-1.0.dist-info/RECORD", "")
    pins = tmp_path / "pins.txt"
    pins.write_text(f"tidegate-pinned==1.0 --hash=sha256:{'0' * 64}\n")
    options = re.search(r'^    pip_install (.*) --requirement "\$PINS"', SETUP.read_text(), re.MULTILINE)[1]
    command = [sys.executable, "-m", "pip", "install", *options.split(), "--requirement", str(pins)]
    command += ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "target")]
    done = run(*command)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "target").exists()


def _dependency_tables():
    """Return the parts of pyproject.toml that name packages."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return text[text.index("\ndependencies = [") : text.index("[tool.setuptools")]


@pytest.fixture
def small(tmp_path):
    """Return the directory of a small project with the tests' own configuration."""
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "open_stores.py", "room.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = alone\n")
    return tmp_path


def run_tests(project, *options):
    """Run the tests of a small project."""
    return run(sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", cwd=project)


AS_MADE = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")


NOT_RUN = {
    "test_skip.py::test_it": "def test_it(): pytest.skip('no time')",
    "test_import.py::test_it": "def test_it(): pytest.importorskip('no_such_module')",
    "test_xfail.py::test_it": "def test_it(): pytest.xfail('some day')",
    "test_whole.py": "pytest.skip('no time', allow_module_level=True)",
}


@pytest.mark.parametrize("options", [(), AS_MADE], ids=["in one process", "in three"])
def test_a_test_that_did_not_run_fails_the_run(small, options):
    """Skipped or expected to fail: the run fails and names the test, or the file."""
    (small / "tests" / "test_it.py").write_text("def test_runs(): pass\n")
    for name, text in NOT_RUN.items():
        (small / "tests" / name.partition("::")[0]).write_text(f"import pytest\n{text}\n")
    done = run_tests(small, "-q", *options)
    assert done.returncode == 1, done.stdout
    named = done.stdout.partition("tests that did not run")[2]
    assert sorted(re.findall(r"^tests/(\S+)$", named, re.MULTILINE)) == sorted(NOT_RUN), done.stdout


def test_make_runs_the_tests_in_three_processes():
    """What is proved below of three processes is how `make test` runs them, and ARGS come last."""
    done = run("make", "--dry-run", "test", "ARGS=-k 'some name'")
    assert f"-m pytest {' '.join(AS_MADE)} -k 'some name'\n" in done.stdout


def test_no_parameter_is_random():
    """All processes must find the same tests: a seed is drawn in the test, and printed."""
    drawn = re.compile(r"parametrize\([^)]*\b(Random\(|randrange\(|urandom\(|uuid4\()")
    tests = (ROOT / "tests").rglob("*.py")
    assert [path for path in tests if drawn.search(path.read_text(encoding="utf-8"))] == []


def test_what_is_alone_runs_beside_nothing(small):
    """A test that is marked so, wherever it stands, and a file of such tests as a whole."""
    (small / "tests" / "noted.py").write_text(NOTED)
    mixed = "".join(
        f"@pytest.mark.alone\ndef test_alone_{at}(): noted('alone {at}')\ndef test_{at}(): noted('together')\n"
        for at in range(8)
    )
    for name in ("one", "two", "three"):
        text = mixed.replace("noted('", f"noted('{name} ")
        (small / "tests" / f"test_{name}.py").write_text(
            f"import pytest\nfrom tests.noted import noted\n{text}"
        )
    done = run_tests(small, "-q", *AS_MADE)
    assert done.returncode == 0, done.stdout
    lines = (small / "noted").read_text().splitlines()
    begun = [at for at, line in enumerate(lines) if " alone " in line and line.startswith("begin ")]
    assert len(begun) == 24
    assert len({line.split()[1] for line in lines}) == 3
    assert [lines[at + 1] for at in begun] == [lines[at].replace("begin ", "end ") for at in begun]


def test_what_measures_time_is_alone():
    """A file that takes the processor's time has the mark somewhere: other processes would make it longer."""
    measures = re.compile(
        r"time\.(thread_time|process_time|perf_counter)|= longest_step_ms\(|SC_CLK_TCK|/schedstat"
    )
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    measuring = {path for path, text in texts.items() if measures.search(text)}
    assert len(measuring) > 20
    assert [path for path in measuring if "pytest.mark.alone" not in texts[path]] == []


NOTED = """
import os, time
def noted(name):
    for what in ("begin", "end"):
        with open("noted", "a") as notes:
            notes.write(f"{what} {os.getpid()} {name}\\n")
        time.sleep(0.01)
"""


def test_the_cheap_tests_run_first(small):
    """Whatever the random order, the tiers come from cheap to dear: engine, then Spark, then end to end."""
    for tier in ("e2e", "spark", "unit"):
        (small / "tests" / tier).mkdir()
        (small / "tests" / tier / f"test_{tier}.py").write_text("def test_it(): pass\n")
    done = run_tests(small, "-v")
    assert re.findall(r"tests/(\w+)/", done.stdout) == ["unit", "spark", "e2e"], done.stdout


def test_what_measures_runs_first_beside_others_and_the_quick_last(small):
    """In a process of several: tests that run alone wait for no long one, and short ones fill what is left."""
    for tier in ("unit", "spark", "server"):
        (small / "tests" / tier).mkdir()
        (small / "tests" / tier / f"test_{tier}.py").write_text("def test_it(): pass\n")
    with (small / "tests" / "server" / "test_server.py").open("a") as file:
        file.write("import pytest\n@pytest.mark.alone\ndef test_alone(): pass\n")
    done = run_tests(small, "-v", "-n", "1", *AS_MADE[2:])
    ran = re.findall(r"PASSED tests/(\w+)/\S+::(\w+)", done.stdout)
    expected = [("server", "test_alone"), ("server", "test_it"), ("spark", "test_it"), ("unit", "test_it")]
    assert ran == expected, done.stdout


def test_lint_holds_the_layers(tmp_path):
    """The contracts are not only written down: an import that breaks one is found."""
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "tidegate" / "quota" / "throttle.py").open("a") as module:
        module.write("\nimport asyncio\nimport rich\nimport tidegate.server.settings.config\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = run(Path(sys.executable).with_name("lint-imports"), "--no-cache", cwd=tmp_path, env=env)
    assert done.returncode == 1
    broken = re.findall(r"^(.+) BROKEN$", done.stdout, re.MULTILINE)
    assert {
        "imports go down the layers",
        "the engine needs the standard library only",
        "asyncio belongs to server, broker, storage, client, the test kit and cli",
    } <= set(broken), done.stdout
