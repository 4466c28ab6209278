"""A compiled reader or writer: its source text, and where in a message it failed when it did.

Compiled code is straight-line code without checks of its own for what Python checks anyway: reading past the end
raises `struct.error` or `IndexError`, a missing key `KeyError`. When that happens the line that failed gives the field,
and the variables of the function give the offset and the array indexes. Nothing is spent on it before: what the lines
are about is kept beside them.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

from tidegate.wire.definitions import Field

__all__ = ["Failure", "Member", "Path", "Program", "Source", "Spot", "failure", "repeated_structs"]

Path = tuple[tuple[str, str | None], ...]
"""Field names from the outside in, each with the variable that holds an array's index, or `items/element`."""


class Member(NamedTuple):
    """One of several values that a line reads or packs: its `struct` type, the text of its value, its field."""

    code: str
    value: str
    path: Path


class Spot(NamedTuple):
    """Message field that one source line is about, or several that it reads or packs together."""

    path: Path
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled reader or writer.

    function: the compiled function. spots: the field that each line is about. text: the source.
    """

    title: str
    function: Callable[..., Any]
    file_name: str
    spots: tuple[Spot, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Position at which a program failed: the field, the byte to be read, and the value that could not be written."""

    path: str
    at: int
    remaining: int
    value: Any = None


def failure(program: Program, traceback: TracebackType | None) -> Failure:
    """Return where the innermost line of `program` in a traceback failed."""
    parts: list[str] = []
    found = Failure(path="", at=0, remaining=0)
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename == program.file_name:
            spot, variables = program.spots[traceback.tb_lineno - 1], frame.f_locals
            path, found = _at_spot(spot, variables, frame.f_globals)
            parts += [_step(name, index, variables) for name, index in path]
        traceback = traceback.tb_next
    return Failure(path=".".join(parts), at=found.at, remaining=found.remaining, value=found.value)


def _at_spot(spot: Spot, variables: Mapping[str, Any], bound: dict[str, Any]) -> tuple[Path, Failure]:
    """Return the field that failed among those of one line, and what is known of it."""
    # Only readers have `buf`.
    if "buf" in variables:
        return _unread(spot, variables.get("at", 0), len(variables["buf"]))
    # Each value is packed again by itself: the first that fails is the field in question.
    for member in spot.members:
        value = None
        try:
            value = eval(member.value, bound, variables)  # our own text, made from our own table
            struct.pack(">" + member.code, value)
        except Exception:
            return member.path, Failure(path="", at=0, remaining=0, value=value)
    return spot.path, Failure(path="", at=0, remaining=0)


def _unread(spot: Spot, at: int, end: int) -> tuple[Path, Failure]:
    """Return the first field of a line for which too few bytes remain."""
    path = spot.path
    for member in spot.members:
        path, size = member.path, struct.calcsize(">" + member.code)
        if at + size > end:
            break
        at += size
    return path, Failure(path="", at=at, remaining=max(end - at, 0))


def _step(name: str, index: str | None, variables: Mapping[str, Any]) -> str:
    """Return one step of a path: `topics[2]`. A writer's index is found by the element that it was at."""
    if index is None:
        return name
    items, _, element = index.partition("/")
    if not element:
        return f"{name}[{variables.get(items, '')}]"
    found = (place for place, value in enumerate(variables.get(items, ())) if value is variables.get(element))
    return f"{name}[{next(found, '')}]"


# --- source text -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Function:
    """One function under construction: its lines, and for each what it is about."""

    header: str
    lines: list[str] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)


@dataclass(slots=True)
class Source:
    """Functions under construction, in slices generators. `path` is the field that lines written now are about."""

    in_slices: bool = False
    finished: list[_Function] = field(default_factory=list)
    open: list[_Function] = field(default_factory=list)
    structs: dict[str, struct.Struct] = field(default_factory=dict)
    path: Path = ()
    depth: int = 1
    _names: int = 0

    def line(self, text: str, *members: Member) -> None:
        """Add one line at the present indentation; `members` are the fields that it reads or packs together."""
        self.open[-1].lines.append(" " * self.depth + text)
        self.open[-1].spots.append(Spot(self.path, members))

    def slice_ends(self) -> None:
        """Add a `yield` here, in slices, so that other work can run."""
        if self.in_slices:
            self.line("yield")

    @contextmanager
    def indented(self, text: str = "") -> Iterator[None]:
        """Write `text`, then what follows inside of it."""
        if text:
            self.line(text)
        self.depth += 1
        yield
        self.depth -= 1

    @contextmanager
    def function(self, name: str, parameters: str) -> Iterator[None]:
        """Write a function of its own; its paths begin anew, they are joined with the caller's.

        In slices it is a generator, whether anything in it yields or not.
        """
        depth, path = self.depth, self.path
        self.depth, self.path = 1, ()
        self.open.append(_Function(f"def {name}({parameters}):"))
        self.slice_ends()
        yield
        self.finished.append(self.open.pop())
        self.depth, self.path = depth, path

    @contextmanager
    def about(self, name: str, index: str | None = None) -> Iterator[None]:
        """Mark the lines that follow as lines about a field inside the present field."""
        outer = self.path
        self.path = (*outer, (name, index))
        yield
        self.path = outer

    @contextmanager
    def about_element(self, index: str) -> Iterator[None]:
        """Mark the lines that follow as lines about an element of the present field."""
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
        spots: list[Spot] = []
        for function in self.finished:
            lines += function.header, *function.lines
            spots += Spot((), ()), *function.spots
        text = "\n".join(lines) + "\n"
        bound = dict(namespace)
        for name, packed in self.structs.items():
            bound[name] = getattr(packed, name.rpartition("_")[0])
        file_name = f"<tidegate.wire {title} {id(self):x}>"
        exec(compile(text, file_name, "exec"), bound)  # our own text, made from our own table
        return Program(title=title, function=bound["run"], file_name=file_name, spots=tuple(spots), text=text)


def repeated_structs(fields: tuple[Field, ...]) -> set[str]:
    """Return the structures that occur more than once, by their `repr`: they become functions, which compile once."""
    seen: set[str] = set()
    repeated: set[str] = set()
    for inner in _structs(fields):
        key = repr(inner)
        (repeated if key in seen else seen).add(key)
    return repeated


def _structs(fields: tuple[Field, ...]) -> Iterator[tuple[Field, ...]]:
    for inner in fields:
        if inner.type == "struct":
            yield inner.fields
            yield from _structs(inner.fields)
