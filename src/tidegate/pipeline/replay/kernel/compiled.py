"""Compile with numba, and keep what was compiled for the next process; or run the same functions as Python.

Compiling the replay kernel takes twenty seconds, loading it again a tenth of one. The cache lies in the user's
cache directory and not beside the installed modules, which may be read-only; its name depends on the processor and on
the text of all modules that go into the kernel, because numba itself looks only at the file of the outermost function.
Where no cache can be written, every process compiles for itself. After `interpret` nothing is compiled: few
rows take less time so (decision 0134), with equal results.
"""

import functools
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np

__all__ = [
    "cache_base",
    "cache_directory",
    "compile_cached",
    "compile_together",
    "compiled",
    "interpret",
    "made_once",
    "own_form",
]

_DIGEST_CHARACTERS = 16
_is_interpreted: ContextVar[bool] = ContextVar("_is_interpreted", default=False)
_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextmanager
def own_form() -> Iterator[None]:
    """Begin with compiled kernels; at the end of the block, undo `interpret`."""
    token = _is_interpreted.set(False)
    try:
        yield
    finally:
        _is_interpreted.reset(token)


def interpret() -> None:
    """Run kernels as Python functions until the end of the `own_form` block."""
    _is_interpreted.set(True)


def made_once(make: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return `make` as a function that makes each form, compiled or Python, once."""

    form: Any = functools.cache(lambda is_interpreted, *args, **options: make(*args, **options))

    @functools.wraps(make)
    def made(*args: _P.args, **options: _P.kwargs) -> _T:
        found: _T = form(_is_interpreted.get(), *args, **options)
        return found

    return made


def compiled(
    function: Callable[..., Any], *, cache: bool = False, inlined: bool = False
) -> Callable[..., Any]:
    """Return `function` compiled, and inlined into its callers if `inlined`. What it calls must be compiled, too.

    It can make no array. References to its arrays are not counted, so its caller must keep them alive. Counting took a
    third of the time. It runs without Python's lock, so several threads run it at once. Division by zero gives infinity
    or NaN, as in Java and unlike Python. Checking for it took half.
    """
    if _is_interpreted.get():
        return function
    import numba

    options: dict[str, Any] = {
        "_nrt": False,
        "error_model": "numpy",
        "forceinline": inlined,
        "nogil": True,
    }
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
    if _is_interpreted.get():
        # As in machine code, numbers may overflow and be divided by zero.
        return np.errstate(all="ignore")(_seeing(function, names))
    import numba

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
    digest = hashlib.sha256(f"{version('numba')} {sys.version} {_processor(environ)}".encode())
    for module in (*modules, sys.modules[__name__]):
        digest.update(_text(module))
    return cache_base(environ) / digest.hexdigest()[:_DIGEST_CHARACTERS]


def cache_base(environ: Mapping[str, str]) -> Path:
    """Return the directory of the compiled kernels of all versions."""
    if own := environ.get("NUMBA_CACHE_DIR"):
        return Path(own) / "tidegate"
    home = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "tidegate" / "numba"


def _processor(environ: Mapping[str, str]) -> str:
    """Return what the machine code depends on: `$NUMBA_CPU_NAME` and `$NUMBA_CPU_FEATURES`, else this processor."""
    wanted = environ.get("NUMBA_CPU_NAME"), environ.get("NUMBA_CPU_FEATURES")
    given = wanted if None not in wanted else (*wanted, _this_processor())
    return f"{platform.machine()} {given}"


@functools.cache
def _this_processor() -> str:
    """Return the name and the features of this processor, as far as the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    fields = ("model name", "flags", "CPU part", "Features")  # the latter two: of ARM
    return "\n".join(sorted({line for line in lines if line.partition(":")[0].strip() in fields}))


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
