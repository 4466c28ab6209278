"""Compiling, and where compiled code is kept."""

import shutil
import subprocess
import sys
from pathlib import Path

import tidegate
from tidegate.config import windows
from tidegate.pipeline.replay.kernel import pending
from tidegate.pipeline.replay.kernel.compiled import cache_directory, compile_together
from tidegate.pipeline.replay.kernel.pending import PENDING_KERNEL, empty_pending


def test_the_cache_is_named_after_what_is_compiled(tmp_path):
    """Other code, another directory: numba itself looks only at the file of the outermost function."""
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    one, other = cache_directory(environ, [pending]), cache_directory(environ, [windows])
    assert one.parent == other.parent == tmp_path / "tidegate" / "numba"
    assert one != other
    assert one == cache_directory(environ, [pending])


def test_numba_cache_dir_is_followed(tmp_path):
    """Who moves numba's cache moves ours."""
    directory = cache_directory({"NUMBA_CACHE_DIR": str(tmp_path)}, [pending])
    assert directory.parent == tmp_path / "tidegate"


def test_functions_see_each_other_compiled():
    """Compiled together, they call one another."""
    together = compile_together(PENDING_KERNEL, vars(pending))
    table = empty_pending()
    together["pending_put"](table, 5, 1, 2, 3, 4)
    assert together["pending_take"](table, 5) == (1, 2, 3, 4)


def test_a_home_that_cannot_be_written_needs_no_cache(tmp_path):
    """Where no cache can be kept, code is compiled without one."""
    blocked = tmp_path / "file"
    blocked.touch()
    program = (
        "from tidegate.pipeline.replay.kernel import compiled, pending;"
        "f = compiled.compile_cached(pending._home, vars(pending), modules=[pending]);"
        "print(f(pending.empty_pending(), 1) >= 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"NUMBA_CACHE_DIR": str(blocked), "PATH": "/usr/bin"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout == "True\n", done.stderr


def test_what_was_compiled_of_an_archive_is_found_again(tmp_path):
    """Wherever the archive lies next time: executors get theirs in a directory of each job."""
    package = Path(tidegate.__file__).parent
    archive = Path(shutil.make_archive(str(tmp_path / "first"), "zip", package.parent, package.name))
    program = (
        "from tidegate.pipeline.replay.kernel import compiled, pending;"
        "f = compiled.compile_cached(pending._home, vars(pending), modules=[pending]);"
        "f(pending.empty_pending(), 1);"
        "print('.zip' in pending.__file__, sum(f.stats.cache_hits.values()))"
    )
    said = []
    for path in (archive, tmp_path / "second.zip"):
        if path != archive:
            archive.rename(path)
        environ = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin", "PYTHONPATH": str(path)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        said.append(done.stdout or done.stderr)
    assert said == ["True 0\n", "True 1\n"]
