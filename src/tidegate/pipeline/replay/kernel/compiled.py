"""Compile with numba, and keep what was compiled for the next process.

Compiling the replay kernel takes some ten seconds, loading it again a tenth of one. The cache lies in the user's
cache directory and not beside the installed modules, which may be read-only; its name depends on the text of all
modules that go into the kernel, because numba itself looks only at the file of the outermost function. Where no
cache can be written, every process compiles for itself.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba

__all__ = ["cache_directory", "compile_cached", "compile_together", "compiled"]

_DIGEST_CHARACTERS = 16


def compiled(
    function: Callable[..., Any], *, cache: bool = False, inlined: bool = False
) -> Callable[..., Any]:
    """Return `function` compiled, and inlined into its callers if `inlined`. What it calls must be compiled, too.

    It can make no array. References to its arrays are not counted, so its caller must keep them alive. Counting took a
    third of the time. Division by zero gives infinity or NaN, as in Java and unlike Python. Checking for it took half.
    """
    options: dict[str, Any] = {"_nrt": False, "error_model": "numpy", "forceinline": inlined}
    result: Callable[..., Any] = numba.njit(function, cache=cache, **options)
    return result


def compile_together(
    functions: Iterable[Callable[..., Any]],
    names: dict[str, Any],
    *,
    inlined: Iterable[Callable[..., Any]] = (),
) -> dict[str, Any]:
    """Return the functions compiled, by name, each seeing `names` and the compiled forms of the others.

    inlined: more functions, which are inlined into their callers.
    """
    names = dict(names)
    together = {each.__name__: compiled(_seeing(each, names)) for each in functions}
    together |= {each.__name__: compiled(_seeing(each, names), inlined=True) for each in inlined}
    # The functions hold this dict as their globals. numba looks names up when it compiles, at the first call, so each
    # function finds the compiled forms of the others.
    names.update(together)
    return together


def compile_cached(
    function: Callable[..., Any], names: dict[str, Any], *, modules: Sequence[ModuleType]
) -> Callable[..., Any]:
    """Return `function` compiled, seeing `names`; `modules` are all those whose code goes into it."""
    directory = cache_directory(os.environ, modules)
    if not _writable(directory):
        return compiled(_seeing(function, names))
    function = _seeing(_placed(function, directory), names)
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(directory)  # numba reads it while it wraps a function
    try:
        return compiled(function, cache=True)
    finally:
        settings.CACHE_DIR = before


def cache_directory(environ: Mapping[str, str], modules: Sequence[ModuleType]) -> Path:
    """Return where code compiled from `modules` is kept: `$NUMBA_CACHE_DIR`, else the user's cache directory."""
    digest = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for module in modules:
        digest.update(_text(module))
    return _base(environ) / digest.hexdigest()[:_DIGEST_CHARACTERS]


def _base(environ: Mapping[str, str]) -> Path:
    if own := environ.get("NUMBA_CACHE_DIR"):
        return Path(own) / "tidegate"
    home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "tidegate" / "numba"


def _writable(directory: Path) -> bool:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)


def _placed(function: Callable[..., Any], directory: Path) -> Callable[..., Any]:
    """Return the function with `directory` as the place of its module, and write the module's text there.

    numba's cache depends on the place of the module. A module in an archive that a job sends has another place for
    each job.
    """
    assert isinstance(function, FunctionType)
    path = directory / f"{function.__name__}.py"
    if not path.exists():
        made = directory / f".{path.name}.{os.getpid()}"
        made.write_bytes(_text(sys.modules[function.__module__]))
        # Several processes may write this file at once: the rename makes it appear complete.
        made.rename(path)
    code = function.__code__.replace(co_filename=str(path))
    return FunctionType(code, function.__globals__, function.__name__)


def _text(module: ModuleType) -> bytes:
    """Return the text of a module, which may lie in an archive."""
    loader: Any = module.__loader__
    text: bytes = loader.get_data(module.__file__)
    return text


def _seeing(function: Callable[..., Any], names: dict[str, Any]) -> Callable[..., Any]:
    """Return the function with other globals."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, names, function.__name__)
