"""Source text of a compiled reader or writer, with the message field that each line is about.

The readers and writers are straight-line code without checks of their own for what Python checks anyway: reading past
the end raises `struct.error` or `IndexError`, a missing key `KeyError`. When that happens the line that failed tells
the field, and the variables of the function tell the offset and the array indexes. Nothing is spent on it before.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tidegate.wire.definitions import Field

__all__ = ["FIXED_CODES", "Program", "Source", "failed_at", "repeated_structs"]

FIXED_CODES: Mapping[str, str] = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""The `struct` type of each type of fixed width."""

Path = tuple[tuple[str, str | None], ...]
"""Field names from the outside in, each with the variable that holds an array's index or its element."""


@dataclass(slots=True)
class _Function:
    """One function under construction: its lines, and for each the field that it is about."""

    header: str
    lines: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)


@dataclass(slots=True)
class Source:
    """Functions under construction. `path` is the field that lines written now are about."""

    finished: list[_Function] = field(default_factory=list)
    open: list[_Function] = field(default_factory=list)
    structs: dict[str, struct.Struct] = field(default_factory=dict)
    path: Path = ()
    depth: int = 1
    _names: int = 0

    def line(self, text: str) -> None:
        """Add one line at the present indentation."""
        self.open[-1].lines.append(" " * self.depth + text)
        self.open[-1].paths.append(self.path)

    @contextmanager
    def indented(self, text: str = "") -> Iterator[None]:
        """Write `text`, then what follows inside of it."""
        if text:
            self.line(text)
        self.depth += 1
        yield
        self.depth -= 1

    @contextmanager
    def function(self, header: str) -> Iterator[None]:
        """Write a function of its own; its paths begin anew, they are joined with the caller's."""
        depth, path = self.depth, self.path
        self.depth, self.path = 1, ()
        self.open.append(_Function(header))
        yield
        self.finished.append(self.open.pop())
        self.depth, self.path = depth, path

    @contextmanager
    def about(self, name: str, index: str | None = None) -> Iterator[None]:
        """Take the lines that follow as lines about a field inside the present one."""
        outer = self.path
        self.path = (*outer, (name, index))
        yield
        self.path = outer

    @contextmanager
    def about_element(self, index: str) -> Iterator[None]:
        """Take the lines that follow as lines about one element of the present field."""
        outer = self.path
        self.path = (*outer[:-1], (outer[-1][0], index))
        yield
        self.path = outer

    def name(self, stem: str) -> str:
        """Return a name not used before."""
        self._names += 1
        return f"{stem}{self._names}"

    def struct_method(self, code: str, method: str) -> str:
        """Return the name that holds `method` of the big-endian struct `code`."""
        name = f"{method}_{code.replace('?', 'o')}"
        if name not in self.structs:
            self.structs[name] = struct.Struct(">" + code)
        return name

    def size(self, code: str) -> int:
        """Return how many bytes the struct `code` has."""
        return struct.calcsize(">" + code)

    def program(self, title: str, namespace: Mapping[str, Any]) -> "Program":
        """Compile the finished functions; the one called `run` is the program's."""
        lines: list[str] = []
        paths: list[Path] = []
        for function in self.finished:
            lines += function.header, *function.lines
            paths += (), *function.paths
        text = "\n".join(lines) + "\n"
        bound = dict(namespace)
        for name, packed in self.structs.items():
            bound[name] = getattr(packed, name.rpartition("_")[0])
        file_name = f"<tidegate.wire {title} {id(self):x}>"
        exec(compile(text, file_name, "exec"), bound)  # our own text, made from our own table
        run = bound["run"]
        return Program(
            title=title, generic=run, function=run, file_name=file_name, paths=tuple(paths), text=text
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled reader or writer.

    function: what to call; where a common shape is handled by hand it is that code, which hands on to `generic`.
    paths: the field that each line is about. text: the source, for who wants to read it.
    """

    title: str
    generic: Callable[..., Any]
    function: Callable[..., Any]
    file_name: str
    paths: tuple[Path, ...]
    text: str


def repeated_structs(fields: tuple[Field, ...]) -> set[str]:
    """Return the structures that occur more than once, by their `repr`: they become functions, which compile once."""
    seen: set[str] = set()
    repeated: set[str] = set()
    for inner in _structs(fields):
        key = repr(inner)
        (repeated if key in seen else seen).add(key)
    return repeated


def failed_at(program: Program, traceback: TracebackType | None) -> tuple[str, dict[str, Any]]:
    """Return (path of the field, variables) of the innermost line of `program` that raised."""
    parts: list[str] = []
    variables: dict[str, Any] = {}
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == program.file_name:
            variables = dict(traceback.tb_frame.f_locals)
            parts += [_step(*step, variables) for step in program.paths[traceback.tb_lineno - 1]]
        traceback = traceback.tb_next
    return ".".join(parts), variables


def _step(name: str, index: str | None, variables: dict[str, Any]) -> str:
    """Return one step of a path: `topics[2]`. A writer's index is told by the element it was at."""
    if index is None:
        return name
    items, _, item = index.partition("/")
    if not item:
        return f"{name}[{variables.get(items, '')}]"
    found = (place for place, value in enumerate(variables.get(items, ())) if value is variables.get(item))
    return f"{name}[{next(found, '')}]"


def _structs(fields: tuple[Field, ...]) -> Iterator[tuple[Field, ...]]:
    for inner in fields:
        if inner.type == "struct":
            yield inner.fields
            yield from _structs(inner.fields)
