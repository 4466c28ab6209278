"""Reads a configuration file's tree field by field; every mistake is an error with file, line and a hint.

>>> from tidegate.config.plain_yaml import read_plain_yaml
>>> fields = Fields("quotas.yaml")
>>> table = fields.table(read_plain_yaml("name: no", name="quotas.yaml"), ["name"], label="a user")
>>> fields.text(table.items["name"], label="name")
Traceback (most recent call last):
tidegate.config.plain_yaml.ConfigFileError: quotas.yaml:1: name must be quoted: \
YAML reads no without quotes as a boolean
"""

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from tidegate.config.plain_yaml import ConfigFileError, ListNode, Node, ScalarNode, TableNode, other_meaning
from tidegate.config.values import MAX_NUMBER_CHARS, cut, did_you_mean
from tidegate.errors import ConfigError

__all__ = ["Fields", "is_disputed_number", "is_number", "not_finite", "shown"]

T = TypeVar("T")

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.?(inf|infinity|nan)", re.IGNORECASE)


class Fields:
    """Typed access to the nodes of the file called `name`. Every method raises `ConfigFileError`.

    label: what messages call the node.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def error(self, problem: str, node: Node, *, hint: str | None = None) -> ConfigFileError:
        """Return the error to raise for a mistake at `node`."""
        return ConfigFileError(problem, name=self._name, line=node.line, hint=hint)

    def checked(self, node: Node, check: Callable[[], T], *, label: str | None = None) -> T:
        """Return what `check` returns; a `ConfigError` of its own gets file, line and, if given, `label`."""
        try:
            return check()
        except ConfigError as error:
            problem = str(error) if label is None else f"{label}: {error}"
            raise self.error(problem, node, hint=error.hint) from error

    def table(self, node: Node, known: Iterable[str], *, label: str) -> TableNode:
        """Return `node` as a mapping that has no keys but the known ones."""
        if not isinstance(node, TableNode):
            raise self.error(f"{label} must be a mapping, got {shown(node)}", node)
        words = list(known)
        for key in node.items:
            if key not in words:
                line = node.key_lines[key]
                raise ConfigFileError(
                    f"unknown key {cut(key)!r} in {label}",
                    name=self._name,
                    line=line,
                    hint=did_you_mean(key, words),
                )
        return node

    def list(self, node: Node, *, label: str) -> ListNode:
        """Return `node` as a list."""
        if not isinstance(node, ListNode):
            hint = f"write '{label}: []' for an empty list"
            raise self.error(f"{label} must be a list, got {shown(node)}", node, hint=hint)
        return node

    def scalar(self, node: Node, *, label: str) -> ScalarNode:
        """Return `node` as a scalar that says something."""
        if not isinstance(node, ScalarNode):
            raise self.error(f"{label} must be a single value, got {shown(node)}", node)
        if not node.quoted and node.text == "":
            raise self.error(f"{label} is empty", node)
        return node

    def text(self, node: Node, *, label: str) -> str:
        """Return a text; one that YAML could take for something else has to be quoted."""
        scalar = self.scalar(node, label=label)
        meaning = other_meaning(scalar)
        if meaning is not None:
            raise self.error(
                f"{label} must be quoted: YAML reads {cut(scalar.text)} without quotes as {meaning}",
                node,
                hint=f'write "{cut(scalar.text)}"',
            )
        return scalar.text

    def decimal(self, node: Node, *, label: str) -> int | float:
        """Return a number in plain decimal digits; infinities and NaN are for the caller to refuse."""
        scalar = self.scalar(node, label=label)
        if is_number(scalar):
            return float(scalar.text) if "." in scalar.text else int(scalar.text)
        if not_finite(scalar):
            return float(scalar.text.replace(".", ""))
        hint = "remove the '%'" if scalar.text.endswith("%") else None
        if is_disputed_number(scalar):
            hint = f"YAML versions read {cut(scalar.text)} differently; write plain digits, such as 1000"
        raise self.error(f"{label} must be a number, got {shown(node)}", node, hint=hint)


def is_number(scalar: ScalarNode) -> bool:
    """Return whether a scalar is a finite number in plain decimal digits."""
    return len(scalar.text) <= MAX_NUMBER_CHARS and _NUMBER.fullmatch(scalar.text) is not None


def not_finite(scalar: ScalarNode) -> bool:
    """Return whether a scalar is an infinity or NaN, as YAML or as Python writes them."""
    return _NOT_FINITE.fullmatch(scalar.text) is not None


def is_disputed_number(scalar: ScalarNode) -> bool:
    """Return whether a plain scalar is a number to YAML, but not in plain decimal digits: `1e3`, `017`, `1:30`."""
    return not is_number(scalar) and "number" in (other_meaning(scalar) or "")


def shown(node: Node) -> str:
    """Return a node as messages show it."""
    if isinstance(node, ScalarNode):
        return repr(cut(node.text))
    return "a list" if isinstance(node, ListNode) else "a mapping"
