"""The part of YAML that a configuration file needs: nested mappings and lists of texts, with line numbers.

YAML reads `no` as false, `1e3` as a text or as 1000 depending on its version, `12:30` as 750 and `017` as 15. This
reader returns every scalar as the text in the file, and whether it was quoted. The caller, who knows what it expects,
decides on the meaning (see `other_meaning`). Anchors, aliases, tags, directives, repeated keys, several documents and
deep nesting are refused, each with its line.

>>> tree = read_plain_yaml("user: {name: alice}", name="quotas.yaml")
>>> tree.items["user"].items["name"].text
'alice'
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tidegate.errors import ConfigError

__all__ = [
    "MAX_DEPTH",
    "MAX_FILE_BYTES",
    "ConfigFileError",
    "ListNode",
    "Node",
    "ScalarNode",
    "TableNode",
    "other_meaning",
    "read_config_text",
    "read_plain_yaml",
]

MAX_FILE_BYTES = 32 * 1024 * 1024
"""Size of a file; a hundred thousand quotas with owner and reason take less than half of it."""

MAX_DEPTH = 16
"""Mappings and lists inside each other; a configuration file needs four."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times faster, where built

# What a plain scalar may mean instead of a text, in YAML 1.1 or 1.2.
_TRAPS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a boolean", re.compile(r"y|yes|n|no|true|false|on|off", re.IGNORECASE)),
    ("null", re.compile(r"~|null|", re.IGNORECASE)),
    ("a number", re.compile(r"[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")),
    ("a number", re.compile(r"[-+]?(0b[01_]+|0o[0-7_]+|0x[0-9a-f_]+|\.inf|\.nan)", re.IGNORECASE)),
    ("a number in base 60", re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")),
    ("a date", re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?")),
    ("a merge key", re.compile(r"<<|=")),
)


class ConfigFileError(ConfigError):
    """Raise when a file cannot be used; `name` and `line`, which begins with 1, say where."""

    def __init__(self, problem: str, *, name: str, line: int | None, hint: str | None = None) -> None:
        place = name if line is None else f"{name}:{line}"
        super().__init__(f"{place}: {problem}", hint=hint)
        self.problem = problem
        self.name = name
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarNode:
    """A text as it stands in the file, without its quotes."""

    text: str
    quoted: bool
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListNode:
    """A list."""

    items: "list[Node]" = field(default_factory=list)
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNode:
    """A mapping, in the order of the file; `key_lines` has the line of each key."""

    items: "dict[str, Node]" = field(default_factory=dict)
    key_lines: dict[str, int] = field(default_factory=dict)
    line: int


Node = ScalarNode | ListNode | TableNode


def read_config_text(path: str | Path) -> str:
    """Return the text of a configuration file. Raises `ConfigFileError`, which names it."""
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            # One byte more than allowed shows that a file is too large, without reading all of it.
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigFileError(
            f"cannot read the file: {error.strerror or error}",
            name=name,
            line=None,
            hint="check the path and its permissions",
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigFileError(f"file must be at most {MAX_FILE_BYTES} bytes", name=name, line=None)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigFileError("file is not UTF-8", name=name, line=line) from error


def read_plain_yaml(text: str, *, name: str) -> Node:
    """Return the one document in `text`. Raises `ConfigFileError`; `name` is the file's name in messages."""
    _check_size(text, name)
    try:
        return _Reader(text, name).document()
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, name) from error


def other_meaning(node: ScalarNode) -> str | None:
    """Return what a plain scalar would be to YAML if not a text, such as `a boolean`; None for a text."""
    if node.quoted:
        return None
    return next((meaning for meaning, pattern in _TRAPS if pattern.fullmatch(node.text)), None)


class _Reader:
    """Builds the tree from the parser's events, one at a time, so that depth is bounded."""

    def __init__(self, text: str, name: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._name = name

    def document(self) -> Node:
        """Return the tree of the only document."""
        next(self._events)  # StreamStart
        start = next(self._events)
        if isinstance(start, yaml.StreamEndEvent):
            raise self._error("file is empty", start)
        if start.version or start.tags:
            raise self._error("directives such as %YAML are not supported", start)
        root = self._node(next(self._events), depth=1)
        next(self._events)  # DocumentEnd
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise self._error("expected one document, got a second one", after)
        return root

    def _node(self, event: Any, *, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            raise self._error(
                f"aliases such as *{str(event.anchor)[:40]} are not supported, repeat the text", event
            )
        if event.anchor is not None:
            raise self._error(
                f"anchors such as &{str(event.anchor)[:40]} are not supported, repeat the text", event
            )
        if event.tag is not None:
            raise self._error(f"tags such as {event.tag[:40]} are not supported", event)
        if isinstance(event, yaml.ScalarEvent):
            return ScalarNode(text=event.value, quoted=bool(event.style), line=_line(event))
        if depth > MAX_DEPTH:
            raise self._error(f"nested too deep, expected at most {MAX_DEPTH} levels", event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(event, depth=depth)
        return self._table(event, depth=depth)

    def _list(self, start: Any, *, depth: int) -> ListNode:
        node = ListNode(line=_line(start))
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            node.items.append(self._node(event, depth=depth + 1))
        return node

    def _table(self, start: Any, *, depth: int) -> TableNode:
        node = TableNode(line=_line(start))
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, depth=depth + 1)
            if not isinstance(key, ScalarNode):
                raise self._error("a key must be a string", event)
            if key.text in node.items:
                first_line = node.key_lines[key.text]
                raise self._error(f"repeated key {key.text[:80]!r}, first on line {first_line}", event)
            node.key_lines[key.text] = key.line
            node.items[key.text] = self._node(next(self._events), depth=depth + 1)
        return node

    def _error(self, problem: str, event: Any) -> ConfigFileError:
        return ConfigFileError(problem, name=self._name, line=_line(event))


def _check_size(text: str, name: str) -> None:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise _bad_character(text, error.start, name) from error
    if size_bytes > MAX_FILE_BYTES:
        problem = f"file must be at most {MAX_FILE_BYTES} bytes, got {size_bytes}"
        raise ConfigFileError(problem, name=name, line=None)


def _bad_character(text: str, at: int, name: str) -> ConfigFileError:
    line = text.count("\n", 0, at) + 1
    return ConfigFileError("contains a character that YAML does not allow", name=name, line=line)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _syntax_error(error: yaml.YAMLError, text: str, name: str) -> ConfigFileError:
    if isinstance(error, yaml.reader.ReaderError):
        return _bad_character(text, error.position, name)
    mark: Any = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "cannot parse the file"
    line = None if mark is None else mark.line + 1
    has_tab = line is not None and "\t" in "".join(text.splitlines()[line - 1 : line])
    hint = "indent with spaces, not with tabs" if has_tab else None
    return ConfigFileError(f"invalid YAML: {problem}", name=name, line=line, hint=hint)
