"""Hints name options of commands: the page about the Python API says how they are called in Python."""

import ast
import re
from inspect import signature
from pathlib import Path

import pytest

import tidegate
from tidegate import pipeline

_SOURCE = Path(tidegate.__file__).parent
_PAGE = _SOURCE.parents[1] / "docs" / "python-api.md"
_ROWS = re.findall(r"^\| (`--.+?) \| (.+?) \|$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
_OPTION = re.compile(r"(?<!var\()(?<![\w-])--[a-z][a-z-]*")
_OF_COMMANDS = {"--all", "--json", "--master"}
"""Options of which only printed tables and `--explain` speak."""
_OF_KAFKA = {"--add-config", "--alter", "--bootstrap-server"}
_OF_KAFKA |= {"--entity-default", "--entity-name", "--entity-type"}
"""Options of `kafka-configs.sh`, in the scripts that `text("kafka-configs")` returns."""
_FUNCTIONS = [getattr(pipeline, name) for name in pipeline.__all__ if name.islower()]
_PARAMETERS = {name for function in _FUNCTIONS for name in signature(function).parameters}
_PARAMETERS |= {*pipeline.Opening.__annotations__}


def _options(path):
    """Return the options in the texts of a module, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    texts = {
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {option for node in texts.difference(statements) for option in _OPTION.findall(node.value)}


@pytest.mark.parametrize("package", ["kafka_log", "pipeline"])
def test_each_option_in_a_text_has_a_parameter(package):
    """By the same name, or by the table; an option that is in no need of it is listed above."""
    found = {option for path in (_SOURCE / package).rglob("*.py") for option in _options(path)}
    named = {option for option in found if option[2:].replace("-", "_") in _PARAMETERS}
    in_table = {option for options, _ in _ROWS for option in _OPTION.findall(options)}
    assert found - named - in_table - _OF_COMMANDS - _OF_KAFKA == set()
    assert len(found) > 5


def test_the_table_names_parameters():
    """Each parameter in it is one of a function."""
    assert len(_ROWS) > 5
    for _, parameters in _ROWS:
        names = re.findall(r"`(\w+)[=`]", parameters)
        assert {*names} <= _PARAMETERS
        assert names or "`text(" in parameters
