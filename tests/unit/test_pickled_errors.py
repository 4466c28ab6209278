"""Errors cross the borders of processes, as in a pool: a copy has the text and the attributes."""

import inspect
import pickle
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

import tidegate
from tidegate.errors import TidegateError

_VALUES = {int: 7, bool: True, Path: Path("here"), tuple: (("user", "a"),)}


def _subclasses(base: type[TidegateError]) -> Iterator[type[TidegateError]]:
    yield base
    for each in base.__subclasses__():
        yield from _subclasses(each)


def _errors() -> list[type[TidegateError]]:
    """Return all classes of errors."""
    for module in walk_packages(tidegate.__path__, "tidegate."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    found = {each for each in _subclasses(TidegateError) if each.__module__.startswith("tidegate.")}
    return sorted(found, key=lambda each: (each.__module__, each.__name__))


def _made(of: type[TidegateError]) -> TidegateError:
    """Return an error with values for all parameters, each of its type, else a text."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in inspect.signature(of, eval_str=True).parameters.items():
        kind = parameter.annotation
        value = _VALUES.get(getattr(kind, "__origin__", kind), "a text")
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            given.append(value)
    return of(*given, **named)


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_a_copy_is_equal(protocol: int) -> None:
    """Every class, whatever parameters it has."""
    errors = list(map(_made, _errors()))
    assert len(errors) > 40
    for error in errors:
        error.add_note("a note")
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is type(error)
        assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))
